"""A Unix socket to listen on."""

from __future__ import annotations

import socket
import stat
from typing import TYPE_CHECKING

from trtops.errors import StorageError, TrtopsError, Unavailable

if TYPE_CHECKING:
    from pathlib import Path


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
        sock.listen(64)
    except TrtopsError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise StorageError(f"no socket can be made: {error}", where=str(path), fix="check the path") from error
    sock.settimeout(0)
    return sock


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
