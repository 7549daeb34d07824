"""A client of HTTP/2, frame by frame, and the server that it asks."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hpack

from tests.support.serving import FakeEngines, Served, add_up, info, serving
from trtops.serve.exchange import Limits
from trtops.serve.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    PREFACE,
    RESET,
    SETTING,
    SETTINGS,
    frame,
)
from trtops.serve.grpc_messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = b"/grpc.health.v1.Health/Check"
ROOM = Limits(body_bytes=1 << 20, header_bytes=2048, queued=32)
QUICK = replace(ROOM, header_time=1.0, body_time=1.0, idle_time=1.0)
_SOCKETS: list[socket.socket] = []


def message(rows: int = 1, width: int = 4) -> bytes:
    asked = messages()["ModelInferRequest"](model_name="sum", raw_input_contents=[bytes(4 * rows * width)])
    asked.inputs.add(name="x", datatype="FP32", shape=[rows, width])
    data: bytes = asked.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def close_sockets() -> None:
    """Close those of all clients."""
    while _SOCKETS:
        _SOCKETS.pop().close()


class Client:
    """A client that says just what a test wants."""

    def __init__(self, served: Served, *, greet: bool = True, window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.grpc), timeout=20)
        _SOCKETS.append(self.socket)
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.buffer = b""
        if greet:
            first = b"" if window is None else SETTING.pack(4, window)
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, first))

    def headers(self, path: bytes = INFER, **more: str) -> bytes:
        pairs = [(":method", "POST"), (":scheme", "http"), (":path", path.decode()), (":authority", "t")]
        pairs += [("te", "trailers"), ("content-type", "application/grpc")]
        pairs += [(name.replace("_", "-"), value) for name, value in more.items()]
        data: bytes = self.encoder.encode(pairs)
        return data

    def ask(self, number: int, body: bytes, path: bytes = INFER, **more: str) -> None:
        self.socket.sendall(
            frame(HEADERS, END_HEADERS, number, self.headers(path, **more)) + frame(DATA, END_STREAM, number, body)
        )

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while True:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + self._size():
                piece = self.socket.recv(1 << 16)
                if not piece:
                    return
                self.buffer += piece
            _, _, kind, flags, number = HEAD.unpack_from(self.buffer)
            size = self._size()
            payload, self.buffer = self.buffer[9 : 9 + size], self.buffer[9 + size :]
            yield kind, flags, number, payload

    def _size(self) -> int:
        return int.from_bytes(self.buffer[:3], "big")

    def answer(self, number: int) -> tuple[dict[str, str], bytes]:
        """Headers and trailers of a stream together, and its body."""
        found: dict[str, str] = {}
        body = b""
        for kind, flags, stream, payload in self.frames():
            if kind == HEADERS:
                pairs: dict[str, str] = dict(self.decoder.decode(payload))  # type: ignore[arg-type]  # text, not raw
                if stream == number:
                    found |= pairs
            elif kind == DATA and stream == number:
                body += payload
            if stream == number and flags & END_STREAM and kind in {HEADERS, DATA}:
                return found, body
            assert kind != GOAWAY, payload
        raise AssertionError("the connection ended")

    def part(self, number: int) -> bytes:
        """A part of a stream's body."""
        for kind, _, stream, payload in self.frames():
            assert kind != GOAWAY, payload
            if kind == HEADERS:
                self.decoder.decode(payload)
            elif kind == DATA and stream == number:
                return payload
        raise AssertionError("the connection ended")

    def end(self) -> int:
        """The code that the connection ends with."""
        code = -1
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                code = struct.unpack(">II", payload[:8])[1]
        return code


@contextmanager
def server(limits: Limits = ROOM, **engine: Any) -> Iterator[tuple[Served, FakeEngines]]:
    engines = FakeEngines(**engine)
    engines.add(info(), add_up)
    with serving(engines, limits, grpc=True) as served:
        yield served, engines


def held(served: Served) -> int:
    return sum(port.buffered for port in served.server._grpc)


def until_reset(client: Client) -> Iterator[tuple[int, int, int, bytes]]:
    for found in client.frames():
        yield found
        if found[0] == RESET:
            return
