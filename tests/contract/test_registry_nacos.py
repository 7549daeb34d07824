"""A real Nacos that is stopped, frozen, restarted, locked, copied or written to by others: the right error, in time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.nacos_server import ADMINISTRATOR, password_of
from tests.support.tcp_proxy import Proxy
from trtops.errors import Conflict, StorageError, TrtopsError, Unavailable
from trtops.registry.nacos.http import Credentials, NacosHttp
from trtops.registry.nacos.place import SENTINEL, Place
from trtops.registry.nacos.registry import NacosRegistry, sentinel
from trtops.registry.nacos.setup import Setup, user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.nacos_server import NacosServer

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

WAIT = 60.0
DEADLINE = 17.0 + 5.0  # what a call may take at most, and some for a machine that is busy


@pytest.fixture
def environment(nacos: NacosServer) -> str:
    return nacos.emptied()


@pytest.fixture
def registry(nacos: NacosServer, environment: str) -> Iterator[NacosRegistry]:
    with closing(nacos.registry(environment)) as made:
        yield made


def _calls(registry: NacosRegistry) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: registry.read("a"),
        "create": lambda: registry.create("new", b"x"),
        "swap": lambda: registry.swap("a", b"x", b"one"),
        "names": registry.names,
    }


def _failures(registry: NacosRegistry) -> dict[str, TrtopsError]:
    """What each call raises, each within its deadline, whatever the server does."""
    failures = {}
    for name, call in _calls(registry).items():
        start = time.monotonic()
        with pytest.raises(TrtopsError) as caught:
            call()
        assert time.monotonic() - start < DEADLINE, name
        failures[name] = caught.value
    return failures


@contextmanager
def _frozen(nacos: NacosServer) -> Iterator[None]:
    nacos.freeze()
    try:
        yield
    finally:
        nacos.resume()


class Newest:
    """What a watch delivered last, for tests to wait on."""

    def __init__(self) -> None:
        self.all: list[bytes | None] = []
        self._changed = threading.Condition()

    def __call__(self, body: bytes | None) -> None:
        with self._changed:
            self.all.append(body)
            self._changed.notify_all()

    def wait_for(self, wanted: bytes | None) -> None:
        with self._changed:
            heard = self._changed.wait_for(lambda: bool(self.all) and self.all[-1] == wanted, WAIT)
        assert heard, self.all


def test_frozen(nacos: NacosServer, environment: str, registry: NacosRegistry) -> None:
    registry.create("a", b"one")
    with _frozen(nacos), closing(nacos.registry(environment, timeout=1.0)) as fresh:
        for one in (registry, fresh):  # with connections that are open, and with none
            failures = _failures(one)
            assert {type(error) for error in failures.values()} <= {Unavailable, *Unavailable.__subclasses__()}
            assert "did not answer within" in str(failures["read"])
            assert "it may hang" in str(failures["read"])
    assert registry.read("a") == b"one"
    registry.swap("a", b"two", b"one")


def test_stopped_and_restarted(nacos: NacosServer, registry: NacosRegistry) -> None:
    registry.create("a", b"one")
    heard = Newest()
    watch = registry.watch("a", heard)
    heard.wait_for(b"one")
    nacos.stop()
    try:
        failures = _failures(registry)
        assert all(isinstance(error, Unavailable) for error in failures.values())
        assert "cannot be reached" in str(failures["read"])
        assert heard.all == [b"one"]  # away is not gone
    finally:
        nacos.start()
    assert registry.read("a") == b"one"
    registry.swap("a", b"two", b"one")
    heard.wait_for(b"two")
    watch.close()
    assert heard.all == [b"one", b"two"]


def test_a_watch_that_starts_with_the_server_frozen(nacos: NacosServer, registry: NacosRegistry) -> None:
    registry.create("a", b"one")
    heard = Newest()
    with _frozen(nacos):
        start = time.monotonic()
        watch = registry.watch("a", heard)
        assert time.monotonic() - start < DEADLINE
        time.sleep(2)
        assert heard.all == []
    heard.wait_for(b"one")
    watch.close()


@pytest.mark.parametrize("credentials", [None, Credentials("nobody-of-this-name", "x"), "wrong password"])
def test_without_a_login(nacos: NacosServer, environment: str, credentials: Credentials | str | None) -> None:
    user = user_name(environment, "publisher")
    secret = "a-wrong-password"
    who = Credentials(user, secret) if isinstance(credentials, str) else credentials
    with closing(NacosRegistry(nacos.place, environment, who)) as registry:
        failures = _failures(registry)
        assert all(isinstance(error, Unavailable) for error in failures.values())
        expected = f"refused the login of the user {who.user}" if who else "does not let somebody without a login"
        assert expected in str(failures["read"])
        assert "nacos_user" in str(failures["read"].fix)
        assert secret not in f"{failures} {registry!r} {who!r}"


def test_a_service_reads_and_cannot_write(nacos: NacosServer, environment: str, registry: NacosRegistry) -> None:
    registry.create("a", b"one")
    with closing(nacos.registry(environment, "service")) as service:
        assert service.read("a") == b"one"
        assert service.names() == ("a",)
        assert service.may_listen()
        assert registry.may_write()
        assert not service.may_write()
        for write in (lambda: service.create("b", b"x"), lambda: service.swap("a", b"x", b"one")):
            with pytest.raises(StorageError, match=r"does not let the user \S+-service write"):
                write()
        assert service.read("a") == b"one"
        with pytest.raises(StorageError):
            service.create("a", b"two")


def test_users_of_one_environment_see_no_other(nacos: NacosServer, environment: str) -> None:
    other = nacos.environment()
    with closing(NacosRegistry(nacos.place, other, nacos.credentials(environment))) as registry:
        failures = _failures(registry)
        assert all(f"does not let the user {user_name(environment, 'publisher')}" in str(e) for e in failures.values())
        assert not registry.may_listen()


def test_without_the_permission_to_listen(
    nacos: NacosServer, environment: str, registry: NacosRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK only logs it. Here it is told, and changes arrive all the same."""
    who = Credentials("deaf", password_of("deaf"))
    nacos.ask("POST", "/v3/auth/user", {"username": who.user, "password": who.password})
    nacos.ask("POST", "/v3/auth/role", {"username": who.user, "role": "deaf"})
    resource = {"role": "deaf", "resource": f"{environment}:TRTOPS:config/*", "action": "r"}
    nacos.ask("POST", "/v3/auth/permission", resource)
    registry.create("a", b"one")
    heard = Newest()
    with (
        caplog.at_level(logging.WARNING, "trtops.registry"),
        closing(NacosRegistry(nacos.place, environment, who, interval=0.5)) as deaf,
    ):
        assert not deaf.may_listen()
        watch = deaf.watch("a", heard)
        heard.wait_for(b"one")
        registry.swap("a", b"two", b"one")
        heard.wait_for(b"two")
        watch.close()
    assert caplog.text.count("the user deaf may not listen") == 1


