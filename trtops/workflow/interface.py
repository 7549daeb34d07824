"""``trtops interface lock``: what clients of released engines rely on, into files that pull requests are held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Denied, Undecided

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtops.policy.interfaces import InterfaceLock
    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Locked:
    """The lock of one engine.

    Attributes:
        lock: what is released.
        path: of the file, relative to the repository's root.
        new: whether the file was written, or would be.
    """

    lock: InterfaceLock
    path: Path
    new: bool


def lock(workspace: Workspace, names: Sequence[str], *, check: bool = False) -> tuple[Locked, ...]:
    """Write down the interfaces that the workspace's environment has released.

    Args:
        workspace: whose environment.
        names: engines, or their folders; none: all that are released there.
        check: write nothing.

    Raises:
        Denied: with ``check``, a file is not what is released.
        InputError: an engine is not released there.
        StorageError, TrustError, Unavailable: the registry, or a file that cannot be written.
    """
    from pathlib import Path

    from trtops.release.fetch import channels
    from trtops.workflow.release import channel_of, current, nothing_released

    registry = workspace.registry()
    wanted = [Path(name).name for name in names] or sorted(
        {channel.engine for channel in channels(registry, workspace.environment)}
    )
    found = []
    for engine in wanted:
        there = current(workspace, registry, channel_of(workspace, engine))
        if there is None:
            raise nothing_released(workspace, registry, engine)
        contract = there.engine.contract
        found.append(_locked(workspace, engine, str(there.engine.digest()), contract.model_dump()))
    if not found:
        raise nothing_released(workspace, registry, "anything")
    stale = [one for one in found if one.new]
    if check and stale:
        names_ = ", ".join(str(one.path) for one in stale)
        fix = f"trtops interface lock --env {workspace.environment}, and commit what it writes"
        raise Denied(f"not what {workspace.environment} has released: {names_}", fix=fix)
    for one in stale:
        _write(workspace.root / one.path, one.lock.text())
    return tuple(found)


def _locked(workspace: Workspace, engine: str, release: str, contract: dict[str, object]) -> Locked:
    from pathlib import Path

    from trtops.policy.interfaces import FOLDER, InterfaceLock, parse_lock

    made = InterfaceLock.model_validate(
        {"engine": engine, "environment": workspace.environment, "release": release, **contract}
    )
    path = Path(FOLDER) / f"{engine}.yaml"
    full = workspace.root / path
    try:
        before = parse_lock(full.read_bytes(), engine, str(path)) if full.is_file() else None
    except Undecided:
        before = None
    # Another release of the same interface is nothing to commit.
    same = before is not None and before.model_copy(update={"release": release}) == made
    return Locked(before if same and before is not None else made, path, new=not same)


def _write(path: Path, text: str) -> None:
    from trtops.durable import write_durably

    write_durably(path, [text.encode()])
