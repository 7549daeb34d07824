"""A descriptor that epoll does not take (no memory, the user's limit): one client or worker is lost, nobody else."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.executors import LONG, rows
from tests.support.transports import Stack, held
from tests.support.waiting import until
from trtops.errors import TrtopsError, Unavailable
from trtops.executor.crew import Crew
from trtops.transport.directory import Guide
from trtops.transport.reception import Reception
from trtops.transport.routes import Page

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stingy:
    """An epoll object that takes no more descriptors when it is told so, after so many that it takes."""

    def __init__(self) -> None:
        self.inner = select.epoll()
        self.left = 1 << 30
        self.refused: list[int] = []

    def register(self, fd: Any, mask: int) -> None:
        if self.left <= 0:
            self.left = 1 << 30
            self.refused.append(fd if isinstance(fd, int) else fd.fileno())
            raise OSError(28, "No space left on device")
        self.left -= 1
        self.inner.register(fd, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def epoll(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stingy]:
    made = Stingy()
    names = {name: getattr(select, name) for name in ("EPOLLIN", "EPOLLET")}
    monkeypatch.setattr("trtops.transport.server.select", SimpleNamespace(epoll=lambda: made, **names))
    yield made
    made.inner.close()


@pytest.mark.parametrize("taken", [0, 1])  # neither the socket, nor the bell
def test_a_client_that_cannot_be_watched_is_turned_away(
    tmp_path: Path, epoll: Stingy, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    stack = Stack(tmp_path / "s")
    try:
        with stack.client() as other:
            assert other.infer("e", rows(1).inputs, 1).error is None
            before = held()
            epoll.left = taken
            with pytest.raises(TrtopsError, match=r"hung up|no segment"):
                stack.client()
            assert len(epoll.refused) == 1
            until(lambda: held() == before, "descriptors and maps are back")
            assert other.infer("e", rows(2).inputs, 1).outputs["y"][0, 0] == 4
            with stack.client() as third:
                assert third.infer("e", rows(3).inputs, 1).outputs["y"][0, 0] == 6
        assert "No space left on device" in caplog.text
    finally:
        stack.close()


def test_a_server_that_runs_out_of_descriptors_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not even the one that it keeps for this can be had again."""
    stack = Stack(tmp_path / "s")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with stack.client() as other, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                late.connect(str(stack.path))
                until(lambda: "could not be accepted" in caplog.text, "it was told of")
                assert other.infer("e", rows(1).inputs, 1).outputs["y"][0, 0] == 2
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            with stack.client() as third:
                assert third.infer("e", rows(3).inputs, 1).outputs["y"][0, 0] == 6
    finally:
        stack.close()


def test_a_supervisor_goes_on_where_a_client_cannot_be_watched(tmp_path: Path) -> None:
    epoll, page = Stingy(), Page()
    reception = Reception(tmp_path / "s", page.fd, lambda *_: None, epoll, time.monotonic)  # type: ignore[arg-type]
    listening = epoll.inner
    try:
        epoll.left = 0

        def serve() -> None:
            end = time.monotonic() + LONG
            while reception.clients == 0 and time.monotonic() < end:
                for fd, _ in listening.poll(0.05):
                    reception.serve(fd)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(Unavailable, match="hung up"):
            Guide(tmp_path / "s")
        assert len(epoll.refused) == 1
        Guide(tmp_path / "s").close()
        thread.join(LONG)
    finally:
        reception.close()
        page.close()
        epoll.inner.close()


@pytest.mark.service
@pytest.mark.parametrize("taken", [0, 1])  # neither its socket, nor its end
def test_a_worker_that_cannot_be_watched_is_ended_again(taken: int) -> None:
    epoll = Stingy()
    crew = Crew("trtops.executor", epoll)  # type: ignore[arg-type]
    before = held()
    mine = Path(f"/proc/self/task/{os.getpid()}/children")
    children = mine.read_text()
    epoll.left = taken
    with pytest.raises(OSError, match="No space left"):
        crew.start(1, "")
    assert len(crew) == 0
    assert mine.read_text() == children  # it was buried
    assert held() == before
    epoll.inner.close()
