"""What the server and its front ends say to each other: JSON, one message a line, over a socket pair."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final

import msgspec

from trtops.serve.exchange import Limits
from trtops.serve.measure import Meters
from trtops.serve.regions import Registered

_MAX_LINE: Final = 64 << 20


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """Server: how to serve."""

    executor: str
    limits: Limits
    otel: bool
    json_logs: bool


class State(msgspec.Struct, tag="state", frozen=True):
    """Server: this is so now. Answered by :class:`Taken`.

    Attributes:
        number: of the message.
        not_ready: why no traffic should come.
        absent: engines of this server that do not serve -> why.
        regions: shared memory that clients registered.
    """

    number: int
    not_ready: str | None
    absent: dict[str, str]
    regions: tuple[Registered, ...]


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """Server: what did you count? Answered by :class:`Counted`."""

    number: int


class Sums(msgspec.Struct, tag="sums", frozen=True):
    """Server: what all front ends counted together."""

    number: int
    meters: Meters


class Drain(msgspec.Struct, tag="drain", frozen=True):
    """Server: take no new connections, finish what is in flight in this many seconds, end."""

    seconds: float


class Listening(msgspec.Struct, tag="listening", frozen=True):
    """Front end: it serves."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """Front end: it cannot serve, and ends."""

    what: str
    fix: str | None


class Leaving(msgspec.Struct, tag="leaving", frozen=True):
    """Front end: it was told to end, takes no new connections and hears nothing more; so many seconds at most."""

    seconds: float


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """Front end: it goes by this state."""

    number: int


class Counted(msgspec.Struct, tag="counted", frozen=True):
    """Front end: its numbers, and the generation of every engine that it can reach."""

    number: int
    meters: Meters
    reaches: dict[str, int]


class Want(msgspec.Struct, tag="want", frozen=True):
    """Front end: what did all count together?"""

    number: int


FromServer = Begin | State | Ask | Sums | Drain
FromFrontEnd = Listening | Failed | Leaving | Taken | Counted | Want

from_server: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)
from_front_end: msgspec.json.Decoder[FromFrontEnd] = msgspec.json.Decoder(FromFrontEnd)


class Channel:
    """One end of the socket pair, on the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use streams that are open."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, sock: socket.socket) -> Channel:
        """Open an end."""
        sock.settimeout(0)
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=_MAX_LINE))

    def send(self, message: FromServer | FromFrontEnd) -> None:
        """Say something; what the other end does not hear any more is lost."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def line(self) -> bytes:
        """The next message; empty at the end."""
        try:
            return await self._reader.readline()
        except (ConnectionError, ValueError):
            return b""

    async def close(self) -> None:
        """Hang up; what was said before is sent."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Told:
    """The server's health as a front end was told of it (:class:`trtops.serve.desk.Health`)."""

    def __init__(self) -> None:
        """Not ready before the first word."""
        self.state = State(0, "starting", {}, ())

    def not_ready(self) -> str | None:
        """Why no traffic should come now."""
        return self.state.not_ready

    def absent(self, name: str) -> str | None:
        """Why an engine of this server does not serve."""
        return self.state.absent.get(name)

    def absences(self) -> dict[str, str]:
        """Engines of this server that do not serve, each with the reason."""
        return self.state.absent

    def status(self) -> dict[str, Any]:
        """The control port tells more."""
        return {"status": self.state.not_ready or "ready"}


def check_unused(host: str, port: int) -> None:
    """Make sure that nobody listens there: sockets that share a port would also share it with another server's.

    Raises:
        OSError: somebody does, or the address cannot be used.
        socket.gaierror: the host has none.
    """
    if port:
        _bound(host, port, shared=False).close()


def listening(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens beside others on the same port; the kernel spreads connections over them.

    Raises:
        OSError: the address cannot be used.
        socket.gaierror: the host has none.
    """
    sock = _bound(host, port, shared=True)
    try:
        if backlog:
            sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
