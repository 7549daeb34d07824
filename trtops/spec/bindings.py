"""How an engine's inputs and outputs lie in memory, and which formats its builders have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trtops.digest import Value
from trtops.tensor import CHANNELS_LAST_RANK, MEMORY_FORMATS, MemoryFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtops.tensor import TensorInfo


class Binding(Value):
    """One input or output of the engine."""

    format: MemoryFormat = "linear"
    """How the device has it: `linear` as the model writes its shape, `hwc` with the channels last, `hwc8` with the
    channels last and filled up to a multiple of 8. The shape stays that of the model."""


Types = Mapping[MemoryFormat, tuple[str, ...]]

_EARLY: Final[Types] = {"hwc": ("float32",), "hwc8": ("float16",)}
_LATE: Final[Types] = {"hwc": ("float32", "float16", "bfloat16", "int8", "int64"), "hwc8": ("float16", "bfloat16")}
_RTX: Final[Types] = {"hwc": ("float32", "float16", "uint8"), "hwc8": ("float16", "bfloat16")}
_NEWEST: Final = (1 << 16, 0)
_GREW: Final = (10, 16)
"""The release of TensorRT from which on ``_LATE`` is known to hold; 10.0 has ``_EARLY``, between them nobody looked."""


def format_types(backend: str, version: str | None) -> Types | None:
    """Element types that a backend has each format for; None: all, since it knows no formats itself.

    TensorRT: as the docstring of ``tensorrt.TensorFormat`` says in the bindings of 8.6, 10.0, 10.16 and 11.4. TensorRT
    for RTX: what 1.7 builds. ONNX Runtime and ``fake`` take whatever NumPy's strides can say.

    Args:
        backend: of the target.
        version: of the library, or what the target asks for; what it leaves open may be the newest.
    """
    if backend == "tensorrt_rtx":
        return _RTX
    if backend != "tensorrt":
        return None
    numbers = [int(part) for part in (version or "").split(".")[:2] if part.isdigit()]
    known = (numbers[0], numbers[1] if len(numbers) > 1 else _NEWEST[0]) if numbers else _NEWEST
    return _LATE if known >= _GREW else _EARLY


_NAMES: Final = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}


def format_problem(info: TensorInfo, wanted: MemoryFormat, backend: str, version: str | None) -> tuple[str, str] | None:
    """Why a backend cannot have a tensor in a format, and what to do; None if it can.

    Args:
        info: the tensor, as the engine has it.
        wanted: the format.
        backend: of the target.
        version: of the library, or the one that the target asks for; None: not known.
    """
    if wanted == "linear":
        return None
    linear = f"set `format: linear` for {info.name!r}"
    if len(info.shape) != CHANNELS_LAST_RANK:
        what = f"{info.name!r} has {len(info.shape)} dimensions, and the format {wanted} is one of 4: [N, C, H, W]"
        return what, f"{linear}, or export the model with 4 dimensions"
    if info.dtype == "string":
        return f"{info.name!r} is text, which has no format", linear
    types = format_types(backend, version)
    if types is None or info.dtype in types[wanted]:
        return None
    library = f"{_NAMES[backend]} {version or ''}".strip()
    what = f"{info.name!r} is {info.dtype}, and {library} has the format {wanted} for {', '.join(types[wanted])} only"
    others = [name for name in MEMORY_FORMATS if info.dtype in types.get(name, ())]
    return what, f"set `format: {others[0]}` for {info.name!r}, or `format: linear`" if others else linear


def unknown_binding(name: str, tensors: Iterable[TensorInfo]) -> tuple[str, str]:
    """What to say of a name that no input or output has, and what to do."""
    known = ", ".join(repr(info.name) for info in tensors)
    return f"the model has no input or output {name!r}", f"name one of {known}"
