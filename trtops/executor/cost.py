"""What a batch costs: seconds = a·rows + b, fitted online from the batches that ran.

Weighted least squares with exponential forgetting: each new batch takes a tenth of the weight of all before it, so
the fit follows a device whose clock changes. Five sums are kept, so an observation costs the same however many came.
"""

from __future__ import annotations

from typing import Final

_KEEP: Final = 0.9
"""Share of the weight that older batches keep when one more comes (about the last ten batches count)."""

_SPREADS: Final = 3.0
"""Mean absolute deviations above the line that :meth:`Cost.bound` adds; 3 cover 98 % of a normal distribution."""

_FLAT: Final = 1e-9
"""Weighted variance of the batch sizes under which they count as one size, and no slope can be told."""


class Cost:
    """An online fit of a batch's duration over its rows."""

    __slots__ = ("_line", "_n", "_nn", "_nt", "_spread", "_t", "_w", "samples")

    def __init__(self) -> None:
        """Know nothing: every estimate is 0 until a batch was seen."""
        self.samples = 0
        self._w = self._n = self._t = self._nn = self._nt = 0.0
        self._spread = 0.0
        self._line: tuple[float, float] | None = None

    def __repr__(self) -> str:
        """Show the line."""
        a, b = self.line
        return f"Cost({a * 1e6:.1f} us/row + {b * 1e6:.1f} us ± {self._spread * 1e6:.1f} us, {self.samples} batches)"

    def observe(self, rows: int, seconds: float) -> None:
        """Take one batch in."""
        if self.samples and (not self._flat() or abs(rows * self._w - self._n) < _FLAT * self._n):
            # A first batch of another size says nothing of the spread: there was no line to miss.
            self._spread = self._spread * _KEEP + abs(seconds - self.estimate(rows)) * (1 - _KEEP)
        self.samples += 1
        self._w = self._w * _KEEP + 1.0
        self._n = self._n * _KEEP + rows
        self._t = self._t * _KEEP + seconds
        self._nn = self._nn * _KEEP + rows * rows
        self._nt = self._nt * _KEEP + rows * seconds
        self._line = None

    @property
    def line(self) -> tuple[float, float]:
        """``(a, b)``: seconds a row and seconds a batch, both at or above 0."""
        if self._line is None:
            self._line = self._fit()
        return self._line

    def _flat(self) -> bool:
        """Whether all batches that count had one size, so that no slope can be told."""
        mean = self._n / self._w
        return self._nn / self._w - mean * mean <= _FLAT * max(1.0, mean * mean)

    def _fit(self) -> tuple[float, float]:
        if not self._w:
            return 0.0, 0.0
        mean_n, mean_t = self._n / self._w, self._t / self._w
        if self._flat():
            return 0.0, mean_t  # one size seen: its mean for every size
        variance = self._nn / self._w - mean_n * mean_n
        slope = (self._nt / self._w - mean_n * mean_t) / variance
        if slope <= 0.0:
            return 0.0, mean_t
        base = mean_t - slope * mean_n
        return (slope, base) if base >= 0.0 else (mean_t / mean_n, 0.0)

    def estimate(self, rows: int) -> float:
        """Expected seconds of a batch of ``rows``."""
        a, b = self.line
        return a * rows + b

    def bound(self, rows: int) -> float:
        """Seconds that a batch of ``rows`` seldom exceeds: the line and three mean absolute deviations."""
        return self.estimate(rows) + _SPREADS * self._spread
