"""Where an execution's time goes: CUDA events around its parts, CUDA graphs, several streams, kinds of host memory."""

from __future__ import annotations

import ctypes
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trtops.backend.cuda_device import CudaError, checked
from trtops.backend.port import DeviceTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.trt_session import Parts

    Source = tuple[NDArray[np.generic], int, int, int]
    Result = tuple[str, NDArray[np.generic], int, int, int]
    Named = tuple[str, NDArray[np.generic]]

STREAMS = (1, 2, 4)
_FEWEST, _MOST = 20, 5000
_SHARES = 8  # measurements that divide the time


def probe(
    parts: Parts,
    sources: Sequence[Source],
    results: Sequence[Result],
    inputs: Sequence[Named],
    *,
    batch: int,
    seconds: float,
) -> DeviceTimes:
    """Measure.

    Args:
        parts: of a session whose context has the shapes.
        sources: host view, device address, host address and bytes of each input.
        results: name, host view, device address, host address and bytes of each output.
        inputs: name and array of each input, in ordinary (pageable) memory.
        batch: rows, for the record.
        seconds: about so long in all.

    Raises:
        CudaError: the device failed.
    """
    import numpy as np

    for (view, *_), (_, array) in zip(sources, inputs, strict=True):
        np.copyto(view, array)
    run = _Run(parts, sources, results, seconds / _SHARES)
    split = run.split()
    enqueue, plain = run.plain()
    pageable = [
        (array.ctypes.data, device, size) for (_, device, _, size), (_, array) in zip(sources, inputs, strict=True)
    ]
    pinned = [(host, device, size) for _, device, host, size in sources]
    return DeviceTimes(
        batch=batch,
        runs=run.runs,
        **split,
        enqueue=enqueue,
        plain=plain,
        graph=run.graph(),
        pageable=run.copied(pageable),
        pinned=run.copied(pinned),
        mapped=run.mapped(inputs),
        streams={
            count: rate
            for count in STREAMS
            if (rate := run.streams(count, batch, [name for name, _ in inputs])) is not None
        },
    )