def test_a_push_wakes_a_watch_that_does_not_look_by_itself(nacos: NacosServer, registry: NacosRegistry) -> None:
    """With an interval of an hour, what arrives was pushed."""
    name = registry.environment
    with closing(nacos.registry(name, "service", interval=3600.0)) as service:
        heard = Newest()
        watch = service.watch("a", heard)
        heard.wait_for(None)
        assert service.may_listen()
        before: bytes | None = None
        for body in (b"1", b"2", b"3"):
            _settled(service)
            registry.swap("a", body, before)
            before = body
            heard.wait_for(body)
        watch.close()


def _settled(service: NacosRegistry) -> None:
    """Wait until the SDK listens: what changes before is met by the first look of a watch."""
    assert service._client is not None
    end = time.monotonic() + WAIT
    while not service._client.push.listening and time.monotonic() < end:
        time.sleep(0.05)
    assert service._client.push.listening


def test_a_handler_that_raises_does_not_deafen_the_sdk(nacos: NacosServer, registry: NacosRegistry) -> None:
    with closing(nacos.registry(registry.environment, "service", interval=3600.0)) as service:
        heard = Newest()

        def handler(body: bytes | None) -> None:
            heard(body)
            raise RuntimeError("the handler's own mistake")

        watch = service.watch("a", handler)
        heard.wait_for(None)
        _settled(service)
        before: bytes | None = None
        for body in (b"1", b"2", b"3", b"4"):
            registry.swap("a", body, before)
            before = body
            heard.wait_for(body)
        watch.close()


def test_listening_that_ended_is_taken_up_again(nacos: NacosServer, registry: NacosRegistry) -> None:
    with closing(nacos.registry(registry.environment, "service", interval=3600.0)) as service:
        heard = Newest()
        watch = service.watch("a", heard)
        heard.wait_for(None)
        _settled(service)
        assert service._client is not None
        client = service._client
        client.loop.start(client.push._service.grpc_client_proxy.listen_task.cancel)
        registry.create("a", b"1")
        heard.wait_for(b"1")
        watch.close()


