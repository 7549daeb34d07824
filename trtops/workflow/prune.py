"""``trtops registry prune``: documents that nothing leads to, looked at twice before they go.

A publisher writes its documents before the pointer: for a while nothing leads to them, and nothing in a registry says
since when. So a look is remembered in ``TRTOPS_HOME``, and only what was unreferenced in a look long enough ago is
removed. What a channel that moves meanwhile leads to is put back. All of it lies in ``TRTOPS_HOME`` from before the
first is removed, so that the next run puts back what one that was cut off could not. Two runs of one home would take
each other's for left behind, and write over what the other one needs: one waits for the other.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Conflict, StorageError, TrtopsError, TrustError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trtops.workflow.workspace import Workspace

HOUR = 3600


@dataclass(frozen=True)
class Unreferenced:
    """A document that nothing leads to.

    Attributes:
        name: of the document.
        since: epoch seconds of the first look that found it so.
        ripe: whether that is long enough ago.
        removed: whether it was removed now.
    """

    name: str
    since: int
    ripe: bool
    removed: bool = False


@dataclass(frozen=True)
class Pruned:
    """What a look found.

    Attributes:
        found: documents that nothing leads to.
        distrusted: documents that others hang on and nobody vouches for; what they name was kept, unless it was said
            that it may go.
    """

    found: tuple[Unreferenced, ...]
    distrusted: tuple[TrustError, ...] = ()


def prune(
    workspace: Workspace, *, after_hours: float, remove: bool, revoked: bool = False, patience: float = 60.0
) -> Pruned:
    """Look at the environment's registry, and remove what has been unreferenced for long enough.

    Args:
        workspace: whose environment.
        after_hours: how long a document has to have been unreferenced.
        remove: False: only look, and remember it.
        revoked: what only documents of revoked keys lead to counts as unreferenced, too.
        patience: seconds to wait for another run of this home and environment.

    Raises:
        StorageError: the look cannot be remembered, or a document not be removed; or one that is needed not be put
            back: then it lies in ``TRTOPS_HOME``, and the next run tries again.
        TrustError: a pointer or a history does not hold; nothing is removed.
        Unavailable: the registry is away, or the other run takes longer.
    """
    with _alone(workspace, patience):
        return _pruned(workspace, after_hours=after_hours, remove=remove, revoked=revoked)


@contextmanager
def _alone(workspace: Workspace, patience: float) -> Iterator[None]:
    from filelock import FileLock, Timeout

    path = _path(workspace).with_suffix(".lock")
    lock = FileLock(path, timeout=patience)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        what = f"another trtops registry prune of {workspace.environment} is at work in this home"
        fix = f"wait for it; `fuser {path}` tells its process, if it hangs"
        raise Unavailable(what, where=str(path), fix=fix) from None
    except OSError as error:
        what = f"cannot lock this home's prune: {error.strerror or error}"
        raise StorageError(what, where=str(path), fix="free space or give this user the right to write there") from None
    try:
        yield
    finally:
        lock.release()


def _pruned(workspace: Workspace, *, after_hours: float, remove: bool, revoked: bool) -> Pruned:
    from trtops.release.prune import unreferenced

    registry, root, now = workspace.registry(), workspace.keys.root(), workspace.now()
    _finish(workspace, revoked=revoked)
    before, path = _remembered(workspace), _path(workspace)
    names, distrusted = unreferenced(registry, root, workspace.environment, revoked=revoked)
    since = {name: min(before.get(name, now), now) for name in names}
    _remember(path, since)
    found = [Unreferenced(name, since[name], now - since[name] >= after_hours * HOUR) for name in names]
    if not remove:
        return Pruned(tuple(found), distrusted)
    gone = _removed(workspace, [one.name for one in found if one.ripe], revoked=revoked)
    _remember(path, {name: at for name, at in since.items() if name not in gone})
    removed = (Unreferenced(one.name, one.since, one.ripe, one.name in gone) for one in found)
    return Pruned(tuple(removed), distrusted)


def _removed(workspace: Workspace, names: list[str], *, revoked: bool) -> frozenset[str]:
    """Remove documents; gives those that are gone."""
    from trtops.durable import write_durably

    registry, path = workspace.registry(), _taken_path(workspace)
    read = {name: registry.read(name) for name in names}
    bodies = {name: body for name, body in read.items() if body is not None}
    if not bodies:
        return frozenset()
    encoded = {name: base64.b64encode(body).decode() for name, body in bodies.items()}
    write_durably(path, [json.dumps(encoded, indent=1).encode()])
    taken: dict[str, bytes] = {}
    try:
        for name, body in bodies.items():
            taken[name] = body  # before it goes: where only the answer is lost, it is gone
            if not registry.remove(name, body):
                del taken[name]
    except Conflict:
        del taken[name]  # somebody writes there now: it is no leftover
    finally:
        # A publisher may have found such a document there, and pointed to it since: it gets it back.
        _put_back(workspace, taken, revoked=revoked)
    path.unlink(missing_ok=True)
    return frozenset(taken)


def _finish(workspace: Workspace, *, revoked: bool) -> None:
    """Put back what a run that was cut off had removed and somebody needs.

    Raises:
        StorageError: what was removed cannot be read, or not be put back.
        Unavailable: the registry is away.
    """
    path = _taken_path(workspace)
    try:
        found = json.loads(path.read_bytes())
        taken = {str(name): base64.b64decode(body, validate=True) for name, body in found.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, AttributeError) as error:
        what = f"what an earlier run had removed cannot be read: {error}"
        fix = "restore the file from a copy; or remove it, if trtops verify-release finds nothing missing"
        raise StorageError(what, where=str(path), fix=fix) from None
    _put_back(workspace, taken, revoked=revoked)
    path.unlink(missing_ok=True)


def _put_back(workspace: Workspace, taken: dict[str, bytes], *, revoked: bool) -> None:
    """Give back what a channel leads to, and then what that leads to; what is back is taken no more.

    Raises:
        StorageError: some could not be written; all others were.
        Unavailable: the registry is away.
    """
    registry, failed = workspace.registry(), dict[str, TrtopsError]()
    while needed := _needed(workspace, taken, revoked=revoked) - failed.keys():
        for name in sorted(needed):
            try:
                registry.create(name, taken[name])
            except Conflict:  # somebody has written there: it is there
                pass
            except TrtopsError as error:
                failed[name] = error
                continue
            del taken[name]
    if failed:
        name, first = next(iter(failed.items()))
        what = f"{len(failed)} of the documents that were removed are needed and could not be put back: {first.what}"
        fix = f"{_taken_path(workspace)} holds them: run trtops registry prune again, which puts them back first"
        raise StorageError(what, where=name, fix=fix) from first


def _needed(workspace: Workspace, taken: Mapping[str, bytes], *, revoked: bool) -> frozenset[str]:
    """What of it a channel leads to; all of it where a history does not hold any more without."""
    from trtops.release.prune import referenced

    if not taken:
        return frozenset()
    try:
        found = referenced(workspace.registry(), workspace.keys.root(), workspace.environment, revoked=revoked)
    except TrustError:
        return frozenset(taken)
    return found.names & taken.keys()


def _path(workspace: Workspace) -> Path:
    return workspace.resolved.home / "prune" / f"{workspace.environment}.json"


def _taken_path(workspace: Workspace) -> Path:
    return workspace.resolved.home / "prune" / f"{workspace.environment}.taken.json"


def _remembered(workspace: Workspace) -> Mapping[str, int]:
    """The looks of before; none where they cannot be read: then everything is young."""
    try:
        found = json.loads(_path(workspace).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): at for name, at in found.items() if isinstance(at, int)} if isinstance(found, dict) else {}


def _remember(path: Path, since: Mapping[str, int]) -> None:
    from trtops.durable import write_durably

    write_durably(path, [json.dumps(since, indent=1, sort_keys=True).encode()])
