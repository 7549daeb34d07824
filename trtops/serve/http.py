"""HTTP/1.1 on an event loop: connections, their limits, and the order of answers.

llhttp (through httptools) parses, in its strict mode: it refuses a bare CR or LF, folded headers, spaces before a
colon, doubled or malformed Content-Length, and Content-Length beside Transfer-Encoding, the roots of request
smuggling. This module refuses what is left: other transfer codings, HTTP versions, a missing or doubled Host. After
any such error the connection is closed, so that no later byte of it is read as a request.

A request is an :class:`Exchange`, a slot in its connection's queue: whoever answers it fills the slot, in any order,
and the connection writes the answers in the order of the requests. No task and no future is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import httptools

from trtops.serve.exchange import Exchange, HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.serve.front import Front
    from trtops.serve.heads import Head

log = logging.getLogger(__name__)

_LINGER = 1.0
_JOIN = 1 << 16
_CHUNK_OVERHEAD = 1 << 16
_NEVER = float("inf")
_ONCE = frozenset({b"host", b"transfer-encoding", b"inference-header-content-length"})
_METHODS = frozenset({b"GET", b"HEAD", b"POST"})


class Connection(asyncio.Protocol):
    """One client's connection.

    Two queues hold its exchanges: ``_working`` in the order in which they must be answered, ``_waiting`` those that
    came before it was their turn. Reading stops while one waits, and while the client does not read its answers.
    """

    def __init__(self, front: Front) -> None:
        """Make a connection of a front end."""
        self.front = front
        self.limits = front.limits
        self.transport: asyncio.Transport | None = None
        self.deadline = _NEVER
        self._parser: Any = httptools.HttpRequestParser(self)
        self._alone: bytes | None = None
        self._head: Head | None = None
        self._working: deque[Exchange] = deque()
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        self._chunks: list[bytes] = []
        self._header_bytes = 0
        self._header_limit = self.limits.header_bytes
        self._body_bytes = 0
        self._wire_bytes = 0
        self._in_headers = False
        self._raw_left = 0
        self._expect = False
        self._eof = False
        self._unwritten = 0
        self._flushing = False
        self._stopped = False
        self._paused = False
        self._write_paused = False

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, or refuse when there are too many."""
        self.transport = transport  # type: ignore[assignment]  # a stream's transport, as TCP and Unix servers make
        self.deadline = self.front.now() + self.limits.header_time
        self.front.connections.add(self)
        if len(self.front.connections) > self.limits.connections:
            self._refuse(HttpError(503, f"too many connections: {self.limits.connections} are allowed"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what the client waits for."""
        del exc
        self.transport = None
        self._stopped = True
        self.front.forget(self)
        for exchange in (*self._working, *self._waiting):
            self.front.release(exchange)
            if exchange.cancel is not None:
                exchange.cancel()
        self._working.clear()
        self._waiting.clear()
        self._drop_current()
        self._parser = None  # the parser holds this connection: without this they would wait for the collector

    def eof_received(self) -> bool:
        """Take the end of what the client sends for the end of its interest, as most servers do."""
        self._eof = True
        self._stopped = True
        return False

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._write_paused = True
        self._unwritten = self._buffered()
        self.deadline = self.front.now() + self.limits.write_time
        self._steer()

    def resume_writing(self) -> None:
        """Go on."""
        self._write_paused = False
        self.deadline = _NEVER
        self._rest()
        self._steer()

    def _buffered(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        """Parse. Every fault ends in an answer and the end of the connection."""
        if self._stopped:
            return
        if self._current is None and not self._in_headers and not self._waiting:
            head = self._head
            if head is None or len(data) != head.whole or not data.startswith(head.text):
                head = self.front.heads.find(data)
            if head is not None:
                self._head = head
                self._take(head, data)
                return
            self._alone = data
        else:
            self._alone = None
        self._wire_bytes += len(data)
        try:
            self._feed(data)
            if self._in_headers and self._wire_bytes > self.limits.header_bytes:
                raise self._too_large()
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, HttpError):
                log.exception("a request could not be read", exc_info=cause or error)
                cause = HttpError(500, "internal error; the server's log says more")
            self._refuse(cause)
        except HttpError as error:
            self._refuse(error)
        except httptools.HttpParserInvalidMethodError:
            self._refuse(HttpError(400, "malformed HTTP: no method that is known here"))
        except httptools.HttpParserError as error:
            self._refuse(HttpError(400, f"malformed HTTP: {error}"))

    def _take(self, head: Head, data: bytes) -> None:
        """Take a request whose head is known: what the parser and its callbacks would do, at once."""
        body = data[head.size :]
        exchange = Exchange(self, head.method, head.target, head.headers, body)
        if body:
            try:
                self.front.hold(exchange, len(body))
            except HttpError as error:
                self.front.release(exchange)
                self._refuse(error)
                return
        if not self._write_paused:
            self.deadline = _NEVER
        self._queue(exchange)

    def _feed(self, data: bytes) -> None:
        while data:
            if self._raw_left:
                piece, data = data[: self._raw_left], data[self._raw_left :]
                self._raw_left -= len(piece)
                self.on_body(piece)
                if not self._raw_left:
                    self._finish()
                continue
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                # A client offers another protocol (h2c). It is not taken, and the request counts (RFC 9110, 7.8).
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Start a request."""
        if len(self._waiting) >= self.limits.queued:
            raise HttpError(429, f"too many pipelined requests: {self.limits.queued} may wait")
        self._headers = {}
        self._target = b""
        self._header_bytes = 0
        self._body_bytes = 0
        self._in_headers = True
        if not self._write_paused:
            self.deadline = self.front.now() + self.limits.header_time

    def on_url(self, url: bytes) -> None:
        """Take the target, or a piece of it."""
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are counted and dropped."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._header_limit:
            raise self._too_large()
        if not self._in_headers:
            return
        headers = self._headers
        key = name.lower()
        if key in headers and key in _ONCE:
            raise HttpError(400, f"header {key.decode()} is given twice")
        headers[key] = value

    def on_headers_complete(self) -> None:
        """Decide whether the body is wanted, before it is read."""
        self._in_headers = False
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        exchange = Exchange(self, method, self._target, headers)
        self._current = exchange
        if len(headers) > self.limits.headers:
            raise HttpError(431, f"too many headers: {self.limits.headers} are allowed")
        exchange.keep_alive = parser.should_keep_alive()
        exchange.old = version == "1.0"
        if version not in {"1.1", "1.0"}:
            raise HttpError(505, f"HTTP/{version} is not spoken here; HTTP/1.1 is")
        if b"host" not in headers and not exchange.old:
            raise HttpError(400, "header host is missing")
        if method not in _METHODS:
            raise HttpError(405, f"method {method.decode()} is not allowed; GET, HEAD and POST are")
        self._check_framing(headers, old=exchange.old)
        if parser.should_upgrade():
            # The parser stops here, for what would follow is not HTTP/1.1: the body is read by its length alone.
            self._raw_left = int(headers.get(b"content-length", b"0"))
        if not self._write_paused:
            self.deadline = self.front.now() + self.limits.body_time
        if b"expect" in headers:
            self._check_expect(headers[b"expect"], old=exchange.old)

    def _check_framing(self, headers: dict[bytes, bytes], *, old: bool) -> None:
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if old:
                raise HttpError(400, "HTTP/1.0 has no Transfer-Encoding")
            if coding.lower() != b"chunked":
                raise HttpError(501, "only the transfer coding 'chunked' is taken")
            if b"upgrade" in headers:
                raise HttpError(501, "a chunked body together with Upgrade is not taken")
        elif int(headers.get(b"content-length", b"0")) > self.limits.body_bytes:
            raise HttpError(413, f"the body is too large: {self.limits.body_bytes} bytes are allowed")

    def _check_expect(self, value: bytes, *, old: bool) -> None:
        if value.lower() != b"100-continue":
            raise HttpError(417, "only 'Expect: 100-continue' is known")
        if not old:
            self._expect = True
            self._continue()

    def _continue(self) -> None:
        """Ask for the body, once the answers of the requests before it are out."""
        if self._expect and not self._working and not self._waiting and self.transport is not None:
            self._expect = False
            if not self._body_bytes:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        size = len(body)
        exchange = self._current
        if exchange is None:
            return
        self._body_bytes += size
        if self._body_bytes > self.limits.body_bytes:
            raise HttpError(413, f"the body is too large: {self.limits.body_bytes} bytes are allowed")
        if self._wire_bytes > self.limits.header_bytes + _CHUNK_OVERHEAD + 8 * self._body_bytes + (1 << 18):
            raise HttpError(400, "the body's chunks are mostly framing")
        self.front.hold(exchange, size)
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Queue the request."""
        if not self._raw_left:
            self._finish()

    def _finish(self) -> None:
        exchange = self._current
        if exchange is None:
            return
        chunks = self._chunks
        exchange.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._current = None
        self._wire_bytes = 0
        self._expect = False
        if not self._write_paused:
            self.deadline = _NEVER
        if not exchange.keep_alive:
            self._stopped = True
        if self._alone is not None:
            self.front.heads.keep(self._alone, exchange)
            self._alone = None
        self._queue(exchange)

    def _queue(self, exchange: Exchange) -> None:
        if self._working or self._waiting or self._flushing:
            self._waiting.append(exchange)
            self._advance()
            return
        self._flushing = True
        self._working.append(exchange)
        exchange.started = self.front.now()
        self.front.handle(exchange)
        self._flushing = False
        if exchange.answer is not None:
            self._advance()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes:
            raise self._too_large()

    def _too_large(self) -> HttpError:
        return HttpError(431, f"the headers are too large: {self.limits.header_bytes} bytes are allowed")

    # The queue.

    def _advance(self) -> None:
        """Start what may be started and write what is ready, until neither can go on."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._write_ready() or self._start_next():
                pass
        finally:
            self._flushing = False
        self._rest()
        self._steer()

    def _start_next(self) -> bool:
        if not self._waiting or len(self._working) >= self.limits.pipelined or self._closing_now():
            return False
        self._start(self._waiting.popleft())
        return True

    def _start(self, exchange: Exchange) -> None:
        self._working.append(exchange)
        if exchange.answer is None:
            exchange.started = self.front.now()
            self.front.handle(exchange)

    def _closing_now(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def answered(self, exchange: Exchange, status: int, parts: Sequence[bytes], extra: bytes, kind: bytes) -> None:
        """Fill an exchange's slot."""
        front, transport = self.front, self.transport
        if exchange.held:
            front.release(exchange)
        if transport is None:
            exchange.answer = []
            return
        keep = exchange.keep_alive and not front.draining
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if not keep:
            exchange.keep_alive = False
            extra += b"Connection: close\r\n"
        elif exchange.old:
            extra += b"Connection: keep-alive\r\n"
        head = front.head(status, kind, length, extra)
        if exchange.method == b"HEAD":
            exchange.answer = [head]
        elif length < _JOIN:
            exchange.answer = [head + parts[0] if len(parts) == 1 else b"".join((head, *parts))]
        else:
            exchange.answer = [head, *parts]
        working = self._working
        if self._flushing or not working or working[0] is not exchange:
            return
        if keep and len(working) == 1 and not self._waiting and not self._expect:
            working.clear()
            for piece in exchange.answer:
                transport.write(piece)
            if self._current is None and not self._in_headers and not self._write_paused and not self._stopped:
                self.deadline = front.now() + self.limits.idle_time
        else:
            self._advance()

    def _write_ready(self) -> bool:
        wrote = False
        while self._working and self._working[0].answer is not None:
            exchange = self._working.popleft()
            transport = self.transport
            if transport is None:
                return False
            for piece in exchange.answer or ():
                transport.write(piece)
            wrote = True
            if not exchange.keep_alive:
                self._end()
                return False
        if self._expect:
            self._continue()
        return wrote

    def _drop_current(self) -> None:
        if self._current is not None:
            self.front.release(self._current)
            self._current = None
        self._chunks = []

    def _rest(self) -> None:
        """Set the deadline that fits when nothing is being received."""
        if self._write_paused or self._receiving() or self._stopped:
            return
        self.deadline = _NEVER if self._working or self._waiting else self.front.now() + self.limits.idle_time

    def _receiving(self) -> bool:
        return self._in_headers or self._current is not None

    def _steer(self) -> None:
        """Read from the client, or not; a client that is not read cannot be late."""
        pause = self._write_paused or bool(self._waiting)
        transport = self.transport
        if pause is self._paused or transport is None or transport.is_closing():
            return
        self._paused = pause
        if pause:
            transport.pause_reading()
            if not self._write_paused:
                self.deadline = _NEVER
        else:
            transport.resume_reading()
            if self._receiving() and not self._stopped:
                self.deadline = self.front.now() + self.limits.body_time

    # The end.

    def _refuse(self, error: HttpError) -> None:
        """Answer a fault after the answers that are due before it, then close."""
        self._stopped = True
        self._drop_current()
        self.front.refused(error.status)
        if not self._write_paused:
            self.deadline = _NEVER
        exchange = Exchange(self, b"POST", self._target, {})
        exchange.keep_alive = False
        exchange.fail(error.status, error.message)
        self._waiting.append(exchange)
        self._advance()

    def _end(self) -> None:
        """Close so that the client can read the last answer although it may still be sending (RFC 9112, 9.6)."""
        self._stopped = True
        self._working.clear()
        self._waiting.clear()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        if not self._write_paused:
            self.deadline = self.front.now() + _LINGER
        transport.write_eof()
        if self._paused:
            transport.resume_reading()

    def finish(self) -> None:
        """Drain: close now if nothing is due, else after the answers that are due."""
        if not (self._working or self._waiting or self._receiving()):
            self._end()

    def expire(self) -> None:
        """A time limit is over."""
        transport = self.transport
        self.deadline = _NEVER
        if transport is None:
            return
        left = self._buffered()
        if self._write_paused and left < self._unwritten:
            self._unwritten = left
            self.deadline = self.front.now() + self.limits.write_time
        elif self._stopped or self._write_paused or (left and not self._receiving()):
            transport.abort()
        elif self._receiving():
            part = "headers" if self._in_headers else "body"
            self._in_headers = False
            self._refuse(HttpError(408, f"the {part} took too long to come"))
        else:
            transport.close()
