"""Descriptions of tensors in any memory format: what one end writes the other reads, and nothing leaves its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.errors import InputError
from trtops.tensor import MEMORY_FORMATS, in_format, stored_elements
from trtops.transport.layout import DESCRIPTION_BYTES, TENSOR, TENSOR_BYTES
from trtops.transport.tensors import Describer, Parser

if TYPE_CHECKING:
    from trtops.tensor import MemoryFormat

    Array = np.ndarray[Any, Any]

AREA = 1 << 14
FORMATS = st.sampled_from(MEMORY_FORMATS)
SHAPES = st.tuples(*[st.integers(1, 4), st.integers(1, 11), st.integers(1, 5), st.integers(1, 5)])
TYPES = st.sampled_from(["uint8", "float16", "float32"])
TENSORS = st.dictionaries(st.sampled_from("abcd"), st.tuples(SHAPES, TYPES, FORMATS), min_size=1, max_size=3)


def filled(shape: tuple[int, ...], dtype: str) -> Array:
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


@given(TENSORS)
def test_what_is_written_is_read(tensors: dict[str, tuple[tuple[int, ...], str, MemoryFormat]]) -> None:
    describer = Describer(AREA, "input area", formats={})
    describer.learn({"e": {name: lies for name, (_, _, lies) in tensors.items() if lies != "linear"}})
    arrays = {name: filled(shape, dtype) for name, (shape, dtype, _) in tensors.items()}
    described = describer.describe("e", 1, arrays)
    assert described is describer.describe("e", 1, arrays)
    read = Parser(AREA).parse(described.encoded)
    assert (read.tensors, read.used) == (described.tensors, described.used)
    area = np.zeros(AREA, np.uint8)
    for name, view in described.views(0, [area]).items():
        view[...] = arrays[name]
    ends = 0
    for tensor, (name, view) in zip(read.tensors, read.views(0, [area]).items(), strict=True):
        shape, dtype, lies = tensors[name]
        np.testing.assert_array_equal(view, arrays[name])
        assert tensor.format == lies
        assert tensor.offset % 64 == 0
        assert tensor.offset >= ends
        ends = tensor.offset + tensor.size
        assert tensor.size == stored_elements(shape, lies) * np.dtype(dtype).itemsize
    assert ends == read.used


@given(SHAPES, TYPES, st.sampled_from(["hwc", "hwc8"]))
def test_the_bytes_are_those_of_the_format(shape: tuple[int, ...], dtype: str, lies: MemoryFormat) -> None:
    array = filled(shape, dtype)
    describer = Describer(AREA, "input area", formats={})
    describer.learn({"e": {"x": lies}})
    described = describer.describe("e", 1, {"x": array})
    area = np.full(AREA, 0xFF, np.uint8)
    for tensor in described.filled:
        tensor.fill(area)
    described.views(0, [area])["x"][...] = array
    (placed,) = described.tensors
    rows, channels, height, width = shape
    stored = channels if lies == "hwc" else -(-channels // 8) * 8
    expected = np.zeros((rows, height, width, stored), dtype)
    for channel in range(channels):
        expected[..., channel] = array[:, channel]
    assert area[placed.offset : placed.offset + placed.size].tobytes() == expected.tobytes()
    assert bool(described.filled) == (stored > channels)
    assert (area[placed.size :] == 0xFF).all()


@given(SHAPES, TYPES, FORMATS)
def test_outputs_are_described_as_they_lie(shape: tuple[int, ...], dtype: str, lies: MemoryFormat) -> None:
    array = in_format(np.empty(stored_elements(shape, lies), dtype), shape, lies)
    array[...] = filled(shape, dtype)
    described = Describer(AREA, "output area", lying=True).describe("", 0, {"y": array})
    (view,) = described.views(0, [np.zeros(AREA, np.uint8)]).values()
    if min(shape) > 1:  # else several formats are the same bytes
        assert view.strides == array.strides
    view[...] = array
    read = Parser(AREA).parse(described.encoded)
    assert read.tensors == described.tensors


@settings(max_examples=300)
@given(SHAPES, FORMATS, st.integers(0, 4), st.integers(0, 9), st.integers(0, 2 * AREA), st.integers(0, 2 * AREA))
def test_whatever_a_peer_writes_stays_in_its_area(
    shape: tuple[int, ...], lies: MemoryFormat, code: int, rank: int, offset: int, size: int
) -> None:
    describer = Describer(AREA, "input area", formats={})
    describer.learn({"e": {"x": lies}})
    encoded = bytearray(describer.describe("e", 1, {"x": filled(shape, "float32")}).encoded)
    fields = list(TENSOR.unpack_from(encoded, DESCRIPTION_BYTES))
    fields[2:6] = [rank, code, offset, size]
    TENSOR.pack_into(encoded, DESCRIPTION_BYTES, *fields)
    assert len(encoded) == DESCRIPTION_BYTES + TENSOR_BYTES
    area = np.zeros(AREA, np.uint8)
    try:
        read = Parser(AREA).parse(bytes(encoded))
    except InputError:
        return
    view = read.views(0, [area])["x"]
    begin = view.__array_interface__["data"][0] - area.__array_interface__["data"][0]
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    assert begin >= 0
    assert min(view.strides, default=0) >= 0
    assert not view.size or begin + last + view.itemsize <= AREA
    view[...] = 1


@given(SHAPES, FORMATS)
def test_who_knows_no_formats_is_read_as_linear(shape: tuple[int, ...], lies: MemoryFormat) -> None:
    array = filled(shape, "float32")
    encoded = bytearray(Describer(AREA, "input area").describe("e", 1, {"x": array}).encoded)
    fields = list(TENSOR.unpack_from(encoded, DESCRIPTION_BYTES))
    fields[3] = MEMORY_FORMATS.index(lies)  # what was undefined before
    TENSOR.pack_into(encoded, DESCRIPTION_BYTES, *fields)
    (tensor,) = Parser(AREA, formats=False).parse(bytes(encoded)).tensors
    assert (tensor.format, tensor.size) == ("linear", array.nbytes)


HUGE = 2**32 - 1


@given(st.lists(st.sampled_from([0, 1, HUGE]), min_size=4, max_size=4), FORMATS, st.sampled_from(["uint8", "float32"]))
def test_sizes_that_come_to_nothing_are_read_or_refused(shape: list[int], lies: MemoryFormat, dtype: str) -> None:
    encoded = bytearray(Describer(AREA, "input area").describe("e", 1, {"x": np.ones((1,), dtype)}).encoded)
    fields = list(TENSOR.unpack_from(encoded, DESCRIPTION_BYTES))
    fields[2:] = [4, MEMORY_FORMATS.index(lies), 0, 0, *shape, 0, 0, 0, 0]
    TENSOR.pack_into(encoded, DESCRIPTION_BYTES, *fields)
    try:
        read = Parser(AREA).parse(bytes(encoded))
    except InputError:
        return
    assert read.views(0, [np.zeros(AREA, np.uint8)])["x"].shape == tuple(shape)
