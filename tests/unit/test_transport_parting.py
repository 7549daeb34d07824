"""Descriptors that a client sends along, the closing of which takes as long as it likes: nobody else waits for them."""

from __future__ import annotations

import array
import contextlib
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.executors import LONG
from tests.support.transports import Stack
from tests.support.waiting import until
from trtops.transport.greeting import connect
from trtops.transport.parting import hang_up
from trtops.transport.reception import Reception
from trtops.transport.routes import Page
from trtops.transport.wire import Ask, Hello, Lookup, Refused, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KERNELS = pytest.mark.parametrize("refused", [True, False], ids=["refused by the kernel", "by an older one not"])
HOURS = 10000


@pytest.fixture
def lingering() -> Iterator[socket.socket]:
    """A TCP socket whose last close takes hours, as long as its other end does not read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, HOURS))
    ours.setblocking(True)
    yield ours
    theirs.close()  # with much unread: a reset, which ends all waiting
    ours.close()


def send_along(sock: socket.socket, packet: bytes, fd: int) -> bool:
    """Whether the kernel let it through."""
    try:
        sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    except PermissionError:
        return False
    return True


@KERNELS
@pytest.mark.parametrize("packets", [[b"", b""], [b"garbage", b"", b""]], ids=["read", "unread when it is hung up on"])
@pytest.mark.parametrize("greeted", [True, False])
def test_what_comes_along_holds_nobody_up(
    tmp_path: Path,
    lingering: socket.socket,
    packets: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    *,
    greeted: bool,
    refused: bool,
) -> None:
    if not refused:
        monkeypatch.setattr("trtops.transport.parting._SO_PASSRIGHTS", 9999)
    stack = Stack(tmp_path / "s")
    try:
        with connect(stack.path, LONG) as sock:
            if greeted:
                sock.send(encode(Hello([1], 1, 64, 64)))
                sock.recv(4096)
            sent = False
            with contextlib.suppress(ConnectionError):  # it is hung up on
                for packet in packets:
                    if packet:
                        sock.send(packet)
                    else:
                        sent = send_along(sock, encode(Ask(1)), lingering.fileno()) or sent
            if sent:
                lingering.close()  # what is under way is the last one
            assert stack.serves()
        assert stack.serves()
        until(lambda: stack.server.clients == 0, "it is gone")
    finally:
        stack.close()


@KERNELS
def test_nor_does_it_hold_a_supervisor_up(
    tmp_path: Path, lingering: socket.socket, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    if not refused:
        monkeypatch.setattr("trtops.transport.parting._SO_PASSRIGHTS", 9999)
    page, epoll = Page(), select.epoll()
    reception = Reception(tmp_path / "s", page.fd, lambda *_: None, epoll, time.monotonic)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            for fd, _ in epoll.poll(0.05):
                reception.serve(fd)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with connect(tmp_path / "s", LONG) as hostile:
            sent = [send_along(hostile, encode(packet), lingering.fileno()) for packet in (Lookup([1]), Ask(1))]
            if any(sent):
                lingering.close()
        with connect(tmp_path / "s", LONG) as good:
            good.send(encode(Lookup([1])))
            assert b"directory" in good.recv(4096)
    finally:
        ended.set()
        thread.join(LONG)
        assert not thread.is_alive()
        reception.close()
        page.close()
        epoll.close()


def test_a_client_is_told_that_descriptors_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.transport.parting._SO_PASSRIGHTS", 9999)
    stack = Stack(tmp_path / "s")
    try:
        with connect(stack.path, LONG) as sock:
            send_along(sock, encode(Hello([1], 1, 64, 64)), 0)
            message = decode_from_executor(sock.recv(4096))
            assert isinstance(message, Refused)
            assert "it sent descriptors" in message.what
            assert sock.recv(1) == b""
    finally:
        stack.close()


def test_what_was_said_last_is_still_read_after_a_hang_up() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"why")
    hang_up(ours)
    assert ours.fileno() == -1  # nothing was left: closed at once
    assert theirs.recv(10) == b"why"
    assert theirs.recv(10) == b""
    theirs.close()
