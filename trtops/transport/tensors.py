"""Descriptions of tensors in a slot: written and read once for each set of shapes, then found by their bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from trtops.errors import InputError
from trtops.tensor import CHANNELS_LAST_RANK, MEMORY_FORMATS, MemoryFormat, in_format, stored_elements, stored_shape
from trtops.transport.formats import known
from trtops.transport.layout import (
    CODES,
    DESCRIPTION,
    DESCRIPTION_BYTES,
    DTYPES,
    FORMAT_CODES,
    MAX_RANK,
    MAX_TENSORS,
    NAME_BYTES,
    TENSOR,
    TENSOR_BYTES,
    TENSOR_NAME,
    aligned,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]
    Formats = Mapping[str, Mapping[str, MemoryFormat]]
    """Engine -> input -> its format, where that is not linear."""

_CARRIERS: Final = {"bfloat16": "uint16", "float8_e4m3": "uint8"}
_NUMPY: Final = tuple(np.dtype(_CARRIERS.get(name, name)) for name in DTYPES)
_KEPT: Final = 256
"""Descriptions that are kept; peers choose them, so their number must be bounded."""
_LARGEST: Final = 1 << 56
"""Elements of a tensor, were none of its sizes 0. NumPy makes not even an empty array of more than 2**63 bytes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in an area: its bytes are ``area[offset:offset + size]``, and lie there as its format says."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int
    size: int
    format: MemoryFormat = "linear"

    def view(self, area: NDArray[np.uint8]) -> NDArray[np.generic]:
        """The tensor in this area; no copy. Its strides are those of the format."""
        return in_format(area[self.offset : self.offset + self.size].view(self.dtype), self.shape, self.format)

    @property
    def filled(self) -> bool:
        """Whether there are bytes that only fill it up."""
        return self.size > math.prod(self.shape) * self.dtype.itemsize

    def fill(self, area: NDArray[np.uint8]) -> None:
        """Zero them."""
        whole = area[self.offset : self.offset + self.size].view(self.dtype)
        whole.reshape(stored_shape(self.shape, self.format))[..., self.shape[1] :] = 0


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a slot.

    Attributes:
        engine: name of the engine; empty in an answer.
        rows: of the request.
        tensors: where each is.
        used: bytes of the area that the tensors take.
        encoded: the bytes of this description.
        filled: those of the tensors that have bytes which only fill them up.
    """

    engine: str
    rows: int
    tensors: tuple[Placed, ...]
    used: int
    encoded: bytes
    filled: tuple[Placed, ...] = ()
    _views: dict[int, dict[str, NDArray[np.generic]]] = field(default_factory=dict, compare=False, repr=False)

    def fill(self, area: NDArray[np.uint8]) -> None:
        """Zero what only fills tensors up. It stays zero as long as the area holds what this describes."""
        for tensor in self.filled:
            tensor.fill(area)

    def fits(self, engine: str, rows: int, arrays: Arrays) -> bool:
        """Whether arrays are of the names, shapes and types that this describes, so that nothing has to be placed."""
        if rows != self.rows or engine != self.engine or len(arrays) != len(self.tensors):
            return False
        for tensor in self.tensors:
            array = arrays.get(tensor.name)
            if array is None or array.shape != tensor.shape:
                return False
            dtype = array.dtype
            if dtype is not tensor.dtype and dtype != tensor.dtype:
                return False
        return True

    def views(self, slot: int, areas: Sequence[NDArray[np.uint8]]) -> dict[str, NDArray[np.generic]]:
        """The tensors in the area of a slot, no copy; the same arrays each time. ``areas`` are always the same."""
        views = self._views.get(slot)
        if views is None:
            views = self._views[slot] = {tensor.name: tensor.view(areas[slot]) for tensor in self.tensors}
        return views


class Describer:
    """Places tensors and writes their description; the same shapes again cost a look-up."""

    def __init__(
        self, area_bytes: int, area: str, *, lying: bool = False, formats: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Place in areas of this size.

        Args:
            area_bytes: their size.
            area: their name in messages.
            lying: place arrays in the format that they lie in when they are first described.
            formats: engine -> tensor -> format to place it in; None: the peer knows no formats, so all is linear.
        """
        self._area_bytes = area_bytes
        self._area = area
        self._lying = lying
        self._told = formats is not None
        self._formats: Formats = {}
        self._kept: dict[object, Description] = {}
        self._last = Description("", 0, (), 0, b"")
        self.learn(formats or {})

    def learn(self, formats: Mapping[str, Mapping[str, str]]) -> None:
        """Place tensors in these formats from now on, of those that are known here, if the peer knows any."""
        taken = {engine: known(tensors) for engine, tensors in formats.items()} if self._told else {}
        if taken != self._formats:
            self._formats = taken
            self._kept = {}
            self._last = Description("", 0, (), 0, b"")

    def describe(self, engine: str, rows: int, arrays: Arrays) -> Description:
        """Describe arrays as they would be placed in an area, each at a multiple of 64 bytes.

        Raises:
            InputError: they do not fit, or cannot be described.
        """
        last = self._last  # read once: another thread may describe something else meanwhile
        if last.tensors and last.fits(engine, rows, arrays):
            return last
        key = (engine, rows, *((name, array.dtype, array.shape) for name, array in arrays.items()))
        kept = self._kept.get(key)
        if kept is None:
            kept = self._describe(engine, rows, arrays)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = kept
        self._last = kept
        return kept

    def _describe(self, engine: str, rows: int, arrays: Arrays) -> Description:
        if len(arrays) > MAX_TENSORS:
            raise InputError(f"{len(arrays)} tensors, a slot holds {MAX_TENSORS} at most")
        formats = self._formats.get(engine, {})
        lies = {name: _lies(one) if self._lying else formats.get(name, "linear") for name, one in arrays.items()}
        placed, used = _placed(arrays, lies)
        if used > self._area_bytes:
            placed, used = _placed(arrays, {})  # the peer takes any format: what fills rows up is not worth a refusal
        if used > self._area_bytes:
            raise InputError(
                f"the tensors need {used} bytes, the {self._area} of a slot has {self._area_bytes}",
                fix=f"connect with an {self._area} of {aligned(used)} bytes or more",
            )
        encoded = _encode(engine, rows, placed)
        filled = tuple(tensor for tensor in placed if tensor.filled)
        return Description(engine, rows, tuple(placed), used, encoded, filled)


