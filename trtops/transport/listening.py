"""A Unix socket to listen on."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import stat
import time
from typing import TYPE_CHECKING, Final

from trtops.errors import StorageError, TrtopsError, Unavailable
from trtops.transport.parting import hang_up, refuse_descriptors

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_PAUSE: Final = 0.01
"""Seconds to wait where not even a client can be hung up on: epoll reports it again at once."""


class Spare:
    """A descriptor that is kept for the time when there is no other one left. Close it."""

    def __init__(self) -> None:
        """Keep one.

        Raises:
            OSError: there is none.
        """
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def __repr__(self) -> str:
        """Show whether there is one."""
        return f"Spare({'kept' if self._fd >= 0 else 'used'})"

    def turn_away(self, listening: socket.socket, why: OSError) -> None:
        """Take the next client and hang up on it, since it cannot be accepted; else epoll would report it for ever.

        Another thread may take the descriptor meanwhile: then the client waits until there are some again.
        """
        kept = self._fd >= 0
        self.close()
        with contextlib.suppress(OSError):
            hang_up(listening.accept()[0])
        with contextlib.suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if kept:
            log.warning("a client could not be accepted: %s", why)
        if self._fd < 0:
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Give it back. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def listen(path: Path, mode: int) -> socket.socket:
    """Listen on a Unix socket; a stale one is replaced.

    Args:
        path: of its file.
        mode: permissions of the file.

    Raises:
        Unavailable: another server listens there.
        StorageError: the socket cannot be made.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        path.chmod(mode)  # nobody can connect before listen()
        refuse_descriptors(sock)
        sock.listen(64)
    except TrtopsError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        what, fix = _unfit(path, error)
        raise StorageError(f"no socket can be made: {what}", where=str(path), fix=fix) from error
    sock.settimeout(0)
    return sock


def _unfit(path: Path, error: OSError) -> tuple[str, str]:
    """Why a socket cannot be made at a path, and what to do about it."""
    folder = path.parent
    if not folder.is_dir():
        if folder.exists():
            return f"{folder} is no folder", "choose a path in a folder"
        return f"there is no folder {folder}", f"make it: mkdir -p {shlex.quote(str(folder))}"
    if isinstance(error, PermissionError):
        return f"no right to write to {folder}", "let this user write there, or choose another path"
    if error.errno is None:  # of Python itself: sun_path has 108 bytes, its end included
        return f"the path has {len(os.fsencode(path))} bytes, and 107 are the most", "choose a shorter one"
    return os.strerror(error.errno), "choose another path"


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StorageError("there is a file, not a socket", where=str(path), fix="choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise Unavailable("another server listens there", where=str(path), fix="stop it, or choose another path")
