"""What preflight estimates that an engine needs, beside the pools of its spec, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.report.numbers import size
from trtops.report.rows import Table
from trtops.report.text import PLAIN, Style, table

if TYPE_CHECKING:
    from trtops.model.facts import Preflight
    from trtops.spec.engine import EngineSpec


def estimates(spec: EngineSpec, found: Preflight | None, style: Style = PLAIN) -> str:
    """A row for each profile; nothing where the model was not looked at."""
    if found is None or not found.estimate_bytes:
        return ""
    rows = tuple(
        (
            name,
            size(parts["weights"]),
            f"{size(parts['activations'])} of {_pool(spec.memory.workspace)}",
            f"{size(parts['bindings'])} of {_pool(spec.memory.device_pool)}",
        )
        for name, parts in found.estimate_bytes.items()
    )
    headings = ("profile", "weights", "activations of workspace", "inputs and outputs of device_pool")
    title = f"memory at the maximum of each profile (estimated for {spec.precision.mode}, without fusion)"
    return table(Table(headings, rows, frozenset({1, 2, 3}), title=title), style)


def _pool(given: int | None) -> str:
    return "no bound" if given is None else size(given)
