"""Whole values for tests of evidence and reports: one engine, measured, judged and released."""

from __future__ import annotations

from typing import Any

from trtops.accuracy import AccuracyReport, WorstElement
from trtops.backend.port import Sidecar
from trtops.bench.results import BatchMeasurement, Benchmark, Interval
from trtops.device import Device
from trtops.digest import Digest
from trtops.evidence import Evidence, assemble
from trtops.policy.verdict import Finding, SourceLocation, Verdict
from trtops.release.documents import Binding, Rollout
from trtops.release.plan import EnginePlan, Plan, Side, TargetPlan
from trtops.report.running import Pairing
from trtops.report.running import Side as Side_
from trtops.spec.engine import EngineSpec, RolloutPlan, Target
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


def rollout() -> Binding:
    """A binding with a rollout at its third step, and something in quarantine."""
    plan = RolloutPlan.model_validate(
        {
            "steps": [
                {"shadow": 10},
                {"weight": 5},
                {"analysis": {"requests": 1000, "error_rate": 0.001, "p99": "20ms"}},
                {"pause": "manual"},
                {"weight": 50},
            ]
        }
    )
    candidate = Rollout(
        engine_release=digest("release 2"),
        config_release=digest("config 2"),
        shadow=10,
        step=2,
        since=1_770_090_000,
        plan=plan,
    )
    return bindings()[0].model_copy(
        update={
            "generation": 4,
            "weights": {"stable": 95, "canary": 5},
            "rollout": candidate,
            "rejected": (digest("release 0"), digest("engine 0")),
            "reason": "rollout: step 3 of 5 (analysis)",
        }
    )


def plan() -> Plan:
    """A plan of three engines: one to release beside the stable one, one that is there already, one that is denied."""
    target = TargetPlan(target="onnxruntime", build="build", key=digest("key"), runner=("ubuntu-24.04",))
    gpu = TargetPlan(
        target="tensorrt-8.6-h200", build="elsewhere", reason="there is no GPU", runner=("self-hosted", "gpu-h200")
    )
    reused = target.model_copy(update={"build": "reuse", "artifact": digest("artifact")})
    before = Side(
        generation=4, binding=digest("binding"), engine_release=digest("release 1"),
        config_release=digest("config 1"), weights={"stable": 100},
    )  # fmt: skip
    after = Side(generation=5, config_release=digest("config 1"), weights={"stable": 95, "canary": 5})
    common: dict[str, Any] = {
        "spec": digest("spec"),
        "config": digest("config"),
        "verdict": digest("verdict"),
        "before": before,
    }
    engines = (
        EnginePlan(engine="ppocr-cls", decision="warn", targets=(target, gpu), move="rollout", after=after,
                   reason="engine differs from what is released", **common),
        EnginePlan(engine="ppocr-det", decision="allow", targets=(reused,), move="keep", after=before,
                   reason="the channel says the same", **common),
        EnginePlan(engine="ppocr-rec", decision="deny", targets=(target,), move="denied", after=before,
                   reason="policies deny it: port 80 [spec.server_port_unprivileged]", **common),
    )  # fmt: skip
    return Plan(
        environment="prod", registry="nacos://127.0.0.1:8848", commit="0123abc", policies=digest("policies"),
        judge="opa 1.22.3", keys={"release": "6f1d0c2b9a8e", "channel": None}, root=digest("root"), trtops="0.0.0",
        engines=engines, created=1_770_090_000,
    )  # fmt: skip


def pairings() -> tuple[Pairing, ...]:
    """What two services run of the binding of :func:`rollout`."""
    named = Side_(4, str(digest("release 1")), str(digest("config 1")))
    candidate = Side_(4, str(digest("release 2")), str(digest("config 2")))
    url, on = "http://10.0.0.1:8001", ("H200", str(digest("artifact")))
    return (
        Pairing(url, "ppocr-cls", "stable", named, named, on, "in step"),
        Pairing(url, "ppocr-cls", "canary", candidate, None, (None, None), "nothing", "it could not be loaded"),
        Pairing(
            "http://10.0.0.2:8001", "ppocr-cls", "stable", named, Side_(3, str(digest("release 0")), None), on, "behind"
        ),
    )
