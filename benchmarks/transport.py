"""Shared memory against TCP and Unix sockets: the same handler, the same payloads, in one run, interleaved.

Run: ``python benchmarks/transport.py [--rounds N] [--write FILE]``. A server process sums each payload (float32) and
answers with 4 KB; client processes write a payload and read the answer. All ends are Python, so what differs is how the
bytes travel. Every round measures all transports one after the other; tables give the median of the rounds and ratios
with their smallest and largest round.

- ``tcp``, ``unix``: blocking sockets, a thread a connection, an 8-byte length before the payload, ``recv_into`` a
  buffer that is kept, Nagle off.
- ``slots``: trtops' transport, bells by eventfd; payload copied into the slot by the client.
- ``slots, in place``: the payload is written in the slot itself.
- ``slots, spinning``: a lone client that looks for 60 us before it sleeps.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from printing import arguments, emit, machine, ratios, spread, table

from trtops.executor.port import Outcome
from trtops.transport.client import Client
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from trtops.transport.call import Call
    from trtops.transport.connection import Relief

_LENGTH = struct.Struct("<Q")
_REPLY = np.zeros(4096, np.uint8)
_SMALL, _LARGE = 4096, 1 << 20


class Sum:
    """The handler: sums the payload where it is."""

    def submit(
        self,
        engine: str,
        inputs: Mapping[str, np.ndarray[Any, Any]],
        rows: int,
        deadline: float | None,
        priority: int,
        done: Callable[[Outcome], None],
        client: str = "",
    ) -> Callable[[], None]:
        """Sum, and answer at once."""
        del engine, rows, deadline, priority, client
        _REPLY[0] = int(inputs["x"].sum()) & 0xFF
        done(Outcome({"y": _REPLY}))
        return lambda: None

    def start(self, *, relief: Relief | None = None) -> None:
        """Nothing waits."""

    def mapped(self, memory: np.ndarray[Any, Any]) -> None:
        """No device reads it."""

    def catalogue(self) -> bytes:
        """No engines."""
        return b"[]"


def receive(sock: socket.socket, view: memoryview) -> bool:
    got = 0
    while got < len(view):
        size = sock.recv_into(view[got:])
        if not size:
            return False
        got += size
    return True


def serve_socket(sock: socket.socket) -> None:
    buffer = np.empty(_LARGE // 4, np.float32)
    room = memoryview(buffer).cast("B")
    head = bytearray(_LENGTH.size)
    reply = memoryview(bytearray(_REPLY.tobytes()))
    with sock, contextlib.suppress(ConnectionError):
        while receive(sock, memoryview(head)):
            (size,) = _LENGTH.unpack(head)
            receive(sock, room[:size])
            reply[0] = int(buffer[: size // 4].sum()) & 0xFF
            sock.sendall(reply)


def accept(listener: socket.socket) -> None:
    while True:
        sock, _ = listener.accept()
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve_socket, args=(sock,), daemon=True).start()


def server_process(folder: str, ready: Connection) -> None:
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"{folder}/unix")
    unix.listen()
    for listener in (tcp, unix):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    slots = Server(f"{folder}/slots", Sum())
    ready.send(tcp.getsockname()[1])
    ready.recv()
    slots.close()


class SocketClient:
    """Sends up to ``window`` payloads before it reads an answer."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        """Connect."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reply = memoryview(bytearray(4096))

    def one(self, payload: np.ndarray[Any, Any]) -> None:
        """Send one payload and wait for its answer."""
        self.socket.sendmsg([_LENGTH.pack(payload.nbytes), payload])
        receive(self.socket, self.reply)

    def many(self, payload: np.ndarray[Any, Any], number: int, window: int) -> None:
        """A thread writes, this one reads, so that neither end's buffer can block both."""
        room = threading.Semaphore(window)

        def write() -> None:
            head = _LENGTH.pack(payload.nbytes)
            view = memoryview(payload)
            for _ in range(number):
                room.acquire()
                self.socket.sendall(head)
                self.socket.sendall(view)

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(number):
            receive(self.socket, self.reply)
            room.release()
        writer.join()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


class SlotClient:
    """The same over slots."""

    def __init__(self, path: str, *, spin: float = 0.0, in_place: bool = False) -> None:
        """Connect."""
        self.client = Client(path, slots=4, input_bytes=_LARGE, output_bytes=8192, spin=spin)
        self.in_place = in_place

    def _send(self, payload: np.ndarray[Any, Any]) -> Call:
        if not self.in_place:
            return self.client.submit("sum", {"x": payload}, 1)
        call, views = self.client.reserve("sum", {"x": payload}, 1)
        views["x"][:16] = payload[:16]  # what a producer wrote there anyway is not copied once more
        self.client.send(call)
        return call

    def one(self, payload: np.ndarray[Any, Any]) -> None:
        """Send one payload and wait for its answer."""
        self.client.wait(self._send(payload))

    def many(self, payload: np.ndarray[Any, Any], number: int, window: int) -> None:
        """Keep ``window`` payloads in flight."""
        calls = []
        for _ in range(number):
            if len(calls) == window:
                self.client.wait(calls.pop(0))
            calls.append(self._send(payload))
        for call in calls:
            self.client.wait(call)

    def close(self) -> None:
        """Hang up."""
        self.client.close()


