"""Where the time of a lone request goes, hop by hop, from a client through an executor in another process and back.

Run: ``python benchmarks/executor_latency.py [--rounds N] [--number N] [--write FILE]``. A worker process serves the
fake backend through shared memory; another process asks it, one request after the other, batch 1. Both note times of
CLOCK_MONOTONIC, which all processes of a machine share. Beside it, in a process of its own, the same session is run in
a bare loop: what is more than that is the executor's and the transport's. Cases, interleaved round by round:

- the device: none (the run returns at once), one that is waited for asleep, and one that is waited for by a core that
  looks again and again with the interpreter let go, as the CUDA runtime does;
- the client: woken by its eventfd, or spinning.

Hops: ``post``: the client writes the request and posts it; ``wake``: until the worker has read it; ``plan``: queued,
planned, put together, until the run begins; ``run``: of the session; ``finish``: the batch is taken apart, until the
answer begins; ``answer``: it is written, the client's bell rung; ``back``: until the client has read it, which may
begin before ``answer`` ends. ``sleeps`` is how often threads of the worker and of the client went to sleep a request.

``--engine FOLDER`` measures an engine in place of these devices: the folder is one of ``tensorrt_h200.py``'s work
folder. It is set up as an executor does, with a CUDA graph of a batch of 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import statistics
import tempfile
import time
import zlib
from collections import defaultdict
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from executor_processes import opened
from printing import arguments, emit, machine, spread, table

from trtops.backend.fake import FakeOptions, FakeSession
from trtops.backend.port import Arranges, Gathers
from trtops.backend.select import backend
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.spec.engine import Batching, Execution, Memory
from trtops.tensor import TensorInfo
from trtops.transport.client import Client
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from trtops.backend.port import Session
    from trtops.executor.port import Outcome
    from trtops.transport.connection import Answer

    Inputs = Mapping[str, np.ndarray[Any, Any]]

_X = TensorInfo(name="x", dtype="float32", shape=("n", 1024))
_Y = TensorInfo(name="y", dtype="float32", shape=("n", 1))
_CHUNK = bytes(8192)
_DEVICES = {"none": 0.0, "asleep, 500 us": 500.0, "looking, 500 us": 500.0}
_CLIENTS = {"eventfd": 0.0, "spinning": 1e-2}
_HOPS = ("post", "wake", "plan", "run", "finish", "answer", "back")
_SLEEPS = ("worker sleeps", "client sleeps")
_NOTES = 5
"""Times that a worker notes of a request: read, run, end of the run, answer, answered."""
_ENGINE = "engine "
_CONTEXT = multiprocessing.get_context("spawn")


def look(seconds: float) -> None:
    """Wait as a library does that looks again and again, and holds no lock of the interpreter."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        zlib.crc32(_CHUNK)


def session_of(device: str) -> Session:
    """A session whose device takes its time; or one of an engine, whose folder is named."""
    if device.startswith(_ENGINE):
        artifact, sidecar = opened(Path(device.removeprefix(_ENGINE)))
        return backend(sidecar.backend).load(artifact, sidecar)
    options = FakeOptions(cost_us=_DEVICES[device])
    return FakeSession((_X,), (_Y,), options, sleep=look if device.startswith("looking") else time.sleep)


def arranged(session: Session) -> Session:
    """The session with a graph of a batch of 1, as an executor sets it up; the same where it has none."""
    if isinstance(session, Arranges):
        (session,) = session.arrange(Execution(cuda_graphs=True), Memory(), (1,))
    return session


def inputs_of(device: str) -> Inputs:
    """A request of one row."""
    if device.startswith(_ENGINE):
        profile = opened(Path(device.removeprefix(_ENGINE)))[1].profiles[0]
        return {name: np.ones((1, *limits.opt[1:]), np.float32) for name, limits in profile.inputs.items()}
    return {"x": np.ones((1, 1024), np.float32)}


