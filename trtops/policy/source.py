"""Reading the files that decide: from a folder, or from a git revision without a checkout.

Both give the same: path relative to the repository's root -> bytes, of everything under ``policies/`` and
``governance/``. A folder is read at one moment: if a file changes while it is read, it is read again.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.errors import Undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FOLDERS = ("policies", "governance")
MAX_FILE_BYTES = 1 << 20
MAX_FILES = 5_000
_ATTEMPTS = 3
_SYMLINK, _REGULAR, _EXECUTABLE = "120000", "100644", "100755"


@dataclass(frozen=True, slots=True)
class Tree:
    """Files as they were read.

    Attributes:
        origin: where from, for people.
        prefix: what goes before a path so that messages name a file that can be found.
        merged: whether it is a git revision.
        files: path relative to the repository's root -> bytes, sorted.
    """

    origin: str
    prefix: str
    merged: bool
    files: Mapping[str, bytes]

    def label(self, path: str) -> str:
        """What messages call a file."""
        return f"{self.prefix}{path}"


def read_folder(root: Path, *, after_read: Callable[[], None] | None = None) -> Tree:
    """Read the policies of a working tree.

    Args:
        root: the repository's root.
        after_read: called after each pass over the files, before it is checked that none of them changed meanwhile.

    Raises:
        Undecided: there is no folder ``policies``, a file cannot be read, is a link or too large, or the files did not
            hold still.
    """
    prefix = "" if root == Path() else f"{os.path.relpath(root)}/"
    prefix = "" if prefix == "./" else prefix
    if not (root / "policies").is_dir():
        raise Undecided(
            "there is no folder of policies",
            where=str(root / "policies"),
            fix="run in a repository of trtops (the nearest folder upward with a trtops.toml), or give --policies-from",
        )
    for _ in range(_ATTEMPTS):
        before = _stamps(root, prefix)
        files = {path: _read(root, path, prefix) for path in before}
        if after_read is not None:
            after_read()
        if _stamps(root, prefix) == before:
            _no_empty_folder(root, prefix, files)
            return Tree(str(root), prefix, merged=False, files=files)
    raise Undecided(
        "the policies change while they are read",
        where=str(root / "policies"),
        fix="try again when nothing writes there, or judge by a commit: --policies-from REF",
    )


def _walk(root: Path) -> Iterator[os.DirEntry[str]]:
    pending = [str(root / folder) for folder in FOLDERS]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in found:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                yield entry


def _stamps(root: Path, prefix: str) -> dict[str, tuple[int, ...]]:
    """Path -> what changes when a file does: inode, size, times of content and of metadata."""
    stamps: dict[str, tuple[int, ...]] = {}
    try:
        for entry in _walk(root):
            path = Path(entry.path).relative_to(root).as_posix()
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise Undecided(
                    "not a plain file", where=f"{prefix}{path}", fix="replace the link by what it points to"
                )
            stamps[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Undecided(f"the policies cannot be read: {error}", where=str(root / "policies")) from error
    if len(stamps) > MAX_FILES:
        raise Undecided(f"more than {MAX_FILES} files", where=f"{prefix}policies", fix="move out what is no policy")
    return dict(sorted(stamps.items()))


def _no_empty_folder(root: Path, prefix: str, files: Mapping[str, bytes]) -> None:
    """Refuse a rule's folder that lost its files: git knows no empty folder, so the listing does not show it."""
    filled = {"/".join(path.split("/")[:3]) for path in files}
    for folder in sorted((root / "policies").glob("*/*")):
        path = folder.relative_to(root).as_posix()
        if folder.is_dir() and not folder.name.startswith((".", "__")) and path not in filled:
            raise Undecided(
                "the folder has no rule.rego", where=f"{prefix}{path}", fix="restore the file, or delete it"
            )


