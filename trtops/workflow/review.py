"""``trtops check`` as a whole: which engines, by whose policies, and what a change would do. One report comes out."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import InputError, TrtopsError, Undecided
from trtops.report.checks import Change, CheckReport, Failure, Gone
from trtops.spec.load import ENGINE_FILE, ENGINES, engine_names
from trtops.workflow.check import check_all, folders_of, shown
from trtops.workflow.judge import open_gate, set_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trtops.policy.governance import Waiver
    from trtops.policy.port import PolicySet
    from trtops.workflow.changes import Affected, EngineFolder
    from trtops.workflow.changes import Change as FileChange
    from trtops.workflow.git import Git
    from trtops.workflow.workspace import Workspace

_HOPS = 8


@dataclass(frozen=True, slots=True)
class Looked:
    """What changed since a revision, and what that touches."""

    affected: Affected
    change: Change


def review(
    workspace: Workspace,
    names: Sequence[str] = (),
    *,
    policies_from: str | None = None,
    changed_since: str | None = None,
) -> CheckReport:
    """Check engines and say what was found.

    Args:
        workspace: the repository.
        names: engines by name or folder; none: all of them, or those that the change touches.
        policies_from: git revision to read policies, data, enforcement, waivers and settings from; None: the working
            tree. If the working tree's policies differ, the report says what they would do.
        changed_since: check what differs between the merge base of this revision and the working tree.

    Returns:
        The report. An engine that cannot be decided is in it and hides no other.

    Raises:
        InputError: there is no such engine, or names and a revision are given at once.
        Undecided: policies cannot be read, or hold the change that they are to judge; git cannot tell what changed.
    """
    if names and changed_since is not None:
        raise InputError("engines and --changed-since exclude each other", fix="leave out one of them")
    policies_from = workspace.resolved.settings.policies_from if policies_from is None else policies_from
    if policies_from is not None:
        workspace = set_by(workspace, policies_from)
        if changed_since is not None:
            _demand_another_s(workspace.root, policies_from, changed_since)
    with open_gate(workspace, policies_from=policies_from) as gate:
        looked = None if changed_since is None else look(workspace, gate.policies, changed_since)
        folders = folders_of(workspace, names) if looked is None else shown_folders(workspace, looked.affected.engines)
        whole = not names and looked is None
        outcomes = check_all(workspace, folders, gate, whole=whole)
        checked = [one for one in outcomes if not isinstance(one, TrtopsError)]
        proposal = None
        if policies_from is not None and (looked is None or looked.affected.judges):
            from trtops.workflow.proposal import propose

            proposal = propose(workspace, gate, checked, whole=whole and len(checked) == len(outcomes))
    return CheckReport(
        verdicts=tuple(verdict for one in checked for verdict in one.verdicts),
        failures=tuple(
            Failure(folder.name, one)
            for folder, one in zip(folders, outcomes, strict=True)
            if isinstance(one, TrtopsError)
        ),
        change=looked.change if looked is not None else None,
        proposal=proposal,
    )


def _demand_another_s(root: Path, policies_from: str, changed_since: str) -> None:
    """Refuse policies that are part of the change that they are to judge.

    Raises:
        Undecided: the revision holds commits that the working tree has and the base has not.
    """
    from trtops.workflow.git import Git

    git = Git(root)
    if git.commit(policies_from) == git.commit(changed_since):
        return
    if not git.holds(git.merge_base(changed_since), git.merge_base(policies_from)):
        raise Undecided(
            f"{policies_from!r} holds commits of the change since {changed_since!r}, which would judge itself",
            where=str(root),
            fix=f"judge by the base: --policies-from {changed_since}",
        )


def shown_folders(workspace: Workspace, names: Collection[str]) -> tuple[Path, ...]:
    """Folders of engines by the names of their folders, as messages name them."""
    return tuple(shown(workspace.root / ENGINES / name) for name in names)


def look(workspace: Workspace, policies: PolicySet, ref: str) -> Looked:
    """Ask git what changed since a revision, and decide what that touches.

    Raises:
        Undecided: git is not there, knows no such revision, or the clone is shallow.
    """
    from trtops.workflow.changes import affected, parse_name_status, parse_untracked
    from trtops.workflow.git import Git

    git = Git(workspace.root)
    base = git.merge_base(ref)
    try:
        changes = (*parse_name_status(git.name_status(base)), *parse_untracked(git.untracked()))
    except ValueError as error:
        raise Undecided(str(error), where=str(workspace.root), fix="try again") from error
    waivers = _waivers(workspace.root, git, base, changes, {rule.id for rule in policies.rules})
    found = affected(changes, engine_folders(workspace.root, names=bool(waivers)), waivers, workspace.environment)
    names = dict.fromkeys(found.deleted) | dict(found.renamed)
    gone = tuple(
        Gone(name, new, tuple(_notes(workspace, policies, name, _old_name(git, base, name))))
        for name, new in sorted(names.items())
    )
    return Looked(found, Change(ref, base, found.engines, gone, found.later))


def _waivers(
    root: Path, git: Git, base: str, changes: Sequence[FileChange], rules: Collection[str]
) -> dict[str, list[Waiver | None]]:
    """Path of a waiver that differs -> its versions; None where one cannot be read, and may be for anything."""
    from trtops.policy.governance import WAIVER_FOLDER, parse_waiver

    def parsed(content: bytes, path: str) -> Waiver | None:
        try:
            return parse_waiver(content, path, path, rules)
        except Undecided:
            return None

    found: dict[str, list[Waiver | None]] = {}
    for path in {path for change in changes for path in change.paths if path.startswith(f"{WAIVER_FOLDER}/")}:
        before = git.content(base, path)
        versions = [] if before is None else [parsed(before, path)]
        if os.path.lexists(root / path):
            now = _plain(root / path)
            versions.append(None if now is None else parsed(now, path))
        found[path] = versions
    return found


def _plain(path: Path) -> bytes | None:
    """A file's bytes; None where it is a link, a pipe, a device, too large or unreadable: a change can bring any."""
    from trtops.policy.source import MAX_FILE_BYTES

    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_FILE_BYTES else None


