"""Front ends that misbehave towards their server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trtops.serve.backstage import Begin, Told, listening
from trtops.serve.exchange import Limits
from trtops.serve.frontends import FrontEnds
from trtops.serve.measure import Meters
from trtops.serve.regions import Regions
from trtops.serve.steering import steer

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.service

BEGIN = Begin("/nowhere", Limits(), otel=False, json_logs=False)


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
    fronts = FrontEnds(1, BEGIN, desk, nursery, hang=2.0)
    fronts.open("127.0.0.1", 0)
    return fronts


@pytest.mark.parametrize("words", ["no JSON", '{"type":"sing"}', '{"type":"counted","number":"x"}'])
def test_one_that_speaks_no_sense_is_ended_and_started_again(words: str) -> None:
    script = f"import os, sys, time; os.write(int(sys.argv[1]), {words.encode()!r} + bytes([10])); time.sleep(600)"

    async def run() -> None:
        nursery = Nursery(script)
        fronts = front_ends(nursery)
        starting = asyncio.ensure_future(fronts.start(Meters))
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
        await asyncio.wait_for(fronts.start(Meters), 60)
        assert fronts.serving == 1
        await asyncio.wait_for(nursery.again.wait(), 60)
        assert nursery.children[0].wait(0) == -9
        for child in nursery.children:
            child.kill()
        await fronts.close(0.0)

    asyncio.run(run())


def test_one_that_answers_is_not_taken_for_hung_after_the_server_stood_still_itself() -> None:
    """As after SIGSTOP, or on a machine that was paused: what came meanwhile is heard before anybody is ended."""
    script = """import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as end, end.makefile("rwb", buffering=0) as lines:
    lines.write(b'{"type":"listening"}' + bytes([10]))
    for line in lines:
        lines.write(b'{"type":"taken","number":0}' + bytes([10]))
"""

    async def run() -> None:
        nursery = Nursery(script)
        fronts = front_ends(nursery)
        await asyncio.wait_for(fronts.start(Meters), 60)
        for _ in range(3):
            time.sleep(2.5)  # noqa: ASYNC251 - nothing of this process runs meanwhile
            await asyncio.sleep(0.5)
        assert (len(nursery.children), nursery.children[0].poll(), fronts.serving) == (1, None, 1)
        nursery.children[0].kill()
        await fronts.close(0.0)

    asyncio.run(run())


def test_one_that_was_told_to_end_has_its_time_but_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and answers no questions meanwhile; with the server's word, it need not be waited for."""
    monkeypatch.setattr("trtops.serve.frontends._PATIENCE", 0.0)
    script = """import os, sys, time
os.write(int(sys.argv[1]), b'{"type":"listening"}' + bytes([10]) + b'{"type":"leaving","seconds":1.5}' + bytes([10]))
time.sleep(600)"""

    async def run() -> None:
        nursery = Nursery(script)
        fronts = front_ends(nursery)
        starting = asyncio.ensure_future(fronts.start(Meters))
        await asyncio.wait_for(nursery.again.wait(), 60)
        assert nursery.children[0].wait(0) == -9
        starting.cancel()
        for child in nursery.children:
            child.kill()
        await fronts.close(0.0)

    asyncio.run(run())


def test_new_connections_come_to_the_chosen_sockets_only() -> None:
    with contextlib.ExitStack() as stack:
        group = [stack.enter_context(listening("127.0.0.1", 0, 128))]
        group += [stack.enter_context(listening("127.0.0.1", group[0].getsockname()[1], 128)) for _ in range(3)]

        def chosen() -> set[int]:
            made = [socket.create_connection(group[0].getsockname(), timeout=30) for _ in range(60)]
            found = set()
            for place, sock in enumerate(group):
                sock.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sock.accept()[0].close()
                        found.add(place)
            for one in made:
                one.close()
            return found

        steer(group, [0, 2, 3])
        assert chosen() == {0, 2, 3}
        steer(group, [1])
        assert chosen() == {1}
        steer(group, [0, 1, 2, 3])  # the kernel's own way
        assert chosen() == {0, 1, 2, 3}
        steer(group, [])
        assert chosen() == {0, 1, 2, 3}


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
        starting = asyncio.ensure_future(fronts.start(Meters))
        await asyncio.wait_for(tried.wait(), 60)
        starting.cancel()
        await fronts.close(0.0)

    asyncio.run(run())
    assert len(ends) >= 4
    assert [end.fileno() for end in ends] == [-1] * len(ends)
