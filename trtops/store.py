"""Content-addressed artifacts and a small index of named records, in a local folder or at any fsspec URL.

Layout under the root::

    sha256/ab/abcdef…           one artifact, named by its digest
    records/KIND/KEY.json       one record; the key is percent-encoded

Laws: ``store.read(store.put_bytes(b)) == b``; a reader sees a whole file or none, at whatever moment a writer dies;
two writers of the same digest do each other no harm.

Files are written as :mod:`trtops.durable` does. What a killed writer left behind (``.tmp-…``) is swept by a later
writer of the same folder, an hour after its last byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from trtops.digest import Digest
from trtops.durable import TEMPORARY, storage_errors, write_durably
from trtops.errors import FetchFailed, InputError, IntegrityError, StorageError, TrtopsError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CHUNK = 1 << 20
_STALE_SECONDS = 3600.0
_KIND = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_MAX_NAME = 240
_ANOTHER = Digest("sha256", "0" * 64)  # of nothing that anybody has
RECORD_LIMIT = 16 << 20  # the largest record in bytes


class _Place(Protocol):
    """Where files are kept: relative names in, bytes out. Names are made by :class:`Store` only."""

    def exists(self, name: str) -> bool: ...
    def local(self, name: str, size: int | None, /) -> Path | None:
        """Bring a file here, ``size`` bytes of it at most; None if there is none. Its bytes are not verified."""

    def drop_local(self, name: str) -> None:
        """Forget a copy that this machine made; the place's own file stays."""

    def read(self, name: str, limit: int) -> bytes | None: ...
    def write(self, name: str, chunks: Iterable[bytes]) -> None: ...
    def remove(self, name: str) -> None: ...
    def files(self, name: str) -> list[str]:
        """Names of the files below a folder, with the folder; empty if there is none."""


