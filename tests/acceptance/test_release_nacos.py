"""Publishers on a real Nacos: killed at each write, and ten at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, has_all, runtime
from tests.support.tcp_proxy import Proxy
from trtops.errors import Conflict
from trtops.registry.nacos.place import Place
from trtops.registry.nacos.registry import NacosRegistry
from trtops.release.fetch import fetch, fetch_proofs, history, status
from trtops.release.keys import KeyStore
from trtops.release.publish import move, publish
from trtops.release.rollback import rollback
from trtops.release.rollout import abort, advance
from trtops.release.trust import TrustedChannel
from trtops.spec.engine import RolloutPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from tests.support.nacos_server import NacosServer
    from trtops.registry.nacos.http import Credentials
    from trtops.registry.port import Registry

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

WAIT = 90.0


def _release(registry: Registry, home: Path, artifact: str, *, now: int = NOW) -> int:
    keys = KeyStore(home)
    parts = bundle(keys, artifact=artifact, created=now, config=runtime(engine=artifact))
    return publish(registry, keys, CHANNEL, parts, now=now, has_artifact=has_all).generation


def _next(registry: Registry, home: Path) -> None:
    _release(registry, home, "engine 3")


def _back(registry: Registry, home: Path) -> None:
    rollback(registry, KeyStore(home), CHANNEL, to=1, now=NOW)


PLAN = RolloutPlan.model_validate({"steps": [{"weight": 5}, {"pause": "manual"}]})


def _begin(registry: Registry, home: Path) -> None:
    keys = KeyStore(home)
    parts = replace(bundle(keys, artifact="engine 3", created=NOW, config=runtime(engine="engine 3")), rollout=PLAN)
    publish(registry, keys, CHANNEL, parts, now=NOW, has_artifact=has_all)


def _advance(registry: Registry, home: Path) -> None:
    move(registry, KeyStore(home), CHANNEL, lambda present: advance(present, None, NOW), now=NOW)


def _abort(registry: Registry, home: Path) -> None:
    move(registry, KeyStore(home), CHANNEL, abort, now=NOW)


ACTS = {"next": _next, "rollback": _back, "begin": _begin, "advance": _advance, "abort": _abort}
BEGUN = {"advance", "abort"}
"""What is done to a rollout that is open: generation 3."""


def _act(port: int, who: Credentials, home: Path, name: str) -> None:
    """In a process of its own, through the proxy that kills it."""
    ACTS[name](NacosRegistry(Place((f"127.0.0.1:{port}",)), CHANNEL.environment, who), home)


def _generation(registry: Registry, home: Path) -> int:
    """What a reader with the right keys sees: a whole release, and the whole history of it."""
    root = KeyStore(home).root()
    assert status(registry, root, CHANNEL, NOW).state == "released"
    service = fetch(TrustedChannel(root, CHANNEL), registry, NOW)
    fetch_proofs(service, registry, "onnxruntime")
    assert len(history(registry, root, CHANNEL)) == service.binding.generation
    return service.binding.generation


def _killed(nacos: NacosServer, home: Path, name: str, point: int, when: str) -> bool:
    """Run an act in a process that is killed at a write, before or after Nacos has it. False: it had no such write."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.acceptance.test_release_nacos"])
    child: list[BaseProcess] = []

    def reached(number: int, moment: str) -> bool:
        if (number, moment) != (point, when):
            return False
        assert child[0].pid is not None
        os.kill(child[0].pid, signal.SIGKILL)
        child[0].join(WAIT)
        return True

    proxy = Proxy(nacos.port, reached=reached)
    try:
        who = nacos.credentials(CHANNEL.environment)
        child.append(context.Process(target=_act, args=(proxy.port, who, home, name)))
        child[0].start()
        child[0].join(WAIT)
        # 255: the fork server was asked for the status of a child that was gone already.
        assert child[0].exitcode in {0, -signal.SIGKILL, 255}
        return child[0].exitcode != 0
    finally:
        proxy.close()


@pytest.mark.parametrize("name", sorted(ACTS))
def test_killed_at_each_write(nacos: NacosServer, tmp_path: Path, name: str) -> None:
    """Writes are counted on the wire, not listed: the process dies as one is asked for, or as it is answered."""
    seen = []
    point = 0
    killed = True
    while killed:
        point += 1
        for when in ("before", "after"):
            home = tmp_path / f"{point}-{when}"
            with closing(nacos.registry(nacos.emptied(CHANNEL.environment))) as registry:
                for generation in (1, 2):
                    assert _release(registry, home, f"engine {generation}", now=NOW - 10 + generation) == generation
                if name in BEGUN:
                    _begin(registry, home)
                before = _generation(registry, home)
                killed = _killed(nacos, home, name, point, when)
                seen.append(_generation(registry, home))
                if seen[-1] == before or name in BEGUN:  # a step of a rollout may be run again at any time
                    ACTS[name](registry, home)
                assert _generation(registry, home) == before + 1
    assert seen == sorted(seen)  # once new, new for good
    assert set(seen) == {before, before + 1}
    assert point > 2
    # The pointer is the last write: until Nacos has it, readers see the old release.
    assert seen.count(before + 1) == 3


def test_ten_publishers_at_once(nacos: NacosServer, tmp_path: Path) -> None:
    environment = nacos.emptied(CHANNEL.environment)
    registries = [nacos.registry(environment) for _ in range(10)]
    _release(registries[0], tmp_path, "engine 0", now=NOW - 1)
    barrier = threading.Barrier(len(registries))
    outcomes: list[tuple[int, str]] = []

    def run(number: int) -> Callable[[], None]:
        def go() -> None:
            barrier.wait(WAIT)
            try:
                outcomes.append((_release(registries[number], tmp_path, f"engine {number + 1}", now=NOW + number), ""))
            except Conflict as error:
                outcomes.append((0, str(error)))

        return go

    threads = [threading.Thread(target=run(number)) for number in range(len(registries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    won = sorted(generation for generation, _ in outcomes if generation)
    assert len(outcomes) == len(registries)
    assert won == list(range(2, 2 + len(won)))
    assert won
    assert all("was moved to generation" in message for generation, message in outcomes if not generation)
    assert len(history(registries[0], KeyStore(tmp_path).root(), CHANNEL)) == 1 + len(won)
    for registry in registries:
        registry.close()
