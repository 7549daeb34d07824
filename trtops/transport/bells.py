"""Doorbells of a client: who sleeps is woken by them, and nobody who rings ever waits.

Whether a write waits is a property of the open file (``O_NONBLOCK``), which everybody shares who holds it, and which
any of them may change at any time. So the executor writes to no file that a client holds. What it rings is an eventfd
of its own; the client gets an epoll object that watches it, which tells of each ring and can neither be written to nor
be told to watch the eventfd no more. The executor's own bell is an eventfd that the client writes to; the executor
watches it edge-triggered, and neither reads nor writes it.
"""

from __future__ import annotations

import os
import select
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from trtops.transport.wire import WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable

RING: Final = (1).to_bytes(8, "little")
"""What a client of an older version reads, for each ring."""


class Handed(Protocol):
    """A descriptor that the client gets; closed by the executor once it is sent."""

    def fileno(self) -> int:
        """Its number here."""

    def close(self) -> None:
        """The executor needs it no more."""


def executors_bell() -> int:
    """An eventfd, for the client to ring and for the executor to watch.

    Raises:
        OSError: there is none.
    """
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def clients_bell(version: int) -> tuple[int, Callable[[], object], Handed]:
    """A bell for a client of this version of the messages.

    Returns:
        The executor's end, to be closed; what rings it, which never waits (it may raise OSError: the client is rung
        already, or gone); and what the client watches.

    Raises:
        OSError: there is none.
    """
    if version >= WATCHED:
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        watched = None
        try:
            watched = select.epoll()
            watched.register(bell, select.EPOLLIN | select.EPOLLET)  # each ring is an event, without a read between
        except OSError:
            os.close(bell)
            if watched is not None:
                watched.close()
            raise
        return bell, partial(os.eventfd_write, bell, 1), watched
    # An end of a socket is a file of its own, so its O_NONBLOCK is the executor's alone.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    bell = ours.detach()
    return bell, partial(os.write, bell, RING), theirs