def _placed(arrays: Arrays, formats: Mapping[str, MemoryFormat]) -> tuple[list[Placed], int]:
    """Arrays one after the other in these formats, linear where none is named; and the bytes that they take."""
    placed: list[Placed] = []
    offset = used = 0
    for name, array in arrays.items():
        if array.dtype.name not in CODES or not array.dtype.isnative:
            raise InputError(
                f"tensor {name!r} has type {array.dtype}, which does not travel in shared memory",
                fix=f"allowed: {', '.join(DTYPES)}",
            )
        if array.ndim > MAX_RANK:
            raise InputError(f"tensor {name!r} has {array.ndim} dimensions, {MAX_RANK} are allowed")
        wanted = formats.get(name, "linear")
        if array.ndim != CHANNELS_LAST_RANK:
            wanted = "linear"  # the engine will say what it takes
        size = stored_elements(array.shape, wanted) * array.dtype.itemsize
        placed.append(Placed(name, array.dtype, array.shape, offset, size, wanted))
        used = offset + size
        offset = aligned(used)
    return placed, used


def _lies(array: NDArray[np.generic]) -> MemoryFormat:
    """The format that an array has in memory; linear where it has none of ours."""
    if array.ndim != CHANNELS_LAST_RANK or array.flags.c_contiguous or not array.size:
        return "linear"
    _, channel, row, column = array.strides
    if channel != array.itemsize or not channel < column <= row:
        return "linear"
    eights = stored_shape(array.shape, "hwc8")[-1] * array.itemsize
    return "hwc8" if column == eights != array.shape[1] * array.itemsize else "hwc"


def _encode(engine: str, rows: int, placed: list[Placed]) -> bytes:
    name = _name(engine)
    out = bytearray(DESCRIPTION_BYTES + TENSOR_BYTES * len(placed))
    if not 0 <= rows < 1 << 32:
        raise InputError(f"{rows} rows")
    DESCRIPTION.pack_into(out, 0, rows, len(placed), len(name))
    out[NAME_BYTES : NAME_BYTES + len(name)] = name
    for index, tensor in enumerate(placed):
        at = DESCRIPTION_BYTES + index * TENSOR_BYTES
        name = _name(tensor.name)
        sizes = (*tensor.shape, *[0] * (MAX_RANK - len(tensor.shape)))
        code = CODES[tensor.dtype.name]
        lies = FORMAT_CODES[tensor.format]
        TENSOR.pack_into(out, at, len(name), code, len(tensor.shape), lies, tensor.offset, tensor.size, *sizes)
        out[at + TENSOR_NAME : at + TENSOR_NAME + len(name)] = name
    return bytes(out)


