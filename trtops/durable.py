"""Files that hold all of what was written or what they held before, also after a crash or a power cut.

A file is written beside its place, flushed to the disk, moved into its place, and the folder is flushed after it. Who
writes sweeps what killed writers left behind, each in its own way: files whose names begin with :data:`TEMPORARY`.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trtops.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

TEMPORARY = ".tmp-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_OPEN_TO_ALL = 0o666  # less the umask


def write_durably(path: Path, chunks: Iterable[bytes], *, mode: int = _OPEN_TO_ALL) -> None:
    """Put bytes at a path. Makes the folders above it.

    Args:
        path: where.
        chunks: the bytes.
        mode: permissions of the new file, from its first byte on; the process's umask takes from them.

    Raises:
        StorageError: the disk is full or may not be written; nothing is left behind, the old file is as it was.
    """
    temporary = path.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch(mode, exist_ok=False)
            with temporary.open("r+b") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # file systems that flush no folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn what the operating system says into what a person can act on.

    Raises:
        StorageError: whatever OSError was raised within.
    """
    try:
        yield
    except OSError as error:
        raise _storage_error(error, path) from error


def _storage_error(error: OSError, path: Path | str) -> StorageError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        fix = "free space there, or move the store with TRTOPS_HOME; what was stored before is untouched"
    elif error.errno in _FORBIDDEN:
        fix = "give this user the right to write there, or move the store with TRTOPS_HOME"
    else:
        fix = "look at the disk; what was stored before is untouched"
    return StorageError(f"cannot read or write the store: {reason}", where=str(path), fix=fix)
