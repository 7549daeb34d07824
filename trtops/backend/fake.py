"""A backend with no device: plays results that can be checked, time, and failures. For tests and rehearsals.

Artifact: a small JSON document that names the bindings. Result: every element of row ``i`` of every output is the sum
of all elements of row ``i`` of all inputs (computed in float64, then cast), see :func:`row_sums`. Time of an
execution of ``n`` rows: ``cost_us + row_cost_us * n`` microseconds, slept.

Failures are options, given to the constructor or, where a process is started (the build's child, a worker), as JSON
in the environment variable ``TRTOPS_FAKE``::

    TRTOPS_FAKE='{"build": "crash"}' trtops build engines/x
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from trtops.backend.bindings import carrier, check_inputs, laid, with_formats
from trtops.backend.port import BackendStatus, BuildResult, Progress
from trtops.device import Device
from trtops.digest import Digest, Value
from trtops.errors import BuildFailed, DeviceLost, InputError, NotLoadable, Retryable
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays, BuildRequest, Session, Sidecar
    from trtops.spec.engine import Precision, Profile, Target

ENVIRONMENT = "TRTOPS_FAKE"
FORMAT = "application/vnd.trtops.fake+json"
_EXTRA = "fake"

Fault = Literal["segfault", "kill", "exit", "memory", "illegal-address", "hang", "freeze"]
BuildFailure = Literal["refuse", "error", "crash", "kill", "cut", "exit", "hang", "freeze", "memory", "disk"]
Microseconds = Annotated[float, Field(ge=0, le=3600e6)]


class FakeOptions(Value):
    """What a fake backend plays.

    Attributes:
        version: of the backend; a session of another version is refused.
        device_name: of its device; a session of another device is refused.
        cost_us, row_cost_us: time of an execution: fixed, and for each row.
        build_seconds: time of a build, with a step of progress each tenth of it.
        build: how a build fails: ``refuse`` (BuildFailed), ``error`` (an exception that nobody expects), ``crash``
            (SIGSEGV), ``kill`` (SIGKILL), ``cut`` (half an engine, then SIGKILL), ``exit`` (leaves with no word),
            ``hang`` (never ends), ``freeze`` (stops, also its heartbeat), ``memory`` (takes until it gets no more),
            ``disk`` (no space left).
        gone: whether its device is not there any more: nothing can be built or loaded.
        load: whether loading fails.
        fail_run: the number of the execution of a session (from 1) that fails, and every one after it.
        hang_run: the number of the execution that takes ``hang_seconds``.
        load_seconds: time that a load takes.
        load_fault: what a load ends in, as ``fault`` does.
        fault_run: the number of the execution that ends in ``fault``: ``segfault`` (SIGSEGV), ``kill`` (SIGKILL),
            ``exit`` (leaves with no word), ``memory`` (as the kernel does when there is none left), ``illegal-address``
            (the device is lost to this process), ``hang`` (never ends), ``freeze`` (the whole process stops).
        wrong_by: is added to every number of every output.
        engine: what an engine that is built by these options plays, wherever it is loaded, over the options there.
    """

    version: str = "1.0.0"
    device_name: str = "Fake GPU"
    cost_us: Microseconds = 0
    row_cost_us: Microseconds = 0
    build_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    build: BuildFailure | None = None
    gone: bool = False
    load: bool = False
    fail_run: Annotated[int, Field(ge=1)] | None = None
    hang_run: Annotated[int, Field(ge=1)] | None = None
    hang_seconds: Annotated[float, Field(ge=0, le=3600)] = 60
    load_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    load_fault: Fault | None = None
    fault_run: Annotated[int, Field(ge=1)] | None = None
    fault: Fault = "segfault"
    wrong_by: Annotated[float, Field(allow_inf_nan=False)] = 0
    engine: FakeOptions | None = None

    def recorded(self) -> dict[str, str]:
        """What a sidecar keeps of ``engine``."""
        return {} if self.engine is None else {_EXTRA: self.engine.model_dump_json(exclude_unset=True)}

    def played_by(self, extra: Mapping[str, str]) -> FakeOptions:
        """These options, with those over them that an engine's sidecar carries."""
        told = extra.get(_EXTRA)
        if told is None:
            return self
        over = FakeOptions.model_validate_json(told)
        return self.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> FakeOptions:
        """Read ``TRTOPS_FAKE``; defaults where it is not set.

        Raises:
            InputError: it is not the JSON of these options.
        """
        try:
            return cls.model_validate_json(environment.get(ENVIRONMENT) or "{}")
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}"
            raise InputError(what, where=f"environment variable {ENVIRONMENT}") from error


