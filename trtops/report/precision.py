"""Precisions of an engine side by side, and layers by error, for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.report.numbers import latency, significant, size
from trtops.report.rows import Table
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.build.precision import LayerError
    from trtops.evidence import Evidence
    from trtops.report.rows import Outcome
    from trtops.spec.engine import PrecisionMode


@dataclass(frozen=True)
class Variant:
    """One precision of an engine.

    Attributes:
        mode: the precision.
        evidence: what was measured of it; None if it was not built.
        skipped: why it was not built; None if it was.
        layers: errors of inner tensors, the worst first; empty for FP32 and TF32, and where ONNX Runtime cannot run
            the converted file.
        unmeasured: why there are no layers, where some were due.
        note: what has to be known of it, in words.
    """

    mode: PrecisionMode
    evidence: Evidence | None = None
    skipped: str | None = None
    layers: tuple[LayerError, ...] = ()
    unmeasured: str | None = None
    note: str | None = None


def precisions(variants: Sequence[Variant], style: Style = PLAIN, *, layers: int = 5) -> str:
    """A row for each precision at its largest measured batch, then the layers that add most error.

    Args:
        variants: precisions.
        style: how to write.
        layers: so many layers are shown for each precision.
    """
    rows = [_row(variant) for variant in variants]
    tones: tuple[Outcome, ...] = tuple(_tone(variant) for variant in variants)
    headings = ("precision", "batch", "p50", "p99", "stddev", "size", "largest error", "out of tolerance", "verify")
    written = table(Table(headings, tuple(rows), frozenset(range(1, 8)), tones), style)
    written += "".join(f"{variant.mode}: {variant.note}\n" for variant in variants if variant.note)
    for variant in variants:
        if variant.layers:
            written += "\n" + _layers(variant, style, layers)
        elif variant.unmeasured:
            written += f"\n{variant.mode}: layers by error: not measured: {variant.unmeasured}\n"
    return written


def _row(variant: Variant) -> tuple[str, ...]:
    evidence = variant.evidence
    if evidence is None:
        return (variant.mode, *("-" for _ in range(7)), f"skipped: {variant.skipped}")
    cells = ["-", "-", "-", "-"]
    if evidence.benchmark is not None:
        row = max(evidence.benchmark.rows, key=lambda one: one.batch)
        cells = [str(row.batch), latency(row.p50.value), latency(row.p99.value), latency(row.stddev)]
    cells.append(size(evidence.size_bytes))
    if (accuracy := evidence.accuracy) is None:
        return (variant.mode, *cells, "-", "-", evidence.unverified or "not verified")
    outside = f"{accuracy.outside} of {accuracy.elements}"
    return (variant.mode, *cells, significant(accuracy.max_abs), outside, "passed" if accuracy.passed else "FAILED")


def _tone(variant: Variant) -> Outcome:
    if variant.evidence is None:
        return "skipped"
    accuracy = variant.evidence.accuracy
    return "failed" if accuracy is not None and not accuracy.passed else "done"


def _layers(variant: Variant, style: Style, count: int) -> str:
    rows = tuple(
        (error.node, error.operator, f"{error.added:.2%}", f"{error.relative:.2%}") for error in variant.layers[:count]
    )
    title = (
        f"{variant.mode}: layers by error, worst first (of {len(variant.layers)}; the converted file in ONNX Runtime)"
    )
    return table(Table(("layer", "operator", "added here", "in all"), rows, frozenset({2, 3}), title=title), style)
