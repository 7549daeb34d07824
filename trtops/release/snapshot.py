"""The snapshot of all channels of an environment: a floor below which no pointer and no secret is believed.

It is signed by an online key of the role ``refresh``, on a schedule and after each move. That key can move nothing: it
says how far channels have come and until when that may be believed, and a pointer still needs a channel key. Where a
lost pointer leaves two bindings of one generation, both signed by channel keys, it says which the pointer named. A
pointer that is newer than the snapshot is fine, so that a publisher who dies between the two writes stops nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.digest import Digest, Value
from trtops.errors import TrustError, Unavailable
from trtops.release import layout
from trtops.release.documents import ChannelSnapshot
from trtops.release.envelope import verify

if TYPE_CHECKING:
    from trtops.release.documents import Binding, Channel
    from trtops.release.fetch import Readable
    from trtops.release.root import Role, Root


class SeenSnapshot(Value):
    """The highest version of an environment's snapshot that a service has verified. It keeps this on its disk.

    Attributes:
        environment: whose.
        version: never goes down, unless every key that signed it was revoked.
        snapshot: digest of the snapshot of that version.
        signers: ids of the keys that signed it.
    """

    environment: str
    version: int
    snapshot: Digest
    signers: tuple[str, ...] = ()


class TrustedSnapshot:
    """The last snapshot that was accepted, and the highest version that was seen."""

    def __init__(self, root: Root, environment: str, seen: SeenSnapshot | None = None) -> None:
        """Start from what is trusted already.

        Args:
            root: the trusted keys.
            environment: whose snapshot.
            seen: from this machine's disk; None on the first start.
        """
        self._root = root
        self._environment = environment
        # Fast-forward: a version that only keys vouch for which are not trusted any more binds nobody.
        self.seen = seen if seen is not None and still_vouched(root, "refresh", seen.signers) else None

    def __repr__(self) -> str:
        """Show how far it has come."""
        return f"TrustedSnapshot({self._environment}, seen={self.seen.version if self.seen else 0})"

    def update(self, body: bytes | None, now: int) -> ChannelSnapshot:
        """Accept a snapshot. A refusal changes nothing but, where noted, :attr:`seen`.

        Args:
            body: its bytes; None: the registry has none.
            now: epoch seconds; 0 for one of the service's own disk.

        Raises:
            TrustError: forged, older than one that was seen, another of the same version, or of another environment
                (whoever can write to the registry).
            Unavailable: there is none, it has expired, or a newer root is withheld: the same as a registry that is
                away (the publisher, or whoever controls the registry).
        """
        where = layout.SNAPSHOT
        fix = f"run trtops registry refresh --env {self._environment}, and look why nobody did"
        if body is None:
            # Deletion must not be stronger than cutting the network.
            raise Unavailable("there is no snapshot of the channels", where=where, fix=fix)
        signed = verify(body, ChannelSnapshot, self._root, where=where)
        snapshot = signed.value
        if snapshot.environment != self._environment:
            # Wrong software: a genuine snapshot of another environment.
            raise TrustError(f"this snapshot is of {snapshot.environment}, not of {self._environment}", where=where)
        if self.seen is not None and snapshot.version < self.seen.version:
            # Rollback: an older snapshot would let older pointers pass.
            what = f"the snapshot goes back to version {snapshot.version}; {self.seen.version} was seen here"
            raise TrustError(what, where=where)
        if self.seen is not None and snapshot.version == self.seen.version and signed.digest != self.seen.snapshot:
            # Fork: two snapshots of one version, so that services see different floors and none can tell.
            raise TrustError(f"another snapshot of version {snapshot.version} was seen here", where=where)
        self.seen = SeenSnapshot(
            environment=self._environment, version=snapshot.version, snapshot=signed.digest, signers=signed.key_ids
        )
        if snapshot.expires is not None and now >= snapshot.expires:
            # Freeze: an old state of all channels that somebody holds up is noticed.
            raise Unavailable(f"the snapshot of version {snapshot.version} has expired", where=where, fix=fix)
        if snapshot.root > self._root.version and now:
            # Freeze of the root alone: who withholds it keeps a revoked key alive.
            what = f"version {snapshot.root} of the root of trust is in force, and the registry withholds it"
            raise Unavailable(what, where=layout.root(self._root.version + 1), fix="run trtops trust publish")
        return snapshot


def still_vouched(root: Root, role: Role, signers: tuple[str, ...]) -> bool:
    """Whether something that was verified once would be today, by the keys that signed it. Unknown signers: yes."""
    keys, threshold = root.members(role)
    return not signers or len({key.key_id for key in keys} & set(signers)) >= threshold


def fetch_snapshot(
    registry: Readable, root: Root, environment: str, now: int, seen: SeenSnapshot | None = None
) -> ChannelSnapshot | None:
    """The environment's snapshot, verified; None where the root asks for none.

    Raises:
        as :meth:`TrustedSnapshot.update`.
    """
    if not root.refreshed:
        return None
    return TrustedSnapshot(root, environment, seen).update(registry.read(layout.SNAPSHOT), now)


def key_of(channel: Channel) -> str:
    """A channel's name in a snapshot."""
    return f"{channel.engine}/{channel.name}"


def check_floor(snapshot: ChannelSnapshot, binding: Binding, digest: Digest, where: str) -> None:
    """Refuse a pointer that is older than the snapshot says, or another one of that generation.

    Raises:
        TrustError: it is.
    """
    there = snapshot.channels.get(key_of(binding.where))
    if there is None or binding.generation > there.generation:
        return
    if binding.generation < there.generation:
        # Mix and match: one channel of today beside another of last month. Each alone would pass on a new machine.
        what = (
            f"the pointer is of generation {binding.generation}; the snapshot of all channels says {there.generation}"
        )
        raise TrustError(what, where=where)
    if digest != there.binding:
        raise TrustError(f"the snapshot names another pointer of generation {binding.generation}", where=where)


def fresh_until(snapshot: ChannelSnapshot | None, binding: Binding, digest: Digest) -> int | None:
    """When a pointer expires, in epoch seconds: as it says, or later where a snapshot names it. None: never."""
    if binding.expires is None or snapshot is None:
        return binding.expires
    there = snapshot.channels.get(key_of(binding.where))
    if there is None or there.binding != digest:
        return binding.expires
    return None if snapshot.expires is None else max(binding.expires, snapshot.expires)
