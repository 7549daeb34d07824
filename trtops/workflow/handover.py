"""``trtops artifact export|import``, and how a release takes what other machines built: by a builder's signature.

Where machines share a store there is nothing to carry: what one has built and measured lies there for the others. Where
they do not, a folder goes from one to the next.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import Digest
from trtops.errors import FetchFailed, InputError, IntegrityError, StorageError, TrustError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from trtops.backend.port import Sidecar
    from trtops.evidence import Evidence
    from trtops.release.handover import Handover, Taken
    from trtops.spec.engine import EngineSpec
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.workspace import Workspace

HANDOVER = "handover"
"""Kind of the store's records: engine, target and spec -> what a builder hands on (:class:`Handover`)."""

_CHUNK = 1 << 20
_BLOBS = "blobs"
_SUFFIX = ".handover.json"


@dataclass(frozen=True)
class Handed:
    """One target that was exported or imported.

    Attributes:
        engine, target: whose.
        artifact: digest of the engine.
        size_bytes: of it.
        builder: id of the key that vouches for it.
        new: False: what was here already is newer, or the same.
    """

    engine: str
    target: str
    artifact: Digest
    size_bytes: int
    builder: str
    new: bool = True


def hand_over(workspace: Workspace, build: TargetBuild, evidence: Evidence) -> None:
    """Keep what was built and found here, signed, so that another machine can release it.

    Nothing is kept that this home's own root does not trust: it would be in the way of what trusted builders hand on.

    Raises:
        StorageError, TrustError: the store, or this home's builder key.
    """
    from trtops.release.handover import handover, taken

    if build.built is None or build.envelope is None or evidence.accuracy is None:
        return
    made = handover(build.built.sidecar, build.envelope, evidence, workspace.keys.signer("builder"))
    try:
        taken(made, workspace.keys.root(), made.key)
    except TrustError:
        return
    body = made.canonical_bytes()
    if workspace.store.record(HANDOVER, made.key) != body:
        workspace.store.keep(HANDOVER, made.key, body)


