"""Whether rows that begin at multiples of 64 bytes are worth their gaps: dense rows against padded ones.

Run: ``python benchmarks/transport_rows.py [--rounds N] [--write FILE]``. The size of a row is no multiple of 64 bytes,
so that dense rows begin anywhere. Three things are done with the rows of a batch, by one thread, in rounds that are
interleaved: they are copied one after the other into a dense buffer, as the executor does for a binding of TensorRT
(``gather``; from slots that hold one row, or eight); they are written by the client (``write``); a sum runs over each
of them, as a kernel on the CPU would read them (``read``). ``bytes`` is what is carried over a link to the device that
copies a slot as it is. CPU time; below 1 padded rows are faster. The last table has rows of the same sizes that all
begin at a multiple of 64 against rows that all begin 4 bytes after one: what alignment is worth where it costs no gaps.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np
from printing import arguments, emit, machine, ratios, spread, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

_ALIGNMENT = 64
_WIDTHS = (9, 25, 75, 1001, 12345)
"""Floats of a row: none is a multiple of 16."""
_BATCH = 32
_WORK = 16 << 20
"""Bytes that a round handles at least, in several batches that together are larger than the caches."""


def placed(rows: int, width: int, pitch: int, begin: int = 0) -> Rows:
    """Rows of so many floats in memory that is aligned, each ``pitch`` bytes after the one before it."""
    memory = np.zeros(rows * pitch + _ALIGNMENT + begin, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT + begin
    whole = memory[start : start + rows * pitch].view(np.float32).reshape(rows, pitch // 4)
    return whole[:, :width]


def pitch_of(width: int) -> int:
    """Bytes from a padded row to the next."""
    return -(-4 * width // _ALIGNMENT) * _ALIGNMENT


def timed(work: Callable[[], object]) -> float:
    """Seconds of CPU that it takes."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / 1e9


def gather(batches: Sequence[Sequence[Rows]], out: Rows) -> Callable[[], None]:
    """Put the rows of each batch one after the other, as the staging buffers do."""

    def work() -> None:
        for parts in batches:
            np.concatenate(parts, out=out)

    return work


def write(batches: Sequence[Sequence[Rows]], source: Rows) -> Callable[[], None]:
    """Write each slot as a client does."""

    def work() -> None:
        for parts in batches:
            for part in parts:
                part[...] = source[: part.shape[0]]

    return work


def read(batches: Sequence[Sequence[Rows]]) -> Callable[[], None]:
    """Go over each row."""

    def work() -> None:
        for parts in batches:
            for part in parts:
                part.sum(axis=1)

    return work


def slots(width: int, pitch: int, each: int, begin: int = 0) -> list[list[Rows]]:
    """Batches of 32 rows in slots of ``each`` rows, enough of them to leave the caches."""
    batches = max(2, _WORK // (_BATCH * 4 * width))
    return [[placed(each, width, pitch, begin) for _ in range(_BATCH // each)] for _ in range(batches)]


def compare(one: Callable[[], None], other: Callable[[], None], rounds: int) -> list[float]:
    """Time of the one in that of the other, round by round, each first in turn."""
    ours, theirs = [], []
    one()
    other()
    for number in range(rounds):
        first, second = (one, other) if number % 2 else (other, one)
        times = {first: timed(first)}
        times[second] = timed(second)
        ours.append(times[one])
        theirs.append(times[other])
    return ratios(ours, theirs)


def row(width: int, rounds: int) -> list[str]:
    """Padded against dense."""
    dense, padded = 4 * width, pitch_of(width)
    out, source = placed(_BATCH, width, dense), placed(_BATCH, width, dense)
    cells = [f"{dense} B", f"{padded / dense:.2f}"]
    for each in (1, 8):
        pair = [slots(width, pitch, each) for pitch in (padded, dense)]
        cells.append(spread(compare(gather(pair[0], out), gather(pair[1], out), rounds)))
    cells.append(spread(compare(write(pair[0], source), write(pair[1], source), rounds)))
    cells.append(spread(compare(read(pair[0]), read(pair[1]), rounds)))
    return cells


def aligned_row(width: int, rounds: int) -> list[str]:
    """Rows at multiples of 64 against rows 4 bytes after them, with the same gaps."""
    pitch = pitch_of(width) + _ALIGNMENT
    pair = [slots(width, pitch, 8, begin) for begin in (0, 4)]
    out = placed(_BATCH, width, 4 * width)
    return [
        f"{4 * width} B",
        spread(compare(gather(pair[0], out), gather(pair[1], out), rounds)),
        spread(compare(read(pair[0]), read(pair[1]), rounds)),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    arguments(parser, 15)
    options = parser.parse_args()
    rounds = options.rounds
    text = f"# Rows at multiples of 64 bytes\n\n{machine(rounds)}\n"
    text += "Padded rows in times of dense ones, CPU time, median (smallest to largest):\n\n"
    head = ("row", "bytes", "gather, slots of 1", "gather, slots of 8", "write, slots of 8", "read, slots of 8")
    text += table(head, [row(width, rounds) for width in _WIDTHS])
    text += "\nRows that begin at multiples of 64, in times of rows that begin 4 bytes later, the same gaps:\n\n"
    text += table(("row", "gather", "read"), [aligned_row(width, rounds) for width in _WIDTHS])
    emit(text, options.write)


if __name__ == "__main__":
    main()
