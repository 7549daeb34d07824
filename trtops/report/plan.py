"""A plan, written for people, for programs, and for the matrix of a GitHub workflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtops.report.escape import visible
from trtops.report.rows import Outcome, Table
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from trtops.release.plan import EnginePlan, Plan, Side, TargetPlan

_MOVES: dict[str, tuple[str, Outcome]] = {
    "keep": ("nothing", "skipped"),
    "release": ("release", "done"),
    "rollout": ("rollout", "warned"),
    "blocked": ("blocked", "failed"),
    "denied": ("denied", "failed"),
}


def plan(value: Plan, style: Style = PLAIN) -> str:
    """What would be built, released and moved."""
    if not value.engines:
        return f"nothing to do in {value.environment}: no engine is touched\n"
    rows = tuple(
        (
            one.engine,
            _MOVES[one.move][0],
            f"{one.decision} {one.verdict.short if one.verdict else ''}".strip(),
            ", ".join(_target(target) for target in one.targets),
            _channel(one),
            one.reason,
        )
        for one in value.engines
    )
    tones = tuple(_MOVES[one.move][1] for one in value.engines)
    headings = ("engine", "move", "verdict", "targets", "channel", "why")
    counts = {move: sum(one.move == move for one in value.engines) for move in _MOVES}
    built = sum(target.build == "build" for one in value.moves for target in one.targets)
    words = [f"{built} to build", *(f"{count} {move}" for move, count in counts.items() if count)]
    head = f"to {value.environment} ({value.registry}), policies {value.policies.short} by {value.judge}"
    return f"{visible(head)}\n\n{table(Table(headings, rows, tones=tones), style)}\n{', '.join(words)}\n"


def matrix(value: Plan) -> str:
    """``matrix`` of a GitHub workflow: ``{"include": [{"engine", "target", "runner"}, …]}``, one line.

    Every target of every engine that policies do not deny; ``runner`` is what ``runs-on`` takes. The plan has to name
    a runner for each.
    """
    include = [
        {"engine": one.engine, "target": target.target, "runner": list(target.runner or ())}
        for one in value.engines
        if one.decision != "deny"
        for target in one.targets
    ]
    return json.dumps({"include": include}, separators=(",", ":")) + "\n"


def _target(target: TargetPlan) -> str:
    if target.build == "reuse":
        return f"{target.target} reused {target.artifact.short if target.artifact else ''}".strip()
    reason = f" ({target.reason})" if target.reason else ""
    return f"{target.target} {'built' if target.build == 'build' else 'not here'}{reason}"


def _channel(one: EnginePlan) -> str:
    if one.move not in {"release", "rollout"}:
        return _side(one.before)
    return f"{_side(one.before)} -> {_side(one.after)}"


def _side(side: Side) -> str:
    if not side.generation:
        return "nothing"
    release = side.engine_release.short if side.engine_release else "a new release"
    config = side.config_release.short if side.config_release else "a new config"
    weights = ", ".join(f"{name} {share} %" for name, share in sorted(side.weights.items(), reverse=True))
    return f"{side.generation}: {release}, {config}, {weights}"
