"""Input of the stage ``evidence``: what was built and measured, beside what was declared and what is released now.

The evidence comes in as its JSON (``evidence.model_dump(mode="json")``), since it lies above policies in the house.
Measured times become whole nanoseconds and throughputs thousandths of a row a second: rules then compare integers,
which every engine does alike.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trtops.device import Device
from trtops.digest import Value
from trtops.policy.inputs import Numbers, StageInput, version_numbers
from trtops.policy.inputs_facts import (
    AccuracyFacts,
    ExecutionFacts,
    MemoryFacts,
    TargetFacts,
    accuracy_facts,
    execution_facts,
    memory_facts,
    target_facts,
)
from trtops.spec.engine import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.model.facts import Preflight
    from trtops.spec.engine import EngineSpec


class DeviceFacts(Value):
    """A device; see :class:`trtops.device.Device`. ``compute_capability`` and ``driver_numbers`` are integers."""

    kind: str
    name: str
    compute_capability: Numbers | None
    sm_count: int | None
    cores: int | None
    memory_bytes: int | None
    mig: str | None
    driver: str | None
    driver_numbers: Numbers | None


class AccuracyRun(Value):
    """Outputs against the reference's. ``max_abs`` and ``max_rel`` are null where they are not finite."""

    passed: bool
    reference: str
    count: int
    elements: int
    outside: int
    max_abs: float | None
    max_rel: float | None
    atol: float
    rtol: float
    metrics: dict[str, float]
    required: dict[str, float]


class IntervalFacts(Value):
    """An estimate with its 95 % confidence interval, in whole units."""

    value: int
    low: int
    high: int


class RowFacts(Value):
    """One batch size's numbers: latencies in nanoseconds, throughput in thousandths of a row a second."""

    batch: int
    runs: int
    p50_ns: IntervalFacts
    p90_ns: IntervalFacts
    p99_ns: IntervalFacts
    throughput_milli: IntervalFacts


class BenchmarkRun(Value):
    """What was measured, and on what."""

    device: DeviceFacts
    backend: str
    backend_version: str
    backend_numbers: Numbers | None
    rows: tuple[RowFacts, ...]
    warnings: tuple[str, ...]


class EvidenceFacts(Value):
    """The evidence that is judged. ``age_seconds`` is counted from its creation to ``now``; negative: the future."""

    engine: str
    target: str
    spec: str
    model: str
    plan: str
    artifact: str
    size_bytes: int
    device: DeviceFacts
    accuracy: AccuracyRun | None
    benchmark: BenchmarkRun | None
    unverified: str | None
    created: int
    age_seconds: int
    trtops: str


class Declared(Value):
    """What the spec asks for."""

    target: TargetFacts
    accuracy: AccuracyFacts | None
    batch_sizes: tuple[int, ...]
    memory: MemoryFacts
    execution: ExecutionFacts


class Expected(Value):
    """Digests of what is about to be released; null where it is not known."""

    spec: str | None
    model: str | None
    plan: str | None
    artifact: str | None


class MemoryNeed(Value):
    """What running the engine takes.

    Attributes:
        bindings_bytes: inputs and outputs of one execution at the largest shapes of any profile; null where unknown.
        executions: how many run at once (instances times streams).
        device_bytes: weights and pools together on the device: the engine's size for each instance, workspace for each
            execution, the device pool once. A pool that the spec leaves out counts 0.
        device_memory_bytes: memory of the device; null where unknown.
    """

    bindings_bytes: int | None
    executions: int
    device_bytes: int
    device_memory_bytes: int | None


class ComparedRow(Value):
    """The same batch size, now and in the baseline."""

    batch: int
    current: RowFacts
    baseline: RowFacts


class Comparison(Value):
    """Measurements against those of the released artifact.

    Attributes:
        baseline_artifact: digest of the artifact that is released now.
        comparable: both were measured, on equal devices.
        reason: why they cannot be compared; null where they can.
        rows: batch sizes that both measured.
        missing: batch sizes that only the baseline measured.
    """

    baseline_artifact: str
    comparable: bool
    reason: str | None
    rows: tuple[ComparedRow, ...]
    missing: tuple[int, ...]


class EvidenceInput(StageInput):
    """``trtops.evidence/v1``. ``comparison`` is null where nothing of this target is released yet."""

    schema_id: Literal["trtops.evidence/v1"] = Field(default="trtops.evidence/v1", alias="schema")
    now: int
    evidence: EvidenceFacts
    declared: Declared
    expected: Expected
    memory: MemoryNeed
    comparison: Comparison | None


def _device(device: Mapping[str, Any]) -> DeviceFacts:
    known = Device.model_validate(device)
    return DeviceFacts(
        kind=known.kind,
        name=known.name,
        compute_capability=version_numbers(known.compute_capability),
        sm_count=known.sm_count,
        cores=known.cores,
        memory_bytes=known.memory_bytes,
        mig=known.mig,
        driver=known.driver,
        driver_numbers=version_numbers(known.driver),
    )


def _finite(value: float | str | None) -> float | None:
    number = float(value) if value is not None else None
    return number if number is not None and isfinite(number) else None


def _accuracy(run: Mapping[str, Any]) -> AccuracyRun:
    return AccuracyRun(
        passed=run["passed"],
        reference=run["reference"],
        count=run["count"],
        elements=run["elements"],
        outside=run["outside"],
        max_abs=_finite(run["max_abs"]),
        max_rel=_finite(run["max_rel"]),
        atol=run["atol"],
        rtol=run["rtol"],
        metrics=run["metrics"],
        required=run["required"],
    )