def offered(workspace: Workspace, spec: EngineSpec, target: str) -> tuple[Taken | None, str | None]:
    """What another machine handed on for a target of a spec, or why it cannot be taken; neither if none did.

    One bad record stops nobody: it is that target's reason, and the other targets and engines go on.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        found = _take(workspace, spec, target)
    except (TrustError, FetchFailed, IntegrityError) as error:
        return None, f"what another machine handed on is not taken: {error.what}"
    return (found[0] if found else None), None


def _take(workspace: Workspace, spec: EngineSpec, target: str) -> tuple[Taken, bytes] | None:
    """A handover that was verified, its files too, with the very bytes of its record; None if there is none.

    Raises:
        TrustError: it is forged, or its builder was revoked.
        FetchFailed, IntegrityError: the engine or a plugin library is not there, or damaged.
        StorageError: the store cannot be read.
    """
    from trtops.release.handover import key_of, parsed, taken

    body = workspace.store.record(HANDOVER, key_of(spec.name, target, spec.digest()))
    if body is None:
        return None
    where = f"record {HANDOVER} of {spec.name}/{target}"
    try:
        found = taken(parsed(body, where), workspace.keys.root(), where)
    except InputError as error:
        raise TrustError(error.what, where=where, fix=error.fix) from error
    for digest, size in _files(found.sidecar):
        workspace.store.path(digest, size=size)
    return found, body


def export(workspace: Workspace, engine: str, only: Collection[str], folder: Path) -> tuple[Handed, ...]:
    """Write what was built, verified and measured here of an engine's present spec into a folder.

    Args:
        workspace: whose store.
        engine: name or folder.
        only: ids of targets; empty: all that there are.
        folder: is made; what it holds of other targets stays.

    Raises:
        InputError: the spec has no such target, or nothing of it was verified here.
        FetchFailed, IntegrityError, StorageError: the store or the folder.
        TrustError: no trusted builder vouches for it.
    """
    from trtops.spec.load import find_engine, load_engine

    spec = load_engine(find_engine(workspace.root, engine)).spec
    known = [target.id for target in spec.targets]
    if unknown := sorted(set(only) - set(known)):
        raise InputError(f"{spec.name} has no target {unknown[0]!r}", fix=f"its targets are {', '.join(known)}")
    done = []
    for target in only or known:
        there = _take(workspace, spec, target)
        if there is None:
            if only:
                raise InputError(f"{spec.name}/{target} was not verified here by this spec", fix=_bench(spec.name))
            continue
        found, body = there
        for digest, size in _files(found.sidecar):
            with workspace.store.path(digest, size=size).open("rb") as file:
                _write(folder / _BLOBS / digest.value, iter(lambda file=file: file.read(_CHUNK), b""))  # type: ignore[misc]
        _write(folder / f"{spec.name}.{target}{_SUFFIX}", [body])  # last: what it names is there
        done.append(_handed(found))
    if not done:
        raise InputError(f"no target of {spec.name} was verified here by this spec", fix=_bench(spec.name))
    return tuple(done)


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    from trtops.durable import write_durably

    try:
        write_durably(path, chunks)
    except StorageError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
        fix = "free space there, or give another folder with --out"
        raise StorageError(f"cannot be written: {reason or error.what}", where=str(path), fix=fix) from error


def bring(workspace: Workspace, folders: Sequence[Path]) -> tuple[Handed, ...]:
    """Take what other machines exported into this store. Nothing is taken whose signatures do not hold.

    Args:
        workspace: whose store, and whose root of trust.
        folders: that were exported.

    Raises:
        InputError: a folder holds no handover, or one that is none, or not the engine that it names, or what is no
            regular file (a link, a device, a pipe).
        IntegrityError: an engine's bytes are not those that the builder signed.
        TrustError: forged, of parts that do not belong together, or its builder was revoked.
        StorageError: a folder cannot be read, or the store not be written.
    """
    done = []
    for folder in folders:
        files = _handovers(folder)
        if not files:
            raise InputError("there is nothing to import", where=str(folder), fix="give a folder of artifact export")
        done += [_bring(workspace, folder, path) for path in files]
    return tuple(done)


def _handovers(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    except NotADirectoryError:
        raise InputError("this is no folder", where=str(folder), fix="give a folder of artifact export") from None
    except FileNotFoundError:
        raise InputError("there is no such folder", where=str(folder)) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=str(folder)) from error


def _bring(workspace: Workspace, folder: Path, path: Path) -> Handed:
    from trtops.release.handover import MAX_BYTES, parsed, taken

    where = str(path)
    with _opened(path) as file:
        body = file.read(MAX_BYTES + 1)
    given = parsed(body, where)
    # Arbitrary software: not a byte of the engine is looked at before a trusted builder vouches for it.
    found = taken(given, workspace.keys.root(), where)
    if _older(workspace, given, found):
        return _handed(found, new=False)
    for digest, size in _files(found.sidecar):
        _keep(workspace, folder / _BLOBS / digest.value, digest, size)
    workspace.store.keep(HANDOVER, given.key, given.canonical_bytes())
    return _handed(found)


def _older(workspace: Workspace, given: Handover, found: Taken) -> bool:
    """Whether what is here already is whole, and as new. Replay: better numbers of last month are genuine, and past."""
    from trtops.release.handover import parsed, taken

    body = workspace.store.record(HANDOVER, given.key)
    if body is None:
        return False
    try:
        here = taken(parsed(body, given.key), workspace.keys.root(), given.key)
        if here.evidence.created < found.evidence.created:
            return False
        for digest, size in _files(here.sidecar):
            workspace.store.path(digest, size=size)
    except (InputError, TrustError):  # what nobody vouches for any more keeps nothing out
        return False
    except (FetchFailed, IntegrityError):  # what is damaged here is brought anew
        return False
    return True


def _keep(workspace: Workspace, path: Path, digest: Digest, limit: int) -> None:
    with _opened(path) as file:
        if _digest(file, limit) != digest:
            what = f"these are not the bytes of {digest.short} that the builder signed"
            raise IntegrityError(what, where=str(path), fix="export it again")
        try:
            # The open file by its descriptor: at its path there may be another one by now.
            kept = workspace.store.put_file(Path(f"/proc/self/fd/{file.fileno()}"))
        except InputError as error:
            raise StorageError(error.what, where=str(path), fix="import it again") from error
    if kept != digest:
        raise IntegrityError("the file changed while it was read", where=str(path), fix="import it again")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file of a folder that came from elsewhere: a link leads out of it, a pipe or a device never ends."""
    fix = "export it again"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError("this is no regular file", where=str(path), fix=fix)
            with open(descriptor, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise InputError("the engine is not in the folder", where=str(path), fix=fix) from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise InputError("this is no regular file", where=str(path), fix=fix) from None
        raise StorageError(f"cannot be read: {os.strerror(error.errno or 0)}", where=str(path)) from error


def _digest(file: BinaryIO, limit: int) -> Digest | None:
    """Of the whole file; None where it has more bytes than the limit."""
    hashed, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            return None
        hashed.update(chunk)
    return Digest("sha256", hashed.hexdigest())


def _files(sidecar: Sidecar) -> Iterator[tuple[Digest, int]]:
    """The engine, and the plugin libraries that it is loaded with; each with how many bytes it has at most."""
    from trtops.backend.trt_plugins import MAX_LIBRARY_BYTES, libraries_of

    yield sidecar.artifact, sidecar.size_bytes
    yield from ((digest, MAX_LIBRARY_BYTES) for digest in libraries_of(sidecar.extra))


def _handed(found: Taken, *, new: bool = True) -> Handed:
    proof = found.provenance
    return Handed(proof.engine, proof.target, proof.artifact, found.sidecar.size_bytes, proof.builder, new)


def _bench(engine: str) -> str:
    return f"build, verify and measure it: trtops verify {engine}, then trtops bench {engine}"
