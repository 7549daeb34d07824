"""What a front end counts: histograms and sums of one event loop's thread, without a lock.

A good answer costs one list append; every thousand of them are put into the histograms at once.
:mod:`trtops.serve.metrics` shows them to Prometheus when it asks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtops.executor.port import Outcome

SECONDS: tuple[float, ...] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the duration buckets."""

ROWS: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of the batch size buckets."""


OK = 200
STABLE = "stable"
_CANDIDATES = 4
_RECENT = 1024


@dataclass(slots=True, repr=False)
class Histogram:
    """Counts by bucket, and their sum. The last bucket has no upper bound.

    Attributes:
        bounds: upper bounds of all buckets but the last.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        """Start empty unless counts are given."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def __repr__(self) -> str:
        """Show count and sum."""
        return f"<Histogram count={self.count} sum={self.sum:g}>"

    def copy(self) -> Histogram:
        """A copy that no observation changes."""
        return Histogram(self.bounds, list(self.counts), self.sum)

    def add(self, other: Histogram) -> None:
        """Count all that another one counted. Both have the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count a value; one on a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: NDArray[np.float64]) -> None:
        """Count many values at once."""
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [have + int(more) for have, more in zip(self.counts, found, strict=True)]
        self.sum += float(values.sum())

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
        recent: good answers that are not in the histograms yet.
        beside: channel of a candidate -> generation -> as ``duration``, which does not count its answers. What one
            candidate did tells nothing of the next one in its channel.
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
    recent: list[tuple[float, float, int, int, float]] = field(default_factory=list)
    beside: dict[str, dict[int, dict[int, Histogram]]] = field(default_factory=dict)

    def answered(self, status: int, seconds: float, channel: str = STABLE, generation: int = 0) -> None:
        """Count an answer."""
        durations = self.duration if channel == STABLE else self._of(channel, generation)
        histogram = durations.get(status)
        if histogram is None:
            histogram = durations[status] = Histogram(SECONDS)
        histogram.observe(seconds)

    def _of(self, channel: str, generation: int) -> dict[int, Histogram]:
        """Of one candidate; the last few of a channel are kept."""
        candidates = self.beside.setdefault(channel, {})
        found = candidates.setdefault(generation, {})
        while len(candidates) > _CANDIDATES:
            del candidates[min(candidates)]
        return found

    def succeeded(self, outcome: Outcome, rows: int, seconds: float, now_ms: int) -> None:
        """Count a good answer and its work."""
        self.last = now_ms
        if outcome.channel != STABLE:
            self.answered(OK, seconds, outcome.channel, outcome.generation)
            seconds = math.nan
        self.recent.append((outcome.queue_us, outcome.compute_us, outcome.batch or rows, rows, seconds))
        if len(self.recent) >= _RECENT:
            self.fold()

    def fold(self) -> None:
        """Put the answers since the last call into the histograms; whoever reads numbers calls this first."""
        recent, self.recent = self.recent, []
        if not recent:
            return
        queue, compute, sizes, rows, seconds = np.array(recent).T
        self.requests += int(rows.sum())
        self.queue.observe_all(queue / 1e6)
        self.compute.observe_all(compute / 1e6)
        self.batch.observe_all(sizes)
        self.duration.setdefault(OK, Histogram(SECONDS)).observe_all(seconds[~np.isnan(seconds)])
        for size in set(sizes.tolist()):  # np.unique would import numpy.ma, with its 3 MB
            chosen = sizes == size
            share = rows[chosen] / size
            meter = self.batches.setdefault(int(size), BatchMeter())
            meter.executions += float(share.sum())
            meter.compute_us += float((share * compute[chosen]).sum())

    def failed(self, reason: str, seconds: float) -> None:
        """Count a request that got an error."""
        self.failures += 1
        self.failed_seconds += seconds
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def add(self, other: EngineMeter) -> None:
        """Count all that another front end counted; both are folded."""
        self.in_flight += other.in_flight
        self.requests += other.requests
        self.last = max(self.last, other.last)
        self.failures += other.failures
        self.failed_seconds += other.failed_seconds
        for status, histogram in other.duration.items():
            self.duration.setdefault(status, Histogram(SECONDS)).add(histogram)
        for channel, candidates in other.beside.items():
            for generation, durations in candidates.items():
                mine = self._of(channel, generation)
                for status, histogram in durations.items():
                    mine.setdefault(status, Histogram(SECONDS)).add(histogram)
        for one, more in ((self.queue, other.queue), (self.compute, other.compute), (self.batch, other.batch)):
            one.add(more)
        for reason, count in other.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count
        for size, batch in other.batches.items():
            meter = self.batches.setdefault(size, BatchMeter())
            meter.executions += batch.executions
            meter.compute_us += batch.compute_us


@dataclass(slots=True)
class Meters:
    """Numbers of a front end by engine. Only engines that serve have any: names that clients invent cost nothing.

    Attributes:
        engines: name -> numbers.
        malformed: HTTP status -> requests that never reached the application.
        connections: that are open now.
        buffered: bytes of bodies that are held now.
    """

    engines: dict[str, EngineMeter] = field(default_factory=dict)
    malformed: dict[int, int] = field(default_factory=dict)
    connections: int = 0
    buffered: int = 0

    def add(self, other: Meters) -> None:
        """Count all that another front end counted."""
        other.fold()
        for name, meter in other.engines.items():
            self.engine(name).add(meter)
        for status, count in other.malformed.items():
            self.malformed[status] = self.malformed.get(status, 0) + count
        self.connections += other.connections
        self.buffered += other.buffered

    def ended(self) -> None:
        """Forget what is so now and nothing more: the front end that counted is gone, its sums stay."""
        self.connections = self.buffered = 0
        for meter in self.engines.values():
            meter.in_flight = 0

    def fold(self) -> dict[str, EngineMeter]:
        """All engines' numbers, up to date."""
        for meter in self.engines.values():
            meter.fold()
        return self.engines

    def engine(self, name: str) -> EngineMeter:
        """Numbers of an engine that is served."""
        meter = self.engines.get(name)
        if meter is None:
            meter = self.engines[name] = EngineMeter()
        return meter

    def refused(self, status: int) -> None:
        """Count a request that never reached the application."""
        self.malformed[status] = self.malformed.get(status, 0) + 1
