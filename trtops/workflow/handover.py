"""``trtops artifact export|import``, and how a release takes what other machines built: by a builder's signature.

Where machines share a store there is nothing to carry: what one has built and measured lies there for the others. Where
they do not, a folder goes from one to the next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError, IntegrityError, StorageError, TrustError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from trtops.backend.port import Sidecar
    from trtops.digest import Digest
    from trtops.evidence import Evidence
    from trtops.release.handover import Handover, Taken
    from trtops.spec.engine import EngineSpec
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.workspace import Workspace

HANDOVER = "handover"
"""Kind of the store's records: engine, target and spec -> what a builder hands on (:class:`Handover`)."""

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

    Raises:
        StorageError, TrustError: the store, or this home's builder key.
    """
    from trtops.release.handover import handover

    if build.built is None or build.envelope is None or evidence.accuracy is None:
        return
    made = handover(build.built.sidecar, build.envelope, evidence, workspace.keys.signer("builder"))
    body = made.canonical_bytes()
    if workspace.store.record(HANDOVER, made.key) != body:
        workspace.store.keep(HANDOVER, made.key, body)


def take(workspace: Workspace, spec: EngineSpec, target: str) -> Taken | None:
    """What another machine handed on for a target of a spec; None if none did, or the store lacks the engine.

    Raises:
        TrustError: it is forged, or its builder was revoked.
        StorageError: the store cannot be read.
    """
    from trtops.release.handover import key_of, parsed, taken

    key = key_of(spec.name, target, spec.digest())
    body = workspace.store.record(HANDOVER, key)
    if body is None:
        return None
    where = f"record {HANDOVER} of {spec.name}/{target}"
    try:
        found = taken(parsed(body, where), workspace.keys.root(), where)
    except InputError as error:
        raise TrustError(error.what, where=where, fix=error.fix) from error
    return found if workspace.store.has(found.sidecar.artifact) else None


def export(workspace: Workspace, engine: str, only: Collection[str], folder: Path) -> tuple[Handed, ...]:
    """Write what was built, verified and measured here of an engine's present spec into a folder.

    Args:
        workspace: whose store.
        engine: name or folder.
        only: ids of targets; empty: all that there are.
        folder: is made; what it holds of other targets stays.

    Raises:
        InputError: the spec has no such target, or nothing of it was verified here.
        IntegrityError, StorageError: the store or the folder.
        TrustError: no trusted builder vouches for it.
    """
    from trtops.spec.load import find_engine, load_engine
    from trtops.store import write_durably

    spec = load_engine(find_engine(workspace.root, engine)).spec
    known = [target.id for target in spec.targets]
    if unknown := sorted(set(only) - set(known)):
        raise InputError(f"{spec.name} has no target {unknown[0]!r}", fix=f"its targets are {', '.join(known)}")
    done = []
    for target in only or known:
        found = take(workspace, spec, target)
        if found is None:
            if only:
                raise InputError(f"{spec.name}/{target} was not verified here by this spec", fix=_bench(spec.name))
            continue
        for digest in _files(found.sidecar):
            with workspace.store.path(digest).open("rb") as file:
                write_durably(folder / _BLOBS / digest.value, iter(lambda file=file: file.read(1 << 20), b""))  # type: ignore[misc]
        body = workspace.store.record(HANDOVER, _key(spec, target))
        write_durably(folder / f"{spec.name}.{target}{_SUFFIX}", [body or b""])  # last: what it names is there
        done.append(_handed(found))
    if not done:
        raise InputError(f"no target of {spec.name} was verified here by this spec", fix=_bench(spec.name))
    return tuple(done)


def bring(workspace: Workspace, folders: Sequence[Path]) -> tuple[Handed, ...]:
    """Take what other machines exported into this store. Nothing is taken whose signatures do not hold.

    Args:
        workspace: whose store, and whose root of trust.
        folders: that were exported.

    Raises:
        InputError: a folder holds no handover, or one that is none, or not the engine that it names.
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
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StorageError(f"cannot be read: {os.strerror(error.errno or 0)}", where=where) from error
    given = parsed(body, where)
    # Arbitrary software: not a byte of the engine is looked at before a trusted builder vouches for it.
    found = taken(given, workspace.keys.root(), where)
    if _older(workspace, given, found):
        return _handed(found, new=False)
    for digest in _files(found.sidecar):
        _keep(workspace, folder / _BLOBS / digest.value, digest, found.sidecar)
    workspace.store.keep(HANDOVER, given.key, given.canonical_bytes())
    return _handed(found)


def _older(workspace: Workspace, given: Handover, found: Taken) -> bool:
    """Whether what is here already is as new. Replay: better numbers of last month are genuine, and past."""
    from trtops.release.handover import parsed, taken

    body = workspace.store.record(HANDOVER, given.key)
    if body is None:
        return False
    try:
        here = taken(parsed(body, given.key), workspace.keys.root(), given.key)
    except (InputError, TrustError):  # what nobody vouches for any more keeps nothing out
        return False
    return here.evidence.created >= found.evidence.created and all(
        workspace.store.has(digest) for digest in _files(here.sidecar)
    )


def _keep(workspace: Workspace, path: Path, digest: Digest, sidecar: Sidecar) -> None:
    from trtops.backend.trt_plugins import MAX_LIBRARY_BYTES
    from trtops.digest import Digest as Found

    limit = sidecar.size_bytes if digest == sidecar.artifact else MAX_LIBRARY_BYTES
    try:
        if path.stat().st_size > limit or Found.of_file(path) != digest:
            what = f"these are not the bytes of {digest.short} that the builder signed"
            raise IntegrityError(what, where=str(path), fix="export it again")
    except FileNotFoundError:
        raise InputError("the engine is not in the folder", where=str(path), fix="export it again") from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if workspace.store.put_file(path) != digest:
        raise IntegrityError("the file changed while it was read", where=str(path), fix="import it again")


def _files(sidecar: Sidecar) -> Iterator[Digest]:
    """The engine, and the plugin libraries that it is loaded with."""
    from trtops.backend.trt_plugins import libraries_of

    yield sidecar.artifact
    yield from libraries_of(sidecar.extra)


def _handed(found: Taken, *, new: bool = True) -> Handed:
    proof = found.provenance
    return Handed(proof.engine, proof.target, proof.artifact, found.sidecar.size_bytes, proof.builder, new)


def _key(spec: EngineSpec, target: str) -> str:
    from trtops.release.handover import key_of

    return key_of(spec.name, target, spec.digest())


def _bench(engine: str) -> str:
    return f"build, verify and measure it: trtops verify {engine}, then trtops bench {engine}"
