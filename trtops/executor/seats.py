"""Who answers how much of an engine's requests: from units and weights to the seats of a route."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from trtops.executor.unit import STABLE
from trtops.transport.routes import MAX_SEATS, Seat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.executor.unit import Unit

_PARTS: Final = 720720
"""A channel's weight is split between its devices; this number of parts divides evenly by 1 to 16."""
_COMING: Final = 1 << 31
"""Set in the identity of a seat that is only announced."""


def seats(units: Mapping[str, Sequence[Unit]], weights: Mapping[str, int], coming: Sequence[Unit] = ()) -> list[Seat]:
    """Seats of an engine.

    A candidate that does not serve leaves its share to the stable engine. The stable engine's share waits for it, and
    never falls on a candidate, which has not earned it.

    Args:
        units: channel -> units that hold the engine, ready or not.
        weights: channel -> percent of the requests; none: all are the stable engine's.
        coming: units that get requests in a moment: their seats have no weight, and clients connect to their workers.
    """
    found = _seats(units, weights)
    announced = [_seat(unit, _COMING | unit.worker, 0) for unit in coming]
    return found + announced[: MAX_SEATS - len(found)]


def _seats(units: Mapping[str, Sequence[Unit]], weights: Mapping[str, int]) -> list[Seat]:
    wanted = dict(weights) if any(weights.values()) else {STABLE: 100}
    rest = sum(wanted.values())
    found: list[Seat] = []
    for channel, held in sorted(units.items()):
        weight = wanted.get(channel, 0)
        ready = [unit for unit in held if unit.state == "ready"]
        if channel != STABLE and ready and weight:
            rest -= weight
            found += _split(ready, weight)
    stable = units.get(STABLE, ())
    ready = [unit for unit in stable if unit.state == "ready"]
    if ready:
        return _split(ready, rest) + found
    generation = max((unit.charge.generation for unit in stable), default=0)
    return [Seat(identity(STABLE, 0), 0, rest * _PARTS, generation), *found]


def _split(units: Sequence[Unit], weight: int) -> list[Seat]:
    share = weight * _PARTS // len(units)
    return [_seat(unit, identity(unit.charge.channel, unit.device), share) for unit in units]


def _seat(unit: Unit, place: int, share: int) -> Seat:
    return Seat(place, unit.worker, share, unit.charge.generation, unit.charge.channel)


def identity(channel: str, device: int) -> int:
    """A place's number, the same in every process: keys stay where they are when a supervisor starts again."""
    place = 0 if channel == STABLE else zlib.crc32(channel.encode()) | 1
    return (place * MAX_SEATS + device) & (_COMING - 1)
