"""Values that only reports know: a row of the table that ``trtops ship`` ends with, and tables themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtops.digest import Digest

Outcome = Literal["done", "reused", "warned", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of a longer work.

    Attributes:
        stage: name, e.g. ``build onnxruntime``.
        result: in words, e.g. ``built``, ``reused``, ``skipped: needs a GPU``.
        seconds: how long it took; None where it was not timed.
        digest: of what came out; None where nothing did.
        outcome: the kind of the result.
    """

    stage: str
    result: str
    seconds: float | None = None
    digest: Digest | None = None
    outcome: Outcome = "done"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings, laid out by each report in its own way.

    Attributes:
        headings: one a column.
        rows: cells; as many as headings in each row.
        right: indices of columns that hold numbers.
        tones: of each row, by name of :data:`Outcome`; empty: no row has one.
        title: above the table; None for none.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    tones: tuple[Outcome, ...] = ()
    title: str | None = None
