"""Reads the structure of an ONNX file without its weights.

ONNX is protocol buffers: a tree of length-prefixed fields. :func:`skim` walks the big ones, leaves out the payloads of
tensors (remembering where they are), and copies everything else as it is. What comes out is a valid ONNX file with the
same graph and empty big tensors, whose size does not depend on the weights. A length that does not fit into what is
around it is found here, before any parser allocates for it.

Field numbers: ``onnx/onnx-ml.proto`` of ONNX; wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_BYTES = 32 << 10
"""Payloads up to this size stay in the file: shape inference reads the small ones."""
MAX_DEPTH = 64
_MAX_PARTS = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
FLOAT_DATA, INT32_DATA, STRING_DATA, INT64_DATA, RAW_DATA, DOUBLE_DATA, UINT64_DATA = 4, 5, 6, 7, 9, 10, 11
_PAYLOADS = {FLOAT_DATA, INT32_DATA, STRING_DATA, INT64_DATA, RAW_DATA, DOUBLE_DATA, UINT64_DATA}
_TENSOR_TYPE, _TENSOR_NAME, _NODE_OUTPUT = 2, 8, 2


@dataclass(frozen=True, slots=True)
class Payload:
    """A tensor's data that was left out.

    Attributes:
        tensor: its name; that of the node's output for a constant.
        data_type: ``TensorProto.DataType``.
        field: number of the field that holds it, e.g. :data:`RAW_DATA`.
        offset, size: where it is in the file, in bytes.
    """

    tensor: str
    data_type: int
    field: int
    offset: int
    size: int


class Malformed(ValueError):
    """The bytes are no protocol buffers, or end too early."""


def skim(data: memoryview, keep: int = KEEP_BYTES) -> tuple[bytes, tuple[Payload, ...]]:
    """Split a serialised ``ModelProto`` into its structure and its payloads.

    Args:
        data: the file's bytes (a view of a memory map: only what is kept gets read).
        keep: payloads of at most so many bytes stay.

    Returns:
        A serialised ``ModelProto`` without the payloads, and where they are. Law: with ``keep`` at least the file's
        size, the bytes come back as they are.

    Raises:
        Malformed: a field's length does not fit, or it is of no known kind; the message tells the offset.
    """
    payloads: list[Payload] = []
    pieces = _Walk(data, keep, payloads).message(0, len(data), "model", "", 0)
    return b"".join(pieces), tuple(payloads)


class _Walk:
    """A walk over one file."""

    __slots__ = ("_data", "_keep", "_payloads")

    def __init__(self, data: memoryview, keep: int, payloads: list[Payload]) -> None:
        self._data = data
        self._keep = keep
        self._payloads = payloads

    def message(self, start: int, end: int, kind: str, owner: str, depth: int) -> list[bytes]:
        """Walk one message; the pieces of its copy."""
        if depth > MAX_DEPTH:
            raise Malformed(f"nested more than {MAX_DEPTH} deep at byte {start}")
        children = _CHILDREN[kind]
        pieces: list[bytes] = []
        first = len(self._payloads)
        copied = position = start
        while position < end:
            begin = position
            field, wire, body, position = self.field(position, end)
            size = position - body
            if wire != _BYTES or size <= self._keep:
                continue
            child = children.get(field)
            if child is not None:
                named = self.text(body, position, _NODE_OUTPUT) if child == "node" else owner
                inner = self.message(body, position, child, named, depth + 1)
                pieces.append(bytes(self._data[copied:begin]))
                pieces.append(_varint(field << 3 | _BYTES) + _varint(sum(map(len, inner))))
                pieces.extend(inner)
                copied = position
            elif kind == "tensor" and field in _PAYLOADS:
                if len(self._payloads) - first >= _MAX_PARTS:  # looking the name up once a part would take for ever
                    raise Malformed(f"the tensor at byte {start} keeps its data in more than {_MAX_PARTS} parts")
                name = self.text(start, end, _TENSOR_NAME) or owner
                self._payloads.append(Payload(name, self.number(start, end, _TENSOR_TYPE), field, body, size))
                pieces.append(bytes(self._data[copied:begin]))
                copied = position
        pieces.append(bytes(self._data[copied:end]))
        return pieces

    def field(self, position: int, end: int) -> tuple[int, int, int, int]:
        """Read a field's head: its number, its wire type, where its body begins and where it ends."""
        begin = position
        tag, position = self.varint(position, end)
        field, wire = tag >> 3, tag & 7
        body = position
        if wire == _VARINT:
            _, position = self.varint(position, end)
        elif wire == _BYTES:
            size, body = self.varint(position, end)
            position = body + size
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"byte {begin} begins no field of an ONNX file")
        if field == 0:
            raise Malformed(f"byte {begin} begins no field of an ONNX file")
        if position > end:
            raise Malformed(f"a field at byte {begin} needs {position - body} bytes, {end - body} are left")
        return field, wire, body, position

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Read a base-128 number of at most ten bytes."""
        value = shift = 0
        while position < end and shift < 70:  # noqa: PLR2004 - ten groups of seven bits
            byte = self._data[position]
            value |= (byte & 0x7F) << shift
            position += 1
            if byte < 0x80:  # noqa: PLR2004 - the high bit says that more follows
                return value, position
            shift += 7
        raise Malformed(f"the number at byte {position} does not end")

    def text(self, start: int, end: int, wanted: int) -> str:
        """The first text of a field in a message; empty if there is none."""
        while start < end:
            field, wire, body, start = self.field(start, end)
            if field == wanted and wire == _BYTES:
                return bytes(self._data[body : min(start, body + 1024)]).decode("utf-8", "replace")
        return ""

    def number(self, start: int, end: int, wanted: int) -> int:
        """The first number of a field in a message; 0 if there is none."""
        while start < end:
            field, wire, body, start = self.field(start, end)
            if field == wanted and wire == _VARINT:
                return self.varint(body, end)[0]
        return 0


def _varint(value: int) -> bytes:
    """Write a base-128 number."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
