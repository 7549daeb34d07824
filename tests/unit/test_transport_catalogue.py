"""A list of engines of any length: in a packet, or in sealed memory beside it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trtops.errors import InputError
from trtops.executor.attach import plain_info
from trtops.executor.port import EngineInfo
from trtops.executor.remote import infos_of
from trtops.tensor import TensorInfo
from trtops.transport.catalogue import Listing, engines_of, receive
from trtops.transport.client import Client
from trtops.transport.directory import Guide
from trtops.transport.greeting import connect
from trtops.transport.reception import Reception
from trtops.transport.routes import Page, Seat, assign
from trtops.transport.server import Server
from trtops.transport.wire import Ask, Catalogue, Hello, Lookup, Refused, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_IMAGE = TensorInfo(name="image", dtype="float32", shape=("n", 3, 224, 224))


def infos(number: int) -> tuple[EngineInfo, ...]:
    digest = "sha256:" + "0" * 64
    names = [f"engine-{index:04}" for index in range(number)]
    return tuple(EngineInfo(name, 1, "1.0.0", digest, "fake", (_IMAGE,), (_IMAGE,), 64) for name in names)


def listed(number: int) -> bytes:
    return msgspec.json.encode([plain_info(info) for info in infos(number)])


class Many:
    """Serves a list of engines and nothing else."""

    def __init__(self, number: int) -> None:
        self.listed = listed(number)

    def submit(self, *_: Any) -> Callable[[], None]:
        raise InputError("it serves nothing")

    def start(self, *, relief: Any = None) -> None:
        """Nothing waits."""

    def mapped(self, memory: Any) -> None:
        """Nothing reads it."""

    def catalogue(self) -> bytes:
        return self.listed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    made: list[Server] = []

    def make(number: int) -> Path:
        made.append(Server(tmp_path / f"s{len(made)}", Many(number)))
        return tmp_path / f"s{len(made) - 1}"

    yield make
    for one in made:
        one.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the directory changes


@pytest.mark.parametrize("number", [0, 1, 1000])
def test_a_client_is_told_of_any_number_of_engines(server: Callable[[int], Path], number: int) -> None:
    with Client(server(number), slots=1) as client:
        assert infos_of(client.catalogue()) == infos(number)
        before = descriptors()
        assert len(client.catalogue()) == number
        assert descriptors() == before


def test_a_long_list_is_in_memory_once_for_all_who_ask(server: Callable[[int], Path]) -> None:
    path = server(1000)
    seen = set()
    for _ in range(3):
        with connect(path, 10) as sock:
            sock.send(encode(Hello([2], 1, 64, 64)))
            _, fds = receive(sock)
            sock.send(encode(Ask(7)))
            _, beside = receive(sock)
            seen |= {os.fstat(fd).st_ino for fd in beside}
            for fd in (*fds, *beside):
                os.close(fd)
    assert len(seen) == 1


def ask(path: Path, versions: list[int]) -> tuple[int, Any]:
    """The version of the welcome, and the answer to a question."""
    with connect(path, 10) as sock:
        sock.send(encode(Hello(versions, 1, 64, 64)))
        packet, fds = receive(sock)
        for fd in fds:
            os.close(fd)
        welcome: Any = decode_from_executor(packet)
        sock.send(encode(Ask(7)))
        packet, fds = receive(sock)
        for fd in fds:
            os.close(fd)
        return welcome.version, decode_from_executor(packet)


def test_a_client_of_the_first_version_gets_what_fits_in_a_packet(server: Callable[[int], Path]) -> None:
    version, message = ask(server(10), [1])
    assert version == 1
    assert isinstance(message, Catalogue)
    assert msgspec.json.decode(message.engines) == msgspec.json.decode(listed(10))
    path = server(1000)
    _, refused = ask(path, [1])
    assert isinstance(refused, Refused)
    assert "a packet holds 131072" in refused.what
    assert refused.fix == "update the client to one that speaks version 2"
    version, message = ask(path, [1, 2, 99])
    assert version == 2
    assert (message.number, message.size) == (7, len(listed(1000)))


class Desk:
    """A reception that is driven by a thread, as a supervisor does."""

    def __init__(self, path: Path, number: int) -> None:
        self.page, self.epoll = Page(), select.epoll()
        route = assign(None, [Seat(1, worker=3, weight=1)])
        self.page.write({info.name: route for info in infos(number)})
        self.reception = Reception(path, self.page.fd, self.introduce, self.epoll, time.monotonic)
        self.reception.announce(listed(number))
        self.wake = os.eventfd(0)
        self.epoll.register(self.wake, select.EPOLLIN)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def introduce(self, _: socket.socket, worker: int | None) -> None:
        raise AssertionError(f"nobody says hello to worker {worker}")

    def run(self) -> None:
        while True:
            for fd, _ in self.epoll.poll():
                if fd == self.wake:
                    return
                self.reception.serve(fd)

    def close(self) -> None:
        os.eventfd_write(self.wake, 1)
        self.thread.join()
        self.reception.close()
        self.page.close()
        self.epoll.close()
        os.close(self.wake)


def test_a_guide_knows_a_thousand_engines_and_their_routes(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "s", 1000)
    try:
        guide = Guide(tmp_path / "s")
        assert infos_of(guide.catalogue) == infos(1000)
        assert len(guide.routes) == 1000
        route = guide.find("engine-0999")
        assert route is not None
        assert route.worker(5) == 3
        guide.close()
        with connect(tmp_path / "s", 10) as sock:  # a client of the first version is told why it cannot be
            sock.send(encode(Lookup([1])))
            packet, fds = receive(sock)
            for fd in fds:
                os.close(fd)
            said = [decode_from_executor(packet), decode_from_executor(sock.recv(4096))]
        assert isinstance(said[1], Refused)
        assert "131072" in said[1].what
    finally:
        desk.close()


def test_what_is_beside_a_catalogue_is_not_believed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listing = Listing(listed(1000))
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    try:
        listing.send(ours, 1, 2)
        packet, fds = receive(theirs)
        message = decode_from_executor(packet)
        assert isinstance(message, Catalogue)
        assert len(engines_of(message, fds)) == 1000
        with pytest.raises(PermissionError):
            os.write(fds[0], b"x")
        for beside in ([], [loose], [fds[0], fds[0]]):
            with pytest.raises(InputError, match="sealed"):
                engines_of(message, beside)
        with pytest.raises(InputError):
            engines_of(Catalogue(1, msgspec.Raw(b"null"), 1 << 40), fds)
        with pytest.raises(InputError, match="not JSON"):
            engines_of(Catalogue(1, msgspec.Raw(b"null"), 10), fds)
        os.close(fds[0])
    finally:
        listing.close()
        os.close(loose)
        ours.close()
        theirs.close()
