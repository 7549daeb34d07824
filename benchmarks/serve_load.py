"""Load for the serving benchmarks: ``wrk`` where the client must be light, a small one in Python where it must look."""

from __future__ import annotations

import asyncio
import math
import random
import re
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


@dataclass
class Seen:
    """What a load saw. Times in milliseconds.

    Attributes:
        rps: answers a second.
        times: of good answers, for the Python client.
        quantiles: p50 and p99.
        failed: answers that were no 200, and connections that broke.
        requests: good answers.
    """

    rps: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    failed: int = 0
    requests: int = 0
    times: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, times: list[float], seconds: float, failed: int = 0) -> Seen:
        """Sum up."""
        ordered = sorted(times)
        return cls(
            len(times) / seconds,
            quantile(ordered, 0.5),
            quantile(ordered, 0.99),
            ordered[-1] if ordered else math.inf,
            failed,
            len(times),
            times,
        )


def quantile(ordered: list[float], q: float) -> float:
    """A quantile (the nearest rank) of sorted values; infinite of none."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.inf


def wrk(url: str, script: Path, *, connections: int = 64, seconds: float = 4.0) -> Seen:
    """Closed-loop load by ``wrk``, one thread."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s", "--latency", "-s", str(script), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in text, f"{url}: {text}"

    def latency(percent: str) -> float:
        value, unit = re.search(rf"{percent}%\s+([\d.]+)(us|ms|s|m)\b", text).groups()  # type: ignore[union-attr]
        return float(value) * _UNITS[unit]

    requests = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    rps = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])  # type: ignore[index]
    return Seen(rps, latency("50"), latency("99"), requests=requests)


class _Line(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, done: Callable[[_Line, bool, float], None]) -> None:
        self.done = done
        self.buffer = b""
        self.sent = 0.0
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP

    def ask(self, request: bytes) -> None:
        assert self.transport is not None
        self.sent = time.perf_counter()
        self.busy = True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        if len(body) >= length:
            self.buffer = body[length:]
            self.busy = False
            self.done(self, head.startswith(b"HTTP/1.1 200"), (time.perf_counter() - self.sent) * 1e3)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.busy:
            self.busy = False
            self.done(self, False, 0.0)  # noqa: FBT003 - it failed


def request(path: str, body: bytes, **headers: str) -> bytes:
    """The bytes of a POST."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def closed(port: int, requests: list[bytes], clients: int, seconds: float) -> Seen:
    """Clients that ask again as soon as they have an answer; client ``i`` sends ``requests[i % len]``."""
    times: list[float] = []
    failed = 0

    async def run() -> None:
        nonlocal failed
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        turn = {}

        def done(line: _Line, good: bool, took: float) -> None:  # noqa: FBT001 - a callback
            nonlocal failed
            if good:
                times.append(took)
            else:
                failed += 1
            if loop.time() < end and line.transport is not None and not line.transport.is_closing():
                line.ask(turn[line])

        for number in range(clients):
            _, line = await loop.create_connection(lambda: _Line(done), "127.0.0.1", port)
            turn[line] = requests[number % len(requests)]
        for line, what in turn.items():
            line.ask(what)
        await asyncio.sleep(seconds)
        await _finish(turn)

    _run(run())
    return Seen.of(times, seconds, failed)


def poisson(port: int, what: bytes, rate: float, seconds: float, seed: int) -> Seen:
    """Requests that come by chance, ``rate`` a second on average, whether or not the earlier ones are answered.

    A request's time counts from when it was due.
    """
    times: list[float] = []
    failed = 0

    async def run() -> None:
        nonlocal failed
        loop = asyncio.get_running_loop()
        idle: deque[_Line] = deque()
        lines: dict[_Line, float] = {}

        def done(line: _Line, good: bool, took: float) -> None:  # noqa: FBT001 - a callback
            nonlocal failed
            if good:
                times.append(took + lines[line])
            else:
                failed += 1
            idle.append(line)

        async def open_one() -> _Line:
            _, line = await loop.create_connection(lambda: _Line(done), "127.0.0.1", port)
            lines[line] = 0.0
            return line

        for _ in range(64):
            idle.append(await open_one())
        dice = random.Random(seed)
        due = loop.time()
        end = due + seconds
        while (due := due + dice.expovariate(rate)) < end:
            pause = due - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            line = idle.popleft() if idle else await open_one()
            lines[line] = max(0.0, loop.time() - due) * 1e3
            line.ask(what)
        await asyncio.sleep(0.2)
        await _finish(lines)

    _run(run())
    return Seen.of(times, seconds, failed)


async def _finish(lines: dict[_Line, bytes] | dict[_Line, float]) -> None:
    end = time.monotonic() + 20
    while any(line.busy for line in lines) and time.monotonic() < end:  # noqa: ASYNC110 - a few times, at the end
        await asyncio.sleep(0.01)
    for line in lines:
        if line.transport is not None:
            line.transport.abort()


def _run(work: object) -> None:
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
