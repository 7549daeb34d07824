"""ONNX Runtime on the CPU: a real backend for every machine, and the reference that accuracy is measured against.

An artifact is an ``.onnx`` file whose graph ONNX Runtime has optimised as far as it stays portable between CPUs
(``ORT_ENABLE_EXTENDED``; the layout of tensors, which depends on the CPU, is optimised when it is loaded). Equal
inputs give equal bytes.

Such a file holds operators of ONNX Runtime's own that have no version, and its evidence was gathered with one
release. So a session is refused where ``major.minor`` differs from the build's.
"""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING, Any

from trtops.backend.bindings import as_loaded, check_inputs, laid, with_formats
from trtops.backend.inspect import inspect_onnx
from trtops.backend.port import BackendStatus, BuildResult, Progress
from trtops.backend.versions import installed, same_series, satisfies
from trtops.device import Device
from trtops.errors import BuildFailed, InputError, NotLoadable, Retryable
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.inspect import Inspection
    from trtops.backend.port import Arrays, BuildRequest, Session, Sidecar
    from trtops.spec.engine import Precision, Profile, Target

FORMAT = "application/vnd.onnx"
# FP16 is stored as such and mostly computed in fp32 on a CPU. ONNX Runtime has no bfloat16 kernels there.
_PRECISIONS = ("fp32", "fp16", "int8")
_PROVIDERS = ["CPUExecutionProvider"]
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
_FATAL = 4  # ONNX Runtime's severity scale: 0 verbose … 4 fatal; everything below comes as an exception as well
_INSTALL = "pip install onnxruntime"

_TYPES: Mapping[str, str] = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": "string",
}


class OnnxRuntimeBackend:
    """Builds and loads engines for the CPUs of this host."""

    name = "onnxruntime"

    def __init__(self, *, threads: int | None = None) -> None:
        """Choose how sessions run.

        Args:
            threads: threads that work on one execution; None: one for each CPU that this process may use.
        """
        self._threads = threads or len(os.sched_getaffinity(0))

    def __repr__(self) -> str:
        """Show the number of threads."""
        return f"OnnxRuntimeBackend(threads={self._threads})"

    def status(self, target: Target) -> BackendStatus:
        """Tell whether ONNX Runtime is here in the version that the target asks for."""
        version = installed(*_DISTRIBUTIONS)
        reason = None
        if version is None:
            reason = f"ONNX Runtime is not installed: {_INSTALL}"
        elif not satisfies(version, target.version):
            reason = f"the target asks for ONNX Runtime {target.version}, here is {version}"
        able = reason is None
        return BackendStatus(backend=self.name, version=version, can_build=able, can_load=able, reason=reason)

    def device(self) -> Device:
        """The CPUs that this process may use."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cores = len(os.sched_getaffinity(0))
        return Device(kind="cpu", name=platform.machine(), cores=cores, memory_bytes=pages)

    def refusal(self, target: Target, precision: Precision) -> str | None:
        """Why a precision cannot be built; None if it can."""
        del target
        if precision.mode in _PRECISIONS:
            return None
        return f"ONNX Runtime builds {', '.join(_PRECISIONS)} on a CPU, not {precision.mode}"

    def build(self, request: BuildRequest, progress: Callable[[Progress], None]) -> BuildResult:
        """Optimise the graph and write it.

        Raises:
            BuildFailed: ONNX Runtime refuses the model; with its reason.
        """
        if refused := self.refusal(request.target, request.precision):
            raise BuildFailed(refused, fix="choose one of these precisions, or leave this target out")
        ort = library()
        progress(Progress(phase="optimise the graph"))
        chosen = options(ort, threads=1)
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        chosen.optimized_model_filepath = request.output
        try:
            ort.InferenceSession(request.model, chosen, providers=_PROVIDERS)
            progress(Progress(phase="read it back"))
            built = ort.InferenceSession(request.output, options(ort, threads=1), providers=_PROVIDERS)
            inputs, outputs = with_formats(_bindings(built), request.bindings, self.name, str(ort.__version__))
        except (InputError, BuildFailed) as error:
            raise BuildFailed(error.what, where=error.where, fix=error.fix) from error
        except Exception as error:
            what = f"ONNX Runtime refuses the model: {reason(error)}"
            fix = "check the model with onnx.checker, and its opset against this ONNX Runtime"
            raise BuildFailed(what, fix=fix, log=str(error)) from error
        notes = ["tf32 has no meaning on a CPU: computed in fp32"] if request.precision.tf32 else []
        if request.precision.mode == "fp16":
            notes.append("a CPU computes fp16 mostly in fp32: its accuracy here says little of a GPU's")
        return BuildResult(
            backend_version=str(ort.__version__),
            device=self.device(),
            inputs=inputs,
            outputs=outputs,
            format=FORMAT,
            notes=tuple(notes),
        )

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load an optimised graph.

        Raises:
            NotLoadable: another backend's, another ``major.minor`` of ONNX Runtime, or ONNX Runtime refuses the file.
        """
        if sidecar.backend != self.name:
            raise NotLoadable(f"the engine is for {sidecar.backend}, this is {self.name}", where=str(artifact))
        ort = library()
        if not same_series(sidecar.backend_version, str(ort.__version__)):
            what = f"the engine was built by ONNX Runtime {sidecar.backend_version}, here is {ort.__version__}"
            series = ".".join(sidecar.backend_version.split(".")[:2])
            fix = f"install onnxruntime=={series}.*, or build and verify it again with {ort.__version__}"
            raise NotLoadable(what, where=str(artifact), fix=fix)
        return _open(ort, artifact, options(ort, threads=self._threads), sidecar)

    def inspect(self, artifact: Path, sidecar: Sidecar) -> Inspection:
        """Look into an optimised graph.

        Raises:
            NotLoadable: the artifact is no ONNX file.
        """
        del sidecar
        return inspect_onnx(artifact)

    def reference(self, model: Path) -> Session:
        """Load an original model file with every optimisation off: what accuracy is measured against.

        Raises:
            NotLoadable: ONNX Runtime is not installed, or refuses the file.
        """
        ort = library()
        chosen = options(ort, threads=self._threads)
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return _open(ort, model, chosen, None)


