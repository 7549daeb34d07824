"""The thread that answers a lone client: it stays with it, and holds up nobody else."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.executors import LONG, rows
from tests.support.transports import Stack
from tests.support.waiting import until
from trtops.errors import DeadlineExceeded, Unavailable
from trtops.executor.port import Outcome
from trtops.transport.client import Client
from trtops.transport.layout import RING_SLEEPS, RING_TAIL
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_batch_that_runs_in_the_transport_s_thread_holds_up_nobody(stack: Stack) -> None:
    """A lone request finds an idle lane and runs in the thread that read it; others are read, and time out, meanwhile."""
    with stack.client() as first, stack.client() as second:
        stack.session.threads.clear()
        assert first.infer("e", rows(1).inputs, 1).error is None
        assert {thread.ident for thread in threading.enumerate() if thread.name.startswith("trtops-transport")} & (
            stack.session.threads
        )
        stack.session.hold()
        running = first.submit("e", rows(1).inputs, 1)
        stack.session.wait_entered()
        late = second.wait(second.submit("e", rows(2).inputs, 1, deadline=time.monotonic() + 0.02))
        assert isinstance(late.error, DeadlineExceeded)
        assert running.reply is None
        with stack.client() as third:  # and a new one is welcomed
            waiting = third.submit("e", rows(3).inputs, 1)
            stack.session.gate.set()
            assert third.wait(waiting).outputs["y"][0, 0] == 6
        assert first.wait(running).outputs["y"][0, 0] == 2


def test_a_server_that_ends_while_its_thread_runs_a_batch_does_not_wait_for_it(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "s")
    client = stack.client()
    stack.session.hold()
    running = client.submit("e", rows(1).inputs, 1)
    stack.session.wait_entered()
    stack.server.close()
    assert isinstance(client.wait(running).error, Unavailable)
    stack.close()
    client.close()


class Slow:
    """Work that is said to take long, and is done in the thread that may do it; it tells which one that was."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.threads: list[int] = []
        self.here = 0

    def submit(self, *request: Any) -> Callable[[], None]:
        _, inputs, _, _, _, done, client = request
        assert client == f"pid {os.getpid()}, uid {os.getuid()}"
        x = inputs["x"].copy()
        self.waiting.append(lambda: done(Outcome({"y": x})))
        return lambda: None

    def start(self, *, relief: Any = None) -> None:
        while self.waiting:
            work = self.waiting.pop()
            if relief(1.0):
                self.here += 1
                self.threads.append(threading.get_ident())
                relief.begun()
            work()

    def mapped(self, memory: Any) -> None:
        """Nothing reads it."""

    def catalogue(self) -> bytes:
        return b"[]"


def test_the_thread_that_answers_a_lone_client_takes_its_next_request_too(tmp_path: Path) -> None:
    """Nobody is woken for it, however long the work was expected to take; another client is served all the same."""
    handler = Slow()
    server = Server(tmp_path / "s.sock", handler, linger=LONG)
    x = {"x": np.zeros((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as client:
        for value in range(100):
            x["x"][:] = value
            assert client.infer("e", x, 1).outputs["y"][0, 0] == value
        assert handler.here == 100
        assert len(set(handler.threads)) == 1
        with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as other:
            assert other.infer("e", x, 1).error is None
    server.close()


def test_no_request_is_overlooked_when_a_lone_client_comes_as_the_server_stops_to_look(tmp_path: Path) -> None:
    server = Server(tmp_path / "s.sock", Slow(), linger=1e-4)
    rng = np.random.default_rng(7)
    x = {"x": np.zeros((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=3, input_bytes=4096) as client:
        for pause in rng.uniform(0, 2e-4, 500):
            calls = [client.submit("e", x, 1) for _ in range(int(rng.integers(1, 4)))]
            for call in calls:
                assert client.wait(call).error is None
            until = time.perf_counter() + pause
            while time.perf_counter() < until:
                pass
    server.close()


class Quick(Slow):
    """Work that is done at once in the thread that starts it; its list of engines can be withheld."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.told = threading.Event(), threading.Event()
        self.told.set()

    def start(self, *, relief: Any = None) -> None:  # noqa: ARG002 - it does not ask
        while self.waiting:
            self.waiting.pop()()

    def catalogue(self) -> bytes:
        self.asked.set()
        assert self.told.wait(LONG)
        return b"[]"


def poll_for_ever(client: Client) -> None:
    while True:
        client.poll()


def test_a_client_that_is_left_alone_by_another_s_end_is_heard(tmp_path: Path) -> None:
    """Its bell and its end come at once; whoever stays with the other one then, has it ring before going away."""
    handler = Quick()
    server = Server(tmp_path / "s.sock", handler, linger=1e-3)
    x = {"x": np.ones((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as left:
        going = Client(tmp_path / "s.sock", slots=1, input_bytes=4096)
        handler.asked.clear()  # each was told on its welcome
        handler.told.clear()
        asking = threading.Thread(target=left.catalogue)
        asking.start()
        assert handler.asked.wait(LONG)  # the server listens to nobody until it is told
        going.submit("e", x, 1)
        going.close()
        handler.told.set()
        asking.join(LONG)
        until(lambda: server.clients == 1, "the one that went is forgotten")
        sleeps = (left._segment.layout.submit + RING_SLEEPS) // 4
        for _ in range(3):
            until(lambda: left._segment.words[sleeps], "the one that is left is asked to ring")
            assert left.infer("e", x, 1).outputs["y"][0, 0] == 1
    server.close()


def test_a_lone_client_that_breaks_the_protocol_holds_up_nobody(tmp_path: Path) -> None:
    """Somebody else leads meanwhile, and what is in the ring can never be taken."""
    server = Server(tmp_path / "s.sock", Slow(), linger=0.5)
    x = {"x": np.ones((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as client:
        assert client.infer("e", x, 1).error is None
        layout = client._segment.layout
        client._segment.words[(layout.submit + RING_TAIL) // 4] += 2 * layout.entries
        sleeps = (layout.submit + RING_SLEEPS) // 4
        until(lambda: not server.clients or client._segment.words[sleeps], "the server looked, or looks no more")
        os.eventfd_write(client._their_bell, 1)
        with pytest.raises(Unavailable, match="broke the protocol"):
            poll_for_ever(client)
    with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as other:
        assert other.infer("e", x, 1).error is None
    server.close()


def test_a_lone_client_that_never_pauses_keeps_nobody_out(tmp_path: Path) -> None:
    server = Server(tmp_path / "s.sock", Quick(), linger=0.1)
    x = {"x": np.ones((1, 4), np.float32)}
    stop, begun = threading.Event(), threading.Event()

    def send() -> None:
        with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as client:
            while not stop.is_set():
                client.infer("e", x, 1)
                begun.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert begun.wait(LONG)
        with Client(tmp_path / "s.sock", slots=1, input_bytes=4096, timeout=LONG) as other:
            assert other.infer("e", x, 1).error is None
    finally:
        stop.set()
        thread.join(LONG)
        server.close()