def test_a_token_that_the_server_forgot_is_renewed(registry: NacosRegistry) -> None:
    registry.create("a", b"one")
    assert registry._client is not None
    registry._client.http._token = ("no token of this server", time.monotonic() - 2.0, 18_000.0)
    assert registry.read("a") == b"one"
    registry._client.http._token = ("no token of this server", time.monotonic() - 2.0, 18_000.0)
    registry.swap("a", b"two", b"one")


def test_a_token_is_renewed_before_it_ends(nacos: NacosServer, environment: str) -> None:
    now = [0.0]
    from trtops.registry.nacos.loop import LoopThread

    loop = LoopThread("tokens")
    http = NacosHttp(nacos.place, nacos.credentials(environment), clock=lambda: now[0])
    try:
        first = loop.call(http.token(), WAIT)
        now[0] = 18_000 * 0.7
        assert loop.call(http.token(), WAIT) == first
        time.sleep(1.1)  # tokens of one second are equal
        now[0] = 18_000 * 0.9
        assert loop.call(http.token(), WAIT) != first
    finally:
        loop.stop(http.close)


def test_a_namespace_that_nobody_set_up_is_refused(nacos: NacosServer) -> None:
    """Nacos takes writes to a namespace that does not exist; they would be lost to every other reader."""
    with closing(NacosRegistry(nacos.place, "never-made", ADMINISTRATOR)) as registry:
        for error in _failures(registry).values():
            assert "the namespace never-made was not set up" in str(error)
            assert "registry init nacos --env never-made" in str(error.fix)


def test_a_namespace_of_another_environment_is_refused(nacos: NacosServer, environment: str) -> None:
    nacos.put("copied", SENTINEL, sentinel(environment))
    with (
        closing(NacosRegistry(nacos.place, "copied", ADMINISTRATOR)) as registry,
        pytest.raises(StorageError, match="is not of the environment copied"),
    ):
        registry.read("a")


def test_what_others_wrote_is_no_document(nacos: NacosServer, environment: str, registry: NacosRegistry) -> None:
    registry.create("a/b", b"mine")
    for foreign in ("application.yaml", "a::b", ":a", "a:..", "x"):
        nacos.put(environment, foreign, "base64:&" if foreign == "x" else "text")
    assert registry.names() == ("a/b", "application.yaml", "x")
    with pytest.raises(StorageError, match="not written by trtops"):
        registry.read("x")
    with pytest.raises(StorageError, match="not written by trtops"):
        registry.swap("x", b"new", b"old")


def test_underscores_in_a_prefix_are_not_wildcards(registry: NacosRegistry) -> None:
    registry.create("a_b/c", b"x")
    registry.create("axb/c", b"x")
    assert registry.names("a_b/") == ("a_b/c",)


