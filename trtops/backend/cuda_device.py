"""The GPU of this machine, through cuda-python. Imports it inside functions only: most machines have none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trtops.device import Device
from trtops.errors import DeviceLost, Retryable, Unavailable

_INSTALL = "pip install 'trtops[tensorrt]' on a machine with an NVIDIA GPU and its driver"
_DRIVER_FILE = Path("/sys/module/nvidia/version")


# "The process must be terminated and relaunched" (CUDA Runtime API, cudaError_t): uncorrectable ECC, NVLink, illegal
# address, time-out of a launch, assertion, stack, instruction, alignment, address space, program counter, launch.
_STICKY = frozenset({214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719})


class CudaError(Exception):
    """A call of the CUDA runtime failed; the text is the runtime's own name and description of the error.

    Attributes:
        sticky: every later call of this process will fail as well, whatever it is.
    """

    def __init__(self, text: str, *, sticky: bool = False) -> None:
        """Keep whether it is the end of this process's context."""
        super().__init__(text)
        self.sticky = sticky


def lost(error: CudaError) -> Retryable:
    """What a request is told of it."""
    if error.sticky:
        what = f"the device is lost to this process: {error}"
        return DeviceLost(what, fix="send the request again when the worker was started again")
    return Retryable(f"the device failed: {error}", fix="send the request again")


def runtime() -> Any:  # noqa: ANN401 - cuda-python has no types
    """The module ``cuda.bindings.runtime``.

    Raises:
        Unavailable: cuda-python is not installed.
    """
    try:
        from cuda.bindings import runtime as cudart
    except ImportError as error:
        raise Unavailable(f"cuda-python cannot be imported: {error}", fix=_INSTALL) from error
    return cudart


def checked(cudart: Any, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - cuda-python has no types
    """The result of a call: nothing, the one value, or a tuple of several.

    Raises:
        CudaError: the call failed.
    """
    status, *values = answer
    if int(status) != 0:
        words = cudart.cudaGetErrorString(status)[1]
        text = words.decode() if isinstance(words, bytes) else str(words)
        raise CudaError(f"{getattr(status, 'name', status)}: {text}", sticky=int(status) in _STICKY)
    return values[0] if len(values) == 1 else tuple(values) or None


def enter(cudart: Any) -> None:  # noqa: ANN401 - cuda-python has no types
    """Make this process's context on the device, if it has none yet.

    To be called before TensorRT is: version 8.6 ends the process by SIGSEGV where the device has no room for one.

    Raises:
        CudaError: there is no room, or the device failed.
    """
    checked(cudart, cudart.cudaMemGetInfo())


def detect(index: int = 0) -> Device:
    """Identity of a GPU, or of the MIG slice that this process was given.

    Args:
        index: the CUDA runtime's number of the device.

    Raises:
        Unavailable: there is no driver, no GPU, or cuda-python is not installed.
    """
    cudart = runtime()
    try:
        properties = checked(cudart, cudart.cudaGetDeviceProperties(index))
    except (CudaError, RuntimeError, OSError) as error:
        raise Unavailable(f"no GPU can be used here: {error}", fix=_INSTALL) from error
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    slice_of = re.search(r"\bMIG (\d+g\.\d+gb\S*)", name)
    return Device(
        kind="gpu",
        name=name.partition(" MIG ")[0].strip("\0 "),
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=int(properties.multiProcessorCount),
        memory_bytes=int(properties.totalGlobalMem),
        mig=slice_of[1] if slice_of else None,
        driver=_driver(),
    )


def _driver() -> str | None:
    try:
        return _DRIVER_FILE.read_text(encoding="ascii").strip() or None
    except OSError:
        return None
