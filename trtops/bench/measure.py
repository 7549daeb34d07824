"""Measuring an engine: warm up until it is steady, then time runs one after another.

What the numbers mean: one caller, closed loop, inputs and outputs in host memory, the whole of ``Session.run`` timed.
The clock is handed in; garbage collection is off while runs are timed.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trtops.backend.port import Progress
from trtops.bench import statistics
from trtops.bench.conditions import Conditions, condition_warnings
from trtops.bench.results import BatchMeasurement, Benchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtops.backend.port import BackendStatus, Session
    from trtops.bench.workload import Work
    from trtops.device import Device
    from trtops.spec.engine import Benchmark as Settings

    Clock = Callable[[], int]

MIN_RUNS = 50
MAX_RUNS = 200_000
FEWEST_RUNS = 5
STRETCH = 3
"""How many times the duration a measurement (and the warm-up) may take to come to enough runs (to be steady)."""

_WINDOW = 10  # warm-up: medians of two windows of so many runs are compared, of slow engines three
_FEWEST_COMPARED = 3
_STEADY = 0.05
_RUNS_FOR_P99 = 368  # fewer have no upper bound of 95 % (statistics.quantile_ranks)
_VARIES = 0.25
_NEIGHBOURS = 0.3
_WIDE = 0.25
_TICKS = 100
_TICK_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw times of one batch size.

    Attributes:
        warmup_runs: before.
        steady: whether warm-up ended because latencies were steady, not because its time was spent.
        nanoseconds: of each timed run, in order.
    """

    warmup_runs: int
    steady: bool
    nanoseconds: tuple[int, ...]


def measure(
    session: Session,
    settings: Settings,
    workload: Sequence[Work],
    clock: Clock,
    *,
    device: Device,
    status: BackendStatus,
    progress: Callable[[Progress], None] = lambda _: None,
    conditions: Callable[[], Conditions] = Conditions,
) -> Benchmark:
    """Measure every batch size of a workload.

    Args:
        session: the engine, owned by this thread.
        settings: warm-up and duration (microseconds) of the spec.
        workload: from :func:`~trtops.bench.workload.plan_workload`.
        clock: monotonic nanoseconds, e.g. ``time.perf_counter_ns``.
        device: what it runs on.
        status: of the backend that runs it; its name and version are recorded.
        progress: told before each batch size.
        conditions: state of the host, asked before and after (``trtops.bench.conditions.read_conditions``).

    Raises:
        Retryable: the device failed.
        InputError: the engine does not take the workload's shapes.
    """
    before, tick = conditions(), resolution(clock)
    rows: list[BatchMeasurement] = []
    warnings: list[str] = []
    for number, work in enumerate(workload):
        progress(Progress(phase=f"batch {work.batch}", done=number, total=len(workload)))
        timing = time_runs(session, work, clock, warmup=settings.warmup * 1000, duration=settings.duration * 1000)
        rows.append(summarise(work, timing))
        warnings += timing_warnings(rows[-1], timing, tick)
    progress(Progress(phase="measured", done=len(workload), total=len(workload)))
    warnings += condition_warnings(before, conditions())
    return Benchmark(
        device=device,
        backend=status.backend,
        backend_version=status.version or "unknown",
        rows=tuple(rows),
        warnings=tuple(warnings),
    )


def time_runs(session: Session, work: Work, clock: Clock, *, warmup: int, duration: int) -> Timing:
    """Warm up, then time runs. ``warmup`` and ``duration`` in nanoseconds.

    Runs go on for ``duration`` at least and until there are :data:`MIN_RUNS`; for three times ``duration`` at most,
    unless there are fewer than :data:`FEWEST_RUNS` by then; never more than :data:`MAX_RUNS`.
    """
    with _no_garbage_collection():
        warmup_runs, steady = _warm_up(session, work, clock, warmup)
        nanoseconds: list[int] = []
        variants, run = work.variants, session.run
        start = last = clock()
        while len(nanoseconds) < MAX_RUNS:
            run(variants[len(nanoseconds) % len(variants)])
            now = clock()
            nanoseconds.append(now - last)
            last = now
            if _enough(len(nanoseconds), now - start, duration):
                break
    return Timing(warmup_runs, steady, tuple(nanoseconds))


