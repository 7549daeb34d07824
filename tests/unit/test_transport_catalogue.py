"""A list of engines of any length: in a packet, or in sealed memory beside it."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.support.executors import LONG
from tests.support.waiting import until
from trtops.errors import InputError, Unavailable
from trtops.executor.attach import plain_info
from trtops.executor.port import EngineInfo
from trtops.executor.remote import infos_of
from trtops.tensor import TensorInfo
from trtops.transport.bells import clients_bell, executors_bell
from trtops.transport.catalogue import Listing, engines_of, receive
from trtops.transport.client import Client
from trtops.transport.directory import Guide
from trtops.transport.greeting import connect
from trtops.transport.layout import Layout
from trtops.transport.reception import Reception
from trtops.transport.routes import Page, Seat, assign
from trtops.transport.segment import create
from trtops.transport.server import Server
from trtops.transport.wire import (
    Ask,
    Catalogue,
    Hello,
    Lookup,
    Refused,
    Welcome,
    decode_from_client,
    decode_from_executor,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

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


def asks(path: Path, versions: list[int], times: int) -> list[Any]:
    """What a client is sent that asks often, and reads only afterwards."""
    said: list[Any] = []
    with connect(path, LONG) as sock:
        sock.send(encode(Hello(versions, 1, 64, 64)))
        with contextlib.suppress(OSError):  # it was hung up on
            for number in range(1, times + 1):
                sock.send(encode(Ask(number)))
        while True:
            try:
                packet, fds = receive(sock)
            except ConnectionResetError:  # told once, before what is there
                continue
            for fd in fds:
                os.close(fd)
            if not packet:
                return said
            said.append(decode_from_executor(packet))


@pytest.mark.parametrize("versions", [[2], [3]])
def test_a_client_that_reads_no_answer_is_hung_up_on_before_it_holds_many_descriptors(
    server: Callable[[int], Path], versions: list[int]
) -> None:
    said = asks(server(1000), versions, 100)
    assert isinstance(said[-1], Refused)
    assert "reads none" in said[-1].what
    assert all(isinstance(message, Catalogue) for message in said[1:-1])
    assert 0 < len(said[1:-1]) <= 8


def test_a_client_that_reads_no_answer_in_packets_is_hung_up_on(
    server: Callable[[int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = server(300)
    assert len(listed(300)) < 131072
    said = asks(path, [3], 100)
    assert 0 < len(said) < 8
    assert "it is sent lists of engines, and reads none" in caplog.text
    with Client(path, slots=1) as client:
        assert len(client.catalogue()) == 300


def test_an_executor_without_memory_for_its_list_says_so_and_serves_on(
    server: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.memfd_create

    def none(name: str, flags: int) -> int:
        if name == "trtops-catalogue":
            raise OSError(12, "Cannot allocate memory")
        return make(name, flags)

    path = server(1000)
    with Client(path, slots=1) as client:
        monkeypatch.setattr("trtops.transport.catalogue.os.memfd_create", none)
        with pytest.raises(Unavailable, match="Cannot allocate memory") as raised:
            client.catalogue()
        assert "ask again" in str(raised.value.fix)
        assert isinstance(ask(path, [2])[1], Refused)  # which has no word for it
        monkeypatch.undo()
        assert len(client.catalogue()) == 1000


def test_descriptors_that_cannot_be_sent_now_are_no_fault_of_the_client(
    server: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many are on their way, to clients that do not read them."""

    class Clogged:
        def __init__(self, sock: socket.socket) -> None:
            self.fileno = sock.fileno

        def sendmsg(self, *_: Any) -> int:
            raise OSError(109, "Too many references: cannot splice")

    send = Listing.send
    with Client(server(1000), slots=1) as client:
        clogged: Any = Clogged
        with monkeypatch.context() as patched:
            patched.setattr(Listing, "send", lambda self, sock, *rest: send(self, clogged(sock), *rest))
            with pytest.raises(Unavailable, match="Too many references"):
                client.catalogue()
        assert len(client.catalogue()) == 1000


class Mute:
    """An executor that welcomes a client and then says only what a test makes it say."""

    def __init__(self) -> None:
        self.sock, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fds = [create(Layout(1, 64, 4096))[0], executors_bell()]
        self.bell, _, watched = clients_bell(3)
        rights = array.array("i", [*self.fds, watched.fileno()])
        self.sock.sendmsg([encode(Welcome(3))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        watched.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        for fd in (*self.fds, self.bell):
            os.close(fd)

    def asked(self) -> int:
        while not isinstance(message := decode_from_client(self.sock.recv(4096)), Ask):
            assert isinstance(message, Hello)
        return message.number

    def answer(self, number: int) -> None:
        self.sock.send(encode(Catalogue(number, msgspec.Raw(b'["%d"]' % number))))


@pytest.mark.parametrize("polled", [False, True])
def test_an_executor_that_does_not_answer_is_waited_for_as_long_as_was_said(*, polled: bool) -> None:
    late: list[Any] = []
    with Mute() as mute, Client(mute.theirs, slots=1, input_bytes=64, output_bytes=64, timeout=0.05) as client:
        poller = threading.Thread(target=poll_for_ever, args=(client,))
        if polled:
            poller.start()
            until(client._polling.locked, "another thread polls")
        with pytest.raises(Unavailable, match=r"did not tell its engines within 0\.05 s") as raised:
            client.catalogue()
        assert "ask again" in str(raised.value.fix)
        first = mute.asked()
        client._timeout = LONG
        second = threading.Thread(target=lambda: late.append(client.catalogue()))
        second.start()
        number = mute.asked()
        mute.answer(first)  # too late: dropped
        mute.answer(number)
        second.join(LONG)
        assert late == [[str(number)]]
        assert client._followers == type(client._followers)()
        client.close()
        if polled:
            poller.join(LONG)


def poll_for_ever(client: Client) -> None:
    with contextlib.suppress(Unavailable):
        while True:
            client.poll()


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
