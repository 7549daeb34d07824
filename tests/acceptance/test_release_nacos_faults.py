"""Releases on a real Nacos that stops, hangs, restarts, refuses or is slow: the right error, in time, and none is lost.

"None is lost" means: readers see the old release or the new one, whole, with its history; and the same command, run
again once the server is well, ends at exactly one generation more.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.test_release_nacos import _generation, _release
from tests.support.nacos_server import password_of
from tests.support.releases import CHANNEL, NOW, bundle, has_all
from tests.support.tcp_proxy import Proxy
from trtops.errors import Conflict, Revoked, StorageError, TrtopsError, Unavailable
from trtops.registry.nacos.http import Credentials
from trtops.registry.nacos.place import Place
from trtops.registry.nacos.registry import NacosRegistry
from trtops.release import layout
from trtops.release.envelope import sign
from trtops.release.fetch import fetch, history
from trtops.release.keys import KeyRing, KeyStore, Signer
from trtops.release.lineage import without_key
from trtops.release.publish import publish
from trtops.release.refresh import refresh_snapshot
from trtops.release.rollback import rollback
from trtops.release.root import ALL_ROLES, Role, root_of
from trtops.release.trust import TrustedChannel
from trtops.serve.snapshot import Snapshots
from trtops.serve.trusting import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.nacos_server import NacosServer
    from trtops.registry.port import Registry

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

WAIT = 90.0
TIMEOUT = 2.0
DEADLINE = 3 * TIMEOUT + 2.0 + 8.0
"""Of a publication that meets a fault: one call's three requests and its spare, and some for a machine that is busy."""


@pytest.fixture
def environment(nacos: NacosServer) -> str:
    return nacos.emptied(CHANNEL.environment)


@pytest.fixture
def registry(nacos: NacosServer, environment: str) -> Iterator[NacosRegistry]:
    with closing(nacos.registry(environment, timeout=TIMEOUT)) as made:
        yield made


@contextmanager
def _through(nacos: NacosServer, reached: Callable[[int, str], bool] = lambda _n, _m: False) -> Iterator[Proxy]:
    proxy = Proxy(nacos.port, reached=reached)
    try:
        yield proxy
    finally:
        proxy.close()


def _behind(nacos: NacosServer, proxy: Proxy, who: Credentials | None = None, **options: Any) -> NacosRegistry:
    user = who or nacos.credentials(CHANNEL.environment)
    return NacosRegistry(
        Place((f"127.0.0.1:{proxy.port}",)), CHANNEL.environment, user, **{"timeout": TIMEOUT, **options}
    )


def _fails(act: Callable[[], object], *kinds: type[TrtopsError]) -> TrtopsError:
    """What an act raises, of the right kind and in bounded time."""
    start = time.monotonic()
    with pytest.raises(kinds) as caught:
        act()
    assert time.monotonic() - start < DEADLINE
    return caught.value


def test_stopped_and_restarted(nacos: NacosServer, registry: NacosRegistry, tmp_path: Path) -> None:
    """The same clients go on after the restart; what was published before is there."""
    assert _release(registry, tmp_path, "engine 1") == 1
    nacos.stop()
    try:
        error = _fails(lambda: _release(registry, tmp_path, "engine 2", now=NOW + 1), Unavailable)
        assert "cannot be reached" in str(error)
        assert error.fix
        _fails(lambda: rollback(registry, KeyStore(tmp_path), CHANNEL, to=1, now=NOW), Unavailable)
    finally:
        nacos.start()
    assert _generation(registry, tmp_path) == 1
    assert _release(registry, tmp_path, "engine 2", now=NOW + 1) == 2
    assert _generation(registry, tmp_path) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [1, 4, "pointer"])
