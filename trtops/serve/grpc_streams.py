"""Calls of the gRPC port: messages in a stream's body, deadlines, faults as trailers, unary calls and streams of them.

No task and no future is made for a unary inference: its answer is written when the executor gives it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import InputError, TrtopsError
from trtops.serve.exchange import HttpError, decompress
from trtops.serve.faults import Fault, fault_of
from trtops.serve.grpc_messages import field, messages, status_details

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.executor.port import Outcome
    from trtops.serve.grpc_server import GrpcPort
    from trtops.serve.oip import Codec, Decoded
    from trtops.serve.streams import Headers, Stream

log = logging.getLogger(__name__)

_STREAMED: Final = 64
"""Requests of a stream that have no answer, or one that the client leaves no window for."""
_PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and its size."""
_LONGEST_MESSAGE: Final = 1000
_INTERNAL: Final = 13
_CODES: Final[Mapping[int, int]] = {
    400: 3,  # INVALID_ARGUMENT
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    406: 9,  # FAILED_PRECONDITION
    413: 8,  # RESOURCE_EXHAUSTED
    415: 12,  # UNIMPLEMENTED
    429: 8,
    431: 8,
    501: 12,
    503: 14,  # UNAVAILABLE
    504: 4,  # DEADLINE_EXCEEDED
}
"""HTTP status of a fault -> gRPC code; INTERNAL is what is left."""
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_DIGITS: Final = 8


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that enters no table (RFC 7541, 6.2.2), names and values as they are."""
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    size = len(text)
    if size < 127:  # noqa: PLR2004 - a prefix of seven bits
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


_TOO_MUCH: Final = Fault(503, "overloaded", "too many bytes of requests are held; try again", 1.0)
_UNTAKEN: Final = Fault(429, "overloaded", "answers wait that this connection does not take: read them, then ask", 1.0)

_OK_HEAD: Final = b"\x88" + _literal(b"content-type", b"application/grpc")
_FINAL: Final = b"\x22\x1b\x0a\x15triton_final_response\x12\x02\x08\x01"
"""The parameter that tells clients of a stream that no more answers come to a request; protobuf, field 4."""
_OK: Final = _literal(b"grpc-status", b"0")


def _base64(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _percent(text: str) -> bytes:
    """A message as the trailer ``grpc-message`` carries it: printable ASCII, the rest percent-encoded."""
    return b"".join(
        bytes((byte,)) if 32 <= byte < 127 and byte != 37 else b"%%%02X" % byte  # noqa: PLR2004 - printable, "%"
        for byte in text[:_LONGEST_MESSAGE].encode(errors="replace")
    )


def trailers_of(fault: Fault) -> bytes:
    """The block of trailers that tell a fault; one that may be tried again says when, in both ways of clients."""
    code = _CODES.get(fault.status, _INTERNAL)
    block = _literal(b"grpc-status", b"%d" % code) + _literal(b"grpc-message", _percent(fault.message))
    if fault.retry_after is not None:
        details = status_details(code, fault.message[:_LONGEST_MESSAGE], fault.retry_after)
        block += _literal(b"retry-after", f"{fault.retry_after:g}".encode())
        block += _literal(b"grpc-status-details-bin", _base64(details))
    return block


def _framed(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def timeout_of(value: bytes) -> float | None:
    """Seconds of a ``grpc-timeout``; None: it is none.

    Raises:
        InputError: it is malformed.
    """
    if not value:
        return None
    unit = _UNITS.get(value[-1:])
    if unit is None or not value[:-1].isdigit() or len(value) > _MAX_DIGITS + 1:
        raise InputError(f"grpc-timeout: expected up to 8 digits and a unit, got {value[:40]!r}")
    return int(value[:-1]) * unit


class Call:
    """What every call has: its stream, its metadata, and the messages of its body.

    Attributes:
        stream: that it came on.
        metadata: its headers.
    """

    def __init__(self, port: GrpcPort, stream: Stream, metadata: Headers) -> None:
        """Begin with no message."""
        self.port = port
        self.stream = stream
        self.metadata = metadata
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = _PREFIX
        self._head = _OK_HEAD
        self._over = False

    def data(self, piece: bytes) -> None:
        """Take a piece of the body; refuse one that is too large as soon as it says so."""
        self._pieces.append(piece)
        self._size += len(piece)
        limits = self.port.limits
        if self._size > limits.body_bytes + 5:
            self.refuse(Fault(413, "too_large", f"the message is too large: {limits.body_bytes} bytes are allowed"))
        elif self.port.buffered > limits.buffered_bytes:
            self.refuse(_TOO_MUCH)

    def take(self) -> bytes | None:
        """The next message; None: it is not whole.

        Raises:
            HttpError: it is too large, or its compression is not taken.
        """
        if self._size < self._needed:
            return None
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = [body]
        limit = self.port.limits.body_bytes
        size = int.from_bytes(body[1:5], "big")
        if size > limit:
            raise HttpError(413, f"the message is too large: {limit} bytes are allowed")
        if len(body) < 5 + size:
            self._needed = 5 + size  # until then, pieces are not joined again and again
            return None
        self._needed = _PREFIX
        data, rest = body[5 : 5 + size], body[5 + size :]
        self._pieces, self._size = ([rest] if rest else []), len(rest)
        if not body[0]:
            return data
        encoding = self.header(b"grpc-encoding") or b""
        if body[0] != 1 or encoding in {b"", b"identity"}:
            raise HttpError(400, "a message is compressed, and grpc-encoding does not say how")
        data = decompress(data, encoding, limit)
        self._hold(len(data))
        if self.port.buffered > self.port.limits.buffered_bytes:
            raise HttpError(_TOO_MUCH.status, _TOO_MUCH.message)
        return data

    def _hold(self, size: int) -> None:
        """Count bytes of requests, until the stream is over or they are given back (negative)."""
        self.port.buffered += size
        self.stream.held += size

    def reply(self, data: bytes) -> None:
        """Answer with a message, unless its client takes none."""
        if self.stream.connection.is_full():
            self.refuse(_UNTAKEN)
        elif not self._over:
            self._over = True
            self.stream.connection.answer(self.stream, _OK_HEAD, _framed(data), _OK)

    def header(self, name: bytes) -> bytes | None:
        """A value of the call's metadata."""
        for key, value in self.metadata:
            if key == name:
                return value
        return None

    def refuse(self, fault: Fault) -> None:
        """Answer with an error."""
        if not self._over:
            self._over = True
            self.port.refused(fault)
            self.stream.connection.answer(self.stream, self._head, b"", trailers_of(fault), well=False)

    def late(self) -> None:
        """Its body took too long to come."""
        self.refuse(Fault(504, "deadline", "the message took too long to come"))

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._over = True

    def _fail(self, error: Exception) -> None:
        if isinstance(error, HttpError):
            self.refuse(Fault(error.status, "malformed", error.message, 1.0 if error.status == 503 else None))  # noqa: PLR2004 - HTTP's own number
            return
        if not isinstance(error, TrtopsError):
            log.error("a gRPC call failed", exc_info=error)
        self.refuse(fault_of(error))


