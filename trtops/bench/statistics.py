"""Quantiles and rates with 95 % confidence intervals. Pure arithmetic on numbers that were measured elsewhere."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from trtops.bench.results import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
_BATCHES = 30  # batch means: 20 to 30 (Law, Simulation Modeling and Analysis, 5th edition, section 9.5.3)
_FEWEST_BATCHES = 2
_DEVIATIONS = 12.0  # beyond so many standard deviations a binomial tail is below 1e-16 in all that is asked here

# Quantile 0.975 of Student's t for 1 … 29 degrees of freedom (any table of the distribution).
_STUDENT_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452,
)  # fmt: skip


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, summed without rounding error.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("the mean of no values")
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); 0 for a single value."""
    if len(values) < _FEWEST_BATCHES:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def quantile_ranks(n: int, q: float) -> tuple[int, int, bool]:
    """Ranks (from 1) of the order statistics between which the ``q`` quantile lies with 95 % confidence.

    The number of values below the quantile is binomial(n, q) whatever the distribution, so
    ``P(X(l) <= quantile <= X(u)) >= P(l <= B < u)``; each tail gets 2.5 % at most. (David and Nagaraja, Order
    Statistics, 3rd edition, section 7.1.) Values are taken as independent; :func:`autocorrelation` tells how far.

    Returns:
        ``(l, u, reached)``. ``reached`` is false where n values cannot give that confidence (p99 needs 368): a rank
        then is the smallest or the largest value, and the interval covers less.

    Raises:
        ValueError: n below 1, or q not between 0 and 1.
    """
    if n < 1 or not 0 < q < 1:
        message = f"need n >= 1 and 0 < q < 1, not n={n}, q={q}"
        raise ValueError(message)
    tail = (1 - CONFIDENCE) / 2
    spread = _DEVIATIONS * math.sqrt(n * q * (1 - q)) + _DEVIATIONS
    first, last = max(0, math.floor(n * q - spread)), min(n, math.ceil(n * q + spread))
    below, lower, upper = 0.0, 0, n + 1
    for k in range(first, last + 1):
        below += _binomial(n, q, k)
        if below <= tail:  # P(B <= k) <= tail: rank k + 1 is still safe
            lower = k + 1
        if below >= 1 - tail:
            upper = k + 1
            break
    return max(1, lower), min(n, upper), lower >= 1 and upper <= n


def _binomial(n: int, q: float, k: int) -> float:
    """``P(B = k)`` of binomial(n, q)."""
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(logarithm + k * math.log(q) + (n - k) * math.log1p(-q))


def quantile(ordered: Sequence[float], q: float) -> Interval:
    """The ``q`` quantile of values in ascending order, with its distribution-free interval.

    The estimate is the value of rank ``ceil(n q)`` (``numpy.quantile`` with ``method="inverted_cdf"``): one that was
    measured, never an average of two.

    Raises:
        ValueError: no values, or q not between 0 and 1.
    """
    lower, upper, _ = quantile_ranks(len(ordered), q)
    # Rounded first: 0.07 * 100 is 7.000000000000001, whose ceiling is one too many.
    rank = min(max(math.ceil(round(len(ordered) * q, 9)), 1), len(ordered))
    return Interval(
        value=float(ordered[rank - 1]),
        low=float(ordered[min(lower, rank) - 1]),
        high=float(ordered[max(upper, rank) - 1]),
    )


def throughput(latencies: Sequence[float], rows: int, *, per_second: float = 1e6) -> Interval:
    """Rows a second of runs that follow each other without a gap, with an interval that bears autocorrelation.

    ``rows / mean latency``. The interval is Student's over the means of up to 30 consecutive batches of runs (batch
    means: neighbours are alike, means of long stretches hardly are; Law, Simulation Modeling and Analysis, 9.5.3),
    carried over by ``1 / x``. Runs that do not fill the last batch count in the estimate alone.

    Args:
        latencies: of each run, in the order of running, above 0.
        rows: in one run.
        per_second: latency units in a second: 1e6 for microseconds.

    Raises:
        ValueError: no latencies.
    """
    average = mean(latencies)
    rate = rows * per_second
    count = min(_BATCHES, len(latencies) // _FEWEST_BATCHES)
    if count < _FEWEST_BATCHES:
        return Interval(value=rate / average, low=rate / max(latencies), high=rate / min(latencies))
    size = len(latencies) // count
    means = [mean(latencies[start : start + size]) for start in range(0, size * count, size)]
    half = _STUDENT_975[count - 2] * standard_deviation(means) / math.sqrt(count)
    fastest = max(average - half, min(*means, average))  # the interval of a mean may reach below 0, a rate may not
    return Interval(value=rate / average, low=rate / (average + half), high=rate / fastest)


def autocorrelation(values: Sequence[float]) -> float:
    """Correlation of neighbours (lag 1), between -1 and 1; 0 for constant values or fewer than three."""
    if len(values) <= _FEWEST_BATCHES:
        return 0.0
    middle = mean(values)
    total = math.fsum((value - middle) ** 2 for value in values)
    if total <= 0:
        return 0.0
    return math.fsum((a - middle) * (b - middle) for a, b in pairwise(values)) / total
