"""The engine spec as rules see it: the document's own keys, defaults filled in, units resolved to integers."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trtops.digest import Value
from trtops.policy.inputs import Numbers, version_numbers

if TYPE_CHECKING:
    from trtops.spec.engine import EngineSpec, Profile, Slo, Target

Shape = tuple[int, ...]


class GpuFacts(Value):
    """The GPU of a target; ``compute_capability`` 9.0 is ``[9, 0]``."""

    name: str
    compute_capability: Numbers | None
    mig: str | None


class SloFacts(Value):
    """What a target must reach: p99 in microseconds, rows a second (and in thousandths of a row, rounded up)."""

    p99_us: int | None
    throughput: float | None
    throughput_milli: int | None


class TargetFacts(Value):
    """One target. ``needs_gpu``: its engines run on nothing else."""

    id: str
    backend: str
    version: str | None
    version_numbers: Numbers | None
    gpu: GpuFacts | None
    compute_capability: Numbers | None
    slo: SloFacts | None
    needs_gpu: bool


class CalibrationFacts(Value):
    """Where INT8 ranges come from."""

    source: str
    method: str
    percentile: float | None
    samples: int | None


class PrecisionFacts(Value):
    """Numeric precision."""

    mode: str
    keep_fp32: tuple[str, ...]
    tf32: bool
    calibration: CalibrationFacts | None


class RangeFacts(Value):
    """Shapes of one input."""

    min: Shape
    opt: Shape
    max: Shape


class BatchRange(Value):
    """Rows that every input of a profile takes: the narrowest of its inputs' first dimensions."""

    min: int
    opt: int
    max: int


class ProfileFacts(Value):
    """A profile; ``batch`` is null where no input has a first dimension."""

    name: str
    inputs: dict[str, RangeFacts]
    batch: BatchRange | None


class BatchingFacts(Value):
    """How requests are put together."""

    max_batch: int
    preferred: tuple[int, ...]
    max_queue_delay_us: int
    queue_max_size: int
    queue_timeout_us: int
    queue_on_timeout: str
    priorities: int


class MemoryFacts(Value):
    """Pools in bytes; null where the spec sets none."""

    workspace_bytes: int | None
    tactic_shared_memory_bytes: int | None
    dla_bytes: int | None
    device_pool_bytes: int | None
    pinned_pool_bytes: int | None
    input: str


class BuilderFacts(Value):
    """Options of the builder."""

    optimization_level: int
    timing_cache: bool
    version_compatible: bool
    hardware_compatible: bool


class AccuracyFacts(Value):
    """How outputs are compared."""

    reference: str
    samples: str
    atol: float
    rtol: float
    metric: dict[str, float]


class BenchmarkFacts(Value):
    """What is measured."""

    batch_sizes: tuple[int, ...]
    warmup_us: int
    duration_us: int


class ExecutionFacts(Value):
    """How the executor runs the engine."""

    instances: int
    cuda_graphs: bool
    streams: int


class SpecFacts(Value):
    """``engine.yaml`` with every default filled in and every unit resolved; the keys are the document's own.

    ``labels`` and ``owner`` are as written; ``interface_version`` is the text, ``interface_numbers`` its integers.
    """

    name: str
    owner: str | None
    description: str | None
    labels: dict[str, str]
    model_source: str
    model_sha256: str
    targets: tuple[TargetFacts, ...]
    precision: PrecisionFacts
    profiles: tuple[ProfileFacts, ...]
    batching: BatchingFacts
    memory: MemoryFacts
    interface_version: str
    interface_numbers: Numbers | None
    builder: BuilderFacts
    accuracy: AccuracyFacts | None
    benchmark: BenchmarkFacts
    execution: ExecutionFacts


def _slo(slo: Slo) -> SloFacts:
    milli = None if slo.throughput is None else ceil(slo.throughput * 1000)
    return SloFacts(p99_us=slo.p99, throughput=slo.throughput, throughput_milli=milli)


def target_facts(target: Target) -> TargetFacts:
    """Resolve a target."""
    gpu = target.gpu
    slo = target.slo
    return TargetFacts(
        id=target.id,
        backend=target.backend,
        version=target.version,
        version_numbers=version_numbers(target.version),
        gpu=GpuFacts(name=gpu.name, compute_capability=version_numbers(gpu.compute_capability), mig=gpu.mig)
        if gpu
        else None,
        compute_capability=version_numbers(target.compute_capability),
        slo=_slo(slo) if slo else None,
        needs_gpu=target.backend in ("tensorrt", "tensorrt_rtx"),
    )


