"""What a server's engines do, from two scrapes of its metrics: a table for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trtops.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

Labels = tuple[tuple[str, str], ...]
Scrape = dict[tuple[str, Labels], float]
"""(sample's name, its labels in order) -> value."""

USED = (
    "trtops_batch_compute_seconds",
    "trtops_batch_rows",
    "trtops_batches",
    "trtops_engine_generation",
    "trtops_queue_depth",
    "trtops_request_duration_seconds",
    "trtops_requests_in_flight",
    "trtops_requests_rejected",
)
"""Metrics that the table is made of."""


@dataclass(frozen=True)
class EngineLoad:
    """One engine over the time between two scrapes.

    Attributes:
        generation: that serves; None: nothing does.
        rps: good answers a second.
        errors: other answers a second.
        p50, p99: of good answers' durations in milliseconds, interpolated in their buckets; NaN without any.
        in_flight: requests that are worked on now.
        queued: requests that waited when the last batch ended.
        rows: of a batch on average; NaN without any.
        busy: batches' run time over the time that went by; above 1 with several instances.
        released: the commonest reason why batches were released; empty without any.
    """

    engine: str
    generation: int | None
    rps: float
    errors: float
    p50: float
    p99: float
    in_flight: int
    queued: int
    rows: float
    busy: float
    released: str


def parse(text: str) -> Scrape:
    """Read the text format of Prometheus.

    Raises:
        ValueError: it is none.
    """
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def quantile(buckets: Mapping[float, float], q: float) -> float:
    """A quantile of a histogram, interpolated in its bucket as Prometheus' ``histogram_quantile`` does.

    Args:
        buckets: upper bound -> number of values up to it; infinity is among the bounds.
        q: between 0 and 1.

    Returns:
        NaN without a value; the last finite bound for a value above all of them.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return math.nan
    wanted, below, last = q * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return last
            inside = buckets[bound] - below
            return last + (bound - last) * ((wanted - below) / inside if inside else 1.0)
        below, last = buckets[bound], bound
    return last


def loads(before: Scrape, now: Scrape, seconds: float) -> tuple[EngineLoad, ...]:
    """What every engine did between two scrapes. A counter that fell began anew: its whole value counts."""

    def grown(key: tuple[str, Labels]) -> float:
        old = before.get(key, 0.0)
        return now[key] - old if now[key] >= old else now[key]

    def sums(name: str, engine: str, by: str = "engine") -> dict[str, float]:
        """Growth of all samples of an engine, by the value of a label."""
        found: dict[str, float] = defaultdict(float)
        for key in now:
            labels = dict(key[1])
            if key[0] == name and labels.get("engine") == engine:
                found[labels.get(by, "")] += grown(key)
        return found

    def gauge(name: str, engine: str) -> float:
        return sum(value for (sample, labels), value in now.items() if sample == name and ("engine", engine) in labels)

    found = []
    for engine in sorted({dict(labels)["engine"] for _, labels in now if "engine" in dict(labels)}):
        codes = sums("trtops_request_duration_seconds_count", engine, "code")
        buckets: dict[float, float] = defaultdict(float)
        for key in now:
            labels = dict(key[1])
            mine = labels.get("engine") == engine and labels.get("code") == "200"
            if mine and key[0] == "trtops_request_duration_seconds_bucket":
                buckets[float(labels["le"])] += grown(key)
        batches = sum(sums("trtops_batch_rows_count", engine).values())
        rows = sum(sums("trtops_batch_rows_sum", engine).values())
        reasons = sums("trtops_batches_total", engine, "reason")
        generation = gauge("trtops_engine_generation", engine) or None
        good = codes.get("200", 0.0)
        found.append(
            EngineLoad(
                engine,
                None if generation is None else int(generation),
                good / seconds,
                (sum(codes.values()) - good) / seconds,
                quantile(buckets, 0.5) * 1e3,
                quantile(buckets, 0.99) * 1e3,
                int(gauge("trtops_requests_in_flight", engine)),
                int(gauge("trtops_queue_depth", engine)),
                rows / batches if batches else math.nan,
                sum(sums("trtops_batch_compute_seconds_sum", engine).values()) / seconds,
                max(reasons, key=lambda reason: reasons[reason]) if batches else "",
            )
        )
    return tuple(found)


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def cells(load: EngineLoad) -> tuple[str, ...]:
    """A row of the table."""
    return (
        visible(load.engine),
        "-" if load.generation is None else str(load.generation),
        f"{load.rps:,.1f}",
        _number(load.p50, ".2f"),
        _number(load.p99, ".2f"),
        str(load.in_flight),
        str(load.queued),
        _number(load.rows, ".1f"),
        load.released or "-",
        f"{100 * load.busy:.0f} %",
        f"{load.errors:,.1f}",
    )


HEADINGS = (*("ENGINE", "GEN", "REQ/S", "P50 MS", "P99 MS", "FLYING", "QUEUE", "BATCH", "FOR", "BUSY", "ERR/S"),)


def plain(found: tuple[EngineLoad, ...]) -> str:
    """A table without colours and frames."""
    rows = [HEADINGS, *map(cells, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "".join(
        "  ".join(
            cell.ljust(width) if column in {0, 8} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in rows
    )


def table(found: tuple[EngineLoad, ...], title: str) -> Table:
    """A table for a terminal."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", expand=False, box=None, padding=(0, 1), pad_edge=False)
    for column, heading in enumerate(HEADINGS):
        made.add_column(heading, justify="left" if column in {0, 8} else "right", no_wrap=True)
    for load in found:
        made.add_row(*cells(load), style="red" if load.errors else None)
    return made


def as_json(found: tuple[EngineLoad, ...]) -> str:
    """All numbers; what has no value is null."""
    engines = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in asdict(load).items()}
        for load in found
    ]
    return json.dumps({"kind": "Load", "engines": engines}, indent=2) + "\n"