def _read(root: Path, path: str, prefix: str) -> bytes:
    try:
        with (root / path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""  # gone since it was listed: the second listing tells
    except OSError as error:
        raise Undecided(f"the file cannot be read: {error.strerror}", where=f"{prefix}{path}") from error
    return _bounded(content, f"{prefix}{path}")


def _bounded(content: bytes, label: str) -> bytes:
    if len(content) > MAX_FILE_BYTES:
        raise Undecided(f"the file is over {MAX_FILE_BYTES} bytes", where=label, fix="split it")
    return content


def read_waivers(root: Path) -> dict[str, bytes]:
    """The waivers of a working tree: path relative to the root -> bytes, sorted. Links and hidden files are left out.

    Raises:
        Undecided: one cannot be read, or is too large.
    """
    plain = (path for path in sorted((root / "governance" / "waivers").glob("[!.]*.yaml")) if not path.is_symlink())
    names = [path.relative_to(root).as_posix() for path in plain if path.is_file()]
    return {name: _read(root, name, "") for name in names}


def read_revision(root: Path, revision: str, *, git: Sequence[str] = ("git",)) -> Tree:
    """Read the policies of a git revision, straight from its objects.

    Nothing of the working tree counts, neither attributes (``export-ignore`` would hide a rule) nor filters.

    Args:
        root: a folder in the repository that holds ``policies/``.
        revision: branch, tag or commit, e.g. ``origin/main``.
        git: the command.

    Raises:
        Undecided: no git, no repository, no such revision, or a file that is no plain file.
    """
    run = _Git(root, git)
    if revision.startswith("-") or not revision.strip():
        raise Undecided(f"{revision!r} is no revision", fix="give a branch, a tag or a commit")
    commit = run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        fix = "fetch it (in a workflow: actions/checkout with fetch-depth: 0), or give another with --policies-from"
        raise Undecided(f"git knows no revision {revision!r}", where=str(root), fix=fix)
    name = commit.decode().strip()
    listing = run("ls-tree", "-r", "-z", "--full-name", name, "--", *FOLDERS)
    top = (run("rev-parse", "--show-prefix") or b"").decode().strip()
    blobs = _blobs(listing or b"", top, revision)
    if not any(path.startswith("policies/") for path in blobs):
        raise Undecided(
            f"the revision {revision!r} has no policies", where=f"{revision}:{top}policies", fix="give another revision"
        )
    files = run.contents(blobs)
    prefix = f"{revision}:{top}"
    for path, content in files.items():
        _bounded(content, f"{prefix}{path}")
    return Tree(f"{revision} ({name[:12]})", prefix, merged=True, files=files)


def _blobs(listing: bytes, top: str, revision: str) -> dict[str, str]:
    """Path relative to the root -> object name."""
    blobs: dict[str, str] = {}
    for entry in listing.split(b"\0"):
        if not entry:
            continue
        head, _, raw = entry.partition(b"\t")
        mode, _, name = head.decode().split(" ")
        path = raw.decode("utf-8", "replace").removeprefix(top)
        if any(part.startswith(".") or part == "__pycache__" for part in path.split("/")):
            continue
        if mode not in (_REGULAR, _EXECUTABLE):
            what = "a symbolic link" if mode == _SYMLINK else "a submodule"
            raise Undecided(f"{what} among the policies", where=f"{revision}:{top}{path}", fix="commit plain files")
        blobs[path] = name
    if len(blobs) > MAX_FILES:
        raise Undecided(
            f"more than {MAX_FILES} files", where=f"{revision}:{top}policies", fix="move out what is no policy"
        )
    return dict(sorted(blobs.items()))


class _Git:
    """Runs git in a folder."""

    def __init__(self, root: Path, command: Sequence[str]) -> None:
        self._root = root
        self._command = tuple(command)

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> bytes | None:
        """What it prints; None where it fails.

        Raises:
            Undecided: git is not installed, or this is no repository.
        """
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        try:
            done = subprocess.run(
                [*self._command, *arguments],
                cwd=self._root,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                check=False,
                env=environment,
                timeout=60,
            )
        except FileNotFoundError as error:
            raise Undecided("git is not installed", fix="install git, or leave out --policies-from") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Undecided(f"git could not be run: {error}", where=str(self._root)) from error
        if b"not a git repository" in done.stderr or b"dubious ownership" in done.stderr:
            first = done.stderr.decode("utf-8", "replace").splitlines()[0]
            raise Undecided(first, where=str(self._root), fix="run in a clone, or leave out --policies-from")
        return done.stdout if done.returncode == 0 else None

    def contents(self, blobs: Mapping[str, str]) -> dict[str, bytes]:
        """Bytes of many objects, by one process.

        Raises:
            Undecided: an object is missing (a partial or broken clone).
        """
        answer = self("cat-file", "--batch", stdin="".join(f"{name}\n" for name in blobs.values()).encode()) or b""
        files: dict[str, bytes] = {}
        at = 0
        for path, name in blobs.items():
            end = answer.find(b"\n", at)
            fields = answer[at:end].decode("utf-8", "replace").split() if end >= 0 else []
            if len(fields) != 3 or fields[:2] != [name, "blob"]:  # noqa: PLR2004 - name, type, size
                raise Undecided("git cannot read an object", where=path, fix="fetch the revision in full")
            size = int(fields[2])
            files[path] = answer[end + 1 : end + 1 + size]
            if len(files[path]) != size:
                raise Undecided("git gave an object cut short", where=path, fix="run `git fsck`")
            at = end + 1 + size + 1
        return files