def batch_range(profile: Profile) -> BatchRange | None:
    """Rows that all inputs of a profile take; None where no input has a first dimension."""
    ranges = [shapes for shapes in profile.inputs.values() if shapes.min and shapes.opt and shapes.max]
    if not ranges:
        return None
    return BatchRange(
        min=max(shapes.min[0] for shapes in ranges),
        opt=min(shapes.opt[0] for shapes in ranges),
        max=min(shapes.max[0] for shapes in ranges),
    )


def _profile(profile: Profile) -> ProfileFacts:
    inputs = {
        name: RangeFacts(min=shapes.min, opt=shapes.opt, max=shapes.max) for name, shapes in profile.inputs.items()
    }
    return ProfileFacts(name=profile.name, inputs=inputs, batch=batch_range(profile))


def _precision(spec: EngineSpec) -> PrecisionFacts:
    calibration = spec.precision.calibration
    return PrecisionFacts(
        mode=spec.precision.mode,
        keep_fp32=spec.precision.keep_fp32,
        tf32=spec.precision.tf32,
        calibration=CalibrationFacts(
            source=calibration.source,
            method=calibration.method,
            percentile=calibration.percentile,
            samples=calibration.samples,
        )
        if calibration
        else None,
    )


def _batching(spec: EngineSpec) -> BatchingFacts:
    batching = spec.batching
    return BatchingFacts(
        max_batch=batching.max_batch,
        preferred=batching.preferred,
        max_queue_delay_us=batching.max_queue_delay,
        queue_max_size=batching.queue.max_size,
        queue_timeout_us=batching.queue.timeout,
        queue_on_timeout=batching.queue.on_timeout,
        priorities=batching.priorities,
    )


def memory_facts(spec: EngineSpec) -> MemoryFacts:
    """Pools of a spec in bytes."""
    memory = spec.memory
    return MemoryFacts(
        workspace_bytes=memory.workspace,
        tactic_shared_memory_bytes=memory.tactic_shared_memory,
        dla_bytes=memory.dla,
        device_pool_bytes=memory.device_pool,
        pinned_pool_bytes=memory.pinned_pool,
        input=memory.input,
    )


def accuracy_facts(spec: EngineSpec) -> AccuracyFacts | None:
    """Tolerances of a spec."""
    accuracy = spec.accuracy
    if accuracy is None:
        return None
    return AccuracyFacts(
        reference=accuracy.reference,
        samples=accuracy.samples,
        atol=accuracy.atol,
        rtol=accuracy.rtol,
        metric={str(name): bound for name, bound in accuracy.metric.items()},
    )


def execution_facts(spec: EngineSpec) -> ExecutionFacts:
    """How the executor runs the engine."""
    execution = spec.execution
    return ExecutionFacts(instances=execution.instances, cuda_graphs=execution.cuda_graphs, streams=execution.streams)


def spec_facts(spec: EngineSpec) -> SpecFacts:
    """Resolve a whole spec."""
    return SpecFacts(
        name=spec.name,
        owner=spec.metadata.owner,
        description=spec.metadata.description,
        labels=spec.metadata.labels,
        model_source=spec.model.source,
        model_sha256=spec.model.sha256,
        targets=tuple(target_facts(target) for target in spec.targets),
        precision=_precision(spec),
        profiles=tuple(_profile(profile) for profile in spec.profiles),
        batching=_batching(spec),
        memory=memory_facts(spec),
        interface_version=spec.interface.version,
        interface_numbers=version_numbers(spec.interface.version),
        builder=BuilderFacts(
            optimization_level=spec.builder.optimization_level,
            timing_cache=spec.builder.timing_cache,
            version_compatible=spec.builder.version_compatible,
            hardware_compatible=spec.builder.hardware_compatible,
        ),
        accuracy=accuracy_facts(spec),
        benchmark=BenchmarkFacts(
            batch_sizes=spec.benchmark.batch_sizes,
            warmup_us=spec.benchmark.warmup,
            duration_us=spec.benchmark.duration,
        ),
        execution=execution_facts(spec),
    )
