"""The executor in one process, against the device itself and other ways to schedule, in the same run.

Run: ``python benchmarks/executor_throughput.py [--rounds N] [--only NAME] [--write FILE]``. The device is played: a run
sleeps a given time, whatever its batch. 16 rows make a batch. Everything is measured in turn, round by round:

- ``loop``: 64 requests in flight. ``device``: the bare loop, batches of 16 one after the other with no queue and no
  clients: nothing can be faster. ``polling``: a scheduler that looks every millisecond. ``static``: full batches only;
- ``poisson``: static batching (full batches of 16, or what came in 50 ms) against dynamic, from idle to 1.2 times what
  the device can do;
- ``idle``: 100 requests a second, and what the delay of the policy adds;
- ``shapes``: two shapes that alternate, with a delay of 200 ms;
- ``timeout``: a timeout of 100 ms behind a batch of 400 ms;
- ``callers``: 4, 32 and 128 threads that each ask, wait and ask again.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import statistics
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from printing import arguments, emit, machine, ratios, spread, table

from trtops.backend.fake import FakeOptions, FakeSession
from trtops.errors import DeadlineExceeded
from trtops.executor.executor import Executor
from trtops.executor.observer import Silent
from trtops.executor.port import Outcome, Request
from trtops.spec.engine import Batching
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.executor.observer import BatchReport

    Submit = Callable[[Request, Callable[[Outcome], None]], object]

_BATCH, _IN_FLIGHT = 16, 64
_X = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
_Y = (TensorInfo(name="y", dtype="float32", shape=("batch",)),)
_ROW = np.ones((1, 16), np.float32)
_FULL = np.ones((_BATCH, 16), np.float32)
_EVERYTHING = {"priorities": 3, "max_queue_delay": "2ms", "preferred": [8, 16]}


@dataclass(frozen=True)
class Figures:
    """What a way did: requests a second, p50 and p99 in ms, rows of a batch on average."""

    rps: float
    p50: float
    p99: float
    rows: float = 0.0


@dataclass
class Sizes(Silent):
    """Counts batches and why they were released."""

    batches: list[int] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def batch(self, report: BatchReport) -> None:
        """A batch ran."""
        self.batches.append(report.rows)
        self.reasons[report.reason] += 1


def session(cost_us: float) -> FakeSession:
    return FakeSession(_X, _Y, FakeOptions(cost_us=cost_us))


@contextlib.contextmanager
def executor(cost_us: float, **batching: Any) -> Iterator[tuple[Submit, Sizes]]:  # noqa: ANN401 - parts of a document
    """Our executor with one engine."""
    sizes = Sizes()
    ours = Executor(observer=sizes)
    section = {"max_batch": _BATCH, "queue": {"timeout": "10s", "max_size": 4096}, **batching}
    ours.load(
        "e",
        generation=1,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=Batching.model_validate(section),
        instances=1,
        open_session=lambda: session(cost_us),
    )
    try:
        yield (lambda request, done: ours.submit("e", request, done)), sizes
    finally:
        ours.close(drain=5)


@contextlib.contextmanager
def polling(cost_us: float) -> Iterator[tuple[Submit, Sizes]]:
    """A scheduler that looks every millisecond: take up to 16, run, answer, and sleep if there was nothing."""
    waiting: queue.Queue[tuple[Request, Callable[[Outcome], None]]] = queue.Queue()
    stop, device, sizes = threading.Event(), session(cost_us), Sizes()

    def serve() -> None:
        while not stop.is_set():
            batch = []
            with contextlib.suppress(queue.Empty):
                while len(batch) < _BATCH:
                    batch.append(waiting.get_nowait())
            if not batch:
                time.sleep(0.001)
                continue
            outputs = device.run({"x": np.concatenate([request.inputs["x"] for request, _ in batch])})
            sizes.batches.append(len(batch))
            for index, (_, done) in enumerate(batch):
                done(Outcome({name: array[index : index + 1] for name, array in outputs.items()}))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield (lambda request, done: waiting.put((request, done))), sizes
    finally:
        stop.set()
        thread.join()


def figures(times: list[float], elapsed: float, sizes: Sizes | None = None) -> Figures:
    ordered = sorted(times)
    rows = statistics.fmean(sizes.batches) if sizes and sizes.batches else 0.0
    return Figures(
        len(ordered) / elapsed, ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3, rows
    )


def closed(submit: Submit, sizes: Sizes, number: int) -> Figures:
    """``number`` requests with 64 in flight."""
    times: list[float] = []
    room = threading.Semaphore(_IN_FLIGHT)
    start = time.perf_counter()
    for _ in range(number):
        room.acquire()
        sent = time.perf_counter()

        def done(outcome: Outcome, sent: float = sent) -> None:
            assert outcome.error is None, outcome.error
            times.append(time.perf_counter() - sent)
            room.release()

        submit(Request({"x": _ROW}, 1), done)
    for _ in range(_IN_FLIGHT):
        room.acquire()
    return figures(times, time.perf_counter() - start, sizes)


def arriving(submit: Submit, sizes: Sizes, rate: float, seconds: float, seed: int) -> Figures:
    """Requests that come by chance (Poisson), ``rate`` a second; latency counts from when each was due."""
    chance = random.Random(seed)
    times: list[float] = []
    number = max(1, int(rate * seconds))
    left = threading.Semaphore(0)
    start = due = time.perf_counter()
    for _ in range(number):
        due += chance.expovariate(rate)
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)

        def done(outcome: Outcome, due: float = due) -> None:
            assert outcome.error is None, outcome.error
            times.append(time.perf_counter() - due)
            left.release()

        submit(Request({"x": _ROW}, 1), done)
    for _ in range(number):
        left.acquire()
    return figures(times, time.perf_counter() - start, sizes)


def device(cost_us: float, number: int) -> Figures:
    bare = session(cost_us)
    batches = number // _BATCH
    start = time.perf_counter()
    for _ in range(batches):
        bare.run({"x": _FULL})
    elapsed = time.perf_counter() - start
    return Figures(batches * _BATCH / elapsed, elapsed / batches * 1e3, elapsed / batches * 1e3, _BATCH)


# -- the tables --------------------------------------------------------------------------------------------------------


def loop(rounds: int) -> str:
    ways = {
        "ours": executor,
        "ours, priorities, delay, preferred": lambda cost: executor(cost, **_EVERYTHING),
        "static": lambda cost: executor(cost, max_queue_delay="5s"),
        "polling": polling,
    }
    text = []
    for title, cost_us, number in (("device free", 0.0, 9600), ("5 ms a batch", 5000.0, 3200)):
        results: dict[str, list[Figures]] = defaultdict(list)
        for _ in range(rounds):
            results["device"].append(device(cost_us, number))
            for name, way in ways.items():
                with way(cost_us) as (submit, sizes):
                    results[name].append(closed(submit, sizes, number))
        bare = [run.rps for run in results["device"]]
        rows = [
            [
                name,
                f"{statistics.median(run.rps for run in runs):.0f}",
                f"{statistics.median(run.p50 for run in runs):.2f}",
                f"{statistics.median(run.p99 for run in runs):.2f}",
                f"{statistics.median(run.rows for run in runs):.1f}",
                spread(ratios([run.rps for run in runs], bare)),
            ]
            for name, runs in results.items()
        ]
        text += [
            f"## 64 in flight, {title}\n",
            table(["", "rps", "p50 ms", "p99 ms", "rows a batch", "rps / device"], rows),
        ]
        cost = ratios([run.rps for run in results[list(ways)[1]]], [run.rps for run in results["ours"]])
        text.append(f"All policies on, over none: {spread(cost)} of the rps; goal: 0.95 or more.\n")
    return "\n".join(text)


def poisson(rounds: int) -> str:
    cost_us = 5000.0
    capacity = _BATCH / (cost_us / 1e6)
    rows = []
    for share in (0.02, 0.1, 0.3, 0.6, 0.8, 1.0, 1.2):
        results: dict[str, list[Figures]] = defaultdict(list)
        for turn in range(rounds):
            for name, delay in (("static", "50ms"), ("dynamic", "0ms")):
                with executor(cost_us, max_queue_delay=delay) as (submit, sizes):
                    results[name].append(arriving(submit, sizes, share * capacity, 1.0, turn))
        late = ratios([run.p99 for run in results["dynamic"]], [run.p99 for run in results["static"]])
        cells = [
            f"{statistics.median(getattr(run, key) for run in results[name]):.{digits}f}"
            for key, digits in (("rps", 0), ("p50", 1), ("p99", 1), ("rows", 1))
            for name in ("static", "dynamic")
        ]
        rows.append([f"{share:g}", *cells, spread(late)])
    head = ["load / capacity"]
    head += [f"{name}: {what}" for what in ("rps", "p50 ms", "p99 ms", "rows") for name in ("static", "dynamic")]
    title = "## Static (16 rows, or what came in 50 ms) against dynamic batching, Poisson, 5 ms a batch\n"
    goal = "Goal: dynamic is never worse than static at p99.\n"
    return "\n".join([title, table([*head, "p99 dynamic / static"], rows), goal])


def idle(rounds: int) -> str:
    rows = []
    for delay in (0, 2, 10):
        runs = []
        for turn in range(rounds):
            with executor(0.0, max_queue_delay=f"{delay}ms") as (submit, sizes):
                runs.append(arriving(submit, sizes, 100.0, 1.5, turn))
        rows.append([f"{delay} ms", spread([run.p50 for run in runs]), spread([run.p99 - delay for run in runs])])
    head = ["delay of the policy", "p50 ms", "p99 above the delay, ms"]
    return "\n".join(["## Idle: 100 requests a second, device free\n", table(head, rows), "Goal: at most 3.5 ms.\n"])


def shapes(rounds: int) -> str:
    found: list[float] = []
    for _ in range(rounds):
        with executor(1000.0, max_queue_delay="200ms") as (submit, sizes):
            left = threading.Semaphore(0)
            sizes.batches.clear()
            for index in range(_BATCH * 8):
                x = np.ones((1, (16, 24)[index & 1]), np.float32)
                submit(Request({"x": x}, 1), lambda _, left=left: left.release())
            for _ in range(_BATCH * 8):
                left.acquire()
            found.append(statistics.fmean(sizes.batches))
    rows = [["two shapes that alternate", spread(found, ".1f"), "16"]]
    return "\n".join(["## Shapes\n", table(["", "rows a batch, 200 ms delay", "goal"], rows)])


def timeout(rounds: int) -> str:
    found: list[float] = []
    for _ in range(rounds):
        with executor(400_000.0, queue={"timeout": "100ms"}) as (submit, _):
            running, answered = threading.Event(), threading.Event()
            submit(Request({"x": _ROW}, 1), lambda _, running=running: running.set())
            time.sleep(0.02)
            begin = time.perf_counter()
            took: list[float] = []

            def done(outcome: Outcome, begin: float = begin, took: list[float] = took) -> None:
                assert isinstance(outcome.error, DeadlineExceeded), outcome
                took.append((time.perf_counter() - begin) * 1e3)
                answered.set()  # noqa: B023 - of this round

            submit(Request({"x": _ROW}, 1), done)
            answered.wait()
            running.wait()
            found += took
    rows = [["timeout of 100 ms behind a batch of 400 ms", spread(found, ".1f"), "<= 110"]]
    return "\n".join(["## Timeouts\n", table(["", "answered after, ms", "goal"], rows)])


def callers(rounds: int) -> str:
    found: dict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for count in (4, 32, 128):
            with executor(1000.0) as (submit, _):
                found[count].append(ask_again(submit, count))
    base = found[4]
    rows = [[str(count), spread(values, ".0f"), spread(ratios(values, base))] for count, values in found.items()]
    head = ["threads", "p50 of a request over the requests that are served at once, us", "over 4 threads"]
    goal = "A batch is 1 ms and 16 rows; up to 16 callers are served at once. Goal: at most 1.5.\n"
    return "\n".join(["## Callers that wait\n", table(head, rows), goal])


def ask_again(submit: Submit, count: int) -> float:
    """p50 latency in us, divided by the batches that a full round of all callers takes."""
    times: list[float] = []
    stop = time.perf_counter() + 0.8

    def work() -> None:
        event = threading.Event()
        while (begin := time.perf_counter()) < stop:
            event.clear()
            submit(Request({"x": _ROW}, 1), lambda _: event.set())
            event.wait()
            times.append((time.perf_counter() - begin) * 1e6)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(times) / max(1.0, count / _BATCH)


_TABLES = {"loop": loop, "poisson": poisson, "idle": idle, "shapes": shapes, "timeout": timeout, "callers": callers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=_TABLES, help="one of the tables")
    arguments(parser, 5)
    options = parser.parse_args()
    text = ["# The executor in one process\n", machine(options.rounds)]
    text += [make(options.rounds) for name, make in _TABLES.items() if options.only in {None, name}]
    emit("\n".join(text), options.write)


if __name__ == "__main__":
    main()
