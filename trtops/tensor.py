"""Names, element types and shapes of tensors, in the words of NumPy, ONNX and the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.digest import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class TensorInfo(Value):
    """An input or output of an engine.

    Attributes:
        name: the binding's name.
        dtype: a key of :data:`DTYPES`.
        shape: sizes; a string names a dynamic dimension.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]

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
