"""A new config of an engine that workers serve already: other rules of batching, and no load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops.executor.retune import needs_load
from trtops.executor.unit import STABLE, Action, Adjust, Publish

if TYPE_CHECKING:
    from trtops.executor.fleet import Fleet
    from trtops.spec.engine import Batching


def adjusted(fleet: Fleet, name: str, generation: int, batching: Batching) -> list[Action] | None:
    """Let what serves as stable be another generation, which differs in its batching only. All units, or none.

    None: it has to be loaded, since sizes or padding differ, or since not all of it serves and stays where it is.
    """
    numbers = fleet.current.get((name, STABLE), [])
    units = [fleet.units[number] for number in numbers]
    moving = any(unit.replaces in numbers for unit in fleet.units.values())
    if not units or moving or any(unit.state != "ready" for unit in units):
        return None
    if any(needs_load(unit.charge.batching, batching) for unit in units):
        return None
    for unit in units:
        unit.charge = replace(unit.charge, generation=generation, batching=batching)
        if unit.info is not None:
            unit.info = replace(unit.info, generation=generation)
    return [*(Adjust(unit.worker, unit.number) for unit in units), Publish()]