class _Artifact(Value):
    """The engine's file."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    precision: str


class FakeBackend:
    """Builds and loads engines that play."""

    name = "fake"

    def __init__(self, options: FakeOptions | None = None, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Take what to play; None: what ``TRTOPS_FAKE`` says.

        Args:
            options: what to play.
            sleep: how the time of an execution passes, in seconds.

        Raises:
            InputError: ``TRTOPS_FAKE`` is wrong.
        """
        self.options = FakeOptions.from_environment(os.environ) if options is None else options
        self._sleep = sleep

    def __repr__(self) -> str:
        """Show what it plays."""
        return f"FakeBackend({self.options!r})"

    def status(self, target: Target) -> BackendStatus:
        """Tell that it can do everything, unless its device is gone."""
        del target
        able, version = not self.options.gone, self.options.version
        reason = None if able else f"{self.options.device_name} is gone"
        return BackendStatus(backend=self.name, version=version, can_build=able, can_load=able, reason=reason)

    def device(self) -> Device:
        """A GPU that is not there."""
        name = self.options.device_name
        return Device(kind="gpu", name=name, compute_capability="0.0", sm_count=1, memory_bytes=1 << 30, driver="1.0")

    def refusal(self, target: Target, precision: Precision) -> str | None:
        """Build every precision."""
        del target, precision
        return None

    def build(self, request: BuildRequest, progress: Callable[[Progress], None]) -> BuildResult:
        """Write the document, or fail as told.

        Raises:
            BuildFailed: it was told to, or the model cannot be read.
        """
        sides = _model_bindings(request.model)
        inputs, outputs = with_formats(sides, request.bindings, self.name, self.options.version)
        body = _Artifact(inputs=inputs, outputs=outputs, precision=request.precision.mode).canonical_bytes()
        for step in range(10):
            progress(Progress(phase="play", done=step, total=10))
            self._sleep(self.options.build_seconds / 10)
        if self.options.build is not None:
            _fail(self.options.build, Path(request.output), body)
        Path(request.output).write_bytes(body)
        if request.timing_cache is not None:
            known = Path(request.timing_cache)
            timed = Digest.of_file(Path(request.model)).value.encode()
            known.write_bytes(self.merge_timings(known.read_bytes() if known.exists() else b"", timed))
        progress(Progress(phase="play", done=10, total=10))
        return BuildResult(
            backend_version=self.options.version,
            device=self.device(),
            inputs=inputs,
            outputs=outputs,
            format=FORMAT,
            extra={}
            if self.options.engine is None
            else {_EXTRA: self.options.engine.model_dump_json(exclude_unset=True)},
        )

    def merge_timings(self, one: bytes, other: bytes) -> bytes:
        """Timings of two builds: one digest of a model a line."""
        return b"\n".join(sorted({*one.split(), *other.split()}))

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load a document.

        Raises:
            NotLoadable: another backend, version or device, it is no such document, or it was told to.
        """
        here = self.device()
        if sidecar.backend != self.name:
            raise NotLoadable(f"the engine is for {sidecar.backend}, this is {self.name}", where=str(artifact))
        if sidecar.backend_version != self.options.version:
            what = f"the engine was built by fake {sidecar.backend_version}, here is {self.options.version}"
            raise NotLoadable(what, where=str(artifact), fix="build it again")
        if sidecar.device.label != here.label:
            what = f"the engine was built for {sidecar.device.label}, here is {here.label}"
            raise NotLoadable(what, where=str(artifact), fix="build it for this device")
        options = self.options.played_by(sidecar.extra)
        self._sleep(options.load_seconds)
        if options.load_fault is not None:
            _break(options.load_fault, "load")
        if options.load:
            raise NotLoadable("told to fail", where=str(artifact))
        try:
            document = _Artifact.model_validate_json(artifact.read_bytes())
        except (ValidationError, OSError) as error:
            raise NotLoadable(f"no engine of the fake backend: {error}", where=str(artifact)) from error
        return FakeSession(document.inputs, document.outputs, options, profiles=sidecar.profiles, sleep=self._sleep)


class FakeSession:
    """A session that plays. Needs no artifact, so tests of executors make it at once."""

    def __init__(
        self,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        options: FakeOptions | None = None,
        *,
        profiles: tuple[Profile, ...] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the bindings, what to play, and the shapes that it takes (empty: all that fit the bindings)."""
        self._inputs = inputs
        self._outputs = outputs
        self._options = options or FakeOptions()
        self._profiles = profiles
        self._sleep = sleep
        self._closed = False
        self.runs = 0

    def __repr__(self) -> str:
        """Show how often it ran and whether it is closed."""
        return f"FakeSession(runs={self.runs}, {'closed' if self._closed else 'open'})"

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that have to be given."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that come back."""
        return self._outputs

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Add up rows, after the time that it plays.

        Raises:
            InputError: a name, dtype or shape that does not fit.
            Retryable: it was told to, or is closed.
            DeviceLost: it was told to.
        """
        check_inputs(inputs, self._inputs, self._profiles)
        if self._closed:
            raise Retryable("the session is closed")
        self.runs += 1
        if self._options.fail_run is not None and self.runs >= self._options.fail_run:
            raise Retryable(f"told to fail at execution {self._options.fail_run}")
        if self.runs == self._options.fault_run:
            _break(self._options.fault, f"execution {self.runs}")
        if self.runs == self._options.hang_run:
            self._sleep(self._options.hang_seconds)
        rows = max((array.shape[0] for array in inputs.values() if array.ndim), default=1)
        if cost := self._options.cost_us + self._options.row_cost_us * rows:
            self._sleep(cost / 1e6)
        sums = row_sums(inputs, self._inputs, self._outputs)
        return _off_by(self._options.wrong_by, sums) if self._options.wrong_by else sums

    def close(self) -> None:
        """Run no more. Idempotent."""
        self._closed = True


def _off_by(wrong: float, arrays: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    import numpy as np

    return {name: np.add(array, wrong).astype(array.dtype) for name, array in arrays.items()}


def row_sums(
    inputs: Arrays, bindings: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]
) -> dict[str, NDArray[np.generic]]:
    """What a fake session answers.

    Args:
        inputs: arrays of shape ``[rows, ...]``; elements of text count by their length.
        bindings: of the inputs; a dynamic dimension that an output shares by name has the input's size, any other 1.
        outputs: bindings of the result; their first dimension, where dynamic, is the rows.
    """
    import numpy as np

    rows = max((array.shape[0] for array in inputs.values() if array.ndim), default=1)
    total = np.zeros(rows, dtype=np.float64)
    sizes: dict[str, int] = {}
    for binding in bindings:
        array = inputs[binding.name]
        numbers = np.char.str_len(array.astype(np.str_)) if array.dtype.kind in "OUS" else array
        total += numbers.reshape(rows, -1).astype(np.float64).sum(axis=1) if array.ndim else float(numbers)
        sizes |= {dim: size for dim, size in zip(binding.shape, array.shape, strict=True) if isinstance(dim, str)}
    results: dict[str, NDArray[np.generic]] = {}
    for output in outputs:
        shape = tuple(
            dim if isinstance(dim, int) else rows if axis == 0 else sizes.get(dim, 1)
            for axis, dim in enumerate(output.shape)
        )
        column = total[: shape[0]].reshape(-1, *[1] * (len(shape) - 1)) if shape else total[0]
        filled = np.ascontiguousarray(np.broadcast_to(column, shape))
        results[output.name] = laid(
            filled.astype(np.str_ if output.dtype == "string" else carrier(output.dtype)), output
        )
    return results


def _model_bindings(model: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    import onnx

    from trtops.backend.bindings import onnx_bindings

    try:
        return onnx_bindings(onnx.load(model, load_external_data=False))
    except Exception as error:
        raise BuildFailed(f"the model cannot be read: {error}", where=model) from error


def _fail(how: BuildFailure, output: Path, body: bytes) -> None:
    """Fail as natives do: a word on the process's own standard error first, past Python's."""
    os.write(2, f"fake: build fails by {how}\n".encode())
    if how == "refuse":
        raise BuildFailed("told to refuse", where="node Fake_1", fix="take the failure out of the options")
    if how == "error":
        raise json.JSONDecodeError("told to raise", "", 0)
    if how == "disk":
        raise OSError(28, os.strerror(28), str(output))
    if how == "memory":
        _take_memory()
    if how == "hang":
        time.sleep(3600)
    if how == "exit":
        os._exit(3)
    if how == "cut":
        output.write_bytes(body[: len(body) // 2])
    os.kill(os.getpid(), {"crash": signal.SIGSEGV, "freeze": signal.SIGSTOP}.get(how, signal.SIGKILL))


def _break(fault: Fault, where: str) -> None:
    """Do to this process what a native library can do to it."""
    os.write(2, f"fake: {where} ends in {fault}\n".encode())
    if fault == "illegal-address":
        raise DeviceLost("CUDA error 700: an illegal memory access was encountered (told to)")
    if fault == "hang":
        time.sleep(3600)
    if fault == "exit":
        os._exit(3)
    signals = {"segfault": signal.SIGSEGV, "freeze": signal.SIGSTOP}
    os.kill(os.getpid(), signals.get(fault, signal.SIGKILL))


def _take_memory() -> None:
    taken = []
    while True:
        taken.append(bytearray(16 << 20))
