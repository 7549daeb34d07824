"""A registry in a folder: one folder an environment, one file a document. The default; needs no server.

Layout: ``ROOT/ENVIRONMENT/SEGMENT/…/SEGMENT.json``, with a ``~`` before a segment that starts with a dot, and after a
folder's that ends in ``.json``. Files get the permissions of the umask, so that services of other
users can read them with the usual 022. Several processes may use it at once, also over a file system that is shared
and has working locks. A writer that is killed leaves the old document or the new one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.durable import TEMPORARY, write_durably
from trtops.errors import Conflict, InputError, StorageError, Unavailable
from trtops.registry.follow import Follower
from trtops.registry.names import checked_body, checked_name
from trtops.registry.port import MAX_DOCUMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOCK = ".lock"
_SUFFIX = ".json"
_MARK = "~"  # no name has it: keeps a folder from looking like a document, and both from looking like a lock
_ABSENT = (FileNotFoundError, NotADirectoryError)


class FileRegistry:
    """Documents of one environment in a folder."""

    def __init__(self, root: Path, environment: str, *, interval: float = 0.2, lock_timeout: float = 10.0) -> None:
        """Point at a folder; makes nothing until something is written.

        Args:
            root: folder of all environments.
            environment: name of the one to use; a name of one segment.
            interval: seconds between two looks of a watch.
            lock_timeout: seconds to wait for another writer.

        Raises:
            InputError: the environment is no name, or the root is a file.
        """
        try:
            checked_name(environment)
        except ValueError:
            raise InputError(f"not a name of an environment: {environment[:80]!r}") from None
        if "/" in environment or environment.startswith("."):
            raise InputError(f"not a name of an environment: {environment!r}")
        if root.exists() and not root.is_dir():
            raise InputError("the registry is not a folder", where=str(root), fix="give the path of a folder")
        self.environment = environment
        self._folder = root.absolute() / environment
        self._interval = interval
        self._lock_timeout = lock_timeout

    def __repr__(self) -> str:
        """Show where it is."""
        return f"FileRegistry({str(self._folder)!r})"

    def read(self, name: str) -> bytes | None:
        """See :meth:`trtops.registry.port.Registry.read`.

        Raises:
            StorageError: the file is larger than any document.
            Unavailable: the folder cannot be read.
        """
        path = self._path(name)
        try:
            with path.open("rb") as file:
                body = file.read(MAX_DOCUMENT_BYTES + 1)
        except _ABSENT:
            return None
        except OSError as error:
            raise _unavailable(error, path) from error
        if len(body) > MAX_DOCUMENT_BYTES:
            what = f"the file has more than {MAX_DOCUMENT_BYTES} bytes: it is no document of trtops"
            raise StorageError(what, where=str(path), fix="remove it")
        return body

    def create(self, name: str, body: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.create`."""
        checked_body(name, body)
        with self._locked():
            there = self.read(name)
            if there is None:
                self._write(name, body)
        if there is not None and there != body:
            raise Conflict("another document is there already", where=str(self._path(name)))
        return there is None

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        """See :meth:`trtops.registry.port.Registry.swap`."""
        checked_body(name, body)
        with self._locked():
            if self.read(name) != expected:
                raise Conflict("the document was changed by somebody else", where=str(self._path(name)))
            self._write(name, body)

    def remove(self, name: str, expected: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.remove`."""
        path = self._path(name)
        with self._locked():
            there = self.read(name)
            if there is not None and there != expected:
                raise Conflict("another document is there", where=str(path))
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise _not_written(error, path) from error
        return there is not None

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """See :meth:`trtops.registry.port.Registry.names`."""
        found: list[str] = []
        try:
            for folder, _, files in os.walk(self._folder, onerror=_raise):
                segments = [_unmarked(part) for part in Path(folder).relative_to(self._folder).parts]
                found += [
                    "/".join([*segments, _unmarked(file.removesuffix(_SUFFIX))])
                    for file in files
                    if file.endswith(_SUFFIX)
                ]
        except _ABSENT:
            return ()
        except OSError as error:
            raise _unavailable(error, self._folder) from error
        return tuple(sorted(name for name in found if name.startswith(prefix)))

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> Follower:
        """See :meth:`trtops.registry.port.Registry.watch`. Looks at the file at every interval."""
        self._path(name)
        return Follower(name, lambda: self.read(name), changed, self._interval)

    def _path(self, name: str) -> Path:
        *folders, last = checked_name(name).split("/")
        parts = [f"{_marked(part)}{_MARK if part.endswith(_SUFFIX) else ''}" for part in folders]
        return self._folder.joinpath(*parts, _marked(last) + _SUFFIX)

    def _write(self, name: str, body: bytes) -> None:
        path = self._path(name)
        for leftover in path.parent.glob(f"{TEMPORARY}*"):  # of a writer that was killed: all writers hold the lock
            leftover.unlink(missing_ok=True)
        try:
            write_durably(path, [body])
        except StorageError as error:
            raise _not_written(error.__cause__ or error, path) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        lock = FileLock(self._folder / _LOCK, timeout=self._lock_timeout)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            what = f"another process has held the registry's lock for {self._lock_timeout:g} s"
            raise Unavailable(what, where=str(self._folder), fix="look for a writer that hangs") from None
        except OSError as error:
            raise _not_written(error, self._folder) from error
        try:
            yield
        finally:
            lock.release()


def _marked(segment: str) -> str:
    return f"{_MARK}{segment}" if segment.startswith(".") else segment


def _unmarked(part: str) -> str:
    return part.removeprefix(_MARK).removesuffix(_MARK)


def _raise(error: OSError) -> None:
    raise error


def _unavailable(error: OSError, path: Path) -> Unavailable:
    fix = "give this user the right to read it" if isinstance(error, PermissionError) else "look at the disk"
    return Unavailable(f"cannot read the registry: {error.strerror or error}", where=str(path), fix=fix)


def _not_written(error: BaseException, path: Path) -> StorageError:
    reason = error.strerror or error if isinstance(error, OSError) else error
    fix = "free space or give this user the right to write there; the documents are as they were"
    return StorageError(f"cannot write the registry: {reason}", where=str(path), fix=fix)
