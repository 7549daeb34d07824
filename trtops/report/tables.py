"""Values laid out as tables, one layout for the terminal, Markdown and HTML. Cells are not escaped yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.report.numbers import instant, latency_interval, rate_interval, share, significant
from trtops.report.rows import Outcome, Table

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from trtops.accuracy.values import AccuracyReport
    from trtops.bench.results import Benchmark
    from trtops.digest import Digest
    from trtops.release.documents import Binding
    from trtops.report.rows import StageRow


_KEY_DIGITS = 12


def stage_table(rows: Sequence[StageRow]) -> Table:
    """Stage, result, time, digest; and the sum of the times."""
    body = [
        (
            row.stage,
            row.result,
            f"{row.seconds:.2f} s" if row.seconds is not None else "",
            row.digest.short if row.digest else "",
        )
        for row in rows
    ]
    total = sum(row.seconds for row in rows if row.seconds is not None)
    body.append(("total", "", f"{total:.2f} s", ""))
    tones: tuple[Outcome, ...] = (*(row.outcome for row in rows), "done")
    return Table(("stage", "result", "time", "digest"), tuple(body), frozenset({2}), tones)


def benchmark_table(benchmark: Benchmark) -> Table:
    """One row a batch size, every estimate with its 95 % interval."""
    body = tuple(
        (
            str(row.batch),
            *(latency_interval(part) for part in (row.p50, row.p90, row.p99)),
            rate_interval(row.throughput),
            f"{row.runs:,}",
        )
        for row in benchmark.rows
    )
    return Table(("batch", "p50", "p90", "p99", "rows/s", "runs"), body, frozenset(range(6)))


def accuracy_table(report: AccuracyReport) -> Table:
    """What was compared, against what, and the result of each check."""
    checks: list[tuple[str, str, str, Outcome]] = [
        (
            "elements within tolerance",
            f"{report.elements - report.outside:,} of {report.elements:,}",
            f"all (atol {report.atol:g}, rtol {report.rtol:g})",
            "failed" if report.outside or not report.elements else "done",
        ),
        ("largest absolute difference", significant(report.max_abs), "", "done"),
        ("largest relative difference", significant(report.max_rel), "", "done"),
    ]
    for name, value in sorted(report.metrics.items()):
        bound = report.required.get(name)
        missed = bound is not None and value < bound
        need = f"at least {bound:g}" if bound is not None else ""
        checks.append((name, share(value), need, "failed" if missed else "done"))
    return Table(
        ("check", "found", "required"),
        tuple((check, found, need) for check, found, need, _ in checks),
        frozenset({1}),
        tuple(tone for *_, tone in checks),
    )


def worst_element(report: AccuracyReport) -> str:
    """The worst element in one line."""
    worst = report.worst
    if worst is None:
        return "nothing was compared"
    index = ", ".join(str(part) for part in worst.index)
    return (
        f"{worst.output}[{index}] at {worst.profile}/{worst.point}: expected {worst.expected:.7g}, "
        f"got {worst.actual:.7g}, {significant(worst.excess)} times the tolerance"
    )


def status_table(bindings: Sequence[Binding], *, now: int) -> Table:
    """What runs where: one row a channel. ``now`` in epoch seconds decides what has expired.

    What all rows share stands in no column: one environment is the title, and nothing tells of an expiry that none has.
    """
    ordered = sorted(bindings, key=lambda binding: (binding.engine, binding.environment, binding.channel))
    expired = [binding.expires is not None and binding.expires <= now for binding in ordered]
    columns = {
        "engine": [binding.engine for binding in ordered],
        "environment": [binding.environment for binding in ordered],
        "channel": [binding.channel for binding in ordered],
        "gen": [str(binding.generation) for binding in ordered],
        "release": [binding.engine_release.short for binding in ordered],
        "config": [binding.config_release.short for binding in ordered],
        "weights": [weights(binding) for binding in ordered],
        "since": [instant(binding.created) for binding in ordered],
        "expires": [_expiry(binding, expired=late) for binding, late in zip(ordered, expired, strict=True)],
    }
    title = None
    if len(set(columns["environment"])) == 1:
        title = f"in {columns.pop('environment')[0]}"
    if all(binding.expires is None for binding in ordered):
        del columns["expires"]
    body = tuple(zip(*columns.values(), strict=True))
    tones: tuple[Outcome, ...] = tuple("warned" if late else "done" for late in expired)
    return Table(tuple(columns), body, frozenset({[*columns].index("gen")}), tones, title)


def weights(binding: Binding) -> str:
    """Who gets how much: ``stable 95 %, canary 5 % (shadow 10 %)``."""
    rollout = binding.rollout
    shadows = f" (shadow {rollout.shadow} %)" if rollout is not None and rollout.open and rollout.shadow else ""
    ordered = sorted(binding.weights.items(), key=lambda one: (one[0] != "stable", one[0]))
    return ", ".join(f"{name} {percent} %" for name, percent in ordered) + shadows


def _expiry(binding: Binding, *, expired: bool) -> str:
    if binding.expires is None:
        return "never"
    return f"{instant(binding.expires)} (expired)" if expired else instant(binding.expires)


def history_table(bindings: Sequence[Binding], revoked: Container[Digest] = ()) -> Table:
    """Every move of one channel, the newest first; those that a revoked key signed are marked."""
    ordered = sorted(bindings, key=lambda binding: binding.generation, reverse=True)
    marked = [binding.digest() in revoked for binding in ordered]
    body = tuple(
        (
            str(binding.generation),
            binding.engine_release.short,
            binding.config_release.short,
            weights(binding),
            binding.reason,
            instant(binding.created),
            binding.actor[:_KEY_DIGITS] + (" (revoked)" if doubtful else ""),
        )
        for binding, doubtful in zip(ordered, marked, strict=True)
    )
    tones: tuple[Outcome, ...] = tuple("failed" if doubtful else "done" for doubtful in marked) if any(marked) else ()
    return Table(("gen", "release", "config", "weights", "reason", "when", "who"), body, frozenset({0}), tones)