def engine_folders(root: Path, *, names: bool) -> tuple[EngineFolder, ...]:
    """The engines of a working tree.

    Args:
        root: the repository's.
        names: whether to read the names that their specs give; waivers select by these.
    """
    from trtops.workflow.changes import EngineFolder

    found = []
    for name in engine_names(root):
        folder = root / ENGINES / name
        known = {name, *_spec_names(folder)} if names else {name}
        found.append(EngineFolder(name, frozenset(known), tuple(_links(root, folder))))
    return tuple(found)


def _spec_names(folder: Path) -> Iterator[str]:
    from trtops.document import load_document

    try:
        yield _name_in(load_document(folder / ENGINE_FILE).data)
    except (InputError, KeyError):
        return  # what is wrong with it is told where it is checked


def _name_in(spec: object) -> str:
    """The name that a spec gives.

    Raises:
        KeyError: it gives none.
    """
    metadata = spec.get("metadata") if isinstance(spec, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        raise KeyError("name")
    return name


def _links(root: Path, folder: Path) -> Iterator[str]:
    """What links in an engine's folder, and the folder and ``engines/`` themselves, point to within the repository."""
    pending = [path for path in (folder.parent, folder) if path.is_symlink()]
    for place, folders, files in os.walk(folder):
        pending += [path for name in (*folders, *files) if (path := Path(place) / name).is_symlink()]
    for path in pending:
        hop = str(path)
        for _ in range(_HOPS):
            if not os.path.islink(hop):  # noqa: PTH114 - of a text, which is normalised without asking the disk
                break
            hop = os.path.normpath(os.path.join(os.path.dirname(hop), os.readlink(hop)))  # noqa: PTH115, PTH118, PTH120
            yield from _relative(hop, str(root))
        yield from _relative(os.path.realpath(path), os.path.realpath(root))


def _relative(path: str, root: str) -> Iterator[str]:
    relative = os.path.relpath(path, root)
    if not relative.startswith(".."):
        yield Path(relative).as_posix()


def _old_name(git: Git, base: str, folder: str) -> str:
    """The name that a spec of the base gives; its folder's where it cannot be read."""
    from trtops.document import parse_document

    content = git.content(base, f"{ENGINES}/{folder}/{ENGINE_FILE}")
    try:
        return _name_in(parse_document(content or b"", file=folder).data)
    except (InputError, KeyError):
        return folder


def _notes(workspace: Workspace, policies: PolicySet, folder: str, name: str) -> Iterator[str]:
    """What it means that an engine is gone."""
    from trtops.release.fetch import channels

    leftover = workspace.root / ENGINES / folder
    if leftover.is_dir() and any(leftover.iterdir()):
        yield f"its folder {ENGINES}/{folder} still holds files"
    try:
        released = channels(workspace.registry(), workspace.environment, name)
    except (TrtopsError, ValueError) as error:  # ValueError: a name that no registry can have
        yield f"whether it is released cannot be told: {error}"
    else:
        there = ", ".join(channel.name for channel in released)
        if there:
            yield (
                f"still released in {workspace.environment}: {there}; services run it on until the channel is moved, "
                "and no policy judges its evidence any more"
            )
        else:
            yield f"not released in {workspace.environment}, as far as the registry here tells"
    for waiver in policies.waivers:
        if waiver.exact and waiver.document is not None and waiver.document.selector.engine == name:
            yield f"the waiver {waiver.id} is for it alone: delete it, too"
