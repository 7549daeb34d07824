"""HTTP/2 on an event loop, as much of it as gRPC needs: frames, flow control, streams (RFC 9113).

Header blocks are read by :mod:`.blocks`. Answers that become ready in one turn of the loop are one write.

A peer is bounded in what it may make this end hold (streams, header blocks, bodies, unread answers) and do for nothing:
frames that ask for work and carry no request (pings, settings, resets, empty data) draw on a budget that time and
served requests fill up again, so that floods of them end the connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Final

from trtops.serve.blocks import HEADER_LIST, Blocks
from trtops.serve.frames import (
    ACK,
    CALM,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FLOW,
    FRAME_SIZE,
    GOAWAY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW,
    INTERNAL,
    LARGEST,
    LEAST_FRAME,
    MAX_FRAME,
    MAX_HEADER_LIST,
    MAX_STREAMS,
    NO_ERROR,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL,
    PUSH,
    REFUSED,
    RESET,
    SETTING,
    SETTINGS,
    WINDOW,
    WITH_PRIORITY,
    Fault,
    frame,
    sized,
    unpadded,
)
from trtops.serve.streams import Owner, Stream

log = logging.getLogger(__name__)

_FRAME: Final = 1 << 18
"""Bytes of a frame that this end takes."""
_STREAM_WINDOW: Final = 1 << 20
_WINDOW: Final = 1 << 24
_BUDGET: Final = 4000.0
_REFILL: Final = 200.0
"""Frames a second that a peer may send for nothing, beside those for each request that was answered."""
_SERVED: Final = 8.0
_REFUSED: Final = 4.0
"""A client's library sends two to four frames an answer (windows, a ping), whatever the answer says."""
_RESET: Final = 5.0
"""A reset costs more than a refusal earns: else a flood of requests, each refused and reset at once, had no end."""


