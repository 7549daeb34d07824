"""Taking packets from clients, and parting from them, without waiting for what they sent along.

Descriptors that nobody asked for may come with a packet (``SCM_RIGHTS``), and whoever closes the last one of a file may
have to wait: for as long as the client said, where it is a TCP socket with ``SO_LINGER``. That is also so for packets
that are still unread when a socket is closed. Linux 6.16 can refuse such packets (``SO_PASSRIGHTS``); before, what came
along is closed by a thread that has nothing else to do.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from typing import Final

from trtops.transport.ring import Violation
from trtops.transport.wire import MAX_PACKET

_SO_PASSRIGHTS: Final = 83  # asm-generic/socket.h
_MOST: Final = 253  # SCM_MAX_FD of net/scm.h: descriptors beside a packet
_SPACE: Final = socket.CMSG_SPACE(array.array("i").itemsize * _MOST)


def refuse_descriptors(sock: socket.socket) -> None:
    """Have the kernel refuse packets with descriptors, where it can, on a socket and on those that it accepts."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def take(sock: socket.socket) -> bytes:
    """The next packet of a client; empty: it is gone.

    Raises:
        Violation: descriptors came with it.
        OSError: there is none.
    """
    packet, ancillary, flags, _ = sock.recvmsg(MAX_PACKET, _SPACE, socket.MSG_CMSG_CLOEXEC)
    if ancillary or flags & socket.MSG_CTRUNC:
        _aside(None, _descriptors(ancillary))
        raise Violation("it sent descriptors")
    return packet


def hang_up(sock: socket.socket) -> None:
    """Shut a client's socket down, and close it: here if nothing is left in it, else in a thread."""
    try:
        sock.shutdown(socket.SHUT_RDWR)  # from here on nothing more can come
        left, ancillary, flags, _ = sock.recvmsg(
            1, socket.CMSG_SPACE(4), socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except OSError:  # a reset is told once, before what is there
        _aside(sock, [])
        return
    if left or ancillary or flags & socket.MSG_CTRUNC:
        _aside(sock, _descriptors(ancillary))
    else:
        sock.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def _aside(sock: socket.socket | None, fds: list[int]) -> None:
    """Close what may make this thread wait in another one."""

    def close() -> None:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        if sock is not None:
            sock.close()

    threading.Thread(target=close, name="trtops-parting", daemon=True).start()
