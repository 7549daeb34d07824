"""The elements of one tensor, in the two forms that the Open Inference Protocol gives them on the wire.

JSON form: an array of numbers, booleans or strings, flat in row-major order or nested as the shape is. Binary form: the
elements' bytes in row-major order, little-endian; an element of BYTES is its length as a little-endian uint32 and then
its bytes. BF16 and FP8 have no JSON form. Arrays of BYTES have dtype ``object`` and hold ``str``: the backends that
take strings take text, and would turn ``bytes`` into their Python notation without a word.

Nothing is allocated from a number that the client merely claims: a shape is compared with the data that is there.
"""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from trtops.errors import InputError
from trtops.tensor import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtops.tensor import Shape

    Array = NDArray[np.generic]

MAX_RANK = 32

_BINARY_ONLY = frozenset({"bfloat16", "float8_e4m3"})
_VIEWS = {"bfloat16": "uint16", "float8_e4m3": "uint8", "string": "object"}
NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(_VIEWS.get(name, name)) for name in DTYPES}
"""Element type by the names of :data:`trtops.tensor.DTYPES`; bfloat16 and float8 are views of unsigned integers."""


def json_type(dtype: str) -> Any:  # noqa: ANN401 - a type that msgspec reads
    """The type of an element in JSON, with its bounds."""
    if dtype == "bool":
        return bool
    if dtype == "string":
        return str
    if dtype.startswith("float"):
        limit = float(np.finfo(dtype).max)
        return Annotated[float, msgspec.Meta(ge=-limit, le=limit)]
    info = np.iinfo(dtype)
    # msgspec compares with 64-bit signed bounds; NumPy refuses what is left over of uint64.
    high = min(int(info.max), 2**63 - 1)
    return Annotated[int, msgspec.Meta(ge=int(info.min), le=high)] if dtype != "uint64" else int


@lru_cache(maxsize=256)
def _decoder(dtype: str, rank: int) -> msgspec.json.Decoder[Any]:
    kind: Any = json_type(dtype)
    for _ in range(rank):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def count_of(shape: Shape) -> int:
    """Number of elements of a shape, in exact integers: it never overflows."""
    return math.prod(shape)


def from_json(raw: msgspec.Raw, dtype: str, shape: Shape, name: str) -> Array:
    """Read elements from a JSON array.

    Args:
        raw: the text of the array.
        dtype: a key of :data:`trtops.tensor.DTYPES`.
        shape: the shape that the request gives; already checked against the engine.
        name: the tensor's, for messages.

    Raises:
        InputError: the client's fault: not an array of this type, out of its range, or of another count.
    """
    if dtype in _BINARY_ONLY:
        raise InputError(f"input '{name}': {DTYPES[dtype][0]} has no JSON form", fix="send it as binary data")
    try:
        values = _decoder(dtype, 1).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        values = _nested(raw, dtype, shape, name, error)
    return _array(values, dtype, shape, name)


def _nested(raw: msgspec.Raw, dtype: str, shape: Shape, name: str, error: Exception) -> list[Any]:
    """Elements of an array that is not flat; ``error`` says why it is not."""
    if len(shape) > 1 and "got `array`" in str(error):
        try:
            values: list[Any] = _decoder(dtype, len(shape)).decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as nested:
            error = nested
        else:
            return values
    if not memoryview(raw).nbytes:
        raise InputError(f"input '{name}': has no data", fix="give 'data', or 'binary_data_size' and the bytes")
    raise InputError(f"input '{name}': data is not an array of {DTYPES[dtype][0]}: {error}")


def _array(values: list[Any], dtype: str, shape: Shape, name: str) -> Array:
    if dtype == "string":
        return _strings(values, shape, name)
    try:
        array: Array = np.array(values, NUMPY[dtype])
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"input '{name}': expected {DTYPES[dtype][0]} data of shape {list(shape)}, got: {error}"
        ) from None
    if array.ndim == 1:
        with suppress(ValueError):  # another count
            return array.reshape(shape)
    if array.shape != shape:
        got = f"shape {list(array.shape)}" if array.ndim > 1 else _plural(array.size, "element")
        raise InputError(
            f"input '{name}': shape {list(shape)} needs {_plural(count_of(shape), 'element')}, got data of {got}"
        )
    return array


