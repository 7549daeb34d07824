"""Git, asked about the repository's history. Reads objects and the working tree; changes nothing, runs no hook."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from trtops.errors import Undecided

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TIMEOUT = 120.0
_FETCH = "fetch it (in a workflow: actions/checkout with fetch-depth: 0), or name another revision"


class Git:
    """Runs git in a folder."""

    def __init__(self, root: Path, command: Sequence[str] = ("git",)) -> None:
        """Keep where and how it is run.

        Args:
            root: a folder of the repository; paths are relative to it.
            command: the program.
        """
        self._root = root
        self._command = tuple(command)

    def __repr__(self) -> str:
        """Show the folder."""
        return f"Git({str(self._root)!r})"

    def ask(self, *arguments: str) -> bytes | None:
        """What it prints; None where it fails.

        Raises:
            Undecided: git is not installed, does not end, or the folder is in no repository that it trusts.
        """
        # Attributes and settings of the repository can name programs that git would run; a lock would be a change.
        safe = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        try:
            done = subprocess.run(
                [*self._command, *safe, *arguments],
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                env=environment,
                timeout=_TIMEOUT,
            )
        except FileNotFoundError as error:
            raise Undecided("git is not installed", fix="install git, or leave out --changed-since") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Undecided(f"git could not be run: {error}", where=str(self._root)) from error
        if b"not a git repository" in done.stderr or b"dubious ownership" in done.stderr:
            first = done.stderr.decode("utf-8", "replace").splitlines()[0]
            raise Undecided(first, where=str(self._root), fix="run in a clone, or leave out --changed-since")
        return done.stdout if done.returncode == 0 else None

    def commit(self, revision: str) -> str:
        """The full name of a revision's commit.

        Raises:
            Undecided: there is none.
        """
        if revision.startswith("-") or not revision.strip():
            raise Undecided(f"{revision!r} is no revision", fix="give a branch, a tag or a commit")
        found = self.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found is None:
            raise Undecided(f"git knows no revision {revision!r}", where=str(self._root), fix=_FETCH)
        return found.decode().strip()

    def merge_base(self, revision: str) -> str:
        """The commit that a revision and the working tree's commit both come from.

        Raises:
            Undecided: no such revision, no commit yet, no common one, or a shallow clone that does not reach it.
        """
        theirs = self.commit(revision)
        ours = self.ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if ours is None:
            raise Undecided("there is no commit yet", where=str(self._root), fix="leave out --changed-since")
        found = self.ask("merge-base", theirs, ours.decode().strip())
        if found:
            return found.decode().split()[0]
        if (self.ask("rev-parse", "--is-shallow-repository") or b"").strip() == b"true":
            raise Undecided(
                f"the clone is shallow: its history ends before the commit that it shares with {revision!r}",
                where=str(self._root),
                fix="fetch the rest: `git fetch --unshallow` (in a workflow: actions/checkout with fetch-depth: 0)",
            )
        raise Undecided(
            f"{revision!r} has no commit in common with the working tree's",
            where=str(self._root),
            fix="name a revision of the same history",
        )

    def name_status(self, base: str) -> bytes:
        """``git diff --name-status -z`` of a commit and the working tree, renames found.

        Raises:
            Undecided: git cannot compare them.
        """
        flags = ("--name-status", "-z", "--find-renames", "--no-ext-diff", "--ignore-submodules=none", "--relative")
        found = self.ask("diff", *flags, base, "--")
        if found is None:
            raise Undecided(f"git cannot compare the working tree with {base[:12]}", where=str(self._root), fix=_FSCK)
        return found

    def untracked(self) -> bytes:
        """Files that git neither tracks nor ignores, with NUL after each.

        Raises:
            Undecided: git cannot list them.
        """
        found = self.ask("ls-files", "--others", "--exclude-standard", "-z")
        if found is None:
            raise Undecided("git cannot list the working tree", where=str(self._root), fix=_FSCK)
        return found

    def tracked(self, path: str) -> bool:
        """Whether git tracks a path, or anything below it. Where git cannot tell, it may.

        Args:
            path: relative to the folder.
        """
        return self.ask("ls-files", "-z", "--", f":(literal){path}") != b""

    def holds(self, commit: str, other: str) -> bool:
        """Whether a commit is, or comes from, another one. Where git cannot tell, it does not."""
        return self.ask("merge-base", "--is-ancestor", other, commit) is not None

    def content(self, commit: str, path: str) -> bytes | None:
        """A file of a commit; None where it has none at that path, relative to the folder."""
        return self.ask("cat-file", "blob", f"{commit}:./{path}")


_FSCK = "look at what `git status` says; fetch the history in full"