def _interval(interval: Mapping[str, float]) -> IntervalFacts:
    return IntervalFacts(**{end: round(interval[end] * 1000) for end in ("value", "low", "high")})


def _benchmark(run: Mapping[str, Any]) -> BenchmarkRun:
    return BenchmarkRun(
        device=_device(run["device"]),
        backend=run["backend"],
        backend_version=run["backend_version"],
        backend_numbers=version_numbers(run["backend_version"]),
        rows=tuple(
            RowFacts(
                batch=row["batch"],
                runs=row["runs"],
                p50_ns=_interval(row["p50"]),
                p90_ns=_interval(row["p90"]),
                p99_ns=_interval(row["p99"]),
                throughput_milli=_interval(row["throughput"]),
            )
            for row in run["rows"]
        ),
        warnings=tuple(run["warnings"]),
    )


def _evidence(evidence: Mapping[str, Any], now: int) -> EvidenceFacts:
    accuracy, benchmark = evidence["accuracy"], evidence["benchmark"]
    return EvidenceFacts(
        engine=evidence["engine"],
        target=Target.model_validate(evidence["target"]).id,
        spec=evidence["spec"],
        model=evidence["model"],
        plan=evidence["plan"],
        artifact=evidence["artifact"],
        size_bytes=evidence["size_bytes"],
        device=_device(evidence["device"]),
        accuracy=_accuracy(accuracy) if accuracy else None,
        benchmark=_benchmark(benchmark) if benchmark else None,
        unverified=evidence["unverified"],
        created=evidence["created"],
        age_seconds=now - evidence["created"],
        trtops=evidence["trtops"],
    )


def _same_device(one: DeviceFacts, other: DeviceFacts) -> bool:
    """Equal in all but the driver, which a fleet moves apart from its engines."""
    free = {"driver": None, "driver_numbers": None}
    return one.model_copy(update=free) == other.model_copy(update=free)


def _not_comparable(current: BenchmarkRun | None, baseline: BenchmarkRun | None) -> str | None:
    if baseline is None:
        return "the released artifact was never measured"
    if current is None:
        return "this artifact was not measured"
    if not _same_device(current.device, baseline.device):
        return f"measured on {current.device.name}, the released artifact on {baseline.device.name}"
    return None


def compare(current: EvidenceFacts, baseline: EvidenceFacts) -> Comparison:
    """Pair the rows of two measurements by batch size."""
    now, then = current.benchmark, baseline.benchmark
    reason = _not_comparable(now, then)
    if reason is not None or now is None or then is None:
        return Comparison(baseline_artifact=baseline.artifact, comparable=False, reason=reason, rows=(), missing=())
    old = {row.batch: row for row in then.rows}
    rows = [ComparedRow(batch=row.batch, current=row, baseline=old[row.batch]) for row in now.rows if row.batch in old]
    missing = sorted(set(old) - {row.batch for row in now.rows})
    return Comparison(
        baseline_artifact=baseline.artifact, comparable=True, reason=None, rows=tuple(rows), missing=tuple(missing)
    )


def _memory_need(facts: EvidenceFacts, spec: EngineSpec, preflight: Preflight | None) -> MemoryNeed:
    estimates = preflight.estimate_bytes if preflight is not None else {}
    sizes = [estimates.get(profile.name, {}).get("bindings") for profile in spec.profiles]
    known = [size for size in sizes if size is not None]
    instances = spec.execution.instances
    executions = instances * spec.execution.streams
    return MemoryNeed(
        bindings_bytes=max(known) if len(known) == len(sizes) else None,
        executions=executions,
        device_bytes=facts.size_bytes * instances
        + (spec.memory.workspace or 0) * executions
        + (spec.memory.device_pool or 0),
        device_memory_bytes=facts.device.memory_bytes,
    )


def evidence_input(
    evidence: Mapping[str, Any],
    spec: EngineSpec,
    *,
    environment: str,
    now: int,
    preflight: Preflight | None = None,
    expected: Mapping[str, str] | None = None,
    baseline: Mapping[str, Any] | None = None,
) -> EvidenceInput:
    """Build the document of the stage ``evidence``.

    Args:
        evidence: ``Evidence.model_dump(mode="json")``.
        spec: the spec that it was built from.
        environment: whose rules hold.
        now: epoch seconds.
        preflight: what preflight found; without it the bytes of inputs and outputs are unknown.
        expected: digests as text by ``spec``, ``model``, ``plan``, ``artifact``: of what is about to be released.
        baseline: evidence of the same target in the release that the channel points to, in the same form.

    Raises:
        KeyError: the spec has no target of the evidence's id.
    """
    facts = _evidence(evidence, now)
    known = expected or {}
    return EvidenceInput(
        environment=environment,
        engine=spec.name,
        tier=spec.tier,
        now=now,
        evidence=facts,
        declared=Declared(
            target=target_facts(spec.target(facts.target)),
            accuracy=accuracy_facts(spec),
            batch_sizes=spec.benchmark.batch_sizes,
            memory=memory_facts(spec),
            execution=execution_facts(spec),
        ),
        expected=Expected(**{name: known.get(name) for name in ("spec", "model", "plan", "artifact")}),
        memory=_memory_need(facts, spec, preflight),
        comparison=compare(facts, _evidence(baseline, now)) if baseline else None,
    )
