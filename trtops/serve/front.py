"""A listening front end: its connections, their clock, their common limits, and its end."""

from __future__ import annotations

import asyncio
import logging
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from trtops.serve.exchange import Exchange, HttpError, Limits, decompress
from trtops.serve.heads import Heads
from trtops.serve.http import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_TICK = 0.25
_HEADS = 1024
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Front:
    """What the connections of one listening port share: limits, counters, the clock, the application.

    Attributes:
        connections: those that are open.
        buffered: bytes of bodies that are held.
        draining: whether answers close their connections.
        heads: request heads that were read before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[Exchange], None],
        limits: Limits | None = None,
        refused: Callable[[int], None] | None = None,
    ) -> None:
        """Make a front end.

        Args:
            loop: the event loop that everything here runs on.
            handle: the application; it answers each exchange now or later, from this loop's thread.
            limits: bounds of what clients may ask for.
            refused: told the status of each request that never reached the application.
        """
        self.now = time.monotonic  # the event loop's own clock counts whole milliseconds
        self.limits = limits or Limits()
        self.connections: set[Connection] = set()
        self.buffered = 0
        self.draining = False
        self.heads = Heads()
        self._date = b""
        self._answers: dict[tuple[int, bytes, int, bytes], bytes] = {}
        self.refused = refused or (lambda _status: None)
        self._loop = loop
        self._handle = handle
        self._empty: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick()

    def __repr__(self) -> str:
        """Show what is open and held."""
        return f"<Front connections={len(self.connections)} buffered={self.buffered} draining={self.draining}>"

    def __call__(self) -> Connection:
        """Make a connection: a front end is the protocol factory of a server."""
        return Connection(self)

    def handle(self, exchange: Exchange) -> None:
        """Pass a request to the application; a fault of the application is answered, never a dead connection."""
        encoding = exchange.headers.get(b"content-encoding")
        try:
            if encoding is not None:
                exchange.body = decompress(exchange.body, encoding, self.limits.body_bytes)
                self.hold(exchange, len(exchange.body))
            self._handle(exchange)
        except HttpError as error:
            exchange.fail(error.status, error.message)
        except Exception:
            log.exception("request to %r failed", exchange.target[:200])
            exchange.fail(500, "internal error; the server's log says more")

    def head(self, status: int, kind: bytes, length: int, extra: bytes) -> bytes:
        """The head of an answer; those that come again and again are written once a tick, which is when they change."""
        head = self._answers.get((status, kind, length, extra))
        if head is None:
            opening = b"%b%bContent-Type: %b\r\nContent-Length: " % (_STATUS[status], self._date, kind)
            head = b"%b%d\r\n%b\r\n" % (opening, length, extra)
            if len(self._answers) < _HEADS:
                self._answers[status, kind, length, extra] = head
        return head

    def hold(self, exchange: Exchange, size: int) -> None:
        """Count bytes of a body.

        Raises:
            HttpError: all bodies together are over the limit.
        """
        self.buffered += size
        exchange.held += size
        if self.buffered > self.limits.buffered_bytes:
            raise HttpError(503, "too many bytes of requests are held; try again", close=False)

    def release(self, exchange: Exchange) -> None:
        """Uncount the bytes of a body."""
        self.buffered -= exchange.held
        exchange.held = 0

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def _tick(self) -> None:
        self._date = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
        self._answers.clear()
        now = self.now()
        for connection in [connection for connection in self.connections if connection.deadline < now]:
            connection.expire()
        self._timer = self._loop.call_later(_TICK, self._tick)

    async def drain(self, seconds: float) -> int:
        """Let requests in flight finish, then close everything.

        Args:
            seconds: how long to wait.

        Returns:
            connections that had to be cut.
        """
        self.draining = True
        self._empty = asyncio.Event()
        for connection in tuple(self.connections):
            connection.finish()
        if self.connections:
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except (TimeoutError, asyncio.TimeoutError):
                log.warning("%d connections were still open after %g s", len(self.connections), seconds)
        cut = len(self.connections)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        return cut
