"""What a batch costs: seconds = a·rows + b, fitted online from the batches that ran.

Weighted least squares with exponential forgetting: each new batch takes a tenth of the weight of all before it, so
the fit follows a device whose clock changes. Five sums are kept, so an observation costs the same however many came.
"""

from __future__ import annotations

import math
from typing import Final

_KEEP: Final = 0.9
"""Share of the weight that older batches keep when one more comes (about the last ten batches count)."""

_SPREADS: Final = 3.0
"""Mean absolute deviations above the line that :meth:`Cost.bound` adds; 3 cover 98 % of a normal distribution."""

_FLAT: Final = 1e-9
"""Weighted variance of the batch sizes under which they count as one size, and no slope can be told."""


class Cost:
    """An online fit of a batch's duration over its rows.

    Attributes:
        samples: batches that were seen.
        slope: seconds a row. ``base``: seconds a batch. Both are 0 or above.
        ceiling: ``base`` and three mean absolute deviations; :meth:`bound` is ``slope * rows + ceiling``.
        lately: seconds of the longest batch of late, failed ones too, which counts half as much with each one that
            runs after it; infinity until one was seen.
    """

    __slots__ = ("_n", "_nn", "_nt", "_spread", "_t", "_w", "base", "ceiling", "lately", "samples", "slope")

    def __init__(self) -> None:
        """Know nothing: every estimate is 0 until a batch was seen."""
        self.samples = 0
        self._w = self._n = self._t = self._nn = self._nt = 0.0
        self._spread = 0.0
        self.slope = self.base = self.ceiling = 0.0
        self.lately = math.inf

    def __repr__(self) -> str:
        """Show the line."""
        return (
            f"Cost({self.slope * 1e6:.1f} us/row + {self.base * 1e6:.1f} us ± {self._spread * 1e6:.1f} us, "
            f"{self.samples} batches)"
        )

    def observe(self, rows: int, seconds: float) -> None:
        """Take one batch in."""
        weight, n = self._w, self._n
        if weight and (
            abs(rows * weight - n) < _FLAT * n or self._nn * weight - n * n > _FLAT * max(weight * weight, n * n)
        ):
            # A first batch of another size says nothing of the spread: there was no line to miss.
            self._spread = self._spread * _KEEP + abs(seconds - self.slope * rows - self.base) * (1 - _KEEP)
        self.lately = max(seconds, self.lately / 2) if self.samples else seconds
        self.samples += 1
        self._w = weight = weight * _KEEP + 1.0
        self._n = n = n * _KEEP + rows
        self._t = t = self._t * _KEEP + seconds
        self._nn = nn = self._nn * _KEEP + rows * rows
        self._nt = nt = self._nt * _KEEP + rows * seconds
        variance = nn * weight - n * n
        slope = (nt * weight - n * t) / variance if variance > _FLAT * max(weight * weight, n * n) else 0.0
        base = (t - slope * n) / weight
        if slope <= 0.0:
            slope, base = 0.0, t / weight  # one size seen, or no line: the mean for every size
        elif base < 0.0:
            slope, base = t / n, 0.0
        self.slope, self.base = slope, base
        self.ceiling = base + _SPREADS * self._spread

    def failed(self, seconds: float) -> None:
        """Take in a batch that failed after so long: no part of the line, but batches may take as long."""
        self.lately = max(seconds, self.lately)

    @property
    def line(self) -> tuple[float, float]:
        """``(a, b)``: seconds a row and seconds a batch, both at or above 0."""
        return self.slope, self.base

    def estimate(self, rows: int) -> float:
        """Expected seconds of a batch of ``rows``."""
        return self.slope * rows + self.base

    def bound(self, rows: int) -> float:
        """Seconds that a batch of ``rows`` seldom exceeds: the line and three mean absolute deviations."""
        return self.slope * rows + self.ceiling

    def expected(self, rows: int) -> float:
        """The same; infinity until a batch was seen."""
        return self.slope * rows + self.ceiling if self.samples else math.inf