@dataclass(frozen=True)
class Way:
    """A transport and how to connect by it."""

    name: str
    connect: Callable[[str, int], SocketClient | SlotClient]


_WAYS = (
    Way("tcp", lambda _, port: SocketClient(("127.0.0.1", port))),
    Way("unix", lambda folder, _: SocketClient(f"{folder}/unix")),
    Way("slots", lambda folder, _: SlotClient(f"{folder}/slots")),
    Way("slots, in place", lambda folder, _: SlotClient(f"{folder}/slots", in_place=True)),
    Way("slots, spinning", lambda folder, _: SlotClient(f"{folder}/slots", spin=60e-6)),
)


def measure(way: Way, folder: str, port: int) -> dict[str, float]:
    """One round of one transport with a lone client."""
    client = way.connect(folder, port)
    numbers: dict[str, float] = {}
    for name, size, count in (("4 KB", _SMALL, 1500), ("1 MB", _LARGE, 150)):
        payload = np.ones(size // 4, np.float32)
        times = []
        for index in range(count + count // 5):
            start = time.perf_counter()
            client.one(payload)
            if index >= count // 5:
                times.append((time.perf_counter() - start) * 1e6)
        times.sort()
        numbers[f"{name} p50 us"] = times[len(times) // 2]
        numbers[f"{name} p99 us"] = times[len(times) * 99 // 100]
    start = time.perf_counter()
    client.many(np.ones(_LARGE // 4, np.float32), 300, 4)
    numbers["GB/s, 1 MB, 4 in flight"] = 300 * _LARGE / (time.perf_counter() - start) / 1e9
    client.close()
    return numbers


def crowd(way: Way, folder: str, port: int, clients: int = 4, number: int = 1500) -> float:
    """Requests a second of several client processes at once, 4 KB each."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(clients + 1)

    def work() -> None:
        client = way.connect(folder, port)
        payload = np.ones(_SMALL // 4, np.float32)
        for _ in range(100):
            client.one(payload)
        barrier.wait()
        for _ in range(number):
            client.one(payload)
        barrier.wait()
        client.close()
        os._exit(0)

    children = [context.Process(target=work) for _ in range(clients)]
    for child in children:
        child.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    elapsed = time.perf_counter() - start
    for child in children:
        child.join()
    return clients * number / elapsed


_RPS = "rps, 4 clients, 4 KB"
_GOALS = (
    ("4 KB p50", "slots", "tcp", "4 KB p50 us", "<= 0.8"),
    ("GB/s, 1 MB, 4 in flight", "slots", "tcp", "GB/s, 1 MB, 4 in flight", ">= 1.9"),
    ("the same, written in place", "slots, in place", "tcp", "GB/s, 1 MB, 4 in flight", ">= 1.9"),
    ("rps of 4 clients, 4 KB", "slots", "unix", _RPS, ">= 1.4"),
    ("4 KB p50, a lone client that spins", "slots, spinning", "tcp", "4 KB p50 us", "<= 0.3"),
)


def report(results: dict[str, dict[str, list[float]]]) -> str:
    columns = list(results["tcp"])
    rows = [
        [name, *(f"{statistics.median(found[column]):.4g}" if column in found else "-" for column in columns)]
        for name, found in results.items()
    ]
    goals = [
        [what, f"{ours} / {theirs}", spread(ratios(results[ours][column], results[theirs][column])), goal]
        for what, ours, theirs, column, goal in _GOALS
    ]
    others = [
        [
            f"{name} / {base}",
            *(
                spread(ratios(results[name][column], results[base][column])) if column in results[name] else "-"
                for column in columns
            ),
        ]
        for base in ("tcp", "unix")
        for name in results
        if name.startswith("slots")
    ]
    return "\n".join(
        [
            table(["transport, median", *columns], rows),
            table(["", "ratio", "median (smallest to largest round)", "goal"], goals),
            "All ratios, round by round\n",
            table(["", *columns], others),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments(parser, 7)
    options = parser.parse_args()
    text = ["# Transports\n", machine(options.rounds)]
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ready, child_end = context.Pipe()
        server = context.Process(target=server_process, args=(folder, child_end))
        server.start()
        port = ready.recv()
        results: dict[str, dict[str, list[float]]] = {way.name: defaultdict(list) for way in _WAYS}
        for _ in range(options.rounds):
            for way in _WAYS:
                for column, number in measure(way, folder, port).items():
                    results[way.name][column].append(number)
                if "spinning" not in way.name:  # four spinning clients would fight for the cores
                    results[way.name][_RPS].append(crowd(way, folder, port))
        ready.send("stop")
        server.join()
    emit("\n".join([*text, report(results)]), options.write)


if __name__ == "__main__":
    main()
