"""What the benchmarks of the executor print: the machine, medians with their spread, and the same text to a file."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """The options that all of them have."""
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each case is measured, in turn")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the tables there, too")


def machine(rounds: int) -> str:
    """One line on where this ran."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, CPython {platform.python_version()}; "
        f"{rounds} rounds; load when it began {load:.1f}\n"
    )


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median and, in brackets, the smallest and the largest."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):{form}} ({ordered[0]:{form}} to {ordered[-1]:{form}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def emit(text: str, path: Path | None) -> None:
    """Print it, and keep it."""
    print(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
