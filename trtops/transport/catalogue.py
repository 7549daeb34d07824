"""What is served, as clients are told it: in one packet, or in memory beside it where that is too small."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import termios
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trtops.errors import InputError, StorageError, Unavailable
from trtops.transport.formats import formats_in, without_formats
from trtops.transport.ring import Violation
from trtops.transport.wire import BESIDE, FORMATS, MAX_PACKET, Catalogue, Welcome, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST: Final = 64 << 20
"""Bytes of a catalogue that a client reads at most."""

_UNREAD: Final = 8 * 768
"""Bytes of messages, as the kernel counts them, that a client may leave unread and still be sent descriptors: some
eight messages. Descriptors on their way are counted for this user, however many processes there are, and a client that
read none could use up what others are welcomed with."""

_SHORTAGE: Final = frozenset({errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS})
"""No fault of the client to whom something could not be sent."""

# linux/fcntl.h: no more seals, no shrinking, no growing, no writing.
_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004 | 0x0008


class Listing:
    """A catalogue to be told to any number of clients. Close it."""

    def __init__(self, engines: bytes) -> None:
        """Take the engines, as JSON."""
        self._engines = engines
        self._fd = -1
        self._older: Listing | None = None
        self._formats = formats_in(engines)

    def __repr__(self) -> str:
        """Show its size."""
        return f"Listing({len(self._engines)} bytes)"

    def change(self, engines: bytes) -> None:
        """Tell these engines from now on. The same object again costs nothing: the memory beside packets is kept."""
        if engines is not self._engines:
            self.close()
            self._engines = engines
            self._formats = formats_in(engines)

    def welcome(self, version: int) -> bytes:
        """The welcome to a client. It tells memory formats where they fit: whoever knows none is served as well."""
        told = self._formats if version >= FORMATS else {}
        packet = encode(Welcome(version, told))
        return packet if len(packet) <= MAX_PACKET else encode(Welcome(version))

    def send(self, sock: socket.socket, number: int, version: int) -> None:
        """Tell it.

        Args:
            sock: of a client.
            number: of the question, 0 for none.
            version: of the messages that the client understands.

        Raises:
            Unavailable: it is too long for a client of that version.
            StorageError: there is no memory for it.
            Violation: the client does not read.
            OSError: the client is gone.
        """
        if version < FORMATS and (plain := without_formats(self._engines)) is not self._engines:
            self._older = self._older or Listing(plain)
            self._older.send(sock, number, version)
            return
        packet = encode(Catalogue(number, msgspec.Raw(self._engines)))
        if len(packet) <= MAX_PACKET:
            _send(sock, packet)
            return
        if version < BESIDE:
            what = f"the list of engines takes {len(packet)} bytes, and a packet holds {MAX_PACKET}"
            raise Unavailable(what, fix=f"update the client to one that speaks version {BESIDE}")
        if self._fd < 0:
            self._fd = _written(self._engines)
        if _unread(sock) >= _UNREAD:
            raise _deaf()
        _send(sock, encode(Catalogue(number, msgspec.Raw(b"null"), len(self._engines))), self._fd)

    def close(self) -> None:
        """Give its memory back. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._older is not None:
            self._older.close()
            self._older = None


def _send(sock: socket.socket, packet: bytes, *fds: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([packet], rights)
    except BlockingIOError:
        raise _deaf() from None
    except OSError as error:
        if error.errno in _SHORTAGE:
            raise StorageError(f"the list of engines cannot be sent now: {error}", fix="ask again later") from error
        raise


def _deaf() -> Violation:
    return Violation("it is sent lists of engines, and reads none")


def _unread(sock: socket.socket) -> int:
    """Bytes of messages that the other end has not read yet, with what the kernel needs for each (SIOCOUTQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    return count[0]


def _written(text: bytes) -> int:
    """Text in memory that nobody can change."""
    fd = -1
    try:
        fd = os.memfd_create("trtops-catalogue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        what = f"no memory of {len(text)} bytes for the list of engines: {error}"
        raise StorageError(what, fix="ask again later, or give the executor more memory") from error
    return fd


def engines_of(message: Catalogue, fds: Sequence[int]) -> Any:  # noqa: ANN401 - JSON of the handler
    """The engines that a catalogue tells, with the descriptors that came beside it.

    Raises:
        InputError: what is beside it is not what it says. Blame the executor.
        Unavailable: they cannot be told now.
    """
    if message.problem is not None:
        raise Unavailable(message.problem.what, fix=message.problem.fix)
    if not message.size:
        return msgspec.json.decode(message.engines)
    try:
        sealed = len(fds) == 1 and fcntl.fcntl(fds[0], _F_GET_SEALS) & _SEALS == _SEALS
        if not sealed or not 0 < message.size <= min(_MOST, os.fstat(fds[0]).st_size):
            raise InputError(f"a list of engines of {message.size} bytes is not in sealed memory of that size")
        text = os.pread(fds[0], message.size, 0)
    except OSError as error:
        raise InputError(f"the list of engines cannot be read: {error}") from error
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InputError(f"the list of engines is not JSON: {error}") from error


def receive(sock: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """The next packet, and the descriptors beside it, which are the caller's to close.

    Raises:
        OSError: there is none.
    """
    space = socket.CMSG_SPACE(array.array("i").itemsize * _DESCRIPTORS)
    packet, ancillary, _, _ = sock.recvmsg(MAX_PACKET, space, flags | socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, fds.tolist()


_DESCRIPTORS: Final = 3
"""Beside a packet at most."""
