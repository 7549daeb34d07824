"""What a benchmark says, as values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trtops.device import Device
from trtops.digest import Value

Finite = Annotated[float, Field(allow_inf_nan=False)]


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
