"""The port that every backend implements, and the values that cross it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import Field

from trtops.device import Device
from trtops.digest import Digest, Value
from trtops.spec.bindings import Binding
from trtops.spec.engine import Builder, Execution, Memory, Precision, Profile, Target
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


class BackendStatus(Value):
    """What a backend can do on this machine.

    Attributes:
        backend: its name.
        version: the library's version; None where it is not installed.
        can_build: whether it builds for ``target``.
        can_load: whether it loads here what it built for ``target``.
        reason: why not, in words, with what to install; None where it can do both.
    """

    backend: str
    version: str | None
    can_build: bool
    can_load: bool
    reason: str | None = None


class BuildRequest(Value):
    """All that a builder gets. Paths are of this machine and never part of a digest.

    Attributes:
        target: what to build for.
        model: path of the prepared ONNX file (already repaired, already in its precision).
        output: path that the engine is written to.
        precision, profiles, bindings, memory, builder: from the spec.
        timing_cache: a file with timings of earlier builds, which need not exist; the builder leaves there what it
            knows after the build. None: no timings.
    """

    target: Target
    model: str
    output: str
    precision: Precision
    profiles: tuple[Profile, ...]
    bindings: dict[str, Binding] = Field(default_factory=dict)
    memory: Memory
    builder: Builder
    timing_cache: str | None = None


class BuildResult(Value):
    """What a builder says of the engine that it wrote.

    Attributes:
        backend_version: of the library.
        device: that it was built on, or for where the backend needs none.
        inputs, outputs: the engine's bindings.
        format: media type of the file.
        notes: what has to be known of the build, in words; they follow the steps in the sidecar.
        extra: what the backend wants to find in the sidecar when it loads.
        seconds: what its phases took, in their order; no part of the sidecar.
    """

    backend_version: str
    device: Device
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    format: str = "application/octet-stream"
    notes: tuple[str, ...] = ()
    extra: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)


class Sidecar(Value):
    """What has to be known of an engine before its bytes are given to a backend (loading an engine runs its code).

    Attributes:
        backend, backend_version: what built it.
        target: what it was built for.
        device: the device of the build.
        plan: the cache key (digest of everything that changes the bytes).
        model: digest of the source ONNX file.
        artifact: digest of the engine's bytes.
        size_bytes: their number.
        inputs, outputs: bindings.
        profiles: shapes that it takes.
        steps: every change made to the model before the build, in order, in words.
        format: media type, e.g. ``application/vnd.onnx`` or ``application/vnd.nvidia.tensorrt.engine``.
    """

    backend: str
    backend_version: str
    target: Target
    device: Device
    plan: Digest
    model: Digest
    artifact: Digest
    size_bytes: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[Profile, ...]
    steps: tuple[str, ...] = ()
    format: str
    extra: dict[str, str] = Field(default_factory=dict)


class Progress(Value):
    """A step of a long work: ``done`` of ``total`` (0: unknown) in ``phase``."""

    phase: str
    done: int = 0
    total: int = 0


@runtime_checkable
class Session(Protocol):
    """An engine that is loaded. Not thread-safe: one thread owns it."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that have to be given."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that come back."""

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Execute once. Arrays are C-contiguous, of the dtype and a shape that the bindings accept.

        Where a binding has a format, the array may lie in memory in any way; as the format says, it costs no copy.

        Raises:
            InputError: a name, dtype or shape that the engine does not take; the message names the tensor.
            Retryable: the device failed; the session is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """

    def close(self) -> None:
        """Free what it holds. Idempotent."""


@runtime_checkable
class TimesKernels(Protocol):
    """A backend that keeps timings of kernels from build to build."""

    def merge_timings(self, one: bytes, other: bytes) -> bytes:
        """Timings of two caches; where both timed a kernel, those of the first.

        Raises:
            BuildFailed: the library does not merge them; says why.
        """