def test_frozen_in_the_middle_of_a_release(
    nacos: NacosServer, registry: NacosRegistry, tmp_path: Path, write: int | str, moment: str
) -> None:
    """The server hangs as a write arrives, or right after it was carried out and before its answer is known."""
    assert _release(registry, tmp_path, "engine 1") == 1
    writes: list[int] = []

    def count(number: int, _moment: str) -> bool:
        writes.append(number)
        return False

    with _through(nacos, count) as counting, closing(_behind(nacos, counting)) as counted:
        assert _release(counted, tmp_path, "engine 2", now=NOW + 1) == 2
    last = max(writes)
    assert last >= 6
    wanted = last if write == "pointer" else int(write)

    def reached(number: int, when: str) -> bool:
        if (number, when) != (wanted, moment):
            return False
        nacos.freeze()
        return moment == "after"

    try:
        with _through(nacos, reached) as proxy, closing(_behind(nacos, proxy)) as hanging:
            error = _fails(lambda: _release(hanging, tmp_path, "engine 3", now=NOW + 2), Unavailable)
            assert error.fix
    finally:
        nacos.resume()
    assert _generation(registry, tmp_path) in {2, 3}
    assert _release(registry, tmp_path, "engine 3", now=NOW + 2) == 3
    assert _generation(registry, tmp_path) == 3


def test_a_wrong_password(nacos: NacosServer, registry: NacosRegistry, tmp_path: Path) -> None:
    assert _release(registry, tmp_path, "engine 1") == 1
    who = Credentials(nacos.credentials(CHANNEL.environment).user, "a-wrong-password")
    with closing(NacosRegistry(nacos.place, CHANNEL.environment, who, timeout=TIMEOUT)) as wrong:
        error = _fails(lambda: _release(wrong, tmp_path, "engine 2", now=NOW + 1), Unavailable)
    assert "refused the login of the user" in str(error)
    assert "a-wrong-password" not in str(error)
    assert _generation(registry, tmp_path) == 1


def test_a_user_that_may_not_write(nacos: NacosServer, registry: NacosRegistry, tmp_path: Path) -> None:
    """The user of services: refused at the first write, and nothing is left behind."""
    assert _release(registry, tmp_path, "engine 1") == 1
    before = registry.names()
    with closing(nacos.registry(CHANNEL.environment, "service", timeout=TIMEOUT)) as service:
        error = _fails(lambda: _release(service, tmp_path, "engine 2", now=NOW + 1), StorageError)
        assert "does not let the user" in str(error)
        assert _generation(service, tmp_path) == 1
    assert registry.names() == before


def test_a_service_that_may_not_listen_gets_releases_all_the_same(
    nacos: NacosServer, registry: NacosRegistry, tmp_path: Path
) -> None:
    who = Credentials("deaf-service", password_of("deaf-service"))
    nacos.ask("POST", "/v3/auth/user", {"username": who.user, "password": who.password})
    nacos.ask("POST", "/v3/auth/role", {"username": who.user, "role": "deaf-service"})
    resource = f"{CHANNEL.environment}:TRTOPS:config/*"
    nacos.ask("POST", "/v3/auth/permission", {"role": "deaf-service", "resource": resource, "action": "r"})
    assert _release(registry, tmp_path, "engine 1") == 1
    heard: list[bytes | None] = []
    came = threading.Event()

    def told(body: bytes | None) -> None:
        heard.append(body)
        if len(heard) > 1:
            came.set()

    with closing(NacosRegistry(nacos.place, CHANNEL.environment, who, interval=0.5)) as deaf:
        watch = deaf.watch("channels/cls/stable", told)
        assert not deaf.may_listen()
        assert _release(registry, tmp_path, "engine 2", now=NOW + 1) == 2
        assert came.wait(WAIT)
        watch.close()
        assert _generation(deaf, tmp_path) == 2


def test_a_network_that_takes_a_second_each_way(nacos: NacosServer, registry: NacosRegistry, tmp_path: Path) -> None:
    """Slow is not broken: with the timeout of every day a release gets through, once."""
    assert _release(registry, tmp_path, "engine 1") == 1
    with _through(nacos) as proxy, closing(_behind(nacos, proxy, timeout=10.0)) as slow:
        proxy.delay = 1.0
        start = time.monotonic()
        assert _release(slow, tmp_path, "engine 2", now=NOW + 1) == 2
        assert time.monotonic() - start < WAIT
        with pytest.raises(Conflict):
            slow.swap("channels/cls/stable", b"{}", b"something else")
    assert _generation(registry, tmp_path) == 2


def test_a_network_slower_than_the_timeout_is_told(nacos: NacosServer, registry: NacosRegistry, tmp_path: Path) -> None:
    assert _release(registry, tmp_path, "engine 1") == 1
    with _through(nacos) as proxy, closing(_behind(nacos, proxy, timeout=0.5)) as slow:
        proxy.delay = 1.0
        error = _fails(lambda: _release(slow, tmp_path, "engine 2", now=NOW + 1), Unavailable)
    assert "did not answer within 0.5 s" in str(error)
    assert _generation(registry, tmp_path) == 1


