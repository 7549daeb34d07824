"""CUDA graphs of an engine's executions: one a batch size, each of a context of its own.

A graph holds the state that its context had when it was captured, and a context that changes leaves it undefined
(TensorRT Developer Guide, CUDA graphs): so each has its own context. Their scratch memory is one block, since the
graphs of a session run one after the other on its stream.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from trtops.backend.cuda_device import CudaError, checked

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


def scratch_bytes(engine: Any) -> int:  # noqa: ANN401 - TensorRT has no types
    """Scratch memory that a context of this engine needs on the device."""
    size = getattr(engine, "device_memory_size_v2", None)
    return int(getattr(engine, "device_memory_size", 0) if size is None else size)


def bare_context(trt: Any, engine: Any, scratch: int, size: int) -> Any:  # noqa: ANN401
    """A context that uses this block of the device as its scratch memory.

    Raises:
        CudaError: TensorRT makes none.
    """
    strategy = getattr(trt, "ExecutionContextAllocationStrategy", None)
    if strategy is not None:
        make = getattr(engine, "create_execution_context")  # noqa: B009 - of this form from 10.0
        context = make(getattr(strategy, "USER_MANAGED"))  # noqa: B009
    else:
        context = getattr(engine, "create_execution_context_without_device_memory")()  # noqa: B009 - until 10
    if context is None:
        raise CudaError("TensorRT makes no further context of the engine")
    take = getattr(context, "set_device_memory", None)
    if take is not None:
        take(scratch, size)
    else:
        context.device_memory = scratch
    return context


def capture(cudart: Any, stream: Any, work: Callable[[], None]) -> Any | None:  # noqa: ANN401
    """A graph of what ``work`` puts on the stream, ready to be launched; None where it cannot be captured.

    ``work`` was done once before, and waited for: what a context does only at its first execution must not be in it.
    """
    mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    checked(cudart, cudart.cudaStreamBeginCapture(stream, mode))
    failed: CudaError | None = None
    try:
        work()
    except CudaError as error:
        failed = error
    status, captured = cudart.cudaStreamEndCapture(stream)
    if failed is not None or int(status) != 0:
        cudart.cudaGetLastError()
        log.warning("an execution cannot be captured as a CUDA graph, it is enqueued instead: %s", failed or status)
        return None
    try:
        return checked(cudart, cudart.cudaGraphInstantiate(captured, 0))
    finally:
        cudart.cudaGraphDestroy(captured)
