"""The transport's parts: layout, rings, descriptions, messages. Nothing that a peer writes may do harm."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.errors import InputError, Overloaded, TrtopsError
from trtops.transport import layout as layout_module
from trtops.transport import routes as routes_module
from trtops.transport.layout import (
    ALIGNMENT,
    DESCRIPTION_BYTES,
    HEADER_BYTES,
    RING_ENTRIES,
    RING_SLEEPS,
    RING_TAIL,
    SLOT_HEADERS,
    TENSOR_BYTES,
    Layout,
    aligned,
)
from trtops.transport.peers import Patience
from trtops.transport.ring import Reader, Violation, Writer
from trtops.transport.segment import attach, create
from trtops.transport.tensors import Describer, Parser
from trtops.transport.wire import decode_error, decode_from_client, encode_error, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT = Path(__file__).parents[2] / "docs" / "concepts" / "transport.md"

sizes = st.integers(0, 1 << 16).map(aligned)
layouts = st.builds(Layout, st.integers(1, 300), sizes, sizes)


@given(layouts)
def test_nothing_overlaps_and_everything_is_aligned(layout: Layout) -> None:
    spans = [
        (0, HEADER_BYTES),
        (layout.submit, layout.ring_bytes),
        (layout.complete, layout.ring_bytes),
        *((layout.slot(number), layout.slot_bytes) for number in range(layout.slots)),
    ]
    end = 0
    for start, size in spans:
        assert start == end
        assert start % ALIGNMENT == 0
        end = start + size
    assert end == layout.total
    assert SLOT_HEADERS % ALIGNMENT == 0
    assert layout.entries >= layout.slots
    assert Layout.read(layout.header(), layout.total) == layout


@given(layouts, st.binary(min_size=1, max_size=72), st.integers(0, 71))
def test_a_header_that_was_tampered_with_is_refused(layout: Layout, noise: bytes, at: int) -> None:
    header = bytearray(layout.header())
    header[at : at + len(noise)] = noise[: len(header) - at]
    if header == layout.header():
        return
    try:
        read = Layout.read(bytes(header), layout.total)
    except InputError:
        return
    assert read.header() == bytes(header)  # another layout that agrees with itself, and fits
    assert read.total <= layout.total


def test_a_segment_is_sealed_and_shared() -> None:
    fd, mine = create(Layout(4, 4096, 4096))
    try:
        theirs = attach(fd)
        mine.inputs[2][:4] = [1, 2, 3, 4]
        assert theirs.inputs[2][:4].tolist() == [1, 2, 3, 4]
        for size in (0, mine.layout.total * 2):
            with pytest.raises(PermissionError):
                os.truncate(fd, size)
    finally:
        os.close(fd)


def test_a_segment_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, Layout(1, 64, 4096).header())
        with pytest.raises(InputError, match="not sealed"):
            attach(fd)
    finally:
        os.close(fd)


def ring(entries: int) -> memoryview:
    return memoryview(bytearray(RING_ENTRIES + 4 * entries)).cast("I")


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=8), max_size=20))
def test_a_ring_gives_what_was_put_in_order(bursts: list[list[int]]) -> None:
    words = ring(8)
    writer, reader = Writer(words, 0, 8), Reader(words, 0, 8)
    for burst in bursts:
        for number in burst:
            writer.push(number)
        assert reader.pop() == burst
    assert reader.pop() == []


def test_a_ring_wraps_at_32_bits() -> None:
    words = ring(4)
    writer, reader = Writer(words, 0, 4), Reader(words, 0, 4)
    writer._tail = reader._head = 0xFFFFFFFE
    words[RING_TAIL // 4] = 0xFFFFFFFE
    for number in range(4):
        writer.push(number)
    assert reader.pop() == [0, 1, 2, 3]


def test_the_bell_is_rung_only_for_a_sleeper() -> None:
    words = ring(4)
    writer, reader = Writer(words, 0, 4), Reader(words, 0, 4)
    assert reader.announce_sleep()
    assert writer.push(1)
    assert not writer.push(2)  # it is being woken
    assert not reader.announce_sleep()  # something came: do not sleep
    reader.announce_awake()
    assert not writer.push(3)
    assert reader.pop() == [1, 2, 3]
    assert words[RING_SLEEPS // 4] == 0
    assert reader.announce_sleep()
    assert writer.push(4)


@given(st.integers(0, 2**32 - 1))
def test_an_impossible_index_is_a_violation(tail: int) -> None:
    words = ring(8)
    reader = Reader(words, 0, 8)
    words[RING_TAIL // 4] = tail
    if tail <= 8:
        assert len(reader.pop()) == tail
    else:
        with pytest.raises(Violation, match="claims to hold"):
            reader.pop()


def test_no_wake_up_is_lost_between_threads() -> None:
    """Ten thousand hand-overs in which both ends sleep on their bell as often as they can."""
    words = ring(4)
    writer, reader = Writer(words, 0, 4), Reader(words, 0, 4)
    bell, room = threading.Semaphore(0), threading.Semaphore(4)
    got: list[int] = []

    def read() -> None:
        while len(got) < 10_000:
            if reader.announce_sleep():
                assert bell.acquire(timeout=30), f"asleep after {len(got)}"
            reader.announce_awake()
            for number in reader.pop():
                got.append(number)
                room.release()

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(10_000):
        assert room.acquire(timeout=30)
        if writer.push(number):
            bell.release()
    thread.join(30)
    assert got == list(range(10_000))


dtypes = st.sampled_from(["bool", "uint8", "int64", "float16", "float32", "float64", "uint16"])
arrays = st.builds(lambda dtype, shape: np.zeros(shape, dtype), dtypes, st.lists(st.integers(0, 5), max_size=4))
names = st.text(min_size=1, max_size=16)


@given(names, st.integers(0, 99), st.dictionaries(names, arrays, max_size=5))
def test_descriptions_round_trip(engine: str, rows: int, tensors: dict[str, np.ndarray]) -> None:
    described = Describer(1 << 16, "input area").describe(engine, rows, tensors)
    parsed = Parser(1 << 16).parse(described.encoded)
    assert parsed == described
    assert [tensor.shape for tensor in parsed.tensors] == [array.shape for array in tensors.values()]
    assert all(tensor.offset % ALIGNMENT == 0 for tensor in parsed.tensors)
    area = np.zeros(1 << 16, np.uint8)
    for tensor in parsed.tensors:
        assert tensor.view(area).dtype == tensors[tensor.name].dtype


class Interrupting(dict[str, np.ndarray]):
    """Arrays; while they are compared, another thread describes other ones."""

    def __init__(self, arrays: dict[str, np.ndarray], describe: Callable[[], object]) -> None:
        super().__init__(arrays)
        self.describe = describe

    def get(self, *args: Any) -> Any:
        self.describe()
        return super().get(*args)


def test_threads_that_share_a_describer_get_their_own_descriptions() -> None:
    describer = Describer(4096, "input area")
    mine, others = {"x": np.zeros((1, 4), np.float32)}, {"x": np.zeros((2, 8), np.float32)}
    first = describer.describe("mine", 1, mine)
    interrupted = Interrupting(mine, lambda: describer.describe("another", 2, others))
    assert describer.describe("mine", 1, interrupted) is first


@given(st.data())
def test_a_hostile_description_is_refused_or_stays_inside_its_area(data: st.DataObject) -> None:
    tensors: dict[str, Any] = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(5, np.uint8)}
    encoded = bytearray(Describer(512, "input area").describe("e", 2, tensors).encoded)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, TENSOR_BYTES, DESCRIPTION_BYTES]))
    area = np.zeros(512, np.uint8)
    try:
        parsed = Parser(512).parse(bytes(encoded[: len(encoded) - cut]))
    except InputError:
        return
    for tensor in parsed.tensors:
        assert np.shares_memory(tensor.view(area), area) or tensor.size == 0


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"x": np.zeros(3, object)}, "does not travel"),
        ({"x": np.zeros(3, ">f4")}, "does not travel"),
        ({"x": np.zeros(3, "U4")}, "does not travel"),
        ({"x": np.zeros([1] * 9, np.uint8)}, "9 dimensions, 8 are allowed"),
        ({"x" * 65: np.zeros(1)}, "longer than 64 bytes"),
        ({str(number): np.zeros(1) for number in range(17)}, "17 tensors, a slot holds 16"),
        ({"x": np.zeros(1000)}, r"need 8000 bytes, the input area of a slot has 512 \(connect with .* of 8000 bytes"),
    ],
)
def test_what_cannot_travel_is_refused_with_the_reason(tensors: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Describer(512, "input area").describe("e", 1, tensors)


@given(st.text(max_size=5000), st.sampled_from([InputError, Overloaded, TrtopsError, ValueError]))
def test_errors_keep_their_class_and_fit(text: str, kind: type[Exception]) -> None:
    encoded = encode_error(kind(text), 4096)
    assert len(encoded) <= 4096
    error = decode_error(status_of(kind(text)), encoded, 2.5)
    assert type(error) is (kind if issubclass(kind, TrtopsError) else TrtopsError)
    if len(text) < 500:
        assert text in error.what
    if isinstance(error, Overloaded):
        assert error.retry_after == 2.5


@given(st.binary(max_size=200))
def test_any_packet_is_read_or_refused(packet: bytes) -> None:
    with pytest.raises(InputError):
        decode_from_client(packet)


def test_the_document_names_every_field_where_it_is() -> None:
    """Offsets in the document are those of the code."""
    text = DOCUMENT.read_text()
    for name in (
        "HEADER_BYTES",
        "RING_HEAD",
        "RING_TAIL",
        "RING_SLEEPS",
        "RING_ENTRIES",
        "REQUEST_BYTES",
        "DESCRIPTION_BYTES",
        "TENSOR_BYTES",
        "TENSOR_NAME",
        "ANSWER_BYTES",
        "ANSWER_OFFSET",
        "SLOT_HEADERS",
        "MAX_TENSORS",
        "MAX_RANK",
        "MAX_DESCRIPTION",
        "MIN_OUTPUT_BYTES",
    ):
        value = getattr(layout_module, name)
        assert re.search(rf"`{name}`[^\n]*\b{value}\b", text), f"{name} = {value} is not in {DOCUMENT.name}"
    for struct_name in ("HEADER", "REQUEST", "DESCRIPTION", "TENSOR", "ANSWER"):
        form = getattr(layout_module, struct_name).format
        assert f"`{struct_name}` `{form}`" in text, f"{struct_name} {form} is not in {DOCUMENT.name}"


def test_the_document_describes_the_page_of_routes() -> None:
    text = DOCUMENT.read_text()
    for name in (
        "PAGE_HEADER_BYTES",
        "SEQUENCE_AT",
        "COPY_HEADER_BYTES",
        "ENTRY_BYTES",
        "MAX_SEATS",
        "SEATS_AT",
        "SEAT_BYTES",
        "SEAT_NAME",
        "BUCKETS_AT",
        "BUCKETS",
    ):
        value = getattr(routes_module, name)
        assert re.search(rf"`{name}`[^\n]*\b{value}\b", text), f"{name} = {value} is not in {DOCUMENT.name}"
    for struct_name in ("PAGE", "COPY", "ENTRY", "SEAT"):
        form = getattr(routes_module, struct_name).format
        assert f"`{struct_name}` `{form}`" in text, f"{struct_name} {form} is not in {DOCUMENT.name}"
    buckets = (
        ", ".join(str(routes_module.bucket_of(key)) for key in (b"a", b"user-1")),
        routes_module.bucket_of("ä".encode()),
    )
    assert "{} and {}".format(*buckets) in text
    for code, dtype in enumerate(layout_module.DTYPES):
        assert re.search(rf"\| {code} \| {dtype} \|", text)


def test_looking_a_moment_longer_is_left_out_where_it_does_not_pay() -> None:
    patience = Patience()
    looks = 0
    for _ in range(10_000):
        if patience.worth():
            looks += 1
            patience.note(came=False)
    assert looks < 25
    while not patience.worth():
        pass
    patience.note(came=True)
    assert patience.worth()
    assert repr(patience) == "Patience(0 misses, 0 turns to leave out)"