def _enough(runs: int, elapsed: int, duration: int) -> bool:
    if elapsed < duration or runs < FEWEST_RUNS:
        return False
    return runs >= MIN_RUNS or elapsed >= STRETCH * duration


def _warm_up(session: Session, work: Work, clock: Clock, warmup: int) -> tuple[int, bool]:
    """Run for ``warmup`` at least and until two windows of runs have medians within 5 %; three times that at most."""
    recent: list[int] = []
    runs, start = 0, clock()
    last = start
    while True:
        session.run(work.variants[runs % len(work.variants)])
        now = clock()
        runs += 1
        recent.append(now - last)
        del recent[: -2 * _WINDOW]
        last = now
        if now - start >= warmup:
            steady = _is_steady(recent)
            if steady or now - start >= STRETCH * warmup:
                return runs, steady


def _is_steady(recent: Sequence[int]) -> bool:
    half = len(recent) // 2
    if half < _FEWEST_COMPARED:
        return False
    first, second = (sorted(part)[half // 2] for part in (recent[:half], recent[half:]))
    return abs(second - first) <= _STEADY * max(first, second)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def resolution(clock: Clock) -> int:
    """The smallest step that the clock is seen to make, in nanoseconds; 0 where it never moved."""
    readings = [clock() for _ in range(_TICK_SAMPLES)]
    steps = [later - earlier for earlier, later in pairwise(readings) if later > earlier]
    return min(steps, default=0)


def summarise(work: Work, timing: Timing) -> BatchMeasurement:
    """Numbers of one batch size: latencies in microseconds, throughput in rows a second."""
    latencies = [max(time, 1) / 1000 for time in timing.nanoseconds]
    ordered = sorted(latencies)
    return BatchMeasurement(
        batch=work.batch,
        shapes=dict(work.shapes),
        warmup_runs=timing.warmup_runs,
        runs=len(latencies),
        mean=statistics.mean(latencies),
        stddev=statistics.standard_deviation(latencies),
        p50=statistics.quantile(ordered, 0.50),
        p90=statistics.quantile(ordered, 0.90),
        p99=statistics.quantile(ordered, 0.99),
        throughput=statistics.throughput(latencies, work.batch),
    )


def timing_warnings(row: BatchMeasurement, timing: Timing, tick: int) -> list[str]:
    """What is wrong with one batch size's numbers, in words. ``tick``: the clock's step in nanoseconds."""
    found: list[str] = []
    if not timing.steady:
        found.append("latency was still drifting when warm-up ended; give it more time (benchmark.warmup)")
    if row.runs < _RUNS_FOR_P99:
        found.append(f"{row.runs} runs are too few for p99: its upper bound needs {_RUNS_FOR_P99} (benchmark.duration)")
    elif row.p99.high - row.p99.low > _WIDE * row.p99.value:
        share = (row.p99.high - row.p99.low) / row.p99.value
        found.append(f"the interval of p99 is {share:.0%} of its value; measure longer (benchmark.duration)")
    if row.stddev > _VARIES * row.mean:
        found.append(f"latency varies by {row.stddev / row.mean:.0%} of its mean (standard deviation)")
    correlation = statistics.autocorrelation(timing.nanoseconds)
    if row.runs >= MIN_RUNS and correlation > _NEIGHBOURS:
        found.append(
            f"neighbouring runs are alike (correlation {correlation:.2f}): intervals of p50, p90 and p99 are too narrow"
        )
    if tick * _TICKS > row.p50.value * 1000:
        found.append(f"the clock steps by {tick} ns, which is over 1 % of p50")
    return [f"batch {row.batch}: {text}" for text in found]
