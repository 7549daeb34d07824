"""A loaded TensorRT engine: contexts, buffers and executions, for every version and for TensorRT for RTX.

Memory is taken once, when the engine is loaded: for each binding a device buffer and a pinned host buffer of the
largest shape of any profile. An execution copies in, enqueues on its own stream, copies out, and waits.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trtops.backend import cuda_device
from trtops.backend.bindings import carrier, check_inputs, tightest
from trtops.backend.cuda_device import CudaError, checked
from trtops.backend.trt_log import logger, meaning
from trtops.backend.trt_network import DATA_TYPES
from trtops.errors import InputError, NotLoadable, Retryable
from trtops.tensor import DTYPES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays, DeviceTimes, Sidecar
    from trtops.spec.engine import Profile
    from trtops.tensor import Shape, TensorInfo

_ALIGNMENT = 256  # of buffers, as TensorRT asks for


class _Buffer:
    """Memory of one binding: on the device, and pinned on the host."""

    def __init__(self, cudart: Any, size: int) -> None:  # noqa: ANN401 - cuda-python has no types
        self._cudart = cudart
        self.size = max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)
        self.device = int(checked(cudart, cudart.cudaMalloc(self.size)))
        self.host = 0
        try:
            self.host = int(checked(cudart, cudart.cudaHostAlloc(self.size, cudart.cudaHostAllocDefault)))
        except CudaError:
            self.free()
            raise

    def view(self, shape: Shape, dtype: str) -> NDArray[np.generic]:
        """The host memory as an array; valid until :meth:`free`."""
        import numpy as np

        raw = (ctypes.c_uint8 * (math.prod(shape) * DTYPES[dtype][1])).from_address(self.host)
        array: NDArray[np.generic] = np.ndarray(shape, dtype=np.dtype(carrier(dtype)), buffer=memoryview(raw))
        return array

    def free(self) -> None:
        """Give it back. Idempotent."""
        if self.device:
            self._cudart.cudaFree(self.device)
        if self.host:
            self._cudart.cudaFreeHost(self.host)
        self.device = self.host = 0


class Parts(NamedTuple):
    """What a probe works with: the CUDA runtime, the engine, its context with shapes set, the stream, the profile."""

    cudart: Any
    engine: Any
    context: Any
    stream: Any
    profile: int


class _Prepared(NamedTuple):
    """What an execution of some shapes needs, looked up once.

    Attributes:
        wants: name, shape and NumPy type of each input.
        sources: host view, device address, host address and bytes of each input.
        results: name, host view, device address, host address and bytes of each output.
    """

    wants: tuple[tuple[str, Shape, Any], ...]
    sources: tuple[tuple[NDArray[np.generic], int, int, int], ...]
    results: tuple[tuple[str, NDArray[np.generic], int, int, int], ...]

    def fits(self, inputs: Arrays) -> bool:
        """Whether inputs are of the same names, shapes and types as those of the last execution."""
        if len(inputs) != len(self.wants):
            return False
        for name, shape, dtype in self.wants:
            array = inputs.get(name)
            if getattr(array, "shape", None) != shape or getattr(array, "dtype", None) != dtype:
                return False
        return True


class TensorRtSession:
    """One execution context of an engine, with a stream and buffers of its own. One thread owns it."""

    def __init__(self, trt: Any, artifact: Path, sidecar: Sidecar) -> None:  # noqa: ANN401 - TensorRT has no types
        """Load an engine whose digest, version and device were checked.

        Raises:
            NotLoadable: TensorRT refuses it, or the device has not enough memory; says why.
        """
        self._cudart = cuda_device.runtime()
        self._log = logger(trt)
        self._log.errors = []
        self._profiles: tuple[Profile, ...] = sidecar.profiles
        self._inputs = sidecar.inputs
        self._outputs = sidecar.outputs
        self._buffers: dict[str, _Buffer] = {}
        self._stream: Any = None
        self._context: Any = None
        self._engine: Any = None
        self._profile = 0
        self._prepared: _Prepared | None = None
        try:
            self._open(trt, artifact)
        except CudaError as error:
            self.close()
            what = f"the device cannot hold the engine: {error}"
            raise NotLoadable(what, where=str(artifact), fix="free memory on the device") from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        """Show the bindings, the profile in use and whether it is closed."""
        state = "closed" if self._context is None else f"profile={self._profile}"
        names = [[info.name for info in side] for side in (self._inputs, self._outputs)]
        return f"TensorRtSession({names[0]} -> {names[1]}, {state})"

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
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
        """
        try:
            return self._execute(inputs, self.prepare(inputs))
        except CudaError as error:
            self.close()
            raise Retryable(f"the device failed: {error}") from error

    def prepare(self, inputs: Arrays) -> _Prepared:
        """Check inputs and have the context take their shapes; little is done where they are those of the last time.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the session is closed.
            CudaError: the device failed.
        """
        if self._prepared is not None and self._prepared.fits(inputs):
            return self._prepared
        check_inputs(inputs, self._inputs, self._profiles)
        if self._context is None:
            raise Retryable("the session is closed")
        self._log.errors = []
        self._prepared = None
        self._take_shapes({name: tuple(array.shape) for name, array in inputs.items()})
        wants, sources, results = [], [], []
        for info in self._inputs:
            array, buffer = inputs[info.name], self._buffers[info.name]
            wants.append((info.name, tuple(array.shape), array.dtype))
            sources.append((buffer.view(array.shape, info.dtype), buffer.device, buffer.host, array.nbytes))
        for info in self._outputs:
            buffer = self._buffers[info.name]
            view = buffer.view(tuple(self._context.get_tensor_shape(info.name)), info.dtype)
            results.append((info.name, view, buffer.device, buffer.host, view.nbytes))
        self._prepared = _Prepared(tuple(wants), tuple(sources), tuple(results))
        return self._prepared

    def probe(self, inputs: Arrays, *, batch: int, seconds: float) -> DeviceTimes:
        """Measure an execution's parts. The session is usable as before afterwards.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
        """
        from trtops.backend.trt_probe import probe

        try:
            prepared = self.prepare(inputs)
            parts = Parts(self._cudart, self._engine, self._context, self._stream, self._profile)
            return probe(parts, prepared.sources, prepared.results, self._pairs(inputs), batch=batch, seconds=seconds)
        except CudaError as error:
            self.close()
            raise Retryable(f"the device failed: {error}") from error

    def _pairs(self, inputs: Arrays) -> tuple[tuple[str, NDArray[np.generic]], ...]:
        return tuple((info.name, inputs[info.name]) for info in self._inputs)

    def close(self) -> None:
        """Free context, engine, buffers and stream. Idempotent."""
        # Work on the stream reads the buffers, and a context is of its engine: in this order.
        if self._stream is not None:
            self._cudart.cudaStreamSynchronize(self._stream)
        self._prepared = None
        self._context = None
        self._engine = None
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers = {}
        if self._stream is not None:
            self._cudart.cudaStreamDestroy(self._stream)
            self._stream = None

    def _open(self, trt: Any, artifact: Path) -> None:  # noqa: ANN401 - TensorRT has no types
        trt.init_libnvinfer_plugins(self._log, "")
        runtime = trt.Runtime(self._log)
        self._engine = runtime.deserialize_cuda_engine(artifact.read_bytes())
        if self._engine is None:
            raise self._refused(artifact, "TensorRT cannot load the engine")
        self._check_bindings(trt, artifact)
        self._stream = checked(self._cudart, self._cudart.cudaStreamCreate())
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise self._refused(artifact, "TensorRT can make no context of the engine")
        sizes = self._largest(artifact)
        for info in (*self._inputs, *self._outputs):
            self._buffers[info.name] = _Buffer(self._cudart, sizes[info.name])
            self._context.set_tensor_address(info.name, self._buffers[info.name].device)
        self._select(0)

    def _refused(self, artifact: Path, what: str) -> NotLoadable:
        reason, fix = meaning(self._log.errors)
        return NotLoadable(f"{what}: {reason}", where=str(artifact), fix=fix or "build it again")

    def _check_bindings(self, trt: Any, artifact: Path) -> None:  # noqa: ANN401 - TensorRT has no types
        """Hold the engine's own bindings against the sidecar's: a mix-up would read past a buffer."""
        engine = self._engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        have = {name: (engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT, _dtype(engine, name)) for name in names}
        want = {info.name: (True, info.dtype) for info in self._inputs}
        want |= {info.name: (False, info.dtype) for info in self._outputs}
        if have != want:
            what = f"the engine's bindings are {sorted(have)}, its sidecar says {sorted(want)}"
            raise NotLoadable(what, where=str(artifact), fix="build it again")
        if engine.num_optimization_profiles != len(self._profiles):
            what = f"the engine has {engine.num_optimization_profiles} profiles, its sidecar {len(self._profiles)}"
            raise NotLoadable(what, where=str(artifact), fix="build it again")

    def _largest(self, artifact: Path) -> dict[str, int]:
        """Bytes of each binding at the largest shapes of any profile."""
        sizes: dict[str, int] = {}
        for index, profile in enumerate(self._profiles):
            self._select(index)
            self._set_shapes({name: limits.max for name, limits in profile.inputs.items()})
            for info in (*self._inputs, *self._outputs):
                shape = tuple(self._context.get_tensor_shape(info.name))
                if any(size < 0 for size in shape):
                    what = f"the shape of {info.name!r} depends on values: its memory cannot be taken beforehand"
                    raise NotLoadable(what, where=str(artifact), fix="pad the output to a fixed size in the model")
                size = math.prod(shape) * DTYPES[info.dtype][1]
                sizes[info.name] = max(sizes.get(info.name, 0), size)
        return sizes

    def _take_shapes(self, shapes: dict[str, Shape]) -> None:
        index = tightest(shapes, self._profiles)
        if index is not None and index != self._profile:
            self._select(index)
        self._set_shapes(shapes)

    def _select(self, index: int) -> None:
        if not self._context.set_optimization_profile_async(index, int(self._stream)):
            raise CudaError(f"profile {index} cannot be selected: {meaning(self._log.errors)[0]}")
        checked(self._cudart, self._cudart.cudaStreamSynchronize(self._stream))
        self._profile = index

    def _set_shapes(self, shapes: dict[str, Shape]) -> None:
        for info in self._inputs:
            shape = shapes.get(info.name)
            if shape is not None and not self._context.set_input_shape(info.name, shape):
                what = f"input {info.name!r} has shape {list(shape)}: {meaning(self._log.errors)[0]}"
                raise InputError(what, where=info.name)

    def _execute(self, inputs: Arrays, prepared: _Prepared) -> dict[str, NDArray[np.generic]]:
        import numpy as np

        cudart, stream = self._cudart, self._stream
        copy, kinds = cudart.cudaMemcpyAsync, cudart.cudaMemcpyKind
        for (name, _, _), (view, device, host, size) in zip(prepared.wants, prepared.sources, strict=True):
            np.copyto(view, inputs[name])
            checked(cudart, copy(device, host, size, kinds.cudaMemcpyHostToDevice, stream))
        if not self._context.execute_async_v3(int(stream)):
            raise CudaError(f"TensorRT did not enqueue: {meaning(self._log.errors)[0]}")
        for _, _, device, host, size in prepared.results:
            checked(cudart, copy(host, device, size, kinds.cudaMemcpyDeviceToHost, stream))
        checked(cudart, cudart.cudaStreamSynchronize(stream))
        # The next execution writes over the pinned memory, so the caller gets its own.
        return {name: view.copy() for name, view, *_ in prepared.results}


def _dtype(engine: Any, name: str) -> str:  # noqa: ANN401 - TensorRT has no types
    kind = engine.get_tensor_dtype(name).name
    return DATA_TYPES.get(kind, kind)
