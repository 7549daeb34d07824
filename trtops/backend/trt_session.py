"""A loaded TensorRT engine: contexts, buffers and executions, for every version and for TensorRT for RTX.

Memory is taken once, when the engine is loaded: for each binding a buffer of the largest shape of any profile, on the
device and page-locked on the host. An execution copies in, enqueues on its own stream, copies out, and waits for an
event. Sessions of several streams share the engine's weights and overlap: one copies while another computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtops.backend import cuda_device
from trtops.backend.bindings import check_inputs, laid, tightest
from trtops.backend.cuda_device import CudaError, checked, lost
from trtops.backend.pinned import PAGE_LOCKED
from trtops.backend.trt_bindings import check_bindings
from trtops.backend.trt_graph import bare_context, capture, scratch_bytes
from trtops.backend.trt_log import logger, meaning
from trtops.backend.trt_memory import ALIGNMENT, Buffer
from trtops.backend.trt_plugins import load_for_session
from trtops.backend.trt_prepared import Prepared, locked, place, stored_bytes, views
from trtops.backend.trt_stream import Stream
from trtops.errors import InputError, NotLoadable, Retryable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays, DeviceTimes, Sidecar
    from trtops.spec.engine import Execution, Memory, Profile
    from trtops.tensor import Shape, TensorInfo

_DIRECT = 16 << 10
"""Bytes from which a tensor in page-locked memory is copied by the device itself: below, enqueueing the copy costs the
host more (about 2 us) than copying the bytes."""


class Parts(NamedTuple):
    """What a probe works with: the CUDA runtime, the engine, its context with shapes set, the stream, the profile."""

    cudart: Any
    engine: Any
    context: Any
    stream: Any
    profile: int


class TensorRtSession:
    """One stream of an engine, with contexts and buffers of its own. One thread owns it."""

    def __init__(
        self,
        trt: Any,  # noqa: ANN401 - TensorRT has no types
        artifact: Path,
        sidecar: Sidecar,
        *,
        engine: Any = None,  # noqa: ANN401
    ) -> None:
        """Load an engine whose digest, version and device were checked.

        Args:
            trt: the library.
            artifact: the engine's file.
            sidecar: what is known of it.
            engine: the same engine, loaded before: its weights are shared.

        Raises:
            NotLoadable: TensorRT refuses it, or the device has not enough memory; says why.
        """
        self._trt = trt
        self._artifact, self._sidecar = artifact, sidecar
        self._cudart = cuda_device.runtime()
        self._log = logger(trt)
        self._log.errors = []
        self._profiles: tuple[Profile, ...] = sidecar.profiles
        self._inputs = sidecar.inputs
        self._outputs = sidecar.outputs
        self._buffers: dict[str, Buffer] = {}
        self._stream: Any = None  # trt_stream.Stream, from the moment that it is open
        self._context: Any = None
        self._engine: Any = engine
        self._profile = 0
        self._scratch = (0, 0)
        self._prepared: Prepared | None = None  # what the context of every shape has now
        self._last: Prepared | None = None  # what the last request ran in: that, or a graph
        self._graphs: dict[tuple[Shape, ...], Prepared] = {}
        self._sizes: tuple[int, ...] = ()
        self._pending: tuple[Prepared, int] | None = None
        try:
            self._open(trt, artifact, sidecar)
        except CudaError as error:
            self.close()
            raise self._too_small(error) from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        """Show the bindings, the profile in use, the graphs, and whether it is closed."""
        state = "closed" if self._context is None else f"profile={self._profile}"
        graphs = f", {len(self._graphs)} graphs" if self._graphs else ""
        names = [[info.name for info in side] for side in (self._inputs, self._outputs)]
        return f"TensorRtSession({names[0]} -> {names[1]}, {state}{graphs})"

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that have to be given."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Bindings that come back."""
        return self._outputs

    @property
    def host_bytes(self) -> int:
        """Page-locked host memory that it holds."""
        return sum(buffer.host_bytes for buffer in self._buffers.values())

    @property
    def device_bytes(self) -> int:
        """Memory of the device that it holds: buffers, and the scratch memory of its contexts."""
        scratch = scratch_bytes(self._engine) if self._context is not None else 0
        return sum(buffer.device_bytes for buffer in self._buffers.values()) + scratch + self._scratch[1]

    def arrange(self, execution: Execution, memory: Memory, sizes: tuple[int, ...]) -> tuple[TensorRtSession, ...]:
        """Set up as the spec asks, before the first request: see :class:`trtops.backend.port.Arranges`.

        Raises:
            NotLoadable: the device has not enough memory.
        """
        sessions = [self]
        try:
            while len(sessions) < execution.streams:
                sessions.append(TensorRtSession(self._trt, self._artifact, self._sidecar, engine=self._engine))
            for session in sessions:
                session.set_up(memory.input, sizes if execution.cuda_graphs else ())
        except BaseException as error:
            for session in sessions[1:]:
                session.close()
            if isinstance(error, CudaError):
                raise self._too_small(error) from error
            raise
        return tuple(sessions)

    def _too_small(self, error: CudaError) -> NotLoadable:
        fix = "free memory on the device, or lower batching.max_batch or execution.streams"
        return NotLoadable(f"the device cannot hold the engine: {error}", where=str(self._artifact), fix=fix)

    # -- executions ----------------------------------------------------------------------------------------------------

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Execute once.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        try:
            prepared = self._last
            if prepared is None or not prepared.fits(inputs):
                prepared = self._last = self._captured(inputs) or self.prepare(inputs)
            self._copy_one(prepared, inputs)
            self._start(prepared)
            return self._finish(prepared, prepared.rows)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def _captured(self, inputs: Arrays) -> Prepared | None:
        """The graph of these shapes, if one was captured."""
        captured = self._graphs.get(tuple(getattr(inputs.get(info.name), "shape", ()) for info in self._inputs))
        return captured if captured is not None and captured.fits(inputs) else None

    def enqueue(self, parts: Sequence[Arrays], rows: int) -> None:
        """Start an execution of several requests: see :class:`trtops.backend.port.Gathers`.

        Raises:
            InputError: a shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        try:
            prepared = self._bucket(parts[0], rows)
            self._copy_in(prepared, parts)
            self._start(prepared)
        except CudaError as error:
            self.close()
            raise lost(error) from error
        self._pending = prepared, rows

    def collect(self) -> dict[str, NDArray[np.generic]]:
        """Wait for what :meth:`enqueue` started; outputs of its rows, the caller's own.

        Raises:
            Retryable: the device failed, or nothing was started; the session is not usable any more.
            DeviceLost: the same, and no session of this process is.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise Retryable("nothing was started")
        try:
            return self._finish(*pending)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def prepare(self, inputs: Arrays) -> Prepared:
        """Check inputs and have the context take their shapes; little is done where they are those of the last time.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the session is closed.
            CudaError: the device failed.
        """
        if self._prepared is not None and self._prepared.fits(inputs):
            return self._prepared
        check_inputs(inputs, self._inputs, self._profiles)
        return self._shaped({name: tuple(array.shape) for name, array in inputs.items()})

    def _shaped(self, shapes: dict[str, Shape]) -> Prepared:
        """Have the context of every shape take these.

        Raises:
            InputError: the engine does not take them.
            Retryable: the session is closed.
            CudaError: the device failed.
        """
        if self._context is None:
            raise Retryable("the session is closed")
        self._log.errors = []
        self._prepared = self._last = None
        index = tightest(shapes, self._profiles)
        if index is not None and index != self._profile:
            self._select(self._context, index)
            self._profile = index
        self._set_shapes(self._context, shapes)
        self._prepared = views(self._context, shapes, (self._inputs, self._outputs), self._buffers)
        return self._prepared

    def _bucket(self, part: Arrays, rows: int) -> Prepared:
        """The execution that a batch of ``rows`` runs in: the smallest that was captured, else one of its own size."""
        tails = [(info.name, part[info.name].shape[1:]) for info in self._inputs]
        for size in self._sizes:
            if size >= rows:
                captured = self._graphs.get(tuple((size, *tail) for _, tail in tails))
                if captured is not None:
                    return captured
                break
        whole = max(rows, self._least)
        kept = self._prepared
        if kept is not None and all(
            (whole, *tail) == want[1] for (_, tail), want in zip(tails, kept.wants, strict=True)
        ):
            return kept
        return self._shaped({name: (whole, *tail) for name, tail in tails})

    @property
    def _least(self) -> int:
        """Rows of the smallest batch of any profile."""
        return min((span.min[0] for profile in self._profiles for span in profile.inputs.values()), default=1)

    def _copy_one(self, prepared: Prepared, inputs: Arrays) -> None:
        """Put the inputs of one request, which are of the very shapes, as :meth:`_copy_in` does."""
        to_device = self._stream.to_device
        for (name, _, _), (view, device, host, size), form in zip(
            prepared.wants, prepared.sources, prepared.forms, strict=True
        ):
            array = inputs[name]
            copied = self._buffers[name].copied
            if copied and size >= _DIRECT and (address := locked(array, size, form, PAGE_LOCKED)):
                to_device(device, address, size)
                continue
            view[...] = array
            if form is not None:
                form.clear(0, array.shape[0])
            if copied and size:
                to_device(device, host, size)

    def _copy_in(self, prepared: Prepared, parts: Sequence[Arrays]) -> None:
        """Put the inputs of the requests one after the other, and zeros behind them.

        What lies in page-locked memory as the engine takes it is copied by the device from there; the rest passes
        through the buffer.
        """
        for (name, _, _), (view, device, host, size), form in zip(
            prepared.wants, prepared.sources, prepared.forms, strict=True
        ):
            arrays = [part[name] for part in parts]
            if not self._buffers[name].copied:
                place(view, arrays)
                if form is not None:
                    form.clear(0, view.shape[0])
                continue
            at = staged = row = 0
            for array in arrays:
                here = array.nbytes if form is None else form.pitch * array.shape[0]
                if here >= _DIRECT and (address := locked(array, here, form, PAGE_LOCKED)):
                    self._to_device(device + staged, host + staged, at - staged)
                    self._to_device(device + at, address, here)
                    staged = at + here
                    at, row = staged, row + array.shape[0]
                    continue
                place(view if view.ndim == 0 else view[row : row + array.shape[0]], [array])
                if form is not None:
                    form.clear(row, row + array.shape[0])
                at, row = at + here, row + (array.shape[0] if array.ndim else 1)
            self._to_device(device + staged, host + staged, at - staged)
            if at < size:
                self._stream.zeros(device + at, size - at)

    def _to_device(self, device: int, host: int, size: int) -> None:
        if size:
            self._stream.to_device(device, host, size)

    def _start(self, prepared: Prepared) -> None:
        stream = self._stream
        if prepared.graph is not None:
            stream.launch(prepared.graph)
        else:
            self._execute(prepared)
        stream.mark()

    def _execute(self, prepared: Prepared) -> None:
        """Enqueue the execution and the copies of its outputs."""
        stream = self._stream
        if not prepared.context.execute_async_v3(stream.number):
            raise CudaError(f"TensorRT did not enqueue: {meaning(self._log.errors)[0]}")
        for _, _, device, host, size in prepared.results:
            stream.to_host(host, device, size)

    def _finish(self, prepared: Prepared, rows: int) -> dict[str, NDArray[np.generic]]:
        """Wait. The next execution writes over the page-locked memory, so the caller gets its own."""
        self._stream.wait()
        if rows == prepared.rows:
            return {name: view.copy("K") for name, view, *_ in prepared.results}
        return {name: view[:rows].copy("K") for name, view, *_ in prepared.results}

    def probe(self, inputs: Arrays, *, batch: int, seconds: float) -> DeviceTimes:
        """Measure an execution's parts. The session is usable as before afterwards.

        Raises:
            InputError: a name, dtype or shape that the engine does not take.
            Retryable: the device failed, or the session is closed; it is not usable any more.
        """
        from trtops.backend.trt_probe import probe

        try:
            prepared = self.prepare(inputs)
            parts = Parts(self._cudart, self._engine, self._context, self._stream.handle, self._profile)
            return probe(parts, prepared.sources, prepared.results, self._pairs(inputs), batch=batch, seconds=seconds)
        except CudaError as error:
            self.close()
            raise lost(error) from error

    def _pairs(self, inputs: Arrays) -> tuple[tuple[str, NDArray[np.generic]], ...]:
        return tuple((info.name, laid(inputs[info.name], info)) for info in self._inputs)

    def close(self) -> None:
        """Free graphs, contexts, engine, buffers and stream. Idempotent."""
        # Work on the stream reads the buffers, and a context is of its engine: in this order.
        cudart = self._cudart
        if self._stream is not None:
            self._stream.drain()
        for captured in self._graphs.values():
            cudart.cudaGraphExecDestroy(captured.graph)
        self._prepared = self._last = self._pending = None
        self._graphs = {}
        self._context = None
        self._engine = None
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers = {}
        if self._scratch[0]:
            cudart.cudaFree(self._scratch[0])
        self._scratch = (0, 0)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # -- loading -------------------------------------------------------------------------------------------------------

    def _open(self, trt: Any, artifact: Path, sidecar: Sidecar) -> None:  # noqa: ANN401 - TensorRT has no types
        cudart = self._cudart
        if self._engine is None:
            load_for_session(trt, self._log, artifact, sidecar)
            runtime = trt.Runtime(self._log)
            self._engine = runtime.deserialize_cuda_engine(artifact.read_bytes())
        if self._engine is None:
            raise self._refused(artifact, "TensorRT cannot load the engine")
        check_bindings(trt, self._engine, sidecar, artifact)
        self._stream = Stream(cudart)
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise self._refused(artifact, "TensorRT can make no context of the engine")
        sizes = self._largest(artifact)
        for info in (*self._inputs, *self._outputs):
            self._buffers[info.name] = Buffer(cudart, sizes[info.name])
        self._point(self._context)
        self._select(self._context, 0)
        self._profile = 0
        PAGE_LOCKED.activate(cuda_device.runtime)

    def set_up(self, kind: str, sizes: tuple[int, ...]) -> None:
        """Choose how inputs reach the device, and capture graphs at these batch sizes.

        Raises:
            CudaError: the device has not enough memory, or failed.
        """
        cudart = self._cudart
        for info in self._inputs if kind != "pinned" else ():
            size = self._buffers[info.name].size
            self._buffers.pop(info.name).free()
            self._buffers[info.name] = Buffer(cudart, size, "mapped" if kind == "mapped" else "managed")
        self._prepared = self._last = None
        self._point(self._context)
        if not sizes:
            return
        size = max(ALIGNMENT, scratch_bytes(self._engine))
        self._scratch = int(checked(cudart, cudart.cudaMalloc(size))), size
        for index, profile in enumerate(self._profiles):
            for rows in sizes:
                limits = profile.inputs.values()
                if all(span.min[0] <= rows <= span.max[0] for span in limits if span.min):
                    self._capture(index, {name: (rows, *span.opt[1:]) for name, span in profile.inputs.items()})
        self._sizes = tuple(sorted({captured.rows for captured in self._graphs.values()}))

    def _capture(self, index: int, named: dict[str, Shape]) -> None:
        fixed = {info.name: info.shape for info in self._inputs if info.name not in named}
        if any(not isinstance(dim, int) for shape in fixed.values() for dim in shape):
            return
        shapes: dict[str, Shape] = {**named, **fixed}  # type: ignore[dict-item]  # all are numbers, as was looked
        key = tuple(shapes[info.name] for info in self._inputs)
        if key in self._graphs or tightest(shapes, self._profiles) != index:
            return
        context = bare_context(self._trt, self._engine, *self._scratch)
        self._select(context, index)
        self._set_shapes(context, shapes)
        self._point(context)
        prepared = views(context, shapes, (self._inputs, self._outputs), self._buffers)
        self._execute(prepared)
        self._stream.synchronize()
        graph = capture(self._cudart, self._stream.handle, lambda: self._execute(prepared))
        if graph is not None:
            self._graphs[key] = prepared._replace(graph=graph)

    def _point(self, context: Any) -> None:  # noqa: ANN401 - TensorRT has no types
        for info in (*self._inputs, *self._outputs):
            context.set_tensor_address(info.name, self._buffers[info.name].device)

    def _refused(self, artifact: Path, what: str) -> NotLoadable:
        reason, fix = meaning(self._log.errors)
        return NotLoadable(f"{what}: {reason}", where=str(artifact), fix=fix or "build it again")

    def _largest(self, artifact: Path) -> dict[str, int]:
        """Bytes of each binding at the largest shapes of any profile."""
        sizes: dict[str, int] = {}
        for index, profile in enumerate(self._profiles):
            self._select(self._context, index)
            self._set_shapes(self._context, {name: limits.max for name, limits in profile.inputs.items()})
            for info in (*self._inputs, *self._outputs):
                shape = tuple(self._context.get_tensor_shape(info.name))
                if any(size < 0 for size in shape):
                    what = f"the shape of {info.name!r} depends on values: its memory cannot be taken beforehand"
                    raise NotLoadable(what, where=str(artifact), fix="pad the output to a fixed size in the model")
                size = stored_bytes(info, shape)
                sizes[info.name] = max(sizes.get(info.name, 0), size)
        return sizes

    def _select(self, context: Any, index: int) -> None:  # noqa: ANN401 - TensorRT has no types
        if not context.set_optimization_profile_async(index, self._stream.number):
            raise CudaError(f"profile {index} cannot be selected: {meaning(self._log.errors)[0]}")
        self._stream.synchronize()

    def _set_shapes(self, context: Any, shapes: dict[str, Shape]) -> None:  # noqa: ANN401
        for info in self._inputs:
            shape = shapes.get(info.name)
            if shape is not None and not context.set_input_shape(info.name, shape):
                what = f"input {info.name!r} has shape {list(shape)}: {meaning(self._log.errors)[0]}"
                raise InputError(what, where=info.name)