def test_root_and_snapshot_are_followed_with_the_rights_of_a_service(
    nacos: NacosServer, registry: NacosRegistry, tmp_path: Path
) -> None:
    """A key is revoked on the publisher's side; a service follows over Nacos, and keeps it with the server away."""
    signers: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
    given = root_of({role: one.public for role, one in signers.items()})
    parts = bundle(KeyRing(signers, given), artifact="engine 1", created=NOW)
    publish(registry, KeyRing(signers, given), CHANNEL, parts, now=NOW, lifetime=60, has_artifact=has_all)
    refresh_snapshot(registry, KeyRing(signers, given), CHANNEL.environment, now=NOW, lifetime=3600)
    stolen, signers["channel"] = signers["channel"], Signer.generate()
    root = without_key(given, stolen.key_id, instead={"channel": signers["channel"].public})
    with closing(nacos.registry(CHANNEL.environment, "service", timeout=TIMEOUT)) as service:
        trust = Trust(given, CHANNEL.environment, Snapshots(tmp_path))
        trust.follow(service, NOW + 61)
        assert trust.snapshot is not None
        assert TrustedChannel(trust.root, CHANNEL, snapshot=trust.snapshot).update_pointer(
            service.read(layout.pointer(CHANNEL)), NOW + 61
        )  # the pointer alone would have expired
        registry.create(layout.root(2), sign(root, [signers["root"]]))
        trust.follow(service, NOW + 62)
        with pytest.raises(Revoked):
            TrustedChannel(trust.root, CHANNEL, snapshot=trust.snapshot).update_pointer(
                service.read(layout.pointer(CHANNEL)), NOW + 62
            )
        keys = KeyRing(signers, root)
        publish(registry, keys, CHANNEL, parts, now=NOW + 63, lifetime=60, has_artifact=has_all)
        refresh_snapshot(registry, keys, CHANNEL.environment, now=NOW + 64, lifetime=3600)
        trust.follow(service, NOW + 65)
        fetch(TrustedChannel(trust.root, CHANNEL, snapshot=trust.snapshot), service, NOW + 65)
    nacos.freeze()
    try:
        with closing(nacos.registry(CHANNEL.environment, "service", timeout=TIMEOUT)) as service:
            again = Trust(given, CHANNEL.environment, Snapshots(tmp_path))
            _fails(lambda: again.follow(service, NOW + 66), Unavailable)
            assert again.root == root
    finally:
        nacos.resume()


@pytest.mark.parametrize("delay", [0.0, 0.3])
@pytest.mark.parametrize("publishers", [2, 10])
def test_publishers_at_once_have_one_winner_a_generation(
    nacos: NacosServer, environment: str, tmp_path: Path, publishers: int, delay: float
) -> None:
    """Each on a connection of its own, three times over; every loser is told who won, and nothing is lost."""
    with _through(nacos) as proxy:
        registries: list[Registry] = [_behind(nacos, proxy, timeout=10.0) for _ in range(publishers)]
        _release(registries[0], tmp_path, "engine 0", now=NOW - 1)
        proxy.delay = delay
        generation = 1
        for turn in range(3):
            won, lost = _race(registries, tmp_path, turn)
            assert len(won) + len(lost) == publishers
            assert sorted(won) == list(range(generation + 1, generation + 1 + len(won)))
            assert won
            assert all("was moved to generation" in message for message in lost)
            generation += len(won)
        proxy.delay = 0.0
        moves = history(registries[0], KeyStore(tmp_path).root(), CHANNEL)
        assert [move.generation for move in moves] == list(range(generation, 0, -1))
        assert environment == moves[0].environment
        for one in registries:
            one.close()  # type: ignore[attr-defined]


def _race(registries: list[Registry], home: Path, turn: int) -> tuple[list[int], list[str]]:
    won: list[int] = []
    lost: list[str] = []
    barrier = threading.Barrier(len(registries))

    def go(number: int) -> None:
        barrier.wait(WAIT)
        try:
            won.append(_release(registries[number], home, f"engine {turn} {number}", now=NOW + turn * 100 + number))
        except Conflict as error:
            lost.append(str(error))

    threads = [threading.Thread(target=go, args=(number,)) for number in range(len(registries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    return won, lost
