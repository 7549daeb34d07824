"""Names, element types and shapes of tensors, in the words of NumPy, ONNX and the Open Inference Protocol."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from trtops.digest import Grown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

# NumPy name -> (Open Inference Protocol name, bytes an element). bfloat16 and float8 have no NumPy type of their own:
# their arrays are uint16 and uint8 views. `string` stands for BYTES, whose elements have no fixed size (0).
DTYPES: Mapping[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("UINT8", 1),
    "uint16": ("UINT16", 2),
    "uint32": ("UINT32", 4),
    "uint64": ("UINT64", 8),
    "int8": ("INT8", 1),
    "int16": ("INT16", 2),
    "int32": ("INT32", 4),
    "int64": ("INT64", 8),
    "float16": ("FP16", 2),
    "bfloat16": ("BF16", 2),
    "float32": ("FP32", 4),
    "float64": ("FP64", 8),
    "float8_e4m3": ("FP8", 1),
    "string": ("BYTES", 0),
}

OIP_TO_NUMPY: Mapping[str, str] = {oip: name for name, (oip, _) in DTYPES.items()}

Dim = int | str
"""A fixed size, or the name of a dynamic one."""

Shape = tuple[int, ...]

MemoryFormat = Literal["linear", "hwc", "hwc8"]
"""How a tensor lies in memory, in TensorRT's words: ``linear`` is a C array of its shape; ``hwc`` has the channels of a
point side by side, a C array ``[N, H, W, C]``; ``hwc8`` the same with C filled up to a multiple of 8. The shape stays
``[N, C, H, W]``."""

MEMORY_FORMATS: Final[tuple[MemoryFormat, ...]] = get_args(MemoryFormat)

CHANNELS_LAST_RANK: Final = 4
"""Dimensions of a tensor whose channels may come last: rows, channels, height, width."""
_TOGETHER: Final = 8


def stored_shape(shape: Shape, format: MemoryFormat) -> Shape:  # noqa: A002 - TensorRT's word
    """Sizes of the C array that holds a tensor of this shape, slowest first; of rank 4 unless ``linear``."""
    if format == "linear":
        return shape
    rows, channels, height, width = shape
    if format == "hwc8":
        channels = -(-channels // _TOGETHER) * _TOGETHER
    return rows, height, width, channels


def stored_elements(shape: Shape, format: MemoryFormat) -> int:  # noqa: A002
    """Elements of that array, those that only fill it up included."""
    return math.prod(stored_shape(shape, format))


def in_format(memory: NDArray[Any], shape: Shape, format: MemoryFormat) -> NDArray[np.generic]:  # noqa: A002
    """A tensor in memory, no copy: its strides are those of the format.

    Args:
        memory: one dimension, of the tensor's type, :func:`stored_elements` long.
        shape: of the tensor.
        format: how it lies there.
    """
    array: NDArray[np.generic] = memory.reshape(stored_shape(shape, format))
    return array if format == "linear" else array[..., : shape[1]].transpose(0, 3, 1, 2)


class TensorInfo(Grown):
    """An input or output of an engine.

    Attributes:
        name: the binding's name.
        dtype: a key of :data:`DTYPES`.
        shape: sizes; a string names a dynamic dimension.
        format: how the engine has it in memory. Who sends it may write it as it likes: it is brought into that format.
    """

    later: ClassVar[tuple[str, ...]] = ("format",)

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    format: MemoryFormat = "linear"

    @property
    def linear(self) -> TensorInfo:
        """The same, as clients see it that know no formats."""
        return self if self.format == "linear" else self.model_copy(update={"format": "linear"})

    @property
    def datatype(self) -> str:
        """The Open Inference Protocol's name of the element type, e.g. ``FP32``."""
        return DTYPES[self.dtype][0]

    @property
    def oip_shape(self) -> tuple[int, ...]:
        """The shape as the protocol's metadata writes it: -1 for a dynamic dimension."""
        return tuple(dim if isinstance(dim, int) else -1 for dim in self.shape)

    def accepts(self, shape: Shape) -> bool:
        """Tell whether an array of this shape fits: same rank, equal fixed sizes."""
        return len(shape) == len(self.shape) and all(
            not isinstance(want, int) or want == have for want, have in zip(self.shape, shape, strict=True)
        )