def _name(text: str) -> bytes:
    name = text.encode()
    if len(name) > NAME_BYTES:
        raise InputError(f"the name {text:.80} is longer than {NAME_BYTES} bytes")
    return name


class Parser:
    """Reads descriptions that a peer wrote, believing nothing; the same bytes again cost a look-up."""

    def __init__(self, area_bytes: int, *, formats: bool = True) -> None:
        """Read descriptions of areas of this size; ``formats``: the peer knows memory formats, else all is linear."""
        self._area_bytes = area_bytes
        self._formats = formats
        self._kept: dict[bytes, Description] = {}
        self._last = Description("", 0, (), 0, b"")

    def parse(self, encoded: bytes) -> Description:
        """Read a description.

        Raises:
            InputError: it is malformed, or a tensor is not inside its area. Blame the peer.
        """
        last = self._last
        if last.encoded == encoded and encoded:
            return last
        kept = self._kept.get(encoded)
        if kept is None:
            kept = self._parse(encoded)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[encoded] = kept
        self._last = kept
        return kept

    def _parse(self, encoded: bytes) -> Description:
        if len(encoded) < DESCRIPTION_BYTES:
            raise InputError(f"a description of {len(encoded)} bytes")
        rows, count, name_bytes = DESCRIPTION.unpack_from(encoded)
        if count > MAX_TENSORS or len(encoded) != DESCRIPTION_BYTES + count * TENSOR_BYTES:
            raise InputError(f"a description of {len(encoded)} bytes for {count} tensors")
        engine = _read_name(encoded, NAME_BYTES, name_bytes)
        tensors = tuple(self._tensor(encoded, DESCRIPTION_BYTES + index * TENSOR_BYTES) for index in range(count))
        if len({tensor.name for tensor in tensors}) != count:
            raise InputError("a tensor is described twice")
        used = max((tensor.offset + tensor.size for tensor in tensors), default=0)
        return Description(engine, rows, tensors, used, encoded)

    def _tensor(self, encoded: bytes, at: int) -> Placed:
        name_bytes, code, rank, lies, offset, size, *sizes = TENSOR.unpack_from(encoded, at)
        name = _read_name(encoded, at + TENSOR_NAME, name_bytes)
        if code >= len(_NUMPY) or rank > MAX_RANK:
            raise InputError(f"tensor {name!r} has element type {code} and rank {rank}")
        dtype = _NUMPY[code]
        shape = tuple(sizes[:rank])
        lies = lies if self._formats else 0
        if lies and (lies >= len(MEMORY_FORMATS) or rank != CHANNELS_LAST_RANK):
            raise InputError(
                f"tensor {name!r} of {rank} dimensions has the memory format {lies}",
                fix=f"write 0 (linear); of {CHANNELS_LAST_RANK} dimensions also 1 to {len(MEMORY_FORMATS) - 1}",
            )
        wanted = MEMORY_FORMATS[lies]
        if size != stored_elements(shape, wanted) * dtype.itemsize:
            raise InputError(f"tensor {name!r} of shape {list(shape)}, type {dtype}, {wanted}, has {size} bytes")
        if not size and math.prod(max(dim, 1) for dim in shape) > _LARGEST:
            raise InputError(f"tensor {name!r} of shape {list(shape)} is too large, also with nothing in it")
        if offset % dtype.itemsize or offset > self._area_bytes or size > self._area_bytes - offset:
            raise InputError(f"tensor {name!r} is not inside its slot: {size} bytes at {offset}")
        return Placed(name, dtype, shape, offset, size, wanted)


def _read_name(encoded: bytes, at: int, size: int) -> str:
    if size > NAME_BYTES:
        raise InputError(f"a name of {size} bytes")
    try:
        return encoded[at : at + size].decode()
    except UnicodeDecodeError:
        raise InputError("a name is not UTF-8") from None
