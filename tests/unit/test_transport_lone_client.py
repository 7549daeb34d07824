"""The thread that answers a lone client: it stays with it, and holds up nobody else."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.executors import LONG, rows
from tests.support.transports import Stack
from trtops.errors import DeadlineExceeded, Unavailable
from trtops.executor.port import Outcome
from trtops.transport.client import Client
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