def _leaves(values: list[Any], shape: Shape, name: str) -> list[str]:
    if len(values) != shape[0]:
        raise InputError(f"input '{name}': expected {_plural(shape[0], 'element')} on an axis, got {len(values)}")
    if len(shape) == 1:
        return values
    return [leaf for value in values for leaf in _leaves(value, shape[1:], name)]


def _strings(values: list[Any], shape: Shape, name: str) -> Array:
    flat = _leaves(values, shape if values and isinstance(values[0], list) else (count_of(shape),), name)
    array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(shape)


def from_binary(
    body: bytes, offset: int, size: int, dtype: str, shape: Shape, name: str, given: str = "binary_data_size"
) -> Array:
    """Read elements from their bytes; a view of ``body`` where its alignment allows.

    Args:
        body: the request's body; ``body[offset:offset + size]`` exists.
        offset: where the tensor begins.
        size: its number of bytes.
        dtype: a key of :data:`trtops.tensor.DTYPES`.
        shape: the shape that the request gives.
        name: the tensor's, for messages.
        given: what the request calls ``size``, for messages.

    Raises:
        InputError: the client's fault: the bytes are too few, too many, or no BYTES elements.
    """
    count = count_of(shape)
    if dtype == "string":
        return _strings_from_binary(memoryview(body)[offset : offset + size], count, name).reshape(shape)
    itemsize = NUMPY[dtype].itemsize
    if count * itemsize != size:
        raise InputError(
            f"input '{name}': {DTYPES[dtype][0]} of shape {list(shape)} needs {_plural(count * itemsize, 'byte')}, "
            f"{given} is {size}"
        )
    array: Array = np.frombuffer(body, NUMPY[dtype], count, offset)
    if dtype == "bool":
        array = np.not_equal(array.view(np.uint8), 0)  # another byte than 0 and 1 is undefined behaviour in C
    elif offset % itemsize:
        array = array.copy()
    return array.reshape(shape)


def _strings_from_binary(data: memoryview, count: int, name: str) -> Array:
    size = len(data)
    if 4 * count > size:
        raise InputError(
            f"input '{name}': {_plural(count, 'BYTES element')} need {4 * count} bytes at least, got {size}"
        )
    array = np.empty(count, object)
    at = 0
    for index in range(count):
        if at + 4 > size:
            raise InputError(f"input '{name}': BYTES element {index} of {count} has no length: the data ends before it")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if length > size - at:
            raise InputError(f"input '{name}': BYTES element {index} says {length} bytes, and {size - at} are left")
        try:
            array[index] = str(data[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"input '{name}': BYTES element {index} is no UTF-8 text") from None
        at += length
    if at != size:
        raise InputError(f"input '{name}': {_plural(size - at, 'byte')} left over after {count} BYTES elements")
    return array


def _bytes_of(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def to_json(array: Array, dtype: str) -> bytes | None:
    """Write elements as a flat JSON array; None where JSON cannot carry them (NaN, infinity, BF16, not UTF-8)."""
    if dtype in _BINARY_ONLY:
        return None
    if dtype == "string":
        try:
            return msgspec.json.encode([_bytes_of(value).decode() for value in array.ravel()])
        except UnicodeDecodeError:
            return None
    text = msgspec.json.encode(array.ravel().tolist())
    return None if b"n" in text and b"null" in text else text


def to_binary(array: Array, dtype: str) -> bytes:
    """Write elements as their little-endian bytes in row-major order."""
    if dtype == "string":
        values = [_bytes_of(value) for value in array.ravel()]
        return b"".join(piece for value in values for piece in (struct.pack("<I", len(value)), value))
    return array.tobytes()
