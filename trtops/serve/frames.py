"""HTTP/2's frames: their numbers, their bytes, and how a peer can break them (RFC 9113, 4 to 7)."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL, INTERNAL, FLOW, FRAME_SIZE, REFUSED, COMPRESSION, CALM = 0, 1, 2, 3, 6, 7, 9, 11

HEAD: Final = struct.Struct(">BHBBI")
SETTING: Final = struct.Struct(">HI")
MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = 3, 4, 5, 6
FIRST_WINDOW: Final = 65535
LARGEST: Final = 2**31 - 1
LEAST_FRAME: Final = 1 << 14
"""Bytes of a frame that every peer takes."""


class Fault(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: int, why: str) -> None:
        """Keep the code."""
        super().__init__(why)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def sized(payload: bytes, size: int) -> None:
    """Refuse a payload of another size.

    Raises:
        Fault: it has one.
    """
    if len(payload) != size:
        raise Fault(FRAME_SIZE, f"a frame of {len(payload)} bytes in place of {size}")


def unpadded(flags: int, payload: bytes) -> bytes:
    """A payload without its padding.

    Raises:
        Fault: there is more padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Fault(PROTOCOL, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