class Unary(Call):
    """A call that needs its request alone: answered by a coroutine that gives a message."""

    def __init__(self, port: GrpcPort, stream: Stream, metadata: Headers, name: str, answering: Any) -> None:  # noqa: ANN401 - a coroutine function
        """Answer by ``answering``; ``name`` is the method's."""
        super().__init__(port, stream, metadata)
        self._name = name
        self._answering = answering
        self._task: asyncio.Future[None] | None = None

    def end(self) -> None:
        """Start the answer."""
        self._task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        try:
            data = self.take()
            if data is None or self._size:
                raise InputError("a unary call has one message")  # noqa: TRY301 - answered like every other
            answer = await self._answering(read(f"{self._name}Request", data))
            self.reply(answer if isinstance(answer, bytes) else answer.SerializeToString())
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            self._fail(error)


class Infer(Call):
    """``ModelInfer``: a :class:`trtops.serve.inference.Caller`."""

    def __init__(self, port: GrpcPort, stream: Stream, metadata: Headers) -> None:
        """Wait for the request."""
        super().__init__(port, stream, metadata)
        self.request: Any = None
        self.started = 0.0
        self.context: Any = None
        self.remaining: float | None = None
        self._cancel: Callable[[], None] | None = None

    @property
    def cancel(self) -> Callable[[], None]:
        """Takes the request back."""
        return self._taken_back

    @cancel.setter
    def cancel(self, value: Callable[[], None] | None) -> None:
        self._cancel = value

    def _taken_back(self) -> None:
        self._over = True
        if self._cancel is not None:
            self._cancel()

    def end(self) -> None:
        """Pass the request on."""
        self.started = time.monotonic()
        try:
            data = self.take()
            if data is None or self._size:
                raise InputError("a unary call has one message")  # noqa: TRY301 - answered like every other
            self.remaining = timeout_of(self.header(b"grpc-timeout") or b"")
            self.request = read("ModelInferRequest", data)
            self.port.infer(self)
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            self._fail(error)

    def give(self, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        """Answer with what came out."""
        data = self.port.codec_of(codec).encode(decoded, outcome)
        self._cancel = None
        self.reply(data)


class Piece(Infer):
    """One request of a stream of them."""

    def __init__(self, whole: Streaming, request: Any, size: int) -> None:  # noqa: ANN401 - protobuf's
        """Belong to a stream. ``size``: bytes of the request, and then of its answer."""
        super().__init__(whole.port, whole.stream, whole.metadata)
        self.request = request
        self.started = time.monotonic()
        self.answer: bytes | None = None
        self.refused = False
        self.size = size
        self._whole = whole

    def give(self, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        """Keep the answer until its turn."""
        self._cancel = None
        self._answered(field(2, self.port.codec_of(codec).encode(decoded, outcome) + _FINAL))

    def _answered(self, answer: bytes) -> None:
        """From now on the answer is held, not the request."""
        self.request, self.answer = None, answer
        self._whole.answered(self, len(answer) - self.size)

    def refuse(self, fault: Fault) -> None:
        """Keep the error until its turn: it ends no other request."""
        if self.answer is not None:
            return
        self._cancel, self.refused = None, True
        name, key = self.request.model_name, self.request.id
        failed = messages()["ModelInferResponse"](id=key, model_name=name).SerializeToString()
        self._answered(field(1, fault.message.encode()) + field(2, failed))


class Streaming(Call):
    """``ModelStreamInfer``: requests run together, answers come in their order."""

    def __init__(self, port: GrpcPort, stream: Stream, metadata: Headers) -> None:
        """Begin with no request."""
        super().__init__(port, stream, metadata)
        self._waiting: deque[Piece] = deque()
        self._written: deque[int] = deque()  # bytes of the stream's answers up to the end of each that is not sent
        self._bytes = 0
        self._taken = 0
        self._flushes = -1
        self._last = False

    def data(self, piece: bytes) -> None:
        """Start what is whole."""
        if not self._over:
            super().data(piece)
        self._note_sent()
        try:
            while not self._over and (data := self.take()) is not None:
                self._begin(data)
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            self._fail(error)
        if self._over:
            self._pieces, self._size, self._taken = [], 0, 0
        self._hold(self._size + self._taken - self.stream.held)

    def _begin(self, data: bytes) -> None:
        """Start a request, if the stream and its connection may have one more."""
        connection = self.stream.connection
        if len(self._waiting) + len(self._written) >= _STREAMED:
            raise HttpError(429, f"a stream may have {_STREAMED} requests in flight")
        if connection.asked >= self.port.limits.queued:
            raise HttpError(429, f"the streams of a connection may have {self.port.limits.queued} requests in flight")
        if connection.is_full():
            raise HttpError(_UNTAKEN.status, _UNTAKEN.message)
        one = Piece(self, read("ModelInferRequest", data), len(data))
        self._waiting.append(one)
        self._taken += one.size
        connection.asked += 1
        self.port.infer(one)

    def answered(self, one: Piece, more: int) -> None:
        """One of them has its answer, of so many bytes more than it had itself."""
        self.stream.connection.asked -= 1
        if not self._over:
            one.size += more
            self._taken += more
            self._hold(more)
        self.write()

    def _note_sent(self) -> None:
        """Forget answers that are on their way; none is before the turn's end, so nobody asks for more in one turn."""
        connection, stream = self.stream.connection, self.stream
        if connection.flushes != self._flushes:
            self._flushes = connection.flushes
            sent = self._bytes - stream.left
            while self._written and self._written[0] <= sent:
                self._written.popleft()

    def end(self) -> None:
        """No more requests come."""
        self._last = True
        self.write()

    def late(self) -> None:
        """A stream may stay open."""

    def write(self) -> None:
        """Write the answers whose turn it is."""
        connection, ready, refused, given = self.stream.connection, [], 0, 0
        while self._waiting and (answer := self._waiting[0].answer) is not None:
            one = self._waiting.popleft()
            refused += one.refused
            self._taken -= one.size
            given += one.size
            ready.append(_framed(answer))
        if self._over:
            return
        if given:
            self._hold(-given)  # the connection counts them, until they are sent
        for data in ready:
            self._bytes += len(data)
            self._written.append(self._bytes)
        if self._last and not self._waiting:
            self._over = True
            connection.answer(self.stream, self._head, b"".join(ready), _OK)
        elif ready:
            connection.part(self.stream, self._head, b"".join(ready), len(ready) - refused, refused)
            self._head = b""

    def refuse(self, fault: Fault) -> None:
        """End the stream with an error, after the answers that there are."""
        super().refuse(fault)
        self.cancel()

    def cancel(self) -> None:
        """Take all of them back."""
        self._over = True
        for one in tuple(self._waiting):
            one.cancel()


class Nothing(Call):
    """A call that is refused whatever its body says."""

    def __init__(self, port: GrpcPort, stream: Stream, metadata: Headers, fault: Fault) -> None:
        """Refuse."""
        super().__init__(port, stream, metadata)
        self.refuse(fault)

    def data(self, piece: bytes) -> None:
        """Drop it."""

    def end(self) -> None:
        """Do nothing."""


def read(name: str, data: bytes) -> Any:  # noqa: ANN401 - protobuf's class
    """A message of its bytes.

    Raises:
        InputError: they are none. Blame the client.
    """
    from google.protobuf.message import DecodeError

    try:
        return messages()[name].FromString(data)
    except DecodeError:
        raise InputError(f"not a {name}: the message's bytes are no such protobuf") from None