class _Folder:
    """A folder of this machine."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._clock = clock

    def exists(self, name: str) -> bool:
        with storage_errors(self._root / name):
            return (self._root / name).is_file()

    def local(self, name: str, _size: int | None, /) -> Path | None:
        return self._root / name if self.exists(name) else None

    def drop_local(self, name: str) -> None:
        """Keep it: here the copy is the file."""

    def read(self, name: str, limit: int) -> bytes | None:
        with storage_errors(self._root / name), suppress(FileNotFoundError), (self._root / name).open("rb") as file:
            return file.read(limit)
        return None

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self._root / name
        self._sweep(path.parent)
        write_durably(path, chunks)

    def remove(self, name: str) -> None:
        with storage_errors(self._root / name):
            (self._root / name).unlink(missing_ok=True)

    def files(self, name: str) -> list[str]:
        found = []
        with storage_errors(self._root / name):
            for folder, _, names in os.walk(self._root / name):
                below = Path(folder).relative_to(self._root)
                found += [str(below / file) for file in names if not file.startswith(".")]
        return found

    def _sweep(self, folder: Path) -> None:
        with suppress(OSError):
            for leftover in folder.glob(f"{TEMPORARY}*"):
                if self._clock() - leftover.stat().st_mtime > _STALE_SECONDS:
                    leftover.unlink(missing_ok=True)


class _Remote:
    """A folder at a URL that fsspec opens, with a cache of this machine in front of it."""

    def __init__(self, url: str, cache: Path, clock: Callable[[], float]) -> None:
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise Unavailable(f"cannot open the store: {error}", where=url, fix="install that package") from error
        except ValueError as error:
            raise InputError(
                f"cannot open the store: {error}", where=url, fix="use a scheme that fsspec knows"
            ) from error
        self._url = url
        self._cache = _Folder(cache, clock)

    def exists(self, name: str) -> bool:
        return self._cache.exists(name) or bool(self._ask(name, self._files.isfile, self._at(name)))

    def local(self, name: str, size: int | None, /) -> Path | None:
        if (path := self._cache.local(name, size)) is not None:
            return path
        with self._opened(name) as file:
            if file is None:
                return None
            self._cache.write(name, _at_most(iter(lambda: self._ask(name, file.read, _CHUNK), b""), size, self._url))
        return self._cache.local(name, size)

    def drop_local(self, name: str) -> None:
        self._cache.remove(name)

    def read(self, name: str, limit: int) -> bytes | None:
        with self._opened(name) as file:
            return None if file is None else bytes(self._ask(name, file.read, limit))

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        folder, _, last = name.rpartition("/")
        temporary = self._at(f"{folder}/{TEMPORARY}{secrets.token_hex(6)}-{last[:16]}")
        self._ask(name, lambda: self._files.makedirs(self._at(folder), exist_ok=True))
        try:
            self._ask(name, self._upload, temporary, chunks)
            self._ask(name, self._files.mv, temporary, self._at(name))
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(temporary)
            raise

    def remove(self, name: str) -> None:
        self._cache.remove(name)
        with suppress(FileNotFoundError):
            self._ask(name, self._files.rm_file, self._at(name))

    def files(self, name: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._ask(name, self._files.find, self._at(name))
        except FileNotFoundError:
            return []
        base = self._root.rstrip("/") + "/"
        names = [str(path)[len(base) :] for path in found if str(path).startswith(base)]
        return [path for path in names if not path.rpartition("/")[2].startswith(".")]

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _upload(self, path: str, chunks: Iterable[bytes]) -> None:
        with self._files.open(path, "wb") as file:
            file.writelines(chunks)

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        try:
            file = self._ask(name, self._files.open, self._at(name), "rb")
        except FileNotFoundError:
            yield None
            return
        with file:
            yield file

    def _ask(self, name: str, call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - fsspec has no types
        try:
            return call(*arguments)
        except (FileNotFoundError, TrtopsError):
            raise
        except Exception as error:
            # Each protocol raises the errors of its own client library; all mean that the store did not do it.
            reason = f"{type(error).__name__}: {error}"
            fix = "look at the address, the credentials and the network; what was stored before is untouched"
            raise StorageError(f"the store failed: {reason}", where=f"{self._url}/{name}", fix=fix) from error


class Store:
    """Artifacts by digest, and records by kind and key.

    Safe to use from several threads and processes at once.

    Attributes:
        root: where it is, as it was given.
        folder: of this machine: the store itself, or its cache; also for what builds need (locks, logs, scratch).
    """

    def __init__(self, root: str | Path, *, cache: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Open a store; makes nothing until something is written.

        Args:
            root: a folder, a ``file:`` URL, or another URL that fsspec opens (``s3://bucket/prefix`` …).
            cache: where copies from a URL are kept; default ``~/.cache/trtops/store/…``. Unused for a folder.
            clock: epoch seconds; decides when leftovers of killed writers are old enough to be swept.

        Raises:
            InputError: a URL scheme that is not known.
            Unavailable: the scheme needs a package that is not installed.
        """
        self.root = str(root)
        self._place: _Place
        parts = urlsplit(self.root) if isinstance(root, str) and "://" in root else None
        if parts is None or parts.scheme == "file":
            folder = Path(unquote(parts.path)) if parts else Path(root).expanduser()
            self.folder = folder.absolute()
            self._place = _Folder(self.folder, clock)
        else:
            name = hashlib.sha256(self.root.encode()).hexdigest()[:16]
            self.folder = cache or Path.home() / ".cache" / "trtops" / "store" / name
            self._place = _Remote(self.root, self.folder, clock)
        self._verified: dict[Digest, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        """Show where it is and how many artifacts this object has verified."""
        return f"Store({self.root!r}, verified={len(self._verified)})"

    def put_bytes(self, data: bytes) -> Digest:
        """Keep bytes. A damaged file under the same digest is replaced.

        Raises:
            StorageError: they could not be written; nothing is left behind.
        """
        digest = Digest.of_bytes(data)
        if not self._sound(digest):
            self._write(digest, [data])
        return digest

    def put_file(self, path: Path) -> Digest:
        """Keep a copy of a file. A damaged file under the same digest is replaced.

        Raises:
            InputError: the file cannot be read, or changes while it is copied.
            StorageError: it could not be written; nothing is left behind.
        """
        try:
            digest = Digest.of_file(path)
            if not self._sound(digest):
                with path.open("rb") as file:
                    self._write(digest, _matching(file.read, digest, path))
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", where=str(path)) from error
        return digest

    def has(self, digest: Digest) -> bool:
        """Whether there is a file under this digest. Its bytes are verified by :meth:`path` and :meth:`read` only."""
        return self._place.exists(_artifact(digest))

    def path(self, digest: Digest, *, size: int | None = None) -> Path:
        """A local path whose bytes are those of the digest.

        The bytes are hashed in this call, unless this same object did so before and the file's size, inode,
        modification and change times are still those of then. Where ``size`` is known, no more is fetched or hashed.

        Raises:
            FetchFailed: the store has no such artifact.
            IntegrityError: the file is damaged or was changed.
            StorageError: the store cannot be read.
        """
        name = _artifact(digest)
        path = self._place.local(name, size)
        if path is None:
            raise _absent(digest, self.root)
        found = None
        with storage_errors(path), suppress(FileNotFoundError):
            stamp = _stamp(path)
            if self._verified.get(digest) == stamp:
                return path
            found = Digest.of_file(path) if size is None or path.stat().st_size <= size else _ANOTHER
        if found is None:  # another process took it away just now
            raise _absent(digest, self.root)
        if found != digest:
            self._verified.pop(digest, None)
            self._place.drop_local(name)
            raise _damaged(digest, path)
        self._verified[digest] = stamp
        return path

    def read(self, digest: Digest, limit: int) -> bytes:
        """The bytes of an artifact, verified.

        Raises:
            FetchFailed: the store has no such artifact.
            IntegrityError: the file is damaged or was changed.
            StorageError: it holds more than ``limit`` bytes, or cannot be read.
        """
        data = self._place.read(_artifact(digest), limit + 1)
        if data is None:
            raise _absent(digest, self.root)
        if len(data) > limit:
            what = f"the artifact {digest.short} is larger than the {limit} bytes that may be read at once"
            raise StorageError(what, where=self.root)
        if Digest.of_bytes(data) != digest:
            raise _damaged(digest, f"{self.root}/{_artifact(digest)}")
        return data

    def remove(self, digest: Digest) -> None:
        """Delete an artifact. Idempotent.

        Raises:
            StorageError: it could not be deleted.
        """
        self._verified.pop(digest, None)
        self._place.remove(_artifact(digest))

    def digests(self) -> tuple[Digest, ...]:
        """Every artifact that there is, sorted.

        Raises:
            StorageError: the store cannot be read.
        """
        names = (name.rpartition("/")[2] for name in self._place.files("sha256"))
        return tuple(sorted(Digest("sha256", name) for name in names if re.fullmatch("[0-9a-f]{64}", name)))

    def record(self, kind: str, key: str) -> bytes | None:
        """The body that was kept last under a kind and a key; None if there is none.

        Raises:
            StorageError: the store cannot be read, or the record is larger than :data:`RECORD_LIMIT`.
        """
        name = _record(kind, key)
        body = self._place.read(name, RECORD_LIMIT + 1)
        if body is not None and len(body) > RECORD_LIMIT:
            raise StorageError(f"the record is larger than {RECORD_LIMIT} bytes", where=f"{self.root}/{name}")
        return body

    def keep(self, kind: str, key: str, body: bytes) -> None:
        """Write a record, or replace it, in one step.

        Args:
            kind: what it is: lower case letters, digits and dashes, e.g. ``sidecar``.
            key: any text whose percent-encoded form has 240 characters at most.
            body: JSON by convention; :data:`RECORD_LIMIT` bytes at most.

        Raises:
            StorageError: it could not be written; the record of before is still there.
            ValueError: a kind, key or body out of these bounds.
        """
        if len(body) > RECORD_LIMIT:
            raise ValueError(f"a record has {RECORD_LIMIT} bytes at most, this one {len(body)}")
        self._place.write(_record(kind, key), [body])

    def forget(self, kind: str, key: str) -> None:
        """Delete a record. Idempotent.

        Raises:
            StorageError: it could not be deleted.
        """
        self._place.remove(_record(kind, key))

    def records(self, kind: str) -> dict[str, bytes]:
        """All records of a kind by key, sorted by key.

        Raises:
            StorageError: the store cannot be read.
        """
        names = self._place.files(f"records/{_checked(kind)}")
        keys = sorted(unquote(name.rpartition("/")[2].removesuffix(".json")) for name in names)
        bodies = ((key, self.record(kind, key)) for key in keys)
        return {key: body for key, body in bodies if body is not None}

    def _sound(self, digest: Digest) -> bool:
        try:
            self.path(digest)
        except (FetchFailed, IntegrityError):
            return False
        return True

    def _write(self, digest: Digest, chunks: Iterable[bytes]) -> None:
        name = _artifact(digest)
        self._place.drop_local(name)
        self._place.write(name, chunks)


def _artifact(digest: Digest) -> str:
    return f"{digest.algorithm}/{digest.value[:2]}/{digest.value}"


def _checked(kind: str) -> str:
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a kind of record: lower case letters, digits and dashes")
    return kind


def _record(kind: str, key: str) -> str:
    encoded = quote(key, safe="")
    # A leading dot is for temporary files, and "." and ".." are folders.
    encoded = f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded
    if not key or len(encoded) > _MAX_NAME:
        raise ValueError(f"a record's key has 1 to {_MAX_NAME} characters, percent-encoded: {key[:80]!r}")
    return f"records/{_checked(kind)}/{encoded}.json"


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _matching(read: Callable[[int], bytes], digest: Digest, path: Path) -> Iterator[bytes]:
    state = hashlib.sha256()
    while chunk := read(_CHUNK):
        state.update(chunk)
        yield chunk
    if state.hexdigest() != digest.value:
        raise InputError("the file changed while it was copied", where=str(path), fix="wait until its writer is done")


def _at_most(chunks: Iterable[bytes], size: int | None, url: str) -> Iterator[bytes]:
    count = 0
    for chunk in chunks:
        count += len(chunk)
        if size is not None and count > size:  # endless data: whoever has the store must not fill this disk
            raise IntegrityError(f"the file has more than the {size} bytes that were released", where=url)
        yield chunk


def _absent(digest: Digest, root: str) -> FetchFailed:
    return FetchFailed(f"the store has no artifact {digest}", where=root, fix="build it, or fetch it from its release")


def _damaged(digest: Digest, where: Path | str) -> IntegrityError:
    what = f"the file's bytes are not those of {digest}: it was cut short or changed"
    return IntegrityError(what, where=str(where), fix="run the build again with --rebuild to replace it")
