"""A report of sections that must not be larger than its reader takes: what matters most stays, the rest is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY_BYTES = 1_000_000
"""GitHub takes 1 MiB of a step's summary and shows nothing of a larger one; the rest is for what stands beside."""

_BETWEEN = 2
_NOTE_BYTES = 400


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        text: with no empty line at its end.
        rank: what is left out first has the highest.
    """

    text: str
    rank: int = 0


def joined(sections: Sequence[Section], limit: int = SUMMARY_BYTES) -> str:
    """The sections in their order, an empty line between two, within a size in bytes of UTF-8.

    Where they do not fit, those of the lowest rank stay, the earlier first; the first that does not fit is cut at the
    end of a line. The last line then says what was left out.
    """
    whole = "\n\n".join(section.text for section in sections) + "\n"
    if _size(whole) <= limit:
        return whole
    room, kept, lines = limit - _NOTE_BYTES, dict[int, str](), 0
    order = sorted(range(len(sections)), key=lambda number: (sections[number].rank, number))
    for place, number in enumerate(order):
        text = sections[number].text
        if _size(text) + _BETWEEN <= room:
            kept[number] = text
            room -= _size(text) + _BETWEEN
            continue
        head, lines = _cut(text, room - _BETWEEN)
        if head:
            kept[number] = head
        left = len(order) - place - (1 if head else 0)
        break
    parts = [kept[number] for number in sorted(kept)]
    return "\n\n".join([*parts, _note(left, lines if head else 0)]) + "\n"


def _cut(text: str, room: int) -> tuple[str, int]:
    """As many of a text's first lines as fit, and how many do not."""
    lines, used = text.split("\n"), 0
    for count, line in enumerate(lines):
        used += _size(line) + 1
        if used > room:
            return "\n".join(lines[:count]).rstrip(), len(lines) - count
    return text, 0


def _note(sections: int, lines: int) -> str:
    said = [f"{lines} lines of a section"] if lines else []
    said += [f"{sections} section{'s' if sections != 1 else ''}"] if sections else []
    return f"✂️ **Left out**: {' and '.join(said)}, for GitHub shows 1 MiB. All of it: `trtops check --format text`."


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))
