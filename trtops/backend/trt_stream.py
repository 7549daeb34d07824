"""A CUDA stream of one session: the few calls of every execution, with nothing looked up again.

An execution of a small engine takes the host longer than the device, so each name that is looked up and each object
that is made here is latency: functions, constants and the stream's number are kept, and an answer is only taken apart
where it is no success.
"""

from __future__ import annotations

import os
from typing import Any

from trtops.backend.cuda_device import checked

CORES_TO_SPIN = 8
"""Cores from which a thread that waits for the device spins, which is quicker; below, it sleeps."""


class Stream:
    """A stream that does not wait for the default stream: loading the next engine, for example, goes on there.

    Attributes:
        handle: the stream, as cuda-python has it.
        number: the same, as TensorRT takes it.
    """

    def __init__(self, cudart: Any) -> None:  # noqa: ANN401 - cuda-python has no types
        """Make it.

        Raises:
            CudaError: the runtime makes none.
        """
        self._cudart = cudart
        self._copy = cudart.cudaMemcpyAsync
        self._to_device = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._to_host = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._launch = cudart.cudaGraphLaunch
        self._record = cudart.cudaEventRecord
        self._wait_for = cudart.cudaStreamSynchronize
        self.handle = checked(cudart, cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
        self.number = int(self.handle)
        self._done: Any = None
        if (os.cpu_count() or 1) < CORES_TO_SPIN:  # only an event can be waited for asleep
            flags = int(cudart.cudaEventDisableTiming) | int(cudart.cudaEventBlockingSync)
            try:
                self._done = checked(cudart, cudart.cudaEventCreateWithFlags(flags))
                self._wait_for = cudart.cudaEventSynchronize
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        """Show its number, and how it is waited for."""
        return f"Stream({self.number:#x}, {'spins' if self._done is None else 'sleeps'})"

    def to_device(self, device: int, host: int, size: int) -> None:
        """Enqueue a copy of bytes in page-locked memory to the device.

        Raises:
            CudaError: the device failed.
        """
        answer = self._copy(device, host, size, self._to_device, self.handle)
        if answer[0]:
            checked(self._cudart, answer)

    def to_host(self, host: int, device: int, size: int) -> None:
        """Enqueue a copy of bytes of the device to page-locked memory.

        Raises:
            CudaError: the device failed.
        """
        answer = self._copy(host, device, size, self._to_host, self.handle)
        if answer[0]:
            checked(self._cudart, answer)

    def zeros(self, device: int, size: int) -> None:
        """Enqueue zeros.

        Raises:
            CudaError: the device failed.
        """
        checked(self._cudart, self._cudart.cudaMemsetAsync(device, 0, size, self.handle))

    def launch(self, graph: Any) -> None:  # noqa: ANN401 - cuda-python has no types
        """Enqueue a graph.

        Raises:
            CudaError: the device failed.
        """
        answer = self._launch(graph, self.handle)
        if answer[0]:
            checked(self._cudart, answer)

    def mark(self) -> None:
        """Everything that :meth:`wait` has to wait for is enqueued.

        Raises:
            CudaError: the device failed.
        """
        if self._done is not None:
            answer = self._record(self._done, self.handle)
            if answer[0]:
                checked(self._cudart, answer)

    def wait(self) -> None:
        """Wait for what was enqueued before :meth:`mark`.

        Raises:
            CudaError: the device failed.
        """
        answer = self._wait_for(self.handle if self._done is None else self._done)
        if answer[0]:
            checked(self._cudart, answer)

    def synchronize(self) -> None:
        """Wait for everything that was enqueued.

        Raises:
            CudaError: the device failed.
        """
        checked(self._cudart, self._cudart.cudaStreamSynchronize(self.handle))

    def drain(self) -> None:
        """Wait for everything, whatever became of it."""
        if self.handle is not None:
            self._cudart.cudaStreamSynchronize(self.handle)

    def close(self) -> None:
        """Give it back. Idempotent."""
        if self._done is not None:
            self._cudart.cudaEventDestroy(self._done)
            self._done = None
        if self.handle is not None:
            self._cudart.cudaStreamDestroy(self.handle)
            self.handle = None
