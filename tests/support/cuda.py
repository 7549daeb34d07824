"""A CUDA runtime and a TensorRT in host memory, for the faults of devices that a real one does not play on demand.

The engine that they run computes ``y = 2 * x`` (float32, ``[N, 4]`` unless told otherwise, in any memory format).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trtops.tensor import in_format, stored_elements

if TYPE_CHECKING:
    from collections.abc import Callable


class Cudart:
    """Memory with real addresses; fails the n-th call of a function where ``failing`` says so."""

    cudaHostAllocDefault = 0  # noqa: N815
    cudaHostAllocMapped = 2  # noqa: N815
    cudaHostRegisterPortable = 1  # noqa: N815
    cudaHostRegisterMapped = 2  # noqa: N815
    cudaMemAttachGlobal = 1  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815
    cudaEventDisableTiming = 2  # noqa: N815
    cudaEventBlockingSync = 1  # noqa: N815

    class cudaStreamCaptureMode:  # noqa: N801 - CUDA's name
        cudaStreamCaptureModeThreadLocal = 1  # noqa: N815

    class cudaMemcpyKind:  # noqa: N801 - CUDA's name
        cudaMemcpyHostToDevice = 1  # noqa: N815
        cudaMemcpyDeviceToHost = 2  # noqa: N815

    def __init__(self, failing: dict[str, int] | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        self.failing = failing or {}
        self.calls: dict[str, int] = {}
        self.blocks: dict[int, Any] = {}
        self.streams = 0
        self.events = 0
        self.graphs = 0
        self.registered: dict[int, int] = {}
        self.direct: list[int] = []
        self.direct_from: list[int] = []
        self.recording: list[Callable[[], object]] | None = None
        self.recorded: dict[int, list[Callable[[], object]]] = {}
        self.free = 1 << 30

    def _failed(self, name: str) -> bool:
        self.calls[name] = self.calls.get(name, 0) + 1
        return self.calls[name] == self.failing.get(name)

    def _allocate(self, name: str, size: int) -> tuple[int, int]:
        if self._failed(name):
            return 2, 0
        block = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(block)
        self.blocks[address] = block
        return 0, address

    def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802 - CUDA's name
        return self._allocate("cudaMalloc", size)

    def cudaHostAlloc(self, size: int, _: int) -> tuple[int, int]:  # noqa: N802
        return self._allocate("cudaHostAlloc", size)

    def cudaFree(self, address: int) -> tuple[int]:  # noqa: N802
        del self.blocks[address]
        return (0,)

    cudaFreeHost = cudaFree  # noqa: N815

    def cudaMemGetInfo(self) -> tuple[int, int, int]:  # noqa: N802
        return 2 if self._failed("cudaMemGetInfo") else 0, self.free, self.free

    def cudaMallocManaged(self, size: int, _: int) -> tuple[int, int]:  # noqa: N802
        return self._allocate("cudaMallocManaged", size)

    def cudaHostRegister(self, address: int, size: int, _: int) -> tuple[int]:  # noqa: N802
        if self._failed("cudaHostRegister"):
            return (1,)
        assert address not in self.registered, "registered twice"
        self.registered[address] = size
        return (0,)

    def cudaHostUnregister(self, address: int) -> tuple[int]:  # noqa: N802
        del self.registered[address]
        return (0,)

    def cudaMemcpyAsync(self, to: int, of: int, size: int, *_: object) -> tuple[int]:  # noqa: N802
        """A device copies from page-locked memory only: anything else is a mistake of the caller."""
        if self._failed("cudaMemcpyAsync"):
            return (719,)
        if any(at <= of and of + size <= at + length for at, length in self.registered.items()):
            self.direct.append(size)
            self.direct_from.append(of)
        else:
            inside = any(at <= of and of + size <= at + len(block) for at, block in list(self.blocks.items()))
            assert inside or not self.strict, "a copy from pageable memory"
        self.later(lambda: ctypes.memmove(to, of, size))
        return (0,)

    def cudaMemsetAsync(self, to: int, value: int, size: int, *_: object) -> tuple[int]:  # noqa: N802
        ctypes.memset(to, value, size)
        return (0,)

    def later(self, work: Callable[[], object]) -> None:
        """Do it, or keep it for the graph that is being captured."""
        if self.recording is None:
            work()
        else:
            self.recording.append(work)

    def cudaStreamCreate(self) -> tuple[int, int]:  # noqa: N802
        self.streams += 1
        return 0, 7

    def cudaStreamCreateWithFlags(self, _: int) -> tuple[int, int]:  # noqa: N802
        return self.cudaStreamCreate()

    def cudaEventCreateWithFlags(self, _: int) -> tuple[int, int]:  # noqa: N802
        return self.cudaEventCreate()

    def cudaEventSynchronize(self, _: int) -> tuple[int]:  # noqa: N802
        return (700 if self._failed("cudaEventSynchronize") else 0,)

    def cudaStreamDestroy(self, _: int) -> tuple[int]:  # noqa: N802
        self.streams -= 1
        return (0,)

    def cudaStreamSynchronize(self, _: int) -> tuple[int]:  # noqa: N802
        return (700 if self._failed("cudaStreamSynchronize") else 0,)

    def cudaHostGetDevicePointer(self, address: int, _: int) -> tuple[int, int]:  # noqa: N802
        return 0, address

    def cudaEventCreate(self) -> tuple[int, int]:  # noqa: N802
        self.events += 1
        return 0, self.events

    def cudaEventDestroy(self, _: int) -> tuple[int]:  # noqa: N802
        self.events -= 1
        return (0,)

    def cudaEventRecord(self, *_: int) -> tuple[int]:  # noqa: N802
        return (700 if self._failed("cudaEventRecord") else 0,)

    def cudaEventElapsedTime(self, one: int, other: int) -> tuple[int, float]:  # noqa: N802
        return 0, (other - one) * one / 1000

    def cudaStreamBeginCapture(self, *_: int) -> tuple[int]:  # noqa: N802
        self.recording = []
        return (0,)

    def cudaStreamEndCapture(self, _: int) -> tuple[int, int]:  # noqa: N802
        recorded, self.recording = self.recording, None
        number = len(self.recorded) + 3
        self.recorded[number] = recorded or []
        return (900 if self._failed("cudaStreamEndCapture") else 0), number

    def cudaGraphInstantiate(self, graph: int, _: int) -> tuple[int, int]:  # noqa: N802
        self.graphs += 1
        return 0, graph

    def cudaGraphLaunch(self, graph: int, _: int) -> tuple[int]:  # noqa: N802
        self.calls["cudaGraphLaunch"] = self.calls.get("cudaGraphLaunch", 0) + 1
        for work in self.recorded[graph]:
            work()
        return (0,)

    def cudaGraphDestroy(self, _: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaGraphExecDestroy(self, _: int) -> tuple[int]:  # noqa: N802
        self.graphs -= 1
        return (0,)

    def cudaGetLastError(self) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, f"CUDA error {status}".encode()


class _DataType:
    name = "FLOAT"


class _Format:
    def __init__(self, name: str) -> None:
        self.name = name.upper()


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses: dict[str, int] = {}
        self.shape: tuple[int, ...] = engine.shape
        self.profile = 0

    def set_optimization_profile_async(self, index: int, _: int) -> bool:
        self.profile = index
        return True

    def set_input_shape(self, _: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.engine.shape if name == "y" and self.engine.data_dependent else self.shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, _: int) -> bool:
        if self.engine.refuses:
            return False
        shape, addresses = self.shape, dict(self.addresses)
        cudart: Any = self.engine.cudart

        def compute() -> None:
            np.multiply(2, view("x"), out=view("y"))

        def view(name: str) -> Any:
            lies: Any = self.engine.formats.get(name, "linear")
            raw: Any = (ctypes.c_float * stored_elements(shape, lies)).from_address(addresses[name])
            return in_format(np.frombuffer(raw, np.float32), shape, lies)

        if cudart is None:
            compute()
        else:
            cudart.later(compute)
        return True


class Engine:
    num_io_tensors = 2

    def __init__(
        self,
        profiles: int,
        *,
        data_dependent: bool = False,
        shape: tuple[int, ...] = (-1, 4),
        formats: dict[str, str] | None = None,
    ) -> None:
        self.shape = shape
        self.formats = formats or {}
        self.num_optimization_profiles = profiles
        self.data_dependent = data_dependent
        self.refuses = False
        self.context: Context | None = None
        self.cudart: Cudart | None = None
        self.device_memory_size = 512

    def create_execution_context_without_device_memory(self) -> Context:
        return Context(self)

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> int:
        return Library.TensorIOMode.INPUT if name == "x" else 2

    def get_tensor_dtype(self, _: str) -> type[_DataType]:
        return _DataType

    def get_tensor_format(self, name: str) -> _Format:
        return _Format(self.formats.get(name, "linear"))

    def create_execution_context(self) -> Context:
        self.context = Context(self)
        return self.context


class Library:
    """The module ``tensorrt``, as far as a session touches it."""

    __name__ = "tensorrt_in_host_memory"
    __version__ = "8.6.0"

    class ILogger:
        pass

    class TensorIOMode:
        INPUT = 1

    engine: ClassVar[Engine | None] = None

    @staticmethod
    def init_libnvinfer_plugins(_: object, __: str) -> None:
        pass

    class Runtime:
        def __init__(self, log: Any) -> None:
            self.log = log

        def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
            if not data:
                self.log.log(1, "Serialization assertion failed")
            return Library.engine if data else None
