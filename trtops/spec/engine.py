"""The engine spec: ``engines/<name>/engine.yaml`` as frozen models.

Cross-field rules that need no model file (min ≤ opt ≤ max, names that repeat) are checked here or in preflight;
whether a value is *allowed* is a policy's business, never this module's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trtops.digest import Value
from trtops.spec.units import ByteSize, Duration

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A DNS label: lower case letters, digits and dashes, 63 characters at most."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
SemVer = Annotated[str, StringConstraints(pattern=r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")]
Size = Annotated[int, Field(ge=1, le=1 << 31)]
ShapeSpec = Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 31)], ...], Field(max_length=8)]

PrecisionMode = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
BackendName = Literal["onnxruntime", "tensorrt", "tensorrt_rtx", "fake"]


class Metadata(Value):
    """Who and what. ``owner`` is optional here, since a policy decides whether it may be absent."""

    name: Name
    owner: str | None = None
    description: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class ModelSource(Value):
    """The ONNX file: a URI (``file:``, ``pypi://NAME==VERSION/path``, or anything fsspec opens) and its SHA-256."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    sha256: Sha256


class Slo(Value):
    """What a target must reach: p99 latency, and throughput in inferences (rows) a second."""

    p99: Duration | None = None
    throughput: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class GpuTarget(Value):
    """The GPU that an engine is built for."""

    name: str
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d{1,2}\.\d$")]
    mig: str | None = None


class Target(Value):
    """One artifact: a backend, its version and what it runs on."""

    backend: BackendName
    version: str | None = None
    gpu: GpuTarget | None = None
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d{1,2}\.\d$")] | None = None
    slo: Slo | None = None

    @property
    def id(self) -> str:
        """A name that is unique within a spec: ``onnxruntime``, ``tensorrt-8.6-h200``, ``tensorrt_rtx-sm8.6``."""
        parts = [self.backend, self.version, self.gpu and self.gpu.name.lower().replace(" ", "-")]
        if self.gpu and self.gpu.mig:
            parts.append(self.gpu.mig)
        if self.compute_capability:
            parts.append(f"sm{self.compute_capability}")
        return "-".join(part for part in parts if part)


class Calibration(Value):
    """Where INT8 ranges come from."""

    source: str
    method: Literal["minmax", "entropy", "percentile"] = "minmax"
    percentile: Annotated[float, Field(gt=50, le=100)] | None = None
    samples: Size | None = None


class Precision(Value):
    """Numeric precision. ``keep_fp32`` selects layers: ``op:Softmax``, ``node:NAME``, or a glob over node names."""

    mode: PrecisionMode = "fp32"
    keep_fp32: tuple[str, ...] = ()
    tf32: bool = False
    calibration: Calibration | None = None


class ShapeRange(Value):
    """Shapes of one input that a profile covers."""

    min: ShapeSpec
    opt: ShapeSpec
    max: ShapeSpec

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The three shapes by their name."""
        return {"min": self.min, "opt": self.opt, "max": self.max}


class Profile(Value):
    """An optimization profile: a range of shapes for each dynamic input."""

    name: Name = "default"
    inputs: Annotated[dict[str, ShapeRange], Field(min_length=1)]


class Queue(Value):
    """Bounds of a request queue."""

    max_size: Size = 512
    timeout: Duration = 100_000
    on_timeout: Literal["reject", "delay"] = "reject"


class Batching(Value):
    """How requests are put together. Sizes are rows (the first dimension of every input)."""

    max_batch: Size = 1
    preferred: tuple[Size, ...] = ()
    max_queue_delay: Duration = 0
    queue: Queue = Queue()
    priorities: Annotated[int, Field(ge=1, le=16)] = 1


class Memory(Value):
    """Sizes of the builder's and the executor's memory pools. None: the backend has no such pool or its default."""

    workspace: ByteSize | None = None
    tactic_shared_memory: ByteSize | None = None
    dla: ByteSize | None = None
    device_pool: ByteSize | None = None
    pinned_pool: ByteSize | None = None
    input: Literal["pinned", "mapped", "managed"] = "pinned"


class Interface(Value):
    """Version of what clients see; tensors themselves are read off the model."""

    version: SemVer = "1.0.0"


class Plugin(Value):
    """A plugin: one of TensorRT's own by name, or a library by path and digest."""

    name: str | None = None
    library: str | None = None
    sha256: Sha256 | None = None


class Builder(Value):
    """Options of the builder."""

    optimization_level: Annotated[int, Field(ge=0, le=5)] = 3
    timing_cache: bool = True
    version_compatible: bool = False
    hardware_compatible: bool = False
    plugins: tuple[Plugin, ...] = ()


class Accuracy(Value):
    """How outputs are compared with the reference.

    ``samples`` is a URI of an ``.npz`` whose arrays are named after the inputs (first axis: samples), relative to the
    spec's folder, or ``random`` for standard-normal noise. ``metric`` holds lower bounds by metric name (``top1``).
    """

    reference: Literal["onnxruntime"] = "onnxruntime"
    samples: str = "random"
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    rtol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4
    metric: dict[Literal["top1", "top5", "cosine"], Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


class Benchmark(Value):
    """What is measured: batch sizes, and how long each is measured at least."""

    batch_sizes: Annotated[tuple[Size, ...], Field(min_length=1)] = (1,)
    warmup: Duration = 500_000
    duration: Duration = 2_000_000


class Execution(Value):
    """How the executor runs the engine."""

    instances: Annotated[int, Field(ge=1, le=64)] = 1
    cuda_graphs: bool = False
    streams: Annotated[int, Field(ge=1, le=64)] = 1


class EngineSpec(Value):
    """A whole ``engine.yaml``."""

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Engine"]
    metadata: Metadata
    model: ModelSource
    targets: Annotated[tuple[Target, ...], Field(min_length=1)]
    precision: Precision = Precision()
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1)]
    batching: Batching = Batching()
    memory: Memory = Memory()
    interface: Interface = Interface()
    builder: Builder = Builder()
    accuracy: Accuracy | None = None
    benchmark: Benchmark = Benchmark()
    execution: Execution = Execution()

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.metadata.name

    @property
    def tier(self) -> str:
        """The label ``tier``; ``bronze`` where there is none."""
        return self.metadata.labels.get("tier", "bronze")

    def target(self, target_id: str) -> Target:
        """The target of this id.

        Raises:
            KeyError: the spec has no such target.
        """
        return {target.id: target for target in self.targets}[target_id]


class Server(Value):
    """Where a service listens."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000


class Database(Value):
    """A database that the service uses. Policies demand that ``password`` is a reference, ``secret:NAME/KEY``."""

    url: str
    user: str | None = None
    password: str | None = None


class BatchingOverride(Value):
    """What a runtime config may change of the spec's batching, without a rebuild."""

    max_batch: Size | None = None
    preferred: tuple[Size, ...] | None = None
    max_queue_delay: Duration | None = None
    queue: Queue | None = None
    priorities: Annotated[int, Field(ge=1, le=16)] | None = None


class RuntimeConfig(Value):
    """``engines/<name>/runtime.yaml`` with the overlay of an environment applied (``runtime.<environment>.yaml``)."""

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    kind: Literal["Runtime"]
    batching: BatchingOverride = BatchingOverride()
    server: Server = Server()
    database: Database | None = None
    features: dict[str, bool | int | float | str] = Field(default_factory=dict)
    sections: dict[str, Any] = Field(default_factory=dict)
