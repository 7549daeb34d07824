"""A rollout in the terminal: what runs, its steps, its quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.release.rollout import words
from trtops.report.escape import visible
from trtops.report.numbers import instant
from trtops.report.rows import Outcome, Table
from trtops.report.tables import weights
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from trtops.release.documents import Binding, Rollout

_SHOWN = 20


def rollout(binding: Binding, style: Style = PLAIN, *, now: int) -> str:
    """How far the rollout of a channel has come. ``now`` in epoch seconds."""
    head = f"{binding.engine} in {binding.environment}: generation {binding.generation}, {weights(binding)}"
    parts = [f"{visible(head)}\n"]
    parts.append(f"stable     {binding.engine_release.short}, config {binding.config_release.short}\n")
    found = binding.rollout
    if found is None:
        parts.append("no rollout was begun since the last release\n")
    else:
        candidate = f"{found.engine_release.short}, config {found.config_release.short}"
        parts.append(f"{found.plan.channel:<10} {candidate}: {found.phase} since {instant(binding.created)}\n\n")
        parts.append(table(_steps(found, now), style))
    if binding.rejected:
        parts.append("\nin quarantine, the newest first:\n")
        newest = binding.rejected[::-1]
        parts += [f"  {digest}\n" for digest in newest[:_SHOWN]]
        if len(newest) > _SHOWN:
            parts.append(f"  and {len(newest) - _SHOWN} more\n")
    return "".join(parts)


def _steps(found: Rollout, now: int) -> Table:
    rows: list[tuple[str, str, str]] = []
    tones: list[Outcome] = []
    for number, step in enumerate(found.plan.steps):
        state, tone = _state(found, number)
        since = f" for {max(0, now - found.since)} s" if number == found.step and found.open else ""
        bounds = step.analysis
        asked = ", ".join(f"{name} {_limit(name, getattr(bounds, name))}" for name in bounds.bounds) if bounds else ""
        rows.append((str(number + 1), f"{words(step)}{': ' if asked else ''}{asked}", f"{state}{since}"))
        tones.append(tone)
    return Table(("step", "what", "state"), tuple(rows), frozenset({0}), tuple(tones))


def _limit(name: str, value: float) -> str:
    return f"{value / 1000:g} ms" if name == "p99" else f"{value:g}"


def _state(found: Rollout, number: int) -> tuple[str, Outcome]:
    if number < found.step or found.phase == "promoted":
        return "done", "done"
    if number > found.step:
        return "", "skipped"
    if found.phase == "aborted":
        return "aborted here", "failed"
    return ("paused", "warned") if found.phase == "paused" else ("now", "reused")
