"""A supervisor's end of the transport: it lets clients in, shows them the routes, and hands them on to workers.

A client's hello stays unread in its socket; the worker that gets the socket reads it and welcomes the client. Nothing
of a request ever passes here. The supervisor's thread drives this object: it has no thread of its own.
"""

from __future__ import annotations

import array
import contextlib
import logging
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.transport.catalogue import Listing
from trtops.transport.limits import Limits
from trtops.transport.listening import Spare, listen
from trtops.transport.parting import hang_up, take
from trtops.transport.ring import Violation
from trtops.transport.wire import (
    MAX_PACKET,
    Ask,
    Directory,
    Hello,
    Lookup,
    Refused,
    agreed,
    decode_from_client,
    encode,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.transport.wire import FromExecutor

log = logging.getLogger(__name__)

_GREETING: Final = 5.0
"""Seconds that a client has to say what it wants."""
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class Reception:
    """Listens on a Unix socket. Descriptors are watched by the epoll object that it is given."""

    def __init__(
        self,
        path: Path,
        page: int,
        introduce: Callable[[socket.socket, int | None], None],
        epoll: select.epoll,
        clock: Callable[[], float],
        *,
        limits: Limits | None = None,
    ) -> None:
        """Listen.

        Args:
            path: of the socket; a stale one is replaced.
            page: descriptor of the page of routes.
            introduce: gets the socket of a client that said hello, and the worker that it asked for; raises a
                TrtopsError that the client is told.
            epoll: watches.
            clock: monotonic seconds.
            limits: who may come, and how many may look at the routes.

        Raises:
            Unavailable: another server listens there.
            StorageError: the socket cannot be made.
        """
        self.path = path
        self._page = page
        self._introduce = introduce
        self._epoll = epoll
        self._clock = clock
        self._limits = limits or Limits()
        self._socket = listen(path, self._limits.mode)
        self._epoll.register(self._socket, select.EPOLLIN)
        self._spare = Spare()
        self._greeting: dict[int, tuple[socket.socket, float]] = {}
        self._looking: dict[int, tuple[socket.socket, int]] = {}
        self._listing = Listing(b"[]")

    def __repr__(self) -> str:
        """Show who looks at the routes."""
        return f"Reception({self.path}: {len(self._looking)} clients look at the routes)"

    @property
    def clients(self) -> int:
        """Clients that look at the routes."""
        return len(self._looking)

    def serve(self, fd: int) -> bool:
        """Something happened to a descriptor. False: it is none of this object's."""
        if fd == self._socket.fileno():
            self._accept()
        elif fd in self._greeting:
            self._greet(fd)
        elif fd in self._looking:
            self._listen_to(fd)
        else:
            return False
        return True

    def tick(self, now: float) -> float | None:
        """Hang up on clients that say nothing. Returns when to come again."""
        for fd, (sock, until) in list(self._greeting.items()):
            if until <= now:
                self._refuse(fd, sock, Unavailable("you did not say what you want in time"))
        return min((until for _, until in self._greeting.values()), default=None)

    def announce(self, catalogue: bytes) -> None:
        """Tell everybody who looks at the routes what is served now, as JSON."""
        self._listing.change(catalogue)
        for fd in list(self._looking):
            self._tell(fd, 0)

    def close(self) -> None:
        """Listen no more, and hang up. Idempotent."""
        for fd, (sock, _) in [*self._looking.items(), *self._greeting.items()]:
            self._forget(fd, sock)
        self._listing.close()
        if self._socket.fileno() >= 0:
            self._epoll.unregister(self._socket)
            self._socket.close()
            self._spare.close()
            with contextlib.suppress(OSError):
                self.path.unlink()

    # -- clients -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._spare.turn_away(self._socket, error)
            return
        sock.settimeout(0)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(credentials)
        fd = sock.fileno()
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError as error:
            log.warning("pid %d, uid %d cannot be listened to: %s", pid, uid, error)
            hang_up(sock)
            return
        self._greeting[fd] = sock, self._clock() + _GREETING
        if not self._limits.allow(uid, gid):
            log.warning("pid %d, uid %d was refused", pid, uid)
            self._refuse(fd, sock, Unavailable(f"user {uid} may not use this executor"))
        elif len(self._greeting) > self._limits.clients:
            self._refuse(fd, sock, Unavailable("too many clients connect at once"))

    def _greet(self, fd: int) -> None:
        """A new client says what it wants. A hello is only looked at: it is for the worker."""
        sock, _ = self._greeting[fd]
        try:
            packet = sock.recv(MAX_PACKET, socket.MSG_PEEK)
            if not packet:
                self._forget(fd, sock)
                return
            message = decode_from_client(packet)
            if isinstance(message, Hello):
                self._introduce(sock, message.worker)
                self._forget(fd, sock, handed=True)
            elif isinstance(message, Lookup):
                self._show(fd, sock, message)
            else:
                self._refuse(fd, sock, InputError("it broke the protocol: say hello, or look up"))
        except BlockingIOError:
            return
        except TrtopsError as error:
            self._refuse(fd, sock, error)
        except Violation as error:
            self._refuse(fd, sock, InputError(f"it broke the protocol: {error}"))
        except OSError as error:
            log.info("a client went while it was greeted: %s", error)
            self._forget(fd, sock)

    def _show(self, fd: int, sock: socket.socket, message: Lookup) -> None:
        take(sock)
        version = agreed(message.versions)
        if len(self._looking) >= self._limits.clients:
            raise Unavailable(f"{self._limits.clients} clients look at the routes, as many as may")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._page]))]
        sock.sendmsg([encode(Directory(version))], rights)
        self._listing.send(sock, 0, version)
        del self._greeting[fd]
        self._looking[fd] = sock, version

    def _listen_to(self, fd: int) -> None:
        sock, _ = self._looking[fd]
        try:
            packet = take(sock)
            message = decode_from_client(packet) if packet else None
        except BlockingIOError:
            return
        except (OSError, InputError, Violation):
            message = None
        if isinstance(message, Ask):
            self._tell(fd, message.number)
        else:
            self._forget(fd, sock)

    def _tell(self, fd: int, number: int) -> None:
        sock, version = self._looking[fd]
        try:
            self._listing.send(sock, number, version)
        except TrtopsError as error:
            self._refuse(fd, sock, error)
        except Violation as error:  # it may come again, and then gets what is new
            self._refuse(fd, sock, Unavailable(str(error), fix="read what comes, and look up again"))
        except OSError:  # it is gone
            self._forget(fd, sock)

    def _refuse(self, fd: int, sock: socket.socket, error: TrtopsError) -> None:
        message: FromExecutor = Refused(status_of(error), error.what, error.fix)
        with contextlib.suppress(OSError):
            sock.send(encode(message))
        self._forget(fd, sock)

    def _forget(self, fd: int, sock: socket.socket, *, handed: bool = False) -> None:
        self._greeting.pop(fd, None)
        self._looking.pop(fd, None)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)
        if handed:
            sock.close()  # a worker has it, too, and goes on with it
        else:
            hang_up(sock)