def test_more_names_than_a_page(registry: NacosRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.registry.nacos.registry._PAGE", 3)
    for number in range(8):
        registry.create(f"many/{number}", b"x")
    assert registry.names("many/") == tuple(f"many/{number}" for number in range(8))
    assert registry.names("none/") == ()


def test_a_document_that_is_deleted_reads_as_none(
    nacos: NacosServer, environment: str, registry: NacosRegistry
) -> None:
    registry.create("a", b"one")
    heard = Newest()
    watch = registry.watch("a", heard)
    heard.wait_for(b"one")
    nacos.remove(environment, "a")
    heard.wait_for(None)
    assert registry.read("a") is None
    with pytest.raises(Conflict):
        registry.swap("a", b"two", b"one")
    watch.close()


def test_ten_publishers_with_clients_of_their_own(nacos: NacosServer, environment: str) -> None:
    """One winner a generation, over three of them."""
    clients = [nacos.registry(environment) for _ in range(10)]
    before: bytes | None = None
    for generation in range(3):
        outcomes: list[tuple[bytes, bool]] = []
        barrier = threading.Barrier(len(clients))

        def run(number: int, expected: bytes | None = before, generation: int = generation) -> None:
            body = f"{generation} by {number}".encode()
            barrier.wait(WAIT)  # noqa: B023 - of this turn
            try:
                clients[number].swap("pointer", body, expected)
            except Conflict:
                outcomes.append((body, False))  # noqa: B023 - of this turn
            else:
                outcomes.append((body, True))  # noqa: B023 - of this turn

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(clients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert len(outcomes) == len(clients)
        won = [body for body, done in outcomes if done]
        assert len(won) == 1
        before = clients[0].read("pointer")
        assert before == won[0]
    for client in clients:
        client.close()


def test_reads_at_the_same_time_are_one(registry: NacosRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push wakes many watches at once: two hundred of them are no two hundred requests."""
    registry.create("a", b"one")
    assert registry._client is not None
    client, asked = registry._client, []
    look = client._text

    async def counted(identifier: str) -> str | None:
        asked.append(identifier)
        await asyncio.sleep(0.2)
        return await look(identifier)

    monkeypatch.setattr(client, "_text", counted)
    barrier = threading.Barrier(50)
    with ThreadPoolExecutor(50) as pool:
        read = list(pool.map(lambda _: (barrier.wait(WAIT), registry.read("a"))[1], range(50)))
    assert read == [b"one"] * 50
    assert len(asked) < 10
    assert client._coming == client._turns == {}


def test_a_second_set_up_finds_nothing_to_do(nacos: NacosServer, environment: str) -> None:
    setup = Setup(nacos.place, environment, ADMINISTRATOR)
    assert setup.missing() == ()
    done: list[object] = []
    setup.apply(password_of, done.append)
    assert done == []


def test_only_an_administrator_sets_up(nacos: NacosServer, environment: str) -> None:
    with pytest.raises(Unavailable, match=r"does not let the user \S+-publisher see namespaces"):
        Setup(nacos.place, environment, nacos.credentials(environment)).missing()


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1, 0.3])
def test_it_ends_at_any_moment_of_the_sdk(nacos: NacosServer, environment: str, pause: float) -> None:
    """Cancelled in the middle of a request the SDK hands that on; the thread ends all the same, and at once."""
    registry = nacos.registry(environment)
    watch = registry.watch("a", lambda _: None)
    assert registry.may_listen()
    assert registry._client is not None
    folder = registry._client.push._folder
    time.sleep(pause)
    watch.close()
    registry.close()
    assert folder is not None
    assert not folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(f"trtops-nacos-{environment}")]


def test_nothing_is_left_when_it_is_closed(nacos: NacosServer, environment: str) -> None:
    registry = nacos.registry(environment)
    watch = registry.watch("a", lambda _: None)
    assert registry.may_listen()
    assert registry._client is not None
    folder = registry._client.push._folder
    assert folder is not None
    assert folder.is_dir()
    watch.close()
    registry.close()
    registry.close()
    assert not folder.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(f"trtops-nacos-{environment}")]
    assert registry.read("a") is None  # and connects anew
    registry.close()


@pytest.fixture
def proxy(nacos: NacosServer) -> Iterator[Proxy]:
    made = Proxy(nacos.port)
    yield made
    made.close()


@pytest.fixture
def through(nacos: NacosServer, environment: str, proxy: Proxy) -> Iterator[NacosRegistry]:
    """A registry whose answers pass a proxy."""
    place = Place((f"127.0.0.1:{proxy.port}",))
    with closing(NacosRegistry(place, environment, nacos.credentials(environment))) as made:
        yield made


def test_an_answer_that_is_lost_after_the_write(through: NacosRegistry, proxy: Proxy) -> None:
    """The write was carried out: it counts as this caller's, once."""
    assert through.read("a") is None
    proxy.lose = 1
    assert through.create("a", b"one") is True
    proxy.lose = 1
    through.swap("a", b"two", b"one")
    assert proxy.lost == 2
    assert through.read("a") == b"two"
    with pytest.raises(Conflict):
        through.swap("a", b"three", b"one")


def test_somebody_elses_write_is_not_taken_for_the_own(
    nacos: NacosServer, environment: str, through: NacosRegistry, proxy: Proxy
) -> None:
    through.create("a", b"one")
    with closing(nacos.registry(environment)) as other:
        other.swap("a", b"two", b"one")
    proxy.lose = 1
    with pytest.raises(Conflict):
        through.create("a", b"other")
    assert proxy.lost == 1


def test_every_answer_is_lost(through: NacosRegistry, proxy: Proxy) -> None:
    through.create("a", b"one")
    proxy.lose = 100
    with pytest.raises(Conflict, match="another document"):
        through.create("a", b"two")  # tried again, and each time the same is there
    assert through.read("a") == b"one"


def test_a_second_of_delay_each_way(through: NacosRegistry, proxy: Proxy) -> None:
    through.create("a", b"one")
    proxy.delay = 1.0
    assert through.read("a") == b"one"
    through.swap("a", b"two", b"one")
    with pytest.raises(Conflict):
        through.swap("a", b"three", b"one")
    proxy.delay = 0.0
    assert through.read("a") == b"two"
