"""Memory of a loaded engine: a buffer a binding, on the device and page-locked on the host, and the pools' bounds."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Literal

from trtops.backend.bindings import carrier
from trtops.backend.cuda_device import CudaError, checked
from trtops.tensor import DTYPES, in_format, stored_elements

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trtops.tensor import MemoryFormat, Shape

ALIGNMENT = 256  # of buffers, as TensorRT asks for

Kind = Literal["pinned", "mapped", "managed"]


class Buffer:
    """Memory of one binding.

    Attributes:
        size: bytes.
        device: the address that the engine uses. host: the one that the host does.
        copied: bytes have to be copied from one to the other; if not, the engine reads what the host wrote.
    """

    def __init__(self, cudart: Any, size: int, kind: Kind = "pinned") -> None:  # noqa: ANN401 - cuda-python has no types
        """Take it.

        Raises:
            CudaError: it is not there.
        """
        self._cudart = cudart
        self.size = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        self.copied = kind == "pinned"
        self._managed = kind == "managed"
        self.device = self.host = 0
        if kind == "managed":
            self._take_managed()
        elif kind == "mapped":
            self.host = int(checked(cudart, cudart.cudaHostAlloc(self.size, cudart.cudaHostAllocMapped)))
            self.device = int(checked(cudart, cudart.cudaHostGetDevicePointer(self.host, 0)))
        else:
            self.device = int(checked(cudart, cudart.cudaMalloc(self.size)))
            try:
                self.host = int(checked(cudart, cudart.cudaHostAlloc(self.size, cudart.cudaHostAllocDefault)))
            except CudaError:
                self.free()
                raise

    def _take_managed(self) -> None:
        """More managed memory than the device has free is granted, and may hang it: ask before."""
        cudart = self._cudart
        free, _ = checked(cudart, cudart.cudaMemGetInfo())
        if self.size > int(free):
            raise CudaError(f"{self.size} bytes of managed memory are needed, {free} bytes of the device are free")
        self.device = int(checked(cudart, cudart.cudaMallocManaged(self.size, cudart.cudaMemAttachGlobal)))
        self.host = self.device

    @property
    def host_bytes(self) -> int:
        """Page-locked bytes of the host."""
        return 0 if self._managed else self.size

    @property
    def device_bytes(self) -> int:
        """Bytes of the device."""
        return self.size if self.copied or self._managed else 0

    def view(self, shape: Shape, dtype: str, format: MemoryFormat = "linear") -> NDArray[np.generic]:  # noqa: A002
        """The host memory as an array that lies in a format; valid until :meth:`free`."""
        import numpy as np

        elements = stored_elements(shape, format)
        raw = (ctypes.c_uint8 * (elements * DTYPES[dtype][1])).from_address(self.host)
        flat: NDArray[np.generic] = np.ndarray((elements,), dtype=np.dtype(carrier(dtype)), buffer=memoryview(raw))
        return in_format(flat, shape, format)

    def free(self) -> None:
        """Give it back. Idempotent."""
        if self.device and (self.copied or self._managed):
            self._cudart.cudaFree(self.device)
        if self.host and not self._managed:
            self._cudart.cudaFreeHost(self.host)
        self.device = self.host = 0
