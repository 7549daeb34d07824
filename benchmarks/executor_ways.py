"""Ways to schedule requests onto a played device, and the load that ``executor_throughput.py`` puts on them.

Nothing here waits without an end: an answer that does not come within a minute ends the benchmark with a message.
"""

from __future__ import annotations

import contextlib
import queue
import random
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.fake import FakeOptions, FakeSession
from trtops.executor.executor import Executor
from trtops.executor.observer import Silent
from trtops.executor.port import Outcome, Request
from trtops.spec.engine import Batching
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.executor.observer import BatchReport

    Submit = Callable[[Request, Callable[[Outcome], None]], object]
    Make = Callable[[int], Request]

BATCH, IN_FLIGHT = 16, 64
ROW = np.ones((1, 16), np.float32)
_X = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
_Y = (TensorInfo(name="y", dtype="float32", shape=("batch",)),)
_FULL = np.ones((BATCH, 16), np.float32)
_PATIENCE = 60.0


@dataclass(frozen=True)
class Figures:
    """What a way did: requests a second, p50 and p99 in ms, rows of a batch on average."""

    rps: float
    p50: float
    p99: float
    rows: float = 0.0


@dataclass
class Sizes(Silent):
    """Rows of the batches that ran, and why they were released."""

    batches: list[int] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def batch(self, report: BatchReport) -> None:
        """A batch ran."""
        self.batches.append(report.rows)
        self.reasons[report.reason] += 1


def session(cost_us: float) -> FakeSession:
    """The device: a run sleeps so long, whatever its batch."""
    return FakeSession(_X, _Y, FakeOptions(cost_us=cost_us))


@contextlib.contextmanager
def executor(cost_us: float, **batching: Any) -> Iterator[tuple[Submit, Sizes]]:  # noqa: ANN401 - parts of a document
    """Our executor with one engine."""
    sizes = Sizes()
    ours = Executor(observer=sizes)
    section = {"max_batch": BATCH, "queue": {"timeout": "10s", "max_size": 65536}, **batching}
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
def polling(cost_us: float, every: float, *, tick: bool = False) -> Iterator[tuple[Submit, Sizes]]:
    """A scheduler that looks every so many seconds: take up to 16, run them, answer.

    It sleeps only after it found nothing; a ``tick`` sleeps after each batch as well, so one batch goes a tick at most.
    """
    waiting: queue.Queue[tuple[Request, Callable[[Outcome], None]]] = queue.Queue()
    stop, device, sizes = threading.Event(), session(cost_us), Sizes()

    def serve() -> None:
        while not stop.is_set():
            batch = []
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH:
                    batch.append(waiting.get_nowait())
            if batch:
                outputs = device.run({"x": np.concatenate([request.inputs["x"] for request, _ in batch])})
                sizes.batches.append(len(batch))
                for index, (_, done) in enumerate(batch):
                    done(Outcome({name: array[index : index + 1] for name, array in outputs.items()}))
            if tick or not batch:
                time.sleep(every)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield (lambda request, done: waiting.put((request, done))), sizes
    finally:
        stop.set()
        thread.join()


def plain(_: int) -> Request:
    """A request of one row with nothing asked."""
    return Request({"x": ROW}, 1)


def pressing(number: int) -> Request:
    """A request with one of three priorities and a deadline of its own."""
    return Request({"x": ROW}, 1, time.monotonic() + 9.0, number % 3)


def await_answers(room: threading.Semaphore, number: int = 1) -> None:
    """Wait for so many answers.

    Raises:
        SystemExit: one did not come.
    """
    for _ in range(number):
        if not room.acquire(timeout=_PATIENCE):
            raise SystemExit(f"no answer came for {_PATIENCE:g} s: the way that is measured hangs")


def figures(times: list[float], elapsed: float, sizes: Sizes | None = None) -> Figures:
    """Sum up."""
    ordered = sorted(times)
    rows = statistics.fmean(sizes.batches) if sizes and sizes.batches else 0.0
    return Figures(
        len(ordered) / elapsed, ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3, rows
    )


def closed(submit: Submit, sizes: Sizes, seconds: float, make: Make = plain) -> Figures:
    """For so many seconds, 64 requests in flight; full batches of them in all, so that none is left with no company."""
    times: list[float] = []
    room = threading.Semaphore(IN_FLIGHT)
    start = time.perf_counter()
    number = 0
    while number % BATCH or time.perf_counter() - start < seconds:
        await_answers(room)
        sent = time.perf_counter()

        def done(outcome: Outcome, sent: float = sent) -> None:
            assert outcome.error is None, outcome.error
            times.append(time.perf_counter() - sent)
            room.release()

        submit(make(number), done)
        number += 1
    await_answers(room, IN_FLIGHT)
    return figures(times, time.perf_counter() - start, sizes)


def arriving(submit: Submit, sizes: Sizes, rate: float, seconds: float, seed: int) -> Figures:
    """Requests that come by chance (Poisson), ``rate`` a second, full batches of them in all.

    Latency counts from when each was due.
    """
    chance = random.Random(seed)
    times: list[float] = []
    number = max(2, int(rate * seconds) // BATCH) * BATCH
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

        submit(plain(0), done)
    await_answers(left, number)
    return figures(times, time.perf_counter() - start, sizes)


def device(cost_us: float, seconds: float) -> Figures:
    """The bare loop: full batches one after the other."""
    bare = session(cost_us)
    batches, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        bare.run({"x": _FULL})
        batches += 1
    return Figures(batches * BATCH / elapsed, elapsed / batches * 1e3, elapsed / batches * 1e3, BATCH)


def idle_cpu(seconds: float) -> float:
    """Share of a core that this process takes while nothing comes."""
    before, start = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return (time.process_time() - before) / (time.perf_counter() - start)
