"""Line plots with intervals as SVG text, styled by the page's classes. No script, no outside resource."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from trtops.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 50, 46
_NEAREST_LABELS = 26.0
_TICKS = 5
_LEGEND_STEP = 74


@dataclass(frozen=True, slots=True)
class Mark:
    """An estimate at ``x`` (above 0) with its interval."""

    x: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """Estimates that a line joins, ascending in ``x``."""

    name: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """Titles and scales: ``x`` is logarithmic (base 2), ``y`` linear from 0 or logarithmic (base 10)."""

    title: str
    x_title: str
    y_title: str
    write: Callable[[float], str]
    log_y: bool = False


def plot(axes: Axes, series: Sequence[Series]) -> str:
    """One plot: a line and whiskers for each series, values in tooltips; empty text where there is nothing to draw."""
    marks = [mark for part in series for mark in part.marks]
    if not marks:
        return ""
    place = _Scale.of(marks, log_y=axes.log_y)
    parts = [
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(axes.title)}">',
        f'<text class="heading" x="{_LEFT}" y="16">{_text(axes.title)}</text>',
        *_y_axis(place, axes),
        *_x_axis(place, sorted({mark.x for mark in marks}), axes),
    ]
    for number, part in enumerate(series):
        parts += _legend(number, part.name) if len(series) > 1 else []
        parts += _line(place, part, number, axes)
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a number stands, in units of the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log_y: bool

    @classmethod
    def of(cls, marks: Sequence[Mark], *, log_y: bool) -> _Scale:
        xs = [math.log2(mark.x) for mark in marks]
        highest = max(mark.high for mark in marks) or 1.0
        lowest = min(mark.low for mark in marks)
        if log_y and lowest > 0:
            return cls(min(xs), max(xs), math.log10(lowest) - 0.05, math.log10(highest) + 0.05, log_y=True)
        return cls(min(xs), max(xs), 0.0, highest * 1.05, log_y=False)

    def x(self, value: float) -> float:
        inset = 22
        span = self.x_high - self.x_low
        share = (math.log2(value) - self.x_low) / span if span else 0.5
        return _LEFT + inset + share * (_WIDTH - _LEFT - _RIGHT - 2 * inset)

    def y(self, value: float) -> float:
        level = math.log10(value) if self.log_y else value
        share = (level - self.y_low) / (self.y_high - self.y_low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[float]:
        """Round numbers on the axis: 1, 2, 5 in each decade, or about five even steps from 0."""
        if self.log_y:
            exponents = range(math.floor(self.y_low), math.ceil(self.y_high) + 1)
            candidates = [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]
            inside = [tick for tick in candidates if self.y_low <= math.log10(tick) <= self.y_high]
            return inside[:: max(1, math.ceil(len(inside) / (2 * _TICKS)))]
        step = 10 ** math.floor(math.log10(self.y_high / _TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if self.y_high / (step * factor) <= _TICKS + 1)
        return [number * step for number in range(math.floor(self.y_high / step) + 1)]


def _y_axis(place: _Scale, axes: Axes) -> list[str]:
    parts = []
    for tick in place.ticks():
        y = place.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 8}" y="{y + 4:.1f}">{_text(axes.write(tick))}</text>')
    parts.append(f'<text class="axis" x="{_LEFT - 62}" y="{_TOP - 14}">{_text(axes.y_title)}</text>')
    return parts


def _x_axis(place: _Scale, values: Sequence[float], axes: Axes) -> list[str]:
    base = _HEIGHT - _BOTTOM
    parts = [f'<line class="base" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    last = -math.inf
    for value in values:
        x = place.x(value)
        if x - last >= _NEAREST_LABELS:
            parts.append(f'<text class="tick middle" x="{x:.1f}" y="{base + 18}">{value:g}</text>')
            last = x
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis middle" x="{middle:.1f}" y="{_HEIGHT - 8}">{_text(axes.x_title)}</text>')
    return parts


def _legend(number: int, name: str) -> list[str]:
    x = _LEFT + 110 + number * _LEGEND_STEP
    y = _TOP - 18
    return [
        f'<line class="line s{number}" x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}"/>',
        _marker(number, x + 11, y),
        f'<text class="tick" x="{x + 28}" y="{y + 4}">{_text(name)}</text>',
    ]


def _line(place: _Scale, series: Series, number: int, axes: Axes) -> list[str]:
    points = " ".join(f"{place.x(mark.x):.1f},{place.y(mark.value):.1f}" for mark in series.marks)
    parts = [f'<polyline class="line s{number}" points="{points}"/>']
    for mark in series.marks:
        x, low, high = place.x(mark.x), place.y(mark.low), place.y(mark.high)
        told = f"{series.name}, {axes.x_title} {mark.x:g}: {axes.write(mark.value)}"
        told += f", 95 % interval {axes.write(mark.low)} to {axes.write(mark.high)}"
        whisker = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 5:.1f} {low:.1f}h10M{x - 5:.1f} {high:.1f}h10"
        parts.append(
            f'<g><title>{_text(told)}</title><path class="whisker s{number}" d="{whisker}"/>'
            f"{_marker(number, x, place.y(mark.value))}</g>"
        )
    return parts


def _marker(number: int, x: float, y: float) -> str:
    """A shape of its own for each series, so that colour is not the only difference."""
    shapes = (
        f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
    )
    return f'<path class="marker s{number}" d="{shapes[number % len(shapes)]}"/>'


def _text(text: str) -> str:
    return escape(visible(text), quote=True)
