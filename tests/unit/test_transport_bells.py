"""Bells: whoever holds one, in whatever state, the executor never waits to ring it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.executors import LONG, rows
from tests.support.transports import Stack, held
from tests.support.waiting import until
from trtops.errors import TrtopsError
from trtops.transport.bells import RING, clients_bell
from trtops.transport.catalogue import receive
from trtops.transport.greeting import connect
from trtops.transport.layout import ANSWER, ANSWER_OFFSET, REQUEST, REQUEST_BYTES, RING_SLEEPS
from trtops.transport.ring import Reader, Writer
from trtops.transport.segment import attach
from trtops.transport.tensors import Describer
from trtops.transport.wire import VERSIONS, Hello, decode_from_executor, encode

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.transport.client import Client

FULL = 2**64 - 2

UNWATCH = """
import select, sys
watch, refused = select.epoll.fromfd(int(sys.argv[1])), 0
for fd in range(1024):
    try:
        watch.unregister(fd)
    except OSError:
        refused += 1
assert refused == 1024
"""


def block_and_fill(client: Client) -> None:
    """Make writes to all that the client holds wait, and fill its own bell as far as it goes."""
    with contextlib.suppress(OSError):
        os.write(client._bell, FULL.to_bytes(8, "little"))
    for fd in (client._bell, client._their_bell, client._socket.fileno()):
        os.set_blocking(fd, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bell_that_its_client_blocks_and_fills_holds_nobody_up(
    stack: Stack, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.transport.greeting.VERSIONS", (version,))
    with stack.client() as hostile:
        monkeypatch.undo()
        block_and_fill(hostile)
        layout = hostile._segment.layout
        for index in range(400):  # more than a socket holds of rings that nobody reads
            hostile._segment.words[(layout.complete + RING_SLEEPS) // 4] = 1
            call = hostile.submit("e", rows(index).inputs, 1)
            until(hostile._complete.pending, "the answer is there")
            hostile._take()
            assert call.reply is not None
            assert call.reply.error is None
        assert stack.serves()


def test_a_bell_of_today_cannot_be_written_to_and_its_watch_not_be_taken_away(stack: Stack) -> None:
    with stack.client() as client:
        for write in (lambda fd: os.write(fd, RING), lambda fd: os.eventfd_write(fd, 1)):
            with pytest.raises(OSError, match="Invalid argument"):
                write(client._bell)
        done = subprocess.run([sys.executable, "-c", UNWATCH, str(client._bell)], pass_fds=[client._bell], check=False)
        assert done.returncode == 0
        assert client.infer("e", rows(3).inputs, 1).outputs["y"][0, 0] == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_each_ring_is_heard_once(version: int) -> None:
    ours, ring, theirs = clients_bell(version)
    with contextlib.ExitStack() as opened:
        opened.callback(theirs.close)
        opened.callback(os.close, ours)
        poller = select.poll()
        poller.register(theirs.fileno(), select.POLLIN)
        edges = select.epoll()
        opened.callback(edges.close)
        edges.register(theirs.fileno(), select.EPOLLIN | select.EPOLLET)
        edges.poll(0)
        for _ in range(3):
            assert poller.poll(0) == []
            ring()
            assert edges.poll(0) != []
            assert edges.poll(0) == []  # by edge, there is nothing to read
            assert poller.poll(0) != []
            if version < 3:
                assert os.read(theirs.fileno(), 8) == RING
            else:
                with select.epoll.fromfd(os.dup(theirs.fileno())) as watch:
                    assert len(watch.poll(0)) == 1


class Plain:
    """A client of the first version, as the contract describes it: it polls its bell, then reads eight bytes."""

    def __init__(self, path: Path) -> None:
        self.sock = connect(path, LONG)
        self.sock.send(encode(Hello([1], 2, 4096, 4096)))
        packet, self.fds = receive(self.sock)
        welcome: Any = decode_from_executor(packet)
        assert welcome.version == 1
        self.segment = attach(self.fds[0])
        layout = self.segment.layout
        self.submit = Writer(self.segment.words, layout.submit, layout.entries)
        self.complete = Reader(self.segment.words, layout.complete, layout.entries)
        self.describer = Describer(layout.input_bytes, "input area")

    def infer(self, index: int) -> tuple[int, int]:
        """The answer's sequence number and status."""
        inputs = rows(index).inputs
        described = self.describer.describe("e", 1, inputs)
        start = self.segment.starts[0]
        begin = start + REQUEST_BYTES
        self.segment.bytes[begin : begin + len(described.encoded)] = described.encoded
        for name, view in described.views(0, self.segment.inputs).items():
            view[...] = inputs[name]
        REQUEST.pack_into(self.segment.bytes, start, index, 0, 0, len(described.encoded))
        if self.submit.push(0):
            os.eventfd_write(self.fds[1], 1)
        while not (slots := self.complete.pop()):
            if self.complete.announce_sleep():
                poller = select.poll()
                poller.register(self.fds[2], select.POLLIN)
                assert poller.poll(LONG * 1000)
                assert os.read(self.fds[2], 8) == RING
            self.complete.announce_awake()
        assert slots == [0]
        sequence, status = ANSWER.unpack_from(self.segment.bytes, start + ANSWER_OFFSET)[:2]
        return sequence, status

    def close(self) -> None:
        self.sock.close()
        for fd in self.fds:
            os.close(fd)


def test_a_client_of_the_first_version_reads_its_bell(stack: Stack) -> None:
    client = Plain(stack.path)
    try:
        assert [client.infer(index) for index in range(1, 400)] == [(index, 0) for index in range(1, 400)]
    finally:
        client.close()


def test_closing_a_client_wakes_the_thread_that_waits_for_its_answers(stack: Stack) -> None:
    client = stack.client()
    ended: list[Exception] = []

    def wait() -> None:
        try:
            while True:
                client.poll()
        except TrtopsError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(client._polling.locked, "it polls")
    client.close()
    thread.join(LONG)
    assert not thread.is_alive()
    assert "the client was closed" in str(ended[0])


def test_what_a_bell_takes_is_given_back_when_there_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before = held()

    class Full:
        def __init__(self) -> None:
            self.inner = select.epoll()
            self.close = self.inner.close

        def register(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

    names = {name: getattr(select, name) for name in ("EPOLLIN", "EPOLLET")}
    monkeypatch.setattr("trtops.transport.bells.select", SimpleNamespace(epoll=Full, **names))
    with pytest.raises(OSError, match="No space"):
        clients_bell(VERSIONS[-1])
    monkeypatch.undo()
    assert held() == before
