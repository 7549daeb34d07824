"""What an agent believes of keys: the root of trust as it is followed, the snapshot of all channels, secrets it saw.

All of it is kept on this machine's disk, so that whoever controls the registry cannot have it forgotten.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import Field

from trtops.digest import Digest, Value
from trtops.errors import StorageError
from trtops.release import layout
from trtops.release.lineage import latest_root
from trtops.release.root import Root
from trtops.release.sealing import SeenSecret
from trtops.release.snapshot import SeenSnapshot, TrustedSnapshot

if TYPE_CHECKING:
    from trtops.registry.port import Registry
    from trtops.release.documents import ChannelSnapshot
    from trtops.serve.snapshot import Snapshots

log = logging.getLogger(__name__)


class Followed(Value):
    """A root that was followed.

    Attributes:
        given: digest of the root that was handed to this machine; another one makes this void.
        root: the newest version that was verified from there.
    """

    given: Digest
    root: Root


class SeenSecrets(Value):
    """``ENGINE/PATH`` -> the highest generation of a sealed secret that was opened here."""

    secrets: dict[str, SeenSecret] = Field(default_factory=dict)


class Trust:
    """The trusted keys of one environment, kept up to date. For one thread."""

    def __init__(self, given: Root, environment: str, snapshots: Snapshots) -> None:
        """Start from what this machine was handed, and from what it has followed since.

        Args:
            given: the root that was handed to this machine.
            environment: whose registry is followed.
            snapshots: this machine's disk.
        """
        self._given = given
        self._environment = environment
        self._disk = snapshots
        self._snapshot: ChannelSnapshot | None = None
        self._root: Root | None = None

    def __repr__(self) -> str:
        """Show the version that is trusted."""
        version = self._root.version if self._root else self._given.version
        return f"Trust({self._environment}, root version {version})"

    @property
    def root(self) -> Root:
        """The newest version that was verified.

        Raises:
            StorageError: what was kept cannot be read. It is what keeps a revoked key out, so it is never taken for
                absent.
        """
        if self._root is None:
            kept = self._disk.read(self._environment, "root", Followed)
            mine = kept is not None and kept.given == self._given.digest()
            self._root = kept.root if kept is not None and mine else self._given
        return self._root

    @property
    def snapshot(self) -> ChannelSnapshot | None:
        """The snapshot that :meth:`follow` accepted last; None: none, or the root asks for none."""
        return self._snapshot

    def described(self) -> dict[str, int | None]:
        """Versions of the root and of the snapshot that count here now; None: none does. Reads no disk."""
        root, snapshot = self._root, self._snapshot
        return {"root": root.version if root else None, "snapshot": snapshot.version if snapshot else None}

    def watched(self, pointer: str) -> tuple[str, ...]:
        """What to watch for a channel: its pointer and, where there is one, the snapshot.

        What is expired or absent now is good again with the next one.

        Raises:
            StorageError: what was kept cannot be read.
        """
        return (pointer, layout.SNAPSHOT) if self.root.refreshed else (pointer,)

    def follow(self, registry: Registry, now: int) -> None:
        """Take what the registry has of new roots, and its snapshot of all channels.

        Args:
            registry: not trusted.
            now: epoch seconds.

        Raises:
            StorageError: it could not be kept.
            TrustError: a root or the snapshot was refused (whoever can write to the registry).
            Unavailable: the registry is away, or its snapshot is gone or has expired.
        """
        before = self.root
        newest = latest_root(before, registry)
        if newest != before:
            self._disk.keep(self._environment, "root", Followed(given=self._given.digest(), root=newest))
            self._root = newest
            log.warning("root of trust: version %d follows version %d", newest.version, before.version)
        self._snapshot = None
        if not newest.refreshed:
            return
        seen = self._disk.read(self._environment, "snapshot", SeenSnapshot)
        trusted = TrustedSnapshot(newest, self._environment, seen)
        try:
            self._snapshot = trusted.update(registry.read(layout.SNAPSHOT), now)
        finally:
            if trusted.seen is not None and trusted.seen != seen:
                self._disk.keep(self._environment, "snapshot", trusted.seen)

    def seen_secret(self, engine: str, path: str) -> SeenSecret | None:
        """The highest generation of a secret that was opened here, or that the snapshot names.

        Raises:
            StorageError: what was kept cannot be read.
        """
        key = f"{engine}/{path}"
        kept = (self._disk.read(self._environment, "secrets", SeenSecrets) or SeenSecrets()).secrets.get(key)
        floor = self._snapshot.secrets.get(key, 0) if self._snapshot is not None else 0
        if floor > (kept.generation if kept is not None else 0):
            return SeenSecret(generation=floor)
        return kept

    def keep_secret(self, engine: str, path: str, seen: SeenSecret) -> None:
        """Write down that a secret was opened. A disk that is full is no reason not to serve: it is logged."""
        kept = self._disk.read(self._environment, "secrets", SeenSecrets) or SeenSecrets()
        key = f"{engine}/{path}"
        if kept.secrets.get(key) == seen:
            return
        try:
            self._disk.keep(self._environment, "secrets", SeenSecrets(secrets={**kept.secrets, key: seen}))
        except StorageError as error:
            log.warning("the generation of secret %s could not be kept: %s", key, error)
