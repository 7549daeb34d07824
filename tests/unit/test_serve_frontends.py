"""Front ends that misbehave towards their server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trtops.serve.backstage import Begin, Told
from trtops.serve.exchange import Limits
from trtops.serve.frontends import FrontEnds
from trtops.serve.measure import Meters
from trtops.serve.regions import Regions

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.service

BEGIN = Begin("/nowhere", Limits(body_time=0.5), None, otel=False, json_logs=False)


class Nursery:
    """Starts processes that run a script with the number of their channel."""

    def __init__(self, script: str) -> None:
        self._script = script
        self.children: list[subprocess.Popen[bytes]] = []
        self.again = asyncio.Event()

    def fork(self, module: str, name: str, fds: Sequence[int]) -> int:
        assert (module, name) == ("trtops.serve.frontend", "trtops-front")
        child = subprocess.Popen([sys.executable, "-c", self._script, str(fds[0])], pass_fds=fds)
        self.children.append(child)
        if len(self.children) == 2:
            self.again.set()
        return child.pid

    def bury(self, pid: int) -> int:
        return next(child for child in self.children if child.pid == pid).wait()


class Lost:
    """A nursery that is gone, where no interpreter can be started either."""

    def fork(self, *_: object) -> int:
        raise OSError("no nursery")


def front_ends(nursery: Any) -> FrontEnds:
    desk: Any = SimpleNamespace(health=Told(), regions=Regions())
    return FrontEnds(1, BEGIN, desk, nursery, hang=2.0)


@pytest.mark.parametrize("words", ["no JSON", '{"type":"sing"}', '{"type":"counted","number":"x"}'])
def test_one_that_speaks_no_sense_is_ended_and_started_again(words: str) -> None:
    script = f"import os, sys, time; os.write(int(sys.argv[1]), {words.encode()!r} + bytes([10])); time.sleep(600)"

    async def run() -> None:
        nursery = Nursery(script)
        fronts = front_ends(nursery)
        starting = asyncio.ensure_future(fronts.start("127.0.0.1", 0, Meters))
        await asyncio.wait_for(nursery.again.wait(), 60)
        assert nursery.children[0].wait(0) == -9
        assert fronts.restarts >= 1
        starting.cancel()
        for child in nursery.children:
            child.kill()
        await fronts.close(0.0)

    asyncio.run(run())


def test_one_that_hangs_is_ended_and_started_again() -> None:
    """It is there, and takes connections that nobody would answer."""
    script = """import os, sys, time; os.write(int(sys.argv[1]), b'{"type":"listening"}\\n'); time.sleep(600)"""

    async def run() -> None:
        nursery = Nursery(script)
        fronts = front_ends(nursery)
        await asyncio.wait_for(fronts.start("127.0.0.1", 0, Meters), 60)
        assert fronts.serving == 1
        await asyncio.wait_for(nursery.again.wait(), 60)
        assert nursery.children[0].wait(0) == -9
        for child in nursery.children:
            child.kill()
        await fronts.close(0.0)

    asyncio.run(run())


def test_one_that_cannot_be_started_leaves_no_socket_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    ends: list[socket.socket] = []
    pair = socket.socketpair

    def kept() -> tuple[socket.socket, socket.socket]:
        ends.extend(made := pair())
        return made

    async def refuse(*_: object, **__: object) -> None:
        if len(ends) > 2:
            tried.set()
        raise OSError("no process")

    async def run() -> None:
        monkeypatch.setattr("socket.socketpair", kept)
        monkeypatch.setattr("asyncio.create_subprocess_exec", refuse)
        fronts = front_ends(Lost())
        starting = asyncio.ensure_future(fronts.start("127.0.0.1", 0, Meters))
        await asyncio.wait_for(tried.wait(), 60)
        starting.cancel()
        await fronts.close(0.0)

    asyncio.run(run())
    assert len(ends) >= 4
    assert [end.fileno() for end in ends] == [-1] * len(ends)