class _Run:
    def __init__(self, parts: Parts, sources: Sequence[Source], results: Sequence[Result], seconds: float) -> None:
        self._cudart = parts.cudart
        self._engine = parts.engine
        self._context = parts.context
        self._stream = parts.stream
        self._parts = parts
        self._sources, self._results = sources, results
        self._seconds = seconds
        self.runs = _FEWEST
        self._plain()
        self.runs = self._count(self._plain)

    def _count(self, work: Callable[[], object]) -> int:
        """How often a work fits into a share of the time."""
        begin = time.perf_counter()
        for _ in range(_FEWEST):
            work()
        each = (time.perf_counter() - begin) / _FEWEST
        return int(min(_MOST, max(_FEWEST, self._seconds / max(each, 1e-6))))

    def _median(self, work: Callable[[], object]) -> float:
        """Median time of a work on the host's clock, in microseconds."""
        for _ in range(_FEWEST):
            work()
        taken = []
        for _ in range(self.runs):
            begin = time.perf_counter_ns()
            work()
            taken.append(time.perf_counter_ns() - begin)
        return _middle(taken) / 1000

    def _copy(self, to: int, of: int, size: int, *, inward: bool) -> None:
        kinds = self._cudart.cudaMemcpyKind
        kind = kinds.cudaMemcpyHostToDevice if inward else kinds.cudaMemcpyDeviceToHost
        checked(self._cudart, self._cudart.cudaMemcpyAsync(to, of, size, kind, self._stream))

    def _execute(self) -> None:
        if not self._context.execute_async_v3(int(self._stream)):
            raise CudaError("TensorRT did not enqueue")

    def _wait(self) -> None:
        checked(self._cudart, self._cudart.cudaStreamSynchronize(self._stream))

    def _plain(self) -> None:
        self._execute()
        self._wait()

    def split(self) -> dict[str, float]:
        """Copies and execution between events, and the wall time of all of it."""
        cudart = self._cudart
        parts: list[list[float]] = [[], [], []]
        walls = []
        with ExitStack() as stack:
            marks = [stack.enter_context(_event(cudart)) for _ in range(4)]
            for turn in range(_FEWEST + self.runs):
                begin = time.perf_counter_ns()
                self._record(marks[0])
                for _, device, host, size in self._sources:
                    self._copy(device, host, size, inward=True)
                self._record(marks[1])
                self._execute()
                self._record(marks[2])
                for _, _, device, host, size in self._results:
                    self._copy(host, device, size, inward=False)
                self._record(marks[3])
                self._wait()
                if turn >= _FEWEST:
                    walls.append(time.perf_counter_ns() - begin)
                    for part, (one, other) in zip(parts, pairwise(marks), strict=True):
                        part.append(1000 * float(checked(cudart, cudart.cudaEventElapsedTime(one, other))))
        names = ("copy_in", "compute", "copy_out")
        return {"wall": _middle(walls) / 1000, **{name: _middle(part) for name, part in zip(names, parts, strict=True)}}

    def _record(self, mark: Any) -> None:  # noqa: ANN401 - cuda-python has no types
        checked(self._cudart, self._cudart.cudaEventRecord(mark, self._stream))

    def plain(self) -> tuple[float, float]:
        """Time to enqueue on an idle stream, and to enqueue and wait, without copies."""
        enqueued = []
        for turn in range(_FEWEST + self.runs):
            begin = time.perf_counter_ns()
            self._execute()
            if turn >= _FEWEST:
                enqueued.append(time.perf_counter_ns() - begin)
            self._wait()
        return _middle(enqueued) / 1000, self._median(self._plain)

    def graph(self) -> float | None:
        """Launch a CUDA graph of the execution and wait; None where the engine cannot be captured."""
        cudart = self._cudart
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(cudart, cudart.cudaStreamBeginCapture(self._stream, mode))
        able = self._context.execute_async_v3(int(self._stream))
        status, captured = cudart.cudaStreamEndCapture(self._stream)
        if not able or int(status) != 0:
            cudart.cudaGetLastError()
            return None
        try:
            made = checked(cudart, cudart.cudaGraphInstantiate(captured, 0))
        finally:
            cudart.cudaGraphDestroy(captured)

        def launch() -> None:
            checked(cudart, cudart.cudaGraphLaunch(made, self._stream))
            self._wait()

        try:
            return self._median(launch)
        finally:
            cudart.cudaGraphExecDestroy(made)

    def copied(self, places: Sequence[tuple[int, int, int]]) -> float:
        """Copy inputs from host addresses to device addresses, execute and wait."""

        def work() -> None:
            for host, device, size in places:
                self._copy(device, host, size, inward=True)
            self._plain()

        return self._median(work)

    def mapped(self, inputs: Sequence[Named]) -> float:
        """Execute on inputs in host memory that the device reads itself, and wait."""
        cudart = self._cudart
        blocks = []
        try:
            for (name, array), (_, _, _, size) in zip(inputs, self._sources, strict=True):
                block = int(checked(cudart, cudart.cudaHostAlloc(max(size, 1), cudart.cudaHostAllocMapped)))
                blocks.append(block)
                ctypes.memmove(block, array.ctypes.data, size)
                address = int(checked(cudart, cudart.cudaHostGetDevicePointer(block, 0)))
                self._context.set_tensor_address(name, address)
            return self._median(self._plain)
        finally:
            for (name, _), (_, device, _, _) in zip(inputs, self._sources, strict=True):
                self._context.set_tensor_address(name, device)
            self._wait()
            for block in blocks:
                cudart.cudaFreeHost(block)

    def streams(self, count: int, rows: int, names: Sequence[str]) -> float | None:
        """Rows a second of several contexts on a stream each, enqueued in turn, one execution in flight on each.

        None where the engine lets no second context use its profile (8.6 without profile sharing).
        """
        with ExitStack() as stack:
            lanes = [lane for _ in range(count) if (lane := stack.enter_context(self._lane(names))) is not None]
            if len(lanes) < count:
                return None
            for context, stream in lanes:
                context.execute_async_v3(int(stream))
            turns = max(_FEWEST, self.runs // count)
            begin = time.perf_counter()
            for _ in range(turns):
                for context, stream in lanes:
                    checked(self._cudart, self._cudart.cudaStreamSynchronize(stream))
                    context.execute_async_v3(int(stream))
            for _, stream in lanes:
                checked(self._cudart, self._cudart.cudaStreamSynchronize(stream))
            return turns * count * rows / (time.perf_counter() - begin)

    @contextmanager
    def _lane(self, names: Sequence[str]) -> Iterator[tuple[Any, Any] | None]:
        """A context with a stream and outputs of its own; inputs are read from the session's buffers."""
        cudart, blocks = self._cudart, []
        stream = checked(cudart, cudart.cudaStreamCreate())
        context = self._engine.create_execution_context()
        try:
            if context is None or not context.set_optimization_profile_async(self._parts.profile, int(stream)):
                yield None
                return
            for name, (view, device, _, _) in zip(names, self._sources, strict=True):
                context.set_input_shape(name, tuple(view.shape))
                context.set_tensor_address(name, device)
            for name, _, _, _, size in self._results:
                block = int(checked(cudart, cudart.cudaMalloc(max(size, 256))))
                blocks.append(block)
                context.set_tensor_address(name, block)
            yield context, stream
        finally:
            cudart.cudaStreamSynchronize(stream)
            del context
            for block in blocks:
                cudart.cudaFree(block)
            cudart.cudaStreamDestroy(stream)


@contextmanager
def _event(cudart: Any) -> Iterator[Any]:  # noqa: ANN401 - cuda-python has no types
    made = checked(cudart, cudart.cudaEventCreate())
    try:
        yield made
    finally:
        cudart.cudaEventDestroy(made)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
