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
    from trtops.release.rollout import Pausing

_SHOWN = 20


def rollout(binding: Binding, style: Style = PLAIN, *, now: int, paused: Pausing | None = None) -> str:
    """How far the rollout of a channel has come.

    Args:
        binding: what the channel binds.
        style: of the terminal.
        now: epoch seconds.
        paused: why it is paused; None: it is not, or that is not known.
    """
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
        if found.phase == "paused":
            parts.append(f"\n{visible(_paused(paused))}\n")
            parts.append(f"  to go on: trtops rollout resume {binding.engine}{_env(binding)}, then rollout advance\n")
            parts.append(f"  to end it: trtops rollout abort {binding.engine}{_env(binding)}\n")
    if binding.rejected:
        parts.append("\nin quarantine, the newest first:\n")
        newest = binding.rejected[::-1]
        parts += [f"  {digest}\n" for digest in newest[:_SHOWN]]
        if len(newest) > _SHOWN:
            parts.append(f"  and {len(newest) - _SHOWN} more\n")
    return "".join(parts)


def _paused(paused: Pausing | None) -> str:
    if paused is None:
        return "paused; by whom is not known: see trtops history"
    moved = paused.binding
    who = f"key {moved.actor[:12]} at {instant(moved.created)}, generation {moved.generation}"
    if paused.planned:
        return f"paused by its plan, which asks for a person here; moved here by {who}"
    # The ledger's sentence is "rollout: paused at STEP: WHY".
    _, _, why = moved.reason.removeprefix("rollout: paused at ").partition(": ")
    return f"paused by {who}: {why or 'no reason was given'}"


def _env(binding: Binding) -> str:
    return f" --env {binding.environment}"


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
