"""A server that runs its engines itself, and whose engine hangs."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.acceptance.test_serve_process import Running, home, server  # noqa: F401 - a fixture
from tests.support.serving import post, read_reply

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
REQUEST = post("/v2/models/cls/infer", BODY, close=False)


def ask(running: Running, times: int = 1) -> int | None:
    """Status of the last of so many requests; None: the server ended before it answered."""
    status = None
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as sock, sock.makefile("rb") as stream:
        for _ in range(times):
            sock.sendall(REQUEST)
            try:
                reply = read_reply(stream)
            except ConnectionError:
                return None
            status = reply.status if reply is not None else None
    return status


@pytest.mark.parametrize("front_ends", [0, 1])
def test_it_ends_itself_and_says_which_engine_hangs(home: Path, front_ends: int) -> None:  # noqa: F811 - the fixture
    with server(home, hang=1.0, front_ends=front_ends) as running:
        assert ask(running, 20) == 200  # short ones, so that the event loop runs the next one itself
        children = psutil.Process(running.process.pid).children(recursive=True)
        (home / "held").touch()
        assert ask(running) in {None, 503}
        assert running.process.wait(60) == 70
        assert running.process.stderr is not None
        told = running.process.stderr.read()
        assert "a batch of engine 'cls' hangs: it has been running for" in told
        assert "workers (no --isolation none) bear such engines" in told
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left


def test_a_batch_in_flight_outlives_a_pause_of_the_whole_process(home: Path) -> None:  # noqa: F811 - the fixture
    with server(home, hang=1.5) as running:
        assert ask(running, 20) == 200
        (home / "held").touch()
        got: list[int | None] = []
        thread = threading.Thread(target=lambda: got.append(ask(running)))
        thread.start()
        whole = psutil.Process(running.process.pid)
        thread.join(0.3)  # the batch runs by now, and looks whether it may go on
        whole.suspend()
        thread.join(4.0)
        (home / "held").unlink()
        whole.resume()
        thread.join(60)
        assert got == [200]
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
