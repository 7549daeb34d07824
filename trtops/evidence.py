"""One record of what was built and how it did: the spec, the device, the artifact, its accuracy, its numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trtops.device import Device
from trtops.digest import Digest, Value
from trtops.spec.engine import Target

Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    expected: float
    actual: float
    excess: float


class Accuracy(Value):
    """Outputs of an engine against the reference's.

    Attributes:
        reference: what computed the expected outputs, with version and settings.
        samples: digest of the sample arrays, and ``count`` of them.
        atol, rtol: tolerances of the spec.
        elements: compared numbers.
        outside: how many are out of tolerance.
        max_abs, max_rel: largest absolute and relative difference.
        metrics: metric name -> value (``top1``: share of rows whose argmax agrees).
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
    max_abs: float
    max_rel: float
    metrics: dict[str, Finite] = Field(default_factory=dict)
    required: dict[str, Finite] = Field(default_factory=dict)
    worst: WorstElement | None = None
    passed: bool


class Interval(Value):
    """An estimate with its 95 % confidence interval."""

    value: Finite
    low: Finite
    high: Finite


class BatchMeasurement(Value):
    """One batch size's numbers. Latencies in microseconds, throughput in rows a second.

    Attributes:
        batch: rows in one execution.
        shapes: input name -> shape.
        warmup_runs, runs: executions before and while measuring.
        mean, stddev: of latency.
        p50, p90, p99: quantiles with intervals (order statistics, distribution-free).
        throughput: rows a second with interval.
    """

    batch: int
    shapes: dict[str, tuple[int, ...]]
    warmup_runs: int
    runs: int
    mean: Finite
    stddev: Finite
    p50: Interval
    p90: Interval
    p99: Interval
    throughput: Interval


class Benchmark(Value):
    """Measurements on one device, with what was wrong with them in words."""

    device: Device
    backend: str
    backend_version: str
    rows: tuple[BatchMeasurement, ...]
    warnings: tuple[str, ...] = ()


class Evidence(Value):
    """All that is known of one artifact, bound to what it was made from.

    Attributes:
        engine: name.
        spec: digest of the engine spec.
        model: digest of the ONNX file.
        target: what it was built for.
        plan: cache key of the build.
        artifact: digest of the engine.
        size_bytes: of the engine.
        device: where it was verified and measured.
        accuracy: None where this machine cannot load the engine; ``unverified`` says why.
        benchmark: None likewise.
        created: epoch seconds.
        trtops: version of the tool.
    """

    engine: str
    spec: Digest
    model: Digest
    target: Target
    plan: Digest
    artifact: Digest
    size_bytes: int
    device: Device
    accuracy: Accuracy | None = None
    benchmark: Benchmark | None = None
    unverified: str | None = None
    created: int
    trtops: str
