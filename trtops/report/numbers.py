"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.bench.results import Interval

_KIB = 1024
_DIGITS = 3


def significant(value: float, digits: int = _DIGITS) -> str:
    """A number with so many significant digits and no exponent between 0.0001 and a million."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:  # noqa: PLR2004 - beyond, zeros would hide the number
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) < 1e-2 else text  # noqa: PLR2004 - tolerances


def latency(microseconds: float) -> str:
    """A latency with its unit: ``850 µs``, ``1.95 ms``, ``2.40 s``."""
    divisor, unit = _unit(microseconds)
    return f"{significant(microseconds / divisor)} {unit}"


def _unit(microseconds: float) -> tuple[float, str]:
    for limit, divisor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return divisor, unit
    return 1e6, "s"


def latency_interval(interval: Interval) -> str:
    """A latency with its interval, all in one unit: ``1.95 [1.93, 1.97] ms``."""
    divisor, unit = _unit(interval.value)
    value, low, high = (significant(part / divisor) for part in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}] {unit}"


def rate(rows_per_second: float) -> str:
    """A throughput without its unit: ``1,234``."""
    return significant(rows_per_second) if rows_per_second < 100 else f"{rows_per_second:,.0f}"  # noqa: PLR2004


def size(count: int) -> str:
    """Bytes with a binary unit: ``572 KiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{significant(value)} {unit}"
        value /= _KIB
    return f"{significant(value)} TiB"


def instant(epoch_seconds: int) -> str:
    """A time in UTC: ``2026-02-02 02:40:00Z``; the bare number where no calendar holds it."""
    try:
        return datetime.fromtimestamp(epoch_seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(epoch_seconds)


def rate_interval(interval: Interval) -> str:
    """A throughput with its interval: ``645 [632, 658]``."""
    return f"{rate(interval.value)} [{rate(interval.low)}, {rate(interval.high)}]"


def share(value: float) -> str:
    """A share between 0 and 1, cut off after five digits: what is below 1 never reads as 1."""
    return f"{math.floor(value * 1e5) / 1e5:.5f}".rstrip("0").rstrip(".")