class Noting:
    """A session that notes when it runs."""

    def __init__(self, inner: Session, times: list[list[float]]) -> None:
        """Note in the last of these lists."""
        self._inner, self._times = inner, times
        self.inputs, self.outputs, self.close = inner.inputs, inner.outputs, inner.close

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run, and note begin and end."""
        begin = time.perf_counter()
        try:
            return self._inner.run(inputs)
        finally:
            if self._times:  # it is warmed up before there is a request
                self._times[-1].extend((begin, time.perf_counter()))


class NotingBatches(Noting):
    """The same of a session that puts batches together."""

    def enqueue(self, parts: Sequence[Inputs], rows: int) -> None:
        """Start, and note that."""
        if self._times:
            self._times[-1].append(time.perf_counter())
        self._inner.enqueue(parts, rows)  # type: ignore[attr-defined]  # it gathers

    def collect(self) -> dict[str, np.ndarray[Any, Any]]:
        """Wait, and note the end."""
        outputs: dict[str, np.ndarray[Any, Any]] = self._inner.collect()  # type: ignore[attr-defined]
        if self._times:
            self._times[-1].append(time.perf_counter())
        return outputs


def noting(device: str, times: list[list[float]]) -> Session:
    session = arranged(session_of(device))
    return NotingBatches(session, times) if isinstance(session, Gathers) else Noting(session, times)


class Door(Attachment):
    """Notes when a request was read, and when its answer is written."""

    def __init__(self, executor: Executor, times: list[list[float]]) -> None:
        """Note in a list for each request."""
        super().__init__(executor)
        self._times = times

    def submit(
        self,
        engine: str,
        inputs: Mapping[str, Any],
        rows: int,
        deadline: float | None,
        priority: int,
        done: Callable[[Answer], None],
        client: str = "",
    ) -> Callable[[], None]:
        """Pass it on."""
        times = [time.perf_counter()]
        self._times.append(times)

        def noted(outcome: Outcome) -> None:
            begin = time.perf_counter()
            done(outcome)
            times.extend((begin, time.perf_counter()))

        return super().submit(engine, inputs, rows, deadline, priority, noted, client)  # type: ignore[arg-type]


def worker_process(pipe: Connection, path: str, device: str) -> None:
    times: list[list[float]] = []
    executor = Executor()
    executor.load(
        "e",
        generation=1,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=Batching(max_batch=8),
        instances=1,
        open_session=lambda: noting(device, times),
        profiles=opened(Path(device.removeprefix(_ENGINE)))[1].profiles if device.startswith(_ENGINE) else (),
    )
    server = Server(path, Door(executor, times))
    pipe.send("ready")
    while pipe.recv() is not None:
        while times and len(times[-1]) < _NOTES:  # the last answer is noted after the client has it
            time.sleep(0.001)
        pipe.send(list(times))
        times.clear()
    server.close()
    executor.close(drain=1)


def client_process(pipe: Connection, path: str, device: str) -> None:
    x = inputs_of(device)
    size = sum(array.nbytes for array in x.values())
    while (order := pipe.recv()) is not None:
        number, spin = order
        times: list[tuple[float, float, float]] = []
        with Client(path, slots=1, input_bytes=size, spin=spin) as client:
            for _ in range(number):
                begin = time.perf_counter()
                call = client.submit("e", x, 1)
                sent = time.perf_counter()
                client.wait(call)
                times.append((begin, sent, time.perf_counter()))
        pipe.send(times)


def bare_process(pipe: Connection, device: str) -> None:
    session, x = arranged(session_of(device)), inputs_of(device)
    while (number := pipe.recv()) is not None:
        times = []
        for _ in range(number):
            begin = time.perf_counter()
            session.run(x)
            times.append(time.perf_counter() - begin)
        pipe.send(times)


def waiting_process(pipe: Connection) -> None:
    """Notes when it was woken by an eventfd, again and again."""
    bell, back = (handle.detach() for handle in pipe.recv())
    poller = select.epoll()
    poller.register(bell, select.EPOLLIN | select.EPOLLET)
    while (number := pipe.recv()) is not None:
        times = []
        for _ in range(number):
            poller.poll()
            times.append(time.perf_counter())
            os.eventfd_write(back, 1)
        pipe.send(times)


def bare_wake(number: int, rounds: int) -> list[float]:
    """Microseconds that waking another process takes here, a median each round: less no client by eventfd can lose.

    It sleeps 500 us before, as one does that waits for a device.
    """
    bell, back = os.eventfd(0), os.eventfd(0)
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=waiting_process, args=(theirs,), daemon=True)
    process.start()
    ours.send((reduction.DupFd(bell), reduction.DupFd(back)))
    found = []
    for _ in range(rounds):
        ours.send(number)
        begins = []
        for _ in range(number):
            look(5e-4)
            begins.append(time.perf_counter())
            os.eventfd_write(bell, 1)
            os.eventfd_read(back)
        found.append(statistics.median(end - begin for begin, end in zip(begins, ours.recv(), strict=True)) * 1e6)
    ours.send(None)
    process.join()
    os.close(bell)
    os.close(back)
    return found


def hops(ours: list[tuple[float, float, float]], theirs: list[list[float]]) -> dict[str, list[float]]:
    """Microseconds of each hop of each request but the first tenth."""
    found: dict[str, list[float]] = defaultdict(list)
    for index, (begin, sent, end) in enumerate(ours):
        if index >= len(ours) // 10:
            at = [begin, sent, *theirs[index], end]
            for name, one, other in zip(_HOPS, at[:-1], at[1:], strict=True):
                found[name].append((other - one) * 1e6)
            found["whole"].append((end - begin) * 1e6)
    return found


def sleeps(pid: int) -> int:
    """How often threads of a process went to sleep."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("voluntary_"))