class Connection(asyncio.Protocol):
    """One client's connection. ``asked``: requests of its streams of requests that have no answer."""

    def __init__(self, owner: Owner) -> None:
        """Make a connection of a port."""
        self._owner = owner
        self._limits = owner.limits
        self._blocks = Blocks()
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._buffer = b""
        self._out: list[bytes] = []
        self._dirty = False
        self._prefaced = False
        self._block: list[bytes] = []
        self._block_size = 0
        self._block_of: tuple[int, int] | None = None
        self._window = FIRST_WINDOW
        self._initial = FIRST_WINDOW
        self._receive = _WINDOW
        self._unread = 0
        self._budget = _BUDGET
        self._refilled = owner.now()
        self._going = False
        self._untaken = 0
        self.asked = 0
        self.transport: asyncio.Transport | None = None
        self.busy = owner.now()
        self.stalled: float | None = None
        self.flushes = 0

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self.transport = transport  # type: ignore[assignment]  # a stream's transport
        owner = self._owner
        if len(owner.connections) >= self._limits.connections:
            transport.close()
            return
        owner.connections.add(self)
        ours = {
            MAX_STREAMS: self._limits.queued,
            INITIAL_WINDOW: _STREAM_WINDOW,
            MAX_FRAME: _FRAME,
            MAX_HEADER_LIST: HEADER_LIST,
        }
        self._send(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in ours.items()))
        self._send(WINDOW, 0, 0, struct.pack(">I", _WINDOW - FIRST_WINDOW))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what the client waits for."""
        del exc
        self.transport = None
        self._owner.connections.discard(self)
        for stream in tuple(self._streams.values()):
            self._drop(stream)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self.stalled = self._owner.now()
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.stalled = None
        if self.transport is not None:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Read frames. Every fault ends in a GOAWAY and the end of the connection."""
        if self._going and not self._streams:
            return
        try:
            self._buffer = self._read(self._buffer + data if self._buffer else data)
        except Fault as fault:
            self.go_away(fault.code, str(fault))
        except Exception:
            log.exception("an HTTP/2 connection failed")
            self.go_away(INTERNAL, "internal error")
        self.flush()

    def _read(self, data: bytes) -> bytes:
        at, size = 0, len(data)
        if not self._prefaced:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise Fault(PROTOCOL, "this port speaks HTTP/2 with prior knowledge, as gRPC does")
            if size < len(PREFACE):
                return data
            self._prefaced = True
            at = len(PREFACE)
        while size - at >= HEAD.size:
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            length = high << 16 | low
            if length > _FRAME:
                raise Fault(FRAME_SIZE, f"a frame of {length} bytes")
            end = at + HEAD.size + length
            if end > size:
                break
            self._frame(kind, flags, number & LARGEST, data[at + HEAD.size : end])
            at = end
        return data[at:]

    # Frames.

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block_of is not None and (kind != CONTINUATION or number != self._block_of[0]):
            raise Fault(PROTOCOL, "a header block was not continued")
        if kind == DATA:
            self._data(flags, number, payload)
        elif kind == HEADERS:
            self._headers(flags, number, payload)
        elif kind == CONTINUATION:
            self._continue(flags, payload)
        else:
            self._control(kind, flags, number, payload)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        payload = unpadded(flags, payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:  # noqa: PLR2004 - the field's size
                raise Fault(FRAME_SIZE, "a short HEADERS frame")
            payload = payload[5:]
        if not number & 1:
            raise Fault(PROTOCOL, f"stream {number} is none of a client")
        if flags & END_HEADERS:
            self._begin(number, flags, payload)
            return
        self.busy = self._owner.now()
        self._block, self._block_size = [payload], len(payload)
        self._block_of = number, flags

    def _continue(self, flags: int, payload: bytes) -> None:
        if self._block_of is None:
            raise Fault(PROTOCOL, "a CONTINUATION of nothing")
        self._pay()
        self._block.append(payload)
        self._block_size += len(payload)
        if self._block_size > HEADER_LIST:
            raise Fault(CALM, "a header block without end")
        if flags & END_HEADERS:
            number, first = self._block_of
            self._block_of = None
            self._begin(number, first, b"".join(self._block))

    def _begin(self, number: int, flags: int, block: bytes) -> None:
        headers = self._blocks.read(block)
        stream = self._streams.get(number)
        if stream is not None:  # trailers of a request
            if stream.ended or not flags & END_STREAM:
                raise Fault(PROTOCOL, "headers in the middle of a request")
            self._end(stream)
            return
        if number <= self._last:
            self._pay()  # a stream that is over: reset, or answered before its end
            return
        self._last = number
        if self._going or len(self._streams) >= self._limits.queued:
            self._pay()
            self._send(RESET, 0, number, struct.pack(">I", REFUSED))
            return
        stream = self._streams[number] = Stream(self, number, self._initial, self._owner.now())
        self.busy = stream.started
        stream.receiver = self._owner.open(stream, headers)
        if flags & END_STREAM and number in self._streams:
            self._end(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._receive -= size
        if self._receive < 0:
            raise Fault(FLOW, "more data than the window allows")
        self._unread += size
        if self._unread >= _WINDOW // 4:
            self._send(WINDOW, 0, 0, struct.pack(">I", self._unread))
            self._receive += self._unread
            self._unread = 0
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            if not number & 1 or number > self._last:
                raise Fault(PROTOCOL, f"data of stream {number}, which is not open")
            self._pay()
            return
        piece = unpadded(flags, payload)
        if not piece and not flags & END_STREAM:
            self._pay()
        if piece and stream.receiver is not None:
            self._owner.buffered += len(piece)
            stream.held += len(piece)
            stream.receiver.data(piece)
        if number not in self._streams:
            return
        if flags & END_STREAM:
            self._end(stream)
            return
        stream.unread += size
        if stream.unread > _STREAM_WINDOW:
            raise Fault(FLOW, "more data than the stream's window allows")
        if stream.unread >= _STREAM_WINDOW // 2:
            self._send(WINDOW, 0, number, struct.pack(">I", stream.unread))
            stream.unread = 0

    def _end(self, stream: Stream) -> None:
        stream.ended = True
        if stream.receiver is not None:
            stream.receiver.end()

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self._pay(_RESET if kind == RESET else 1.0)
        if kind == WINDOW:
            self._widen(number, payload)
        elif kind == RESET:
            sized(payload, 4)
            if not number or number > self._last:
                raise Fault(PROTOCOL, "a reset of a stream that was never open")
            stream = self._streams.get(number)
            if stream is not None:
                self._drop(stream)
        elif kind == SETTINGS:
            self._set(flags, number, payload)
        elif kind == PING:
            sized(payload, 8)
            if not flags & ACK:
                self._send(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self._going = True
            self._close_when_done()
        elif kind == PUSH:
            raise Fault(PROTOCOL, "clients do not push")
        elif kind == PRIORITY:
            sized(payload, 5)

    def _widen(self, number: int, payload: bytes) -> None:
        sized(payload, 4)
        more = int.from_bytes(payload, "big") & LARGEST
        if not more:
            raise Fault(PROTOCOL, "a window that grows by nothing")
        if not number:
            self._window += more
            if self._window > LARGEST:
                raise Fault(FLOW, "the window is too large")
            for stream in tuple(self._streams.values()):
                if stream.waiting or stream.trailers:
                    self._push(stream)
            return
        if number > self._last:
            raise Fault(PROTOCOL, "a window of a stream that was never open")
        found = self._streams.get(number)
        if found is not None:
            found.window += more
            if found.window > LARGEST:
                raise Fault(FLOW, "the stream's window is too large")
            self._push(found)

    def _set(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % SETTING.size or (flags & ACK and payload):
            raise Fault(FRAME_SIZE, "settings of a wrong size or for a stream")
        if flags & ACK:
            return
        for key, value in SETTING.iter_unpack(payload):
            if key == INITIAL_WINDOW:
                if value > LARGEST:
                    raise Fault(FLOW, "the initial window is too large")
                for stream in tuple(self._streams.values()):
                    stream.window += value - self._initial
                    if stream.window > LARGEST:
                        raise Fault(FLOW, "a stream's window is too large")
                self._initial = value
        self._send(SETTINGS, ACK, 0)
        for stream in tuple(self._streams.values()):
            self._push(stream)

    def _pay(self, frames: float = 1.0) -> None:
        """Take a frame that carries no request, which counts as so many, out of the peer's budget."""
        self._budget -= frames
        if self._budget < 0:
            now = self._owner.now()
            self._budget = min(_BUDGET, (now - self._refilled) * _REFILL) - frames
            self._refilled = now
            if self._budget < 0:
                raise Fault(CALM, "too many frames that carry no request")

    def _earn(self, frames: float) -> None:
        """Let the peer send more of them: it asked for something, and has its answer."""
        self._budget = min(_BUDGET, self._budget + frames)

    # Answers.

    def answer(self, stream: Stream, head: bytes, data: bytes, trailers: bytes, *, well: bool = True) -> None:
        """Answer a stream for good. One that is gone takes nothing.

        Args:
            stream: which one.
            head: block of the headers; empty if they were sent before, or if ``trailers`` are all there is.
            data: the body.
            trailers: block of the trailers, which end the stream.
            well: whether the request was served, which fills up the peer's budget more than a refusal does.
        """
        number = stream.number
        if self._streams.get(number) is not stream:
            return
        if head:
            self._send(HEADERS, END_HEADERS, number, head)
        self._append(stream, data)
        stream.trailers = trailers
        self._earn(_SERVED if well else _REFUSED)
        self._push(stream)

    def part(self, stream: Stream, head: bytes, data: bytes, served: int, refused: int) -> None:
        """Send a part of an answer, in which so many requests were served and refused."""
        if self._streams.get(stream.number) is stream:
            self._earn(_SERVED * served + _REFUSED * refused)
            if head:
                self._send(HEADERS, END_HEADERS, stream.number, head)
            self._append(stream, data)
            self._push(stream)

    def _append(self, stream: Stream, data: bytes) -> None:
        """Let more wait to be sent; from when on it does tells whether the peer takes it in time."""
        stream.left += len(data)
        if stream.waiting:
            stream.more.append(data)
        else:
            stream.waiting, stream.started = data, self._owner.now()

    def _push(self, stream: Stream) -> None:
        """Send as much as the windows allow, then the trailers."""
        data, number, at, left = stream.waiting, stream.number, stream.sent, stream.left
        while at < len(data) and stream.window > 0 and self._window > 0:
            piece = data[at : at + min(LEAST_FRAME, stream.window, self._window)]
            at += len(piece)
            stream.left -= len(piece)
            stream.window -= len(piece)
            self._window -= len(piece)
            self._send(DATA, 0, number, piece)
            if at == len(data) and stream.more:
                data, at = stream.more.popleft(), 0
        if stream.left < left:
            stream.waiting, stream.sent, stream.started = data, at, self._owner.now()
        if not stream.left:
            stream.waiting, stream.sent = b"", 0
        if stream.left != stream.counted:
            self._count(stream)
        if not stream.waiting and stream.trailers:
            self._send(HEADERS, END_STREAM | END_HEADERS, number, stream.trailers)
            if not stream.ended:  # the client need not send the rest
                self._send(RESET, 0, number, struct.pack(">I", NO_ERROR))
            self._forget(stream)

    def _count(self, stream: Stream) -> None:
        """Count what waits to be sent."""
        more, stream.counted = stream.left - stream.counted, stream.left
        self._untaken += more
        self._owner.buffered += more

    def is_full(self) -> bool:
        """Whether answers wait that the client does not take, more than may: it gets no others, and cannot ask."""
        most, stuck = self._limits.untaken_bytes, self.transport if self.stalled is not None else None
        return self._untaken > most or (stuck is not None and stuck.get_write_buffer_size() > most)

    def _drop(self, stream: Stream) -> None:
        self._forget(stream)
        if stream.receiver is not None:
            stream.receiver.cancel()

    def _forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is not None:
            self._owner.buffered -= stream.held
            stream.held = stream.left = 0
            self._count(stream)
            self.busy = self._owner.now()
            self._close_when_done()

    def _send(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        self._out.append(frame(kind, flags, number, payload))
        if not self._dirty:
            self._dirty = True
            self._owner.soon(self)

    def flush(self) -> None:
        """Write what was sent."""
        self._dirty = False
        self.flushes += 1
        if self._out:
            if self.transport is not None:
                self.transport.write(b"".join(self._out))
            self._out.clear()

    # The end.

    def go_away(self, code: int = NO_ERROR, why: str = "") -> None:
        """Take no more requests; with an error, drop those that there are. The connection ends after the last one."""
        if not self._going or code:
            self._send(GOAWAY, 0, 0, struct.pack(">II", self._last, code) + why.encode()[:200])
        self._going = True
        if code:
            for stream in tuple(self._streams.values()):
                self._drop(stream)
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._going and not self._streams and self.transport is not None and not self.transport.is_closing():
            self.flush()
            self.transport.close()

    def look(self, now: float) -> None:
        """Hold the client to its times; called now and then."""
        limits = self._limits
        if self.stalled is not None and now - self.stalled > limits.write_time:
            if self.transport is not None:
                self.transport.abort()
            return
        unfinished = not self._prefaced or self._block_of is not None
        if unfinished and now - self.busy > limits.header_time:
            self.go_away(CALM, "the headers took too long to come")
        elif not self._streams and now - self.busy > limits.idle_time * (4.0 if self._prefaced else 1.0):
            self.go_away()
        for stream in tuple(self._streams.values()):
            if stream.waiting and now - stream.started > limits.write_time:
                self._send(RESET, 0, stream.number, struct.pack(">I", CALM))
                self._drop(stream)
            elif not stream.ended and now - stream.started > limits.body_time and stream.receiver is not None:
                late = getattr(stream.receiver, "late", None)
                if late is not None:
                    late()
