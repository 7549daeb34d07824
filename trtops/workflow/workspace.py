"""What every verb starts from: the repository, its settings, the adapters that they name."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.settings import find_root, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.registry.port import Registry
    from trtops.release.keys import KeyStore
    from trtops.settings import Resolved
    from trtops.store import Store


def silent(stage: str, phase: str, done: int = 0, total: int = 0) -> None:
    """Report no progress."""
    del stage, phase, done, total


@dataclass(frozen=True)
class Workspace:
    """A repository with its settings, and the adapters built from them on first use.

    Attributes:
        resolved: settings with their sources.
        clock: epoch seconds.
        progress: called with stage, phase, done and total (0: unknown) while something takes long.
    """

    resolved: Resolved
    clock: Callable[[], float] = time.time
    progress: Callable[[str, str, int, int], None] = field(default=silent, repr=False)
    _registries: dict[str, Registry] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def root(self) -> Path:
        """The repository's root."""
        return self.resolved.root

    @property
    def environment(self) -> str:
        """Whose rules, overlays and channels count."""
        return self.resolved.settings.environment

    def now(self) -> int:
        """Epoch seconds."""
        return int(self.clock())

    @cached_property
    def store(self) -> Store:
        """Where artifacts are."""
        from trtops.store import Store

        return Store(self.resolved.store)

    @cached_property
    def keys(self) -> KeyStore:
        """Keys of this home, made on first use."""
        from trtops.release.keys import KeyStore

        return KeyStore(self.resolved.home)

    def registry(self, environment: str | None = None) -> Registry:
        """The registry of an environment; made on first use.

        Raises:
            InputError: the registry's URL is of no known kind, or a login to it is not whole.
            StorageError, TrustError: a password file cannot be read, or others may read it.
        """
        name = environment or self.environment
        if name not in self._registries:
            from trtops.workflow.registry import open_registry

            self._registries[name] = open_registry(self.resolved, name)
        return self._registries[name]


def open_workspace(
    flags: Mapping[str, Any] | None = None,
    *,
    start: Path | None = None,
    progress: Callable[[str, str, int, int], None] = silent,
) -> Workspace:
    """Find the repository upward from a folder and merge the settings.

    Raises:
        InputError: no repository, or a setting that is not allowed.
    """
    return Workspace(resolve(find_root(start or Path.cwd()), flags or {}), progress=progress)


def commit_of(folder: Path) -> str | None:
    """The git commit that last changed a folder, ``-dirty`` if it has changes since; None outside of git."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("log", "-1", "--format=%H", "--", ".")
    if not commit:
        return None
    return f"{commit}-dirty" if git("status", "--porcelain", "--", ".") else commit
