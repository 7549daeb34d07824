"""What a change touches: from what git says of it to the engines that have to be judged again. Pure.

An engine is touched by a change of its own folder, of a file outside that a link in its folder points to, of what is
shared (``trtops.toml``, files that stand in ``engines/`` itself), and of what judges it: a rule, a library, a data
file, ``enforcement.yaml``, a waiver whose selector takes it. When in doubt, it is touched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.policy.governance import WAIVER_FOLDER
from trtops.settings import ROOT_FILE
from trtops.spec.load import ENGINE_FILE, ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.policy.governance import Waiver

WORDS = {"A": "added", "D": "deleted", "M": "changed", "R": "renamed", "T": "changed", "U": "unmerged", "?": "added"}
"""What a letter of ``git diff --name-status`` says; anything else is read as a change."""

_ATTRIBUTES = ".gitattributes"
_PAGES = (".md", ".txt")
_LATER = ("evidence", "release")
_ENGINE_DEPTH, _RULE_DEPTH = 2, 4


@dataclass(frozen=True, slots=True)
class Change:
    """One file that differs.

    Attributes:
        status: letter of ``git diff --name-status``; ``?``: not tracked.
        path: relative to the repository's root, with ``/``.
        old: where it was before it was renamed; None where it was not.
    """

    status: str
    path: str
    old: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the one of before."""
        return (self.path,) if self.old is None else (self.path, self.old)

    def __str__(self) -> str:
        """Say it in words."""
        word = WORDS.get(self.status, "changed")
        return f"{self.path} {word}" if self.old is None else f"{self.path} {word} from {self.old}"


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """An engine of the working tree.

    Attributes:
        folder: name of its folder below ``engines/``.
        names: what waivers may select it by: its folder's name, and the name that its spec gives.
        links: paths, relative to the repository's root, that links in its folder point to.
    """

    folder: str
    names: frozenset[str]
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Affected:
    """What has to be judged again.

    Attributes:
        engines: folder's name -> why, in words, sorted by name.
        deleted: folders of engines that are gone, sorted.
        renamed: folders of engines that are gone -> the folder that took the spec over.
        judges: paths that judge, now or at a release, and differ.
        later: those of them that only judge evidence and releases.
    """

    engines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    judges: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def parse_name_status(raw: bytes) -> tuple[Change, ...]:
    """Read ``git diff --name-status -z``. Names may hold anything but NUL.

    Raises:
        ValueError: it is cut short.
    """
    fields = [os.fsdecode(part) for part in raw.split(b"\0")]
    if fields.pop() != "":
        raise ValueError("git's answer is cut short")
    changes: list[Change] = []
    rest = iter(fields)
    for status in rest:
        paths = [next(rest, None) for _ in range(2 if status[:1] in ("R", "C") else 1)]
        if not status or None in paths:
            raise ValueError("git's answer is cut short")
        old = paths[0] if status[0] == "R" else None
        changes.append(Change(status[0], str(paths[-1]), old))
    return tuple(changes)


def parse_untracked(raw: bytes) -> tuple[Change, ...]:
    """Read ``git ls-files --others -z``."""
    return tuple(Change("?", os.fsdecode(part)) for part in raw.split(b"\0") if part)


def affected(
    changes: Sequence[Change],
    engines: Iterable[EngineFolder],
    waivers: Mapping[str, Sequence[Waiver | None]],
    environment: str,
) -> Affected:
    """Decide what a change touches.

    Args:
        changes: what differs.
        engines: those of the working tree.
        waivers: path of a waiver that differs -> its versions before and after; None where it cannot be read.
        environment: whose verdicts are asked for.
    """
    here = {engine.folder: engine for engine in engines}
    links = _links(here.values())
    reasons: dict[str, dict[str, None]] = {name: {} for name in here}
    gone: dict[str, str | None] = {}
    judges: dict[str, bool] = {}
    for change in changes:
        for path in change.paths:
            for name in (*_taken(path, here, waivers, environment), *_linked(path, links)):
                reasons[name][str(change)] = None
            if _judges(path):
                judges[path] = _is_later(path)
        _note_gone(change, here, gone)
    return Affected(
        engines={name: tuple(found) for name, found in sorted(reasons.items()) if found},
        deleted=tuple(sorted(name for name, new in gone.items() if new is None)),
        renamed={name: new for name, new in sorted(gone.items()) if new is not None},
        judges=tuple(sorted(judges)),
        later=tuple(sorted(path for path, later in judges.items() if later)),
    )


def _taken(
    path: str,
    here: Mapping[str, EngineFolder],
    waivers: Mapping[str, Sequence[Waiver | None]],
    environment: str,
) -> Iterable[str]:
    """The engines that a path touches, links apart."""
    parts = path.rstrip("/").split("/")
    if path in (ROOT_FILE, _ATTRIBUTES, ENGINES):  # the last: a link in its place
        return here
    if parts[0] == ENGINES:
        if len(parts) >= _ENGINE_DEPTH and parts[1] in here:
            return (parts[1],)
        return here if len(parts) == _ENGINE_DEPTH else ()
    if not _judges(path) or _is_later(path):
        return ()
    if path.startswith(f"{WAIVER_FOLDER}/"):
        versions = waivers.get(path, (None,))
        return [
            name
            for name, engine in here.items()
            if any(waiver is None or _concerns(waiver, engine, environment) for waiver in versions)
        ]
    return here


def _links(engines: Iterable[EngineFolder]) -> dict[str, list[str]]:
    """What links point to -> the engines whose folders hold them."""
    found: dict[str, list[str]] = {}
    for engine in engines:
        for target in engine.links:
            found.setdefault(target, []).append(engine.folder)
    return found


def _linked(path: str, links: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """The engines that link to a path or to a folder above it."""
    while links and path:
        yield from links.get(path, ())
        path = path.rpartition("/")[0]


def _concerns(waiver: Waiver, engine: EngineFolder, environment: str) -> bool:
    return any(waiver.concerns(name, environment) for name in engine.names)


def _judges(path: str) -> bool:
    """Whether a file takes part in verdicts: pages and tests of rules do not."""
    parts = path.split("/")
    if parts[0] not in ("policies", "governance") or path.endswith((*_PAGES, "_test.rego")):
        return False
    return not any(part.startswith(".") or part == "__pycache__" for part in parts)


def _is_later(path: str) -> bool:
    """Whether a file judges evidence or releases only: nothing that a check can tell."""
    parts = path.split("/")
    return len(parts) == _RULE_DEPTH and parts[0] == "policies" and parts[1] in _LATER


def _note_gone(change: Change, here: Mapping[str, EngineFolder], gone: dict[str, str | None]) -> None:
    """Note an engine whose spec is not there any more."""
    before = change.old if change.old is not None else change.path if change.status == "D" else None
    name = _spec_of(before) if before is not None else None
    if name is None or name in here:
        return
    gone[name] = _spec_of(change.path) if change.old is not None else None
    if gone[name] not in here:
        gone[name] = None


def _spec_of(path: str) -> str | None:
    """The engine's folder whose spec a path is; None if it is none."""
    parts = path.split("/")
    return parts[1] if len(parts) == _ENGINE_DEPTH + 1 and parts[0] == ENGINES and parts[2] == ENGINE_FILE else None
