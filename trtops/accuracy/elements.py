"""Element types as NumPy holds them: bfloat16 and float8 travel as views of unsigned integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.tensor import Shape, TensorInfo

    Array = NDArray[np.generic]

_VIEWS: Mapping[str, str] = {"bfloat16": "uint16", "float8_e4m3": "uint8"}
_INTEGERS_BELOW = 10  # random integers are 0 … 9: valid as token, class or index of nearly every model
_BFLOAT16_NAN = 0x7FC0
_FLOAT8_NAN = 0x7F
_FLOAT8_SIGN = 0x80


def numpy_name(info: TensorInfo) -> str:
    """Name of the NumPy type that arrays of this tensor have."""
    return _VIEWS.get(info.dtype, info.dtype)


def is_integer(dtype: str) -> bool:
    """Whether elements are compared exactly: integers and truth values."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def decode(dtype: str, array: Array) -> NDArray[np.float64]:
    """The numbers that an array of a floating (or integer) type stands for, as float64."""
    import numpy as np

    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # signalling NaN become quiet ones
            return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e4m3":
        return _float8_table()[array.astype(np.intp)]
    return array.astype(np.float64)


def encode(dtype: str, values: NDArray[np.floating]) -> Array:
    """The nearest elements of a floating type; halves of bfloat16 go to even, float8 saturates at 448.

    Law: ``encode(t, decode(t, a)) == a`` for every array ``a`` of a type ``t`` without NaN.
    """
    import numpy as np

    if dtype == "bfloat16":
        with np.errstate(invalid="ignore", over="ignore"):
            bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(values)] = _BFLOAT16_NAN
        return rounded
    if dtype == "float8_e4m3":
        positive = _float8_table()[:_FLOAT8_NAN]  # ascending: nearest by bisection between midpoints
        codes = np.searchsorted((positive[1:] + positive[:-1]) / 2, np.abs(values))
        codes = np.where(np.isnan(values), _FLOAT8_NAN, codes)
        signed: Array = (codes + _FLOAT8_SIGN * np.signbit(values)).astype(np.uint8)
        return signed
    with np.errstate(over="ignore"):  # beyond float16: infinity, which the comparison reports
        converted: Array = values.astype(dtype)
    return converted


def random_array(dtype: str, shape: Shape, random: np.random.Generator) -> Array:
    """Random elements: floats standard normal, integers 0 to 9, truth values even."""
    import numpy as np

    if dtype == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if is_integer(dtype):
        return random.integers(0, _INTEGERS_BELOW, shape).astype(dtype)
    return encode(dtype, np.asarray(random.standard_normal(shape), dtype=np.float32))


def _float8_table() -> NDArray[np.float64]:
    """Values of the 256 codes of E4M3 with no infinities (OCP 8-bit floating point specification, table 2)."""
    import numpy as np

    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values = np.where((codes & _FLOAT8_NAN) == _FLOAT8_NAN, np.nan, values)
    return np.where(codes >= _FLOAT8_SIGN, -values, values)
