"""Sizes and durations as people write them (``1GiB``, ``2ms``) and as values carry them (bytes, microseconds)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-zµ]+)")
_SHOWN = 40

BYTES: dict[str, int] = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
MICROSECONDS: dict[str, int] = {"us": 1, "µs": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6}


def _parse(value: object, units: dict[str, int], kind: str, example: str) -> int:
    allowed = f"write a {kind} with its unit, such as {example} (units: {', '.join(units)})"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        message = f"a value of another type is no {kind}: {allowed}"
        raise ValueError(message)  # noqa: TRY004 - pydantic turns ValueError into a finding
    if not isinstance(value, str):
        if value == 0 and isinstance(value, int):
            return 0
        message = f"{value} has no unit: {allowed}"
        raise ValueError(message)
    match = _NUMBER.fullmatch(value.strip())
    if match is None or match[2] not in units:
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
        message = f"{shown!r} is no {kind}: {allowed}"
        raise ValueError(message)
    scaled = Decimal(match[1]) * units[match[2]]
    if scaled != int(scaled):
        smallest = next(iter(units))
        message = f"{value!r} is not a whole number of {smallest}: write a smaller unit"
        raise ValueError(message)
    return int(scaled)


def parse_bytes(value: object) -> int:
    """Read a size: ``"1GiB"`` -> 1073741824. Binary (KiB …) and decimal (KB …) units; a bare 0 is allowed.

    Raises:
        ValueError: no unit, an unknown unit, or a fraction of a byte.
    """
    return _parse(value, BYTES, "size", "512MiB")


def parse_duration(value: object) -> int:
    """Read a duration: ``"2ms"`` -> 2000 microseconds. A bare 0 is allowed.

    Raises:
        ValueError: no unit, an unknown unit, or a fraction of a microsecond.
    """
    return _parse(value, MICROSECONDS, "duration", "2ms")


ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(lambda value: f"{value}B", return_type=str, when_used="json"),
    Field(ge=0, le=1 << 50),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|[KMGT]i?B)\s*$"}, {"const": 0}],
            "examples": ["512MiB"],
        }
    ),
]
"""A size: an ``int`` of bytes in Python, text with its unit in YAML and JSON (canonically ``536870912B``)."""

MANUAL: Literal["manual"] = "manual"
_DURATION_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(us|µs|ms|s|min|h)\s*$"}, {"const": 0}],
    "examples": ["2ms"],
}

Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: f"{value}us", return_type=str, when_used="json"),
    Field(ge=0, le=24 * 3600 * 10**6),
    WithJsonSchema(_DURATION_SCHEMA),
]
"""A duration: an ``int`` of microseconds in Python, text with its unit in YAML and JSON (canonically ``2000us``)."""

_LONGEST_PAUSE = 14 * 24 * 3600 * 10**6


def parse_pause(value: object) -> int | Literal["manual"]:
    """Read a pause: ``manual``, or a duration of two weeks at most.

    Raises:
        ValueError: it is neither.
    """
    if value == MANUAL:
        return MANUAL
    length = parse_duration(value)
    if length > _LONGEST_PAUSE:
        message = f"{value!r} is longer than two weeks: write `manual`, and resume it when it is time"
        raise ValueError(message)
    return length


Pause = Annotated[
    int | Literal["manual"],
    BeforeValidator(parse_pause),
    PlainSerializer(lambda value: value if value == MANUAL else f"{value}us", return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"const": MANUAL}, *_DURATION_SCHEMA["anyOf"]], "examples": ["10min", MANUAL]}),
]
"""How long to wait: as :data:`Duration`, or ``manual``: until somebody says so."""