class OnnxRuntimeSession:
    """A loaded graph. One thread owns it."""

    def __init__(self, session: Any, sidecar: Sidecar | None) -> None:  # noqa: ANN401 - no types
        """Take an ``InferenceSession`` and what is known of the engine; None: an original model, as it is."""
        self._session: Any = session
        self._profiles: tuple[Profile, ...] | None = None if sidecar is None else sidecar.profiles
        self._inputs, self._outputs = _bindings(session)
        if sidecar is not None:
            self._inputs = as_loaded(self._inputs, sidecar.inputs)
            self._outputs = as_loaded(self._outputs, sidecar.outputs)
        self._names = [output.name for output in self._outputs]
        self._laid = tuple(output for output in self._outputs if output.format != "linear")

    def __repr__(self) -> str:
        """Show the bindings and whether it is closed."""
        state = "closed" if self._session is None else "open"
        return f"OnnxRuntimeSession({[info.name for info in self._inputs]} -> {self._names}, {state})"

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that have to be given."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that come back."""
        return self._outputs

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Execute once.

        Raises:
            InputError: a name, dtype or shape that the engine does not take, or values that a node refuses.
            Retryable: ONNX Runtime failed, or the session is closed.
        """
        check_inputs(inputs, self._inputs, self._profiles or (), equal_names=self._profiles is not None)
        if self._session is None:
            raise Retryable("the session is closed")
        try:
            results = self._session.run(self._names, dict(inputs))
        except Exception as error:
            if type(error).__name__ in {"InvalidArgument", "RuntimeException"} and "alloc" not in str(error).lower():
                raise InputError(f"the model refuses these inputs: {reason(error)}") from error
            raise Retryable(f"ONNX Runtime failed: {reason(error)}") from error
        outputs: dict[str, NDArray[np.generic]] = dict(zip(self._names, results, strict=True))
        for info in self._laid:  # the library makes C arrays only
            outputs[info.name] = laid(outputs[info.name], info)
        return outputs

    def close(self) -> None:
        """Free the graph. Idempotent."""
        self._session = None


def library() -> Any:  # noqa: ANN401 - no types
    """The module ``onnxruntime``, silenced: what it has to say comes as an exception.

    Raises:
        NotLoadable: it cannot be imported.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise NotLoadable(f"ONNX Runtime cannot be imported: {error}", fix=_INSTALL) from error
    ort.set_default_logger_severity(_FATAL)
    return ort


def options(ort: Any, *, threads: int) -> Any:  # noqa: ANN401 - no types
    """Options of a session: silent, with so many threads (0: one a core), which sleep while they wait."""
    chosen = ort.SessionOptions()
    chosen.log_severity_level = _FATAL
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    # Threads that spin while they wait take the CPUs that the executor and the front ends need.
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return chosen


def _open(ort: Any, path: Path, options: Any, sidecar: Sidecar | None) -> OnnxRuntimeSession:  # noqa: ANN401
    try:
        return OnnxRuntimeSession(ort.InferenceSession(str(path), options, providers=_PROVIDERS), sidecar)
    except Exception as error:
        what = f"ONNX Runtime {ort.__version__} cannot load the file: {reason(error)}"
        raise NotLoadable(what, where=str(path), fix="build it again, and check the model with onnx.checker") from error


def _bindings(session: Any) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:  # noqa: ANN401 - no types
    inputs, outputs = session.get_inputs(), session.get_outputs()
    return tuple(_info(argument) for argument in inputs), tuple(_info(argument) for argument in outputs)


def _info(argument: Any) -> TensorInfo:  # noqa: ANN401 - no types
    dtype = _TYPES.get(argument.type)
    if dtype is None:
        what = f"the model's binding {argument.name!r} is a {argument.type}"
        raise InputError(what, where=argument.name, fix="export it as a dense tensor of a NumPy element type")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else str(dim or "") for dim in argument.shape)
    return TensorInfo(name=argument.name, dtype=dtype, shape=shape)


def reason(error: Exception) -> str:
    """What ONNX Runtime says, on one line, without its prefix of codes and the paths of its sources."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return re.sub(r"/\S+\.(?:cc|h):\d+ ", "", text) or type(error).__name__
