"""What the executor tells of itself, counted: batches by the reason of their release, refusals, sessions that died.

The executor calls from several threads, once a batch; one lock keeps the numbers together. A reader gets copies.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.serve.measure import ROWS, SECONDS, Histogram

if TYPE_CHECKING:
    from trtops.executor.observer import BatchReport


@dataclass
class Totals:
    """Numbers since the start, by engine.

    Attributes:
        batches: (engine, reason of release) -> batches.
        failed_batches: engine -> batches that ended in an error.
        depth: engine -> requests that waited when its last batch ended.
        rows: engine -> rows of a batch.
        gather, compute, copy_out: engine -> seconds of a batch: its inputs put together; its run; its outputs kept.
        load: engine -> seconds from the order to load until it served.
        deaths: engine -> sessions that died.
    """

    batches: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed_batches: Counter[str] = field(default_factory=Counter)
    depth: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Histogram] = field(default_factory=dict)
    gather: dict[str, Histogram] = field(default_factory=dict)
    compute: dict[str, Histogram] = field(default_factory=dict)
    copy_out: dict[str, Histogram] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Totals:
        """A copy that nobody changes."""

        def copied(series: dict[str, Histogram]) -> dict[str, Histogram]:
            return {name: histogram.copy() for name, histogram in series.items()}

        return Totals(
            Counter(self.batches),
            Counter(self.failed_batches),
            dict(self.depth),
            copied(self.rows),
            copied(self.gather),
            copied(self.compute),
            copied(self.copy_out),
            dict(self.load),
            Counter(self.deaths),
        )


class ExecutorMeter:
    """An observer of the executor (:class:`trtops.executor.observer.Observer`)."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._totals = Totals()

    def __repr__(self) -> str:
        """Show how many batches were seen."""
        return f"<ExecutorMeter batches={sum(self._totals.batches.values())}>"

    def totals(self) -> Totals:
        """The numbers now."""
        with self._lock:
            return self._totals.copy()

    def batch(self, report: BatchReport) -> None:
        """Count a batch."""
        with self._lock:
            totals, name = self._totals, report.engine
            totals.batches[name, report.reason] += 1
            totals.depth[name] = report.depth
            if not report.ok:
                totals.failed_batches[name] += 1
                return
            totals.rows.setdefault(name, Histogram(ROWS)).observe(report.rows)
            totals.gather.setdefault(name, Histogram(SECONDS)).observe(report.gather_s)
            totals.compute.setdefault(name, Histogram(SECONDS)).observe(report.compute_s)
            totals.copy_out.setdefault(name, Histogram(SECONDS)).observe(report.copy_out_s)

    def refused(self, engine: str, reason: str, requests: int) -> None:
        """Do nothing: the front end counts refusals with the status that their clients got."""

    def loaded(self, engine: str, generation: int, seconds: float) -> None:
        """Note how long a load took."""
        del generation
        with self._lock:
            self._totals.load[engine] = seconds

    def failed(self, engine: str, generation: int, why: str) -> None:
        """Count a session that died."""
        del generation, why
        with self._lock:
            self._totals.deaths[engine] += 1

    def freed(self, engine: str, generation: int) -> None:
        """Do nothing: what is loaded shows in the generation that serves."""
