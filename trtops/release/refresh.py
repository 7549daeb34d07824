"""Taking a new snapshot of all channels, with the online key: ``trtops registry refresh``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import Conflict, InputError, Revoked, TrustError
from trtops.release import layout
from trtops.release.documents import Binding, ChannelSnapshot, Listed, SealedSecret
from trtops.release.envelope import read_unverified, sign, verify
from trtops.release.fetch import channels, read_binding
from trtops.release.snapshot import key_of

if TYPE_CHECKING:
    from trtops.release.documents import Channel
    from trtops.release.fetch import Documents
    from trtops.release.keys import Keys
    from trtops.release.root import Root


def refresh_snapshot(
    registry: Documents, keys: Keys, environment: str, *, now: int, lifetime: int | None
) -> tuple[ChannelSnapshot, tuple[TrustError, ...]]:
    """Take a new snapshot and publish it.

    Nothing in it goes down: a pointer that went back, or that is not trusted, keeps the place that it had. A snapshot
    that was deleted or forged is replaced: its version is never below the clock's seconds, so that services take it.

    Args:
        registry: of the environment.
        keys: the refresh key signs.
        environment: whose channels.
        now: epoch seconds.
        lifetime: seconds until it expires; None: never.

    Returns:
        the snapshot, and what was found wrong with pointers and secrets on the way.

    Raises:
        Conflict: somebody else refreshes now.
        InputError: there are more channels and secrets than fit.
        StorageError, Unavailable: the registry.
        TrustError: this home's refresh key is not trusted.
    """
    root = keys.root()
    raw = registry.read(layout.SNAPSHOT)
    wrong: list[TrustError] = []
    before = _before(raw, root, environment, wrong)
    listed = _listed(registry, root, environment, before, wrong)
    snapshot = ChannelSnapshot(
        environment=environment,
        version=max(before.version + 1 if before else 1, now),
        root=root.version,
        channels=listed,
        secrets=_secrets(registry, root, before, wrong),
        created=now,
        expires=None if lifetime is None else now + lifetime,
    )
    body = _signed(snapshot, keys)
    verify(body, ChannelSnapshot, root, where=layout.SNAPSHOT)  # what services would refuse is not published
    try:
        registry.swap(layout.SNAPSHOT, body, raw)
    except Conflict:
        what = "somebody else refreshed the channels just now"
        raise Conflict(what, where=layout.SNAPSHOT, fix="nothing more is to be done") from None
    return snapshot, tuple(wrong)


def _signed(snapshot: ChannelSnapshot, keys: Keys) -> bytes:
    try:
        return sign(snapshot, [keys.signer("refresh")])
    except InputError:
        count = f"{len(snapshot.channels)} channels and {len(snapshot.secrets)} secrets"
        what = f"{count} of {snapshot.environment} do not fit into one snapshot"
        raise InputError(what, where=layout.SNAPSHOT, fix="make two environments of it: some 550 fit") from None


def _before(raw: bytes | None, root: Root, environment: str, wrong: list[TrustError]) -> ChannelSnapshot | None:
    """The floor to keep to. One that is forged is none, and is told: whoever put it there must not stop all others."""
    if raw is None:
        return None
    try:
        before = verify(raw, ChannelSnapshot, root, where=layout.SNAPSHOT).value
    except Revoked:  # fast-forward: what a stolen key said is no floor
        return None
    except TrustError as error:
        wrong.append(error)
        return None
    if before.environment != environment:
        what = f"this snapshot was of {before.environment}, not of {environment}"
        wrong.append(TrustError(what, where=layout.SNAPSHOT, fix="look who can write to the registry"))
        return None
    return before


def _listed(
    registry: Documents, root: Root, environment: str, before: ChannelSnapshot | None, wrong: list[TrustError]
) -> dict[str, Listed]:
    listed = dict(before.channels) if before else {}
    for channel in channels(registry, environment):
        where = layout.pointer(channel)
        body = registry.read(where)
        if body is None:
            continue
        try:
            binding = read_binding(body, root, channel, where)
        except TrustError as error:
            wrong.append(error)
            continue
        key = key_of(channel)
        there = listed.get(key)
        if there is not None and binding.generation < there.generation and not _void(registry, root, channel, there):
            what = f"{channel} went back to generation {binding.generation}; it was at {there.generation}"
            wrong.append(TrustError(what, where=where, fix="look who can write to the registry"))
            continue
        listed[key] = Listed(generation=binding.generation, binding=binding.digest())
    return listed


def _void(registry: Documents, root: Root, channel: Channel, listed: Listed) -> bool:
    """Whether the pointer of before was signed by a key that is revoked now.

    Fast-forward: a stolen channel key that counted a generation up to the sky would be a floor for ever. Only the very
    document that was listed counts, so that nobody can show another one.
    """
    where = layout.binding(channel, listed.binding)
    body = registry.read(where)
    if body is None:
        return False
    try:
        verify(body, Binding, root, where=where)
    except Revoked:
        return read_unverified(body, Binding, where=where).digest == listed.binding
    except TrustError:
        return False
    return False


def _secrets(
    registry: Documents, root: Root, before: ChannelSnapshot | None, wrong: list[TrustError]
) -> dict[str, int]:
    found = dict(before.secrets) if before else {}
    for name in registry.names(layout.SECRETS):
        body = registry.read(name)
        if body is None:
            continue
        try:
            secret = verify(body, SealedSecret, root, where=name).value
        except TrustError as error:
            wrong.append(error)
            continue
        key = f"{secret.engine}/{secret.path}"
        if layout.secret(secret.engine, secret.path) != name:
            wrong.append(TrustError("this secret lies in another's place", where=name))
        elif secret.generation is not None:
            found[key] = max(secret.generation, found.get(key, 0))
    return found
