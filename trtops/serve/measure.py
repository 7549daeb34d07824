"""What a front end counts: histograms and sums of one event loop's thread, without a lock.

A request costs a few list additions. :mod:`trtops.serve.metrics` shows them to Prometheus when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.executor.port import Outcome

SECONDS: tuple[float, ...] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the duration buckets."""

ROWS: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of the batch size buckets."""


class Histogram:
    """Counts by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start empty; the last bucket has no upper bound."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        """Show count and sum."""
        return f"<Histogram count={self.count} sum={self.sum:g}>"

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count a value; one on a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of upper bound and count of all values up to it, as Prometheus writes them."""
        total, rows = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


@dataclass(slots=True)
class BatchMeter:
    """Executions of one batch size: how many (a request is its share of one), and microseconds of all."""

    executions: float = 0.0
    compute_us: float = 0.0


@dataclass(slots=True)
class EngineMeter:
    """Numbers of one engine.

    Attributes:
        in_flight: requests that are worked on.
        requests: rows answered well (an inference is a row, as in the statistics extension).
        last: epoch milliseconds of the last good answer.
        failures, failed_seconds: requests answered with an error, and their duration.
        duration: HTTP status -> seconds from the whole request to its answer.
        queue, compute: seconds of good answers.
        batch: rows of the batch that a request ran in.
        rejected: reason -> requests.
        batches: rows -> executions.
    """

    in_flight: int = 0
    requests: int = 0
    last: int = 0
    failures: int = 0
    failed_seconds: float = 0.0
    duration: dict[int, Histogram] = field(default_factory=dict)
    queue: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    compute: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batch: Histogram = field(default_factory=lambda: Histogram(ROWS))
    rejected: dict[str, int] = field(default_factory=dict)
    batches: dict[int, BatchMeter] = field(default_factory=dict)

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer."""
        histogram = self.duration.get(status)
        if histogram is None:
            histogram = self.duration[status] = Histogram(SECONDS)
        histogram.observe(seconds)

    def succeeded(self, outcome: Outcome, rows: int, now_ms: int) -> None:
        """Count a good answer's work."""
        self.requests += rows
        self.last = now_ms
        self.queue.observe(outcome.queue_us / 1e6)
        self.compute.observe(outcome.compute_us / 1e6)
        size = outcome.batch or rows
        self.batch.observe(size)
        meter = self.batches.get(size)
        if meter is None:
            meter = self.batches[size] = BatchMeter()
        share = rows / size
        meter.executions += share
        meter.compute_us += share * outcome.compute_us

    def failed(self, reason: str, seconds: float) -> None:
        """Count a request that got an error."""
        self.failures += 1
        self.failed_seconds += seconds
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


class Meters:
    """Numbers of a front end by engine. Only engines that serve have any: names that clients invent cost nothing."""

    def __init__(self) -> None:
        """Start empty."""
        self.engines: dict[str, EngineMeter] = {}
        self.malformed: dict[int, int] = {}

    def engine(self, name: str) -> EngineMeter:
        """Numbers of an engine that is served."""
        meter = self.engines.get(name)
        if meter is None:
            meter = self.engines[name] = EngineMeter()
        return meter

    def refused(self, status: int) -> None:
        """Count a request that never reached the application."""
        self.malformed[status] = self.malformed.get(status, 0) + 1
