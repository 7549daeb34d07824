"""Whole values for tests of evidence and reports: one engine, measured, judged and released."""

from __future__ import annotations

from trtops.accuracy import AccuracyReport, WorstElement
from trtops.backend.port import Sidecar
from trtops.bench.results import BatchMeasurement, Benchmark, Interval
from trtops.device import Device
from trtops.digest import Digest
from trtops.evidence import Evidence, assemble
from trtops.policy.verdict import Finding, SourceLocation, Verdict
from trtops.release.documents import Binding
from trtops.spec.engine import EngineSpec, Target
from trtops.tensor import TensorInfo

CPU = Device(kind="cpu", name="x86_64", cores=2)


def digest(seed: str) -> Digest:
    return Digest.of_bytes(seed.encode())


def engine_spec(**changes: object) -> EngineSpec:
    document: dict[str, object] = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "ppocr-cls", "owner": "ocr-team"},
        "model": {"source": "file:m.onnx", "sha256": "0" * 64},
        "targets": [{"backend": "onnxruntime"}],
        "profiles": [{"inputs": {"x": {"min": [1, 3], "opt": [8, 3], "max": [32, 3]}}}],
        "accuracy": {"samples": "random", "metric": {"top1": 0.99}},
        "benchmark": {"batch_sizes": [1, 8, 32]},
    }
    return EngineSpec.model_validate({**document, **changes})


def sidecar(**changes: object) -> Sidecar:
    info = TensorInfo(name="x", dtype="float32", shape=("N", 3))
    value = Sidecar(
        backend="onnxruntime",
        backend_version="1.23.0",
        target=Target(backend="onnxruntime"),
        device=CPU,
        plan=digest("plan"),
        model=digest("model"),
        artifact=digest("artifact"),
        size_bytes=601_234,
        inputs=(info,),
        outputs=(info.model_copy(update={"name": "y"}),),
        profiles=engine_spec().profiles,
        format="application/vnd.onnx",
    )
    return value.model_copy(update=changes)


def accuracy(*, passed: bool = True) -> AccuracyReport:
    return AccuracyReport(
        reference="onnxruntime 1.23.0, optimisations off",
        samples=digest("samples"),
        count=28,
        atol=1e-3,
        rtol=1e-2,
        elements=168,
        outside=0 if passed else 3,
        max_abs=0.00012 if passed else 0.5,
        max_rel=0.0031 if passed else 1.25,
        metrics={"top1": 1.0 if passed else 0.9},
        required={"top1": 0.99},
        worst=WorstElement(
            output="y",
            profile="default",
            point="max",
            index=(17, 1),
            expected=0.25,
            actual=0.25012 if passed else 0.75,
            excess=0.034 if passed else 142.86,
        ),
        passed=passed,
    )


def _interval(value: float, spread: float) -> Interval:
    return Interval(value=value, low=value * (1 - spread), high=value * (1 + spread))


def measurement(batch: int, p50: float) -> BatchMeasurement:
    return BatchMeasurement(
        batch=batch,
        shapes={"x": (batch, 3)},
        warmup_runs=40,
        runs=412,
        mean=p50 * 1.02,
        stddev=p50 * 0.05,
        p50=_interval(p50, 0.01),
        p90=_interval(p50 * 1.1, 0.03),
        p99=_interval(p50 * 1.4, 0.1),
        throughput=_interval(batch * 1e6 / p50, 0.02),
    )


def benchmark() -> Benchmark:
    return Benchmark(
        device=CPU,
        backend="onnxruntime",
        backend_version="1.23.0",
        rows=(measurement(1, 1900.0), measurement(8, 12_400.0), measurement(32, 48_100.0)),
        warnings=("batch 32: 101 runs are too few for p99: its upper bound needs 368 (benchmark.duration)",),
    )


def evidence(*, passed: bool = True) -> Evidence:
    return assemble(
        engine_spec(),
        sidecar(),
        CPU,
        accuracy=accuracy(passed=passed),
        benchmark=benchmark(),
        created=1_770_000_000,
        trtops="0.1.0",
    )


def verdict(*findings: Finding, subject: str = "ppocr-cls") -> Verdict:
    return Verdict(
        stage="spec",
        subject=subject,
        environment="local",
        engine="embedded regorus 0.9.1",
        policies=digest("policies"),
        input=digest("input"),
        rules=("spec.max_batch_in_profile", "spec.owner_present", "spec.workspace_bounded"),
        findings=findings,
    )


def denial(**changes: object) -> Finding:
    value = Finding(
        rule="spec.workspace_bounded",
        stage="spec",
        severity="deny",
        message="memory.workspace is not set",
        path=("memory", "workspace"),
        location=SourceLocation(file="engines/ppocr-cls/engine.yaml", line=12, column=3),
        fix="set memory.workspace, for example 1GiB",
        docs="https://example.org/rules/workspace_bounded",
    )
    return value.model_copy(update=changes)


def warning(**changes: object) -> Finding:
    base = denial(
        rule="spec.owner_present",
        severity="warn",
        message="metadata.owner is empty",
        path=("metadata", "owner"),
        location=SourceLocation(file="engines/ppocr-cls/engine.yaml", line=4, column=11),
        fix="name the team that answers for this engine",
        docs=None,
    )
    return base.model_copy(update=changes)


def bindings() -> tuple[Binding, ...]:
    first = Binding(
        engine="ppocr-cls",
        environment="local",
        generation=1,
        engine_release=digest("release 1"),
        config_release=digest("config 1"),
        reason="release",
        actor="6f1d0c2b9a8e",
        created=1_770_000_000,
        expires=1_772_592_000,
    )
    second = first.model_copy(
        update={
            "generation": 2,
            "engine_release": digest("release 2"),
            "reason": "release",
            "created": 1_770_090_000,
            "previous": first.digest(),
            "weights": {"stable": 90, "canary": 10},
        }
    )
    return first, second
