"""The layout of a client's shared segment: fixed-width little-endian fields at fixed offsets.

``docs/concepts/transport.md`` is the document that a client in another language is written from; a test holds the two
together. A segment is: header, submit ring, complete ring, slots. A slot is: request header, answer header, input
area, output area. Everything begins at a multiple of 64 bytes.

Nothing that a peer wrote is believed: indices, lengths and counts are copied out once, then checked, then used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.tensor import MemoryFormat

VERSION: Final = 1
MAGIC: Final = int.from_bytes(b"TRTOPSHM", "little")
ALIGNMENT: Final = 64

HEADER: Final = struct.Struct("<QIIQIIQQQQQ")
"""magic, version, header bytes, segment bytes, slots, ring entries, then offsets and sizes:
submit ring, complete ring, first slot, input bytes, output bytes (of a slot)."""
HEADER_BYTES: Final = 128

# A ring: each index in a cache line of its own, then the entries (u32 slot numbers).
RING_HEAD: Final = 0
RING_TAIL: Final = 64
RING_SLEEPS: Final = 128
RING_ENTRIES: Final = 192

REQUEST: Final = struct.Struct("<QQII")
"""sequence, deadline (CLOCK_MONOTONIC nanoseconds; 0: none), priority, bytes of the description that follows."""
REQUEST_BYTES: Final = 64

DESCRIPTION: Final = struct.Struct("<IHH")
"""rows, tensors, bytes of the engine's name."""
NAME_BYTES: Final = 64
DESCRIPTION_BYTES: Final = 128
"""The name stands at byte 64 of the description, filled up with zeros; tensors follow it."""

TENSOR: Final = struct.Struct("<HBBIQQ8I")
"""bytes of the name, element type, rank, memory format, offset in the area, bytes, sizes (8, unused ones 0)."""
TENSOR_BYTES: Final = 128
TENSOR_NAME: Final = 64
"""The tensor's name stands at byte 64 of its descriptor, filled up with zeros."""
MAX_TENSORS: Final = 16
MAX_RANK: Final = 8

ANSWER: Final = struct.Struct("<QIIQIIddd")
"""sequence, status (0: outputs; else an error), bytes of the description or of the error's text, generation, rows of
the batch, credit (with status 2), then microseconds queued, microseconds computed, seconds after which a retry makes
sense."""
ANSWER_BYTES: Final = 128

MAX_DESCRIPTION: Final = DESCRIPTION_BYTES + MAX_TENSORS * TENSOR_BYTES
SLOT_HEADERS: Final = REQUEST_BYTES + MAX_DESCRIPTION + ANSWER_BYTES + MAX_DESCRIPTION
"""Bytes before a slot's input area: request and its description, answer and its description."""
ANSWER_OFFSET: Final = REQUEST_BYTES + MAX_DESCRIPTION

MIN_OUTPUT_BYTES: Final = 4096
"""An error's text has to fit in every output area."""

DTYPES: Final = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3",
)
"""Element types; the code of one is its place here. NumPy carries bfloat16 as uint16 and float8 as uint8, and a client
that sends such a tensor writes the carrier's code: both ends see the same bytes. Text does not travel in slots."""
CODES: Final = {name: code for code, name in enumerate(DTYPES)}

FORMAT_CODES: Final[Mapping[MemoryFormat, int]] = {"linear": 0, "hwc": 1, "hwc8": 2}
"""Memory formats; the sizes of a tensor stay those of its shape, its bytes are those of the format."""


def aligned(size: int) -> int:
    """Round up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Layout:
    """Where everything is in a segment of so many slots of so many bytes. What is computed is computed once."""

    slots: int
    input_bytes: int
    output_bytes: int

    @cached_property
    def entries(self) -> int:
        """Entries of a ring: a power of two, at least as many as slots, so that a ring is never full."""
        return 1 << max(0, self.slots - 1).bit_length()

    @cached_property
    def ring_bytes(self) -> int:
        """Bytes of a ring."""
        return aligned(RING_ENTRIES + 4 * self.entries)

    @cached_property
    def submit(self) -> int:
        """Offset of the ring from the client to the executor."""
        return HEADER_BYTES

    @cached_property
    def complete(self) -> int:
        """Offset of the ring from the executor to the client."""
        return self.submit + self.ring_bytes

    @cached_property
    def first_slot(self) -> int:
        """Offset of slot 0."""
        return self.complete + self.ring_bytes

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from a slot to the next."""
        return SLOT_HEADERS + self.input_bytes + self.output_bytes

    @cached_property
    def total(self) -> int:
        """Bytes of the segment."""
        return self.first_slot + self.slots * self.slot_bytes

    def slot(self, number: int) -> int:
        """Offset of a slot."""
        return self.first_slot + number * self.slot_bytes

    def header(self) -> bytes:
        """The segment's header."""
        return HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self.total,
            self.slots,
            self.entries,
            self.submit,
            self.complete,
            self.first_slot,
            self.input_bytes,
            self.output_bytes,
        )

    @classmethod
    def read(cls, header: bytes, size: int) -> Layout:
        """Read a segment's header; ``size`` is the segment's real size in bytes.

        Raises:
            InputError: it is no segment of this version, or its header contradicts itself. Blame the executor.
        """
        fields = HEADER.unpack(header[: HEADER.size])
        if fields[0] != MAGIC or fields[1] != VERSION:
            raise InputError(f"not a trtops segment of version {VERSION}: magic {fields[0]:#x}, version {fields[1]}")
        layout = cls(fields[4], fields[9], fields[10])
        if (
            max(fields[4], fields[9], fields[10]) > size
            or layout.total > size
            or layout.header() != header[: HEADER.size]
        ):
            raise InputError("the segment's header does not agree with itself or with the segment's size")
        return layout
