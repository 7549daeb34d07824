"""Folders of builds in the store: one each, its owner known by a lock, and what dead owners left is swept.

A process that is killed removes nothing. Its lock goes with it, though, so that the next build can tell a folder whose
owner is dead from one that is in use. Logs of failed builds stay for a week.
"""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCKS = "locks"
LOGS = "logs"
_PREFIX = "build-"
_DAY = 86_400.0
_LOG_SECONDS = 7 * _DAY


@contextmanager
def scratch(store: Path, clock: Callable[[], float] = time.time) -> Iterator[Path]:
    """A folder of a build's own, removed at its end; what dead builds left in this store goes first.

    Args:
        store: local folder of the store.
        clock: epoch seconds.

    Raises:
        StorageError: the folder cannot be made.
    """
    import filelock

    folder = store / f"{_PREFIX}{secrets.token_hex(6)}"
    lock = filelock.FileLock(store / LOCKS / folder.name)
    try:
        (store / LOGS).mkdir(parents=True, exist_ok=True)
        (store / LOCKS).mkdir(exist_ok=True)
        sweep(store, clock())
        # First the lock, then the folder: whoever sees the folder sees that it is in use.
        lock.acquire(timeout=0)
        folder.mkdir(mode=0o700)
    except OSError as error:
        lock.release()
        what = f"cannot make a folder for the build: {error.strerror or error}"
        raise StorageError(what, where=str(store), fix="free space there, or move the store") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _drop(lock)


def sweep(store: Path, now: float) -> tuple[str, ...]:
    """Remove folders of builds whose process is dead, their locks, and logs that nobody reads any more.

    Args:
        store: local folder of the store.
        now: epoch seconds.

    Returns:
        names of what was removed. What cannot be removed stays, and is tried again by the next build.
    """
    import filelock

    removed = []
    for folder in store.glob(f"{_PREFIX}*"):
        known = (store / LOCKS / folder.name).exists()
        if not folder.is_dir() or not (known or _older(folder, now - _DAY)):
            continue
        lock = filelock.FileLock(store / LOCKS / folder.name)
        with suppress(OSError, filelock.Timeout):
            lock.acquire(timeout=0)
            shutil.rmtree(folder, ignore_errors=True)
            _drop(lock)
            removed.append(folder.name)
    for log in (store / LOGS).glob(f"{_PREFIX}*.log"):
        if _older(log, now - _LOG_SECONDS):
            with suppress(OSError):
                log.unlink()
                removed.append(log.name)
    return tuple(sorted(removed))


def _drop(lock: object) -> None:
    """Give a lock back and remove its file: its name is random, so that nobody else ever waits for it."""
    import filelock

    assert isinstance(lock, filelock.BaseFileLock)  # noqa: S101 - made above
    with suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except OSError:
        return False
