"""A stream of an HTTP/2 connection, who gets its request, and who owns the connection."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.serve.exchange import Limits
    from trtops.serve.http2 import Connection

Headers = tuple[tuple[bytes, bytes], ...]


class Receiver(Protocol):
    """Whoever a stream's request is for."""

    def data(self, piece: bytes) -> None:
        """A piece of the body came."""

    def end(self) -> None:
        """The request is whole."""

    def cancel(self) -> None:
        """Nobody waits for an answer any more."""


class Stream:
    """One request and its answer.

    Attributes:
        number: of the stream.
        receiver: gets the body.
        window: bytes that may be sent yet.
        waiting: bytes of the answer, ``sent`` of which went out; then those of ``more`` and the ``trailers`` follow.
        left: bytes that wait in all. ``counted``: how many of them the connection and its port count.
        held: bytes of requests that the port counts.
        ended: the request is whole.
        started: when it began, or last sent some of its answer; or when that began to wait.
    """

    __slots__ = (
        "connection",
        "counted",
        "ended",
        "held",
        "left",
        "more",
        "number",
        "receiver",
        "sent",
        "started",
        "trailers",
        "unread",
        "waiting",
        "window",
    )

    def __init__(self, connection: Connection, number: int, window: int, now: float) -> None:
        """Begin."""
        self.connection = connection
        self.number = number
        self.receiver: Receiver | None = None
        self.window = window
        self.waiting = b""
        self.more: deque[bytes] = deque()
        self.left = self.counted = 0
        self.sent = 0
        self.trailers = b""
        self.ended = False
        self.started = now
        self.unread = 0
        self.held = 0


class Owner(Protocol):
    """The listening port of a connection."""

    limits: Limits
    now: Callable[[], float]
    connections: set[Connection]
    buffered: int

    def open(self, stream: Stream, headers: Headers) -> Receiver:
        """A request begins."""

    def soon(self, connection: Connection) -> None:
        """Have the connection flushed at the end of this turn of the loop."""
