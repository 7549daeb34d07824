"""Where an execution's time goes on a device, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.report.numbers import latency, rate
from trtops.report.rows import Table
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.backend.port import DeviceTimes
    from trtops.bench.results import Benchmark


_BAR = 32  # cells of the longest bar


def sweep(value: Benchmark) -> str:
    """Throughput by batch size as bars, and where a larger batch stops to pay; nothing for a single batch size."""
    from trtops.bench.device import knee

    rates = sorted((row.batch, row.throughput.value) for row in value.rows)
    batch = knee(rates)
    if batch is None:
        return ""
    largest, best = rates[-1][0], max(rows for _, rows in rates)
    width = max(5, len(str(largest)))
    bars = ""
    for size, rows in rates:
        mark = "  <- knee" if size == batch < largest else ""
        bars += f"{size:>{width}}  {'█' * max(1, round(_BAR * rows / best))} {rate(rows)}{mark}\n"
    if batch == largest:
        words = f"knee: none up to batch {largest}: every doubling of the batch pays by a tenth or more"
    else:
        words = f"knee: batch {batch}: beyond it a doubling of the batch brings less than a tenth of throughput"
    return f"rows/s by batch\n{bars}{words}\n"


def untold(value: Benchmark) -> str:
    """Why nothing is said of copies, launches, streams and kinds of memory."""
    here = f"{value.backend} on {value.device.label}"
    if value.device.kind == "cpu":
        return (
            f"not measured: copies to a device, CUDA graphs, streams, pinned and mapped input: {here} has none; "
            "a target of tensorrt is measured so on its GPU\n"
        )
    return f"not measured: where the time goes: {here} does not tell\n"


def device_times(times: Sequence[DeviceTimes], style: Style = PLAIN) -> str:
    """Two tables, medians: the parts of an execution, and other ways to run it; then what limits it, in words."""
    from trtops.bench.device import advice

    parts = Table(
        headings=("batch", "wall", "copy in", "compute", "copy out", "enqueue", "executions"),
        rows=tuple(
            (
                str(one.batch),
                *(latency(part) for part in (one.wall, one.copy_in, one.compute, one.copy_out, one.enqueue)),
                str(one.runs),
            )
            for one in times
        ),
        right=frozenset(range(7)),
        title="where the time goes (medians; copies and computation by CUDA events)",
    )
    counts = sorted({count for one in times for count in one.streams})
    ways = Table(
        headings=(
            "batch",
            "enqueue",
            "graph",
            "pageable",
            "pinned",
            "mapped",
            *(f"{count} stream{'s' if count > 1 else ''}" for count in counts),
        ),
        rows=tuple(
            (
                str(one.batch),
                latency(one.plain),
                "-" if one.graph is None else latency(one.graph),
                *(latency(part) for part in (one.pageable, one.pinned, one.mapped)),
                *(rate(one.streams[count]) if count in one.streams else "-" for count in counts),
            )
            for one in times
        ),
        right=frozenset(range(6 + len(counts))),
        title="ways to run it (medians; execution alone by enqueue or graph; with its input from such memory)",
    )
    said = "".join(f"{style.paint('hint', 'cyan')}: {text}\n" for text in advice(times))
    return f"{table(parts, style)}{table(ways, style)}{said}"
