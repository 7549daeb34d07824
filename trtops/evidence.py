"""One record of what was built and how it did: the spec, the device, the artifact, its accuracy, its numbers."""

from __future__ import annotations

from trtops.accuracy import AccuracyReport as Accuracy
from trtops.accuracy import WorstElement
from trtops.bench.results import BatchMeasurement, Benchmark, Interval
from trtops.device import Device
from trtops.digest import Digest, Value
from trtops.spec.engine import Target

__all__ = ["Accuracy", "BatchMeasurement", "Benchmark", "Evidence", "Interval", "WorstElement"]


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
