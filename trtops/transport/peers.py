"""What a server knows of each client, and how long it looks for more of it."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtops.transport.connection import Connection

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_MISSES: Final = 10


class Patience:
    """Whether it pays to look a moment longer: each time that it did not, it is left out for twice as long."""

    __slots__ = ("_misses", "_skip")

    def __init__(self) -> None:
        """Begin with hope."""
        self._misses = self._skip = 0

    def __repr__(self) -> str:
        """Show how it went."""
        return f"Patience({self._misses} misses, {self._skip} turns to leave out)"

    def worth(self) -> bool:
        """Whether to look this time."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def note(self, *, came: bool) -> None:
        """Take in whether something came."""
        self._misses = 0 if came else min(self._misses + 1, _MISSES)
        self._skip = 0 if came else (1 << self._misses) - 1


@dataclass(frozen=True, slots=True)
class Holding:
    """What clients have: how many of them, slots that they were granted and those in use, bytes of their segments."""

    clients: int
    slots: int
    in_use: int
    bytes: int


class Peer:
    """A client: its socket, before and after the welcome.

    Attributes:
        deadline: until when it has to say hello, in the server's clock.
        uid, gid: of its process. ``name``: for the log.
        version: of the messages, as agreed on in the welcome.
        bell: the eventfd that it rings; -1 before the welcome.
        connection: its segment and what is in flight; None before the welcome.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        """Ask the kernel whose socket it is."""
        self.socket = sock
        self.deadline = deadline
        pid, self.uid, self.gid = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        self.name = f"pid {pid}, uid {self.uid}"
        self.version = 0
        self.bell = -1
        self.connection: Connection | None = None

    def __repr__(self) -> str:
        """Show who it is and what is in flight."""
        return repr(self.connection) if self.connection is not None else f"Peer({self.name}, not greeted)"


def holding(peers: Collection[Peer]) -> Holding:
    """What these clients have."""
    welcomed = [peer.connection for peer in peers if peer.connection is not None]
    layouts = [connection.segment.layout for connection in welcomed]
    return Holding(
        clients=len(peers),
        slots=sum(layout.slots for layout in layouts),
        in_use=sum(connection.in_flight for connection in welcomed),
        bytes=sum(layout.total for layout in layouts),
    )