@runtime_checkable
class Arranges(Protocol):
    """A session whose executions can be arranged as a spec asks: streams, CUDA graphs, kind and size of memory."""

    @property
    def host_bytes(self) -> int:
        """Page-locked host memory that it holds."""

    @property
    def device_bytes(self) -> int:
        """Memory of the device that it holds, scratch memory of its contexts included, weights not."""

    def arrange(self, execution: Execution, memory: Memory, sizes: tuple[int, ...]) -> tuple[Session, ...]:
        """Set up as the spec asks, before the first request.

        Args:
            execution: how many streams, each with a context of its own; whether batches are captured as CUDA graphs.
            memory: how inputs reach the device (the pools' sizes are the executor's to hold).
            sizes: batch sizes (rows) that are likely; a graph is captured for each, at the optimum of each profile.

        Returns:
            Sessions that may run at the same time, one a stream, this one first. They share the weights; each is
            closed by itself.

        Raises:
            NotLoadable: the device has not enough memory.
        """


@runtime_checkable
class Gathers(Protocol):
    """A session that puts a batch together itself, from where its requests' tensors are: no copy before its own."""

    def enqueue(self, parts: Sequence[Arrays], rows: int) -> None:
        """Start an execution of several requests, one after the other along the first axis; does not wait for it.

        Args:
            parts: the inputs of each request; they stay as they are until :meth:`collect`.
            rows: their rows together. A batch smaller than the session's smallest is filled up.

        Raises:
            InputError: a shape that the engine does not take.
            Retryable: the device failed; the session is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """

    def collect(self) -> dict[str, NDArray[np.generic]]:
        """Wait for what was started; outputs of ``rows`` rows, the caller's own.

        Raises:
            Retryable, DeviceLost: as :meth:`enqueue`.
        """


class DeviceTimes(Value):
    """Where an execution's time goes on a device, at one batch size. Medians in microseconds unless said otherwise.

    Attributes:
        batch: rows in one execution.
        runs: executions that each median is of.
        wall: one execution with copies, from the host's side.
        copy_in, compute, copy_out: parts of it between CUDA events, on the device's clock.
        enqueue: the host's time to enqueue the execution alone, on a stream that is idle.
        plain: enqueue the execution alone and wait for it.
        graph: launch a CUDA graph of it and wait; None where it cannot be captured.
        pageable, pinned, mapped: copy inputs from such host memory, execute and wait; mapped memory is read by the
            engine itself, with no copy.
        streams: number of streams with a context each -> rows a second, inputs on the device.
    """

    batch: int
    runs: int
    wall: float
    copy_in: float
    compute: float
    copy_out: float
    enqueue: float
    plain: float
    graph: float | None
    pageable: float
    pinned: float
    mapped: float
    streams: dict[int, float] = Field(default_factory=dict)


@runtime_checkable
class Probed(Protocol):
    """A session that can tell where its time goes."""

    def probe(self, inputs: Arrays, *, batch: int, seconds: float) -> DeviceTimes:
        """Measure an execution's parts. The session is usable as before afterwards.

        Args:
            inputs: as :meth:`Session.run` takes them.
            batch: rows, for the record.
            seconds: how long to measure, about, in all.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed.
        """


class Backend(Protocol):
    """Builds and loads engines."""

    name: str

    def status(self, target: Target) -> BackendStatus:
        """Tell what can be done for a target on this machine. Never raises, never initialises a device twice."""

    def device(self) -> Device:
        """Identity of the device that this backend uses here.

        Raises:
            Unavailable: it has none.
        """

    def refusal(self, target: Target, precision: Precision) -> str | None:
        """Why this backend cannot build a precision for a target; None if it can. Never ignored: a build raises it."""

    def build(self, request: BuildRequest, progress: Callable[[Progress], None]) -> BuildResult:
        """Build an engine. Runs in the build's child process.

        Raises:
            BuildFailed: with the builder's reason.
        """

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load an engine whose digest was verified.

        Raises:
            NotLoadable: wrong version or device, refused before the library sees the bytes; both are named.
        """
