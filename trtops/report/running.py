"""Registry and running generations side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtops.report.rows import Outcome, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

Step = Literal["in step", "behind", "other", "nothing"]

_DIGITS = 12
_HEX = len("sha256:")
_TONES: dict[str, Outcome] = {"in step": "done", "behind": "warned", "nothing": "warned"}


@dataclass(frozen=True)
class Side:
    """A generation and the digests of what it names or runs, as text; None where it is not known."""

    generation: int | None
    engine_release: str | None
    config_release: str | None

    @property
    def pair(self) -> tuple[str | None, str | None]:
        """What runs."""
        return self.engine_release, self.config_release


@dataclass(frozen=True)
class Pairing:
    """One channel of an engine, in the registry and in one service.

    Attributes:
        service: its URL.
        engine, channel: of both.
        registry: what the registry names there; None: nothing.
        running: what the service runs there; None: nothing.
        on: device and artifact that it runs on; None where it says nothing of them.
        state: ``in step``: it is what the registry names; ``behind``: an earlier one; ``other``: another one of the
            same generation or a later; ``nothing``: it runs none.
        words: why, as the service says it; None where it says nothing.
    """

    service: str
    engine: str
    channel: str
    registry: Side | None
    running: Side | None
    on: tuple[str | None, str | None]
    state: Step
    words: str | None = None


def pairing_table(pairings: Sequence[Pairing]) -> Table:
    """One row a service, engine and channel: what the registry names, what runs, whether that is the same."""
    rows = tuple(
        (
            one.service,
            one.engine,
            one.channel,
            _side(one.registry),
            _side(one.running),
            one.on[0] or "",
            _short(one.on[1]),
            f"{one.state}: {one.words}" if one.words else one.state,
        )
        for one in pairings
    )
    headings = ("service", "engine", "channel", "registry", "runs", "device", "artifact", "state")
    return Table(headings, rows, tones=tuple(_TONES.get(one.state, "failed") for one in pairings))


def _side(side: Side | None) -> str:
    if side is None or side.engine_release is None:
        return ""
    return f"{'?' if side.generation is None else side.generation}: {_short(side.engine_release)}"


def _short(digest: str | None) -> str:
    return digest[_HEX : _HEX + _DIGITS] if digest else ""