class Case:
    """Processes of a device, and what was measured with it."""

    def __init__(self, folder: str, device: str, number: int) -> None:
        """Start them."""
        self.device, self._number = device, number
        self._path = f"{folder}/{len(list(Path(folder).iterdir()))}"
        self._members = [
            self._start(worker_process, self._path, device),
            self._start(client_process, self._path, device),
            self._start(bare_process, device),
        ]
        self._members[0][1].recv()
        self.bare: list[float] = []
        self.found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in _CLIENTS}

    def _start(self, target: Callable[..., None], *rest: str) -> tuple[Any, Connection]:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=target, args=(theirs, *rest), daemon=True)
        process.start()
        return process, ours

    def round(self) -> None:
        """Measure everything once."""
        worker, client, bare = (pipe for _, pipe in self._members)
        bare.send(self._number)
        self.bare.append(statistics.median(bare.recv()) * 1e6)
        for name, spin in _CLIENTS.items():
            slept = [sleeps(process.pid) for process, _ in self._members[:2]]
            client.send((self._number, spin))
            ours = client.recv()
            for whose, (process, _), before in zip(_SLEEPS, self._members, slept, strict=False):
                self.found[name][whose].append((sleeps(process.pid) - before) / self._number)
            worker.send("times")
            for hop, values in hops(ours, worker.recv()).items():
                self.found[name][hop].append(statistics.median(values))

    def close(self) -> None:
        """End them."""
        for process, pipe in reversed(self._members):
            pipe.send(None)
            process.join()

    def rows(self) -> list[list[str]]:
        """For the table."""
        rows = []
        for name, found in self.found.items():
            over = [whole - bare for whole, bare in zip(found["whole"], self.bare, strict=True)]
            cells = [f"{statistics.median(found[hop]):.0f}" for hop in _HOPS]
            slept = [f"{statistics.median(found[whose]):.2f}" for whose in _SLEEPS]
            rows.append(
                [self.device, name, f"{statistics.median(self.bare):.0f}", spread(over, "+.0f"), *cells, *slept]
            )
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments(parser, 7)
    parser.add_argument("--number", type=int, default=500, help="requests of a case in a round")
    parser.add_argument("--engine", action="append", metavar="FOLDER", help="in place of devices that only wait")
    options = parser.parse_args()
    text = ["# A lone request, hop by hop\n", machine(options.rounds)]
    devices = [f"{_ENGINE}{folder}" for folder in options.engine] if options.engine else list(_DEVICES)
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(folder, device, options.number) for device in devices]
        for _ in range(options.rounds):
            for case in cases:
                case.round()
        for case in cases:
            case.close()
    head = ["device", "client", "bare run, p50 us", "p50 us over it", *_HOPS, *_SLEEPS]
    text.append(table(head, [row for case in cases for row in case.rows()]))
    text.append("Hops are medians in us; goals: <= +60 by eventfd, <= +25 for a lone client that spins.\n")
    wake = spread(bare_wake(options.number, options.rounds), ".0f")
    text.append(f"Waking another process by an eventfd, with nothing of this project in it: {wake} us.\n")
    emit("\n".join(text), options.write)


if __name__ == "__main__":
    main()
