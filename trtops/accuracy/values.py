"""What a comparison says, as values."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer

from trtops.digest import Digest, Value

Finite = Annotated[float, Field(allow_inf_nan=False)]


def _one_nan(value: float) -> float:
    return math.nan if math.isnan(value) else value


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Number = Annotated[
    float, AfterValidator(_one_nan), PlainSerializer(_json_number, return_type=float | str, when_used="json")
]
"""A float that may be infinite or not a number; canonical JSON then carries it as text."""


class WorstElement(Value):
    """Where an output differs most from the reference.

    Attributes:
        output: tensor's name.
        point: ``min``, ``opt`` or ``max``: the shape that it was seen at, in ``profile``.
        index: of the element, in the output's shape (first axis: row of the batch).
        expected, actual: the reference's value and the engine's. Not finite values are written as text.
        excess: ``|actual - expected| / (atol + rtol * |expected|)``; above 1 is out of tolerance (numpy.allclose).
    """

    output: str
    profile: str
    point: str
    index: tuple[int, ...]
    expected: Number
    actual: Number
    excess: Number


class AccuracyReport(Value):
    """Outputs of an engine against the reference's.

    Attributes:
        reference: what computed the expected outputs, with version and settings.
        samples: digest of the sample arrays, and ``count`` of them.
        atol, rtol: tolerances of the spec.
        elements: compared numbers.
        outside: how many are out of tolerance.
        max_abs, max_rel: largest absolute and relative difference (relative where the reference is not 0).
        metrics: metric name -> value (``top1``: share of rows whose argmax agrees). Only those that the spec asks for.
        required: metric name -> lower bound of the spec.
        worst: the worst element; None only if nothing was compared.
        passed: no element outside, every metric at or above its bound.
    """

    reference: str
    samples: Digest
    count: int
    atol: Finite
    rtol: Finite
    elements: int
    outside: int
    max_abs: Number
    max_rel: Number
    metrics: dict[str, Finite] = Field(default_factory=dict)
    required: dict[str, Finite] = Field(default_factory=dict)
    worst: WorstElement | None = None
    passed: bool
