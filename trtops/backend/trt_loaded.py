"""A loaded TensorRT engine and what its executions need: contexts, buffers, captured graphs.

Memory is taken once, when the engine is loaded: for each binding a buffer of the largest shape of any profile, on the
device and page-locked on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.backend import cuda_device
from trtops.backend.bindings import tightest
from trtops.backend.cuda_device import CudaError, checked
from trtops.backend.trt_bindings import check_bindings
from trtops.backend.trt_graph import bare_context, capture, scratch_bytes
from trtops.backend.trt_log import logger, meaning
from trtops.backend.trt_memory import ALIGNMENT, Buffer
from trtops.backend.trt_plugins import load_for_session
from trtops.backend.trt_prepared import Prepared, stored_bytes, views
from trtops.backend.trt_stream import Stream
from trtops.errors import InputError, NotLoadable

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Sidecar
    from trtops.spec.engine import Profile
    from trtops.tensor import Shape, TensorInfo


class LoadedEngine:
    """An engine with a context, buffers and a stream of its own; it executes nothing by itself."""

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
        return f"{type(self).__name__}({names[0]} -> {names[1]}, {state}{graphs})"

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

    def _open(self, trt: Any, artifact: Path, sidecar: Sidecar) -> None:  # noqa: ANN401 - TensorRT has no types
        cudart = self._cudart
        cuda_device.enter(cudart)
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

    def _execute(self, prepared: Prepared) -> None:
        """Enqueue the execution and the copies of its outputs."""
        stream = self._stream
        if not prepared.context.execute_async_v3(stream.number):
            raise CudaError(f"TensorRT did not enqueue: {meaning(self._log.errors)[0]}")
        for _, _, device, host, size in prepared.results:
            stream.to_host(host, device, size)

    def _too_small(self, error: CudaError) -> NotLoadable:
        fix = "free memory on the device, or lower batching.max_batch or execution.streams"
        return NotLoadable(f"the device cannot hold the engine: {error}", where=str(self._artifact), fix=fix)

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
