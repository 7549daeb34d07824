"""One HTTP request and the slot for its answer; what clients may ask for at most; content codings."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.executor.port import Outcome
    from trtops.serve.faults import Fault
    from trtops.serve.oip import Codec, Decoded


@dataclass(frozen=True)
class Limits:
    """Bounds of what a client may ask for. Sizes in bytes, times in seconds.

    Attributes:
        header_bytes, headers: of a request line and its headers together; how many headers.
        body_bytes: of a body, also after decompression.
        header_time: from the first byte of a request to the end of its headers.
        body_time: from the end of the headers to the end of the body.
        idle_time: between two requests of a connection.
        write_time: without progress of a client that does not read its answer.
        pipelined: requests of one connection that are worked on at the same time; more wait.
        queued: requests of one connection that wait at most; more are refused, and the connection is closed.
        connections: open at the same time; more are answered 503.
        buffered_bytes: bodies of all connections together, with gRPC's answers that wait; more are answered 503.
        untaken_bytes: answers that a gRPC client leaves no window for; others are refused until it takes some.
    """

    header_bytes: int = 16 << 10
    headers: int = 100
    body_bytes: int = 64 << 20
    header_time: float = 10.0
    body_time: float = 60.0
    idle_time: float = 75.0
    write_time: float = 30.0
    pipelined: int = 16
    queued: int = 256
    connections: int = 4096
    buffered_bytes: int = 1 << 30
    untaken_bytes: int = 64 << 20


class HttpError(Exception):
    """A request that is answered with an error status and not passed on.

    Attributes:
        status: HTTP status code.
        close: whether what follows on the connection can still be trusted to be a request.
    """

    def __init__(self, status: int, message: str, *, close: bool = True) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.close = close


def error_body(message: str) -> bytes:
    """The protocol's error document."""
    return msgspec.json.encode({"error": message})


class Line(Protocol):
    """The connection that an exchange belongs to."""

    def answered(self, exchange: Exchange, status: int, parts: Sequence[bytes], extra: bytes, kind: bytes) -> None:
        """Fill the exchange's slot and write what may be written."""


class Exchange(msgspec.Struct, eq=False):
    """One request and the slot for its answer. Belongs to the event loop's thread.

    Attributes:
        line: the connection.
        method: ``GET``, ``HEAD`` or ``POST``, as bytes.
        target: the request target as it came.
        headers: lower-case name -> value; the last one of a repeated name.
        body: the whole body, decompressed.
        started: monotonic seconds at which the request was complete.
        answer: pieces to write, once there is an answer.
        held: bytes of the body that count against the front end's limit.
        keep_alive: whether the connection goes on after the answer.
        old: whether the client speaks HTTP/1.0.
        cancel: called when the client goes away before the answer; set by whoever works on the request.
        context: belongs to whoever works on the request.
    """

    line: Line
    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    held: int = 0
    started: float = 0.0
    answer: list[bytes] | None = None
    keep_alive: bool = True
    old: bool = False
    cancel: Callable[[], None] | None = None
    context: Any = None

    def respond(
        self, status: int, parts: Sequence[bytes], extra: bytes = b"", kind: bytes = b"application/json"
    ) -> None:
        """Answer. Only the first answer counts; one that nobody waits for any more is dropped.

        Args:
            status: HTTP status code.
            parts: the body.
            extra: more header lines, each with its CRLF.
            kind: content type.
        """
        if self.answer is not None:
            return
        self.cancel = None
        self.line.answered(self, status, parts, extra, kind)

    def give(self, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        """Answer with what an inference gave.

        Raises:
            TrtopsError: it cannot be written as the client asked for.
        """
        answer = codec.encode(decoded, outcome)
        if answer.json_bytes is None:
            self.respond(200, answer.parts)
        else:
            extra = b"Inference-Header-Content-Length: %d\r\n" % answer.json_bytes
            self.respond(200, answer.parts, extra, b"application/octet-stream")

    def refuse(self, fault: Fault) -> None:
        """Answer with an error."""
        self.fail(fault.status, fault.message, fault.extra)

    def header(self, name: bytes) -> bytes | None:
        """A header by its lower-case name."""
        return self.headers.get(name)

    def fail(self, status: int, message: str, extra: bytes = b"") -> None:
        """Answer with the protocol's error document."""
        self.respond(status, (error_body(message),), extra)


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Undo a body's content coding.

    Args:
        body: as it came.
        encoding: the header's value.
        limit: bytes that the result may have; no more is ever held.

    Raises:
        HttpError: another coding than gzip and deflate (415), damaged data (400), a result over the limit (413).
    """
    name = encoding.strip().lower()
    if name in {b"identity", b""}:
        return body
    if name not in {b"gzip", b"deflate"}:
        raise HttpError(415, "only the content codings gzip and deflate are taken")
    state = zlib.decompressobj(31 if name == b"gzip" else 15)
    try:
        data = state.decompress(body, limit + 1)
    except zlib.error as error:
        raise HttpError(400, f"the body is not {name.decode()}: {error}") from None
    if len(data) > limit:
        raise HttpError(413, f"the body is too large after decompression: {limit} bytes are allowed")
    if not state.eof or state.unused_data:
        raise HttpError(400, f"the body is not {name.decode()}: it ends early, or something follows it")
    return data
