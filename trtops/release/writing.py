"""Writing to a registry: an immutable document, and the pointer by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import Conflict, FetchFailed, TrustError
from trtops.release import layout
from trtops.release.envelope import read_unverified, verify
from trtops.release.fetch import read_binding

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.digest import Digest, Value
    from trtops.release.documents import Binding, Channel, EngineRelease
    from trtops.release.fetch import Documents
    from trtops.release.head import Head
    from trtops.release.root import Root

LOOK = "look at trtops status, then run this again if it is still wanted"


def check_store(release: EngineRelease, has_artifact: Callable[[Digest], bool]) -> None:
    """Refuse a release of which the store lacks an artifact.

    Raises:
        FetchFailed: names it.
    """
    for artifact in release.artifacts:
        if not has_artifact(artifact.sidecar.artifact):
            raise FetchFailed(
                f"the store has no artifact {artifact.sidecar.artifact.short} of target {artifact.target}",
                where=release.engine,
                fix="run trtops build",
            )


def put(registry: Documents, root: Root, name: str, value: Value, body: bytes) -> None:
    """Write an immutable document. One that others signed counts as written if it says the same and can be trusted."""
    try:
        registry.create(name, body)
    except Conflict:
        there = registry.read(name)
        if there is None or read_unverified(there, type(value), where=name).digest != value.digest():
            raise
        try:
            verify(there, type(value), root, where=name)
        except TrustError:
            # It says the very same and lacks signatures that count: revoked since, or fewer than its tier takes.
            if body != there:
                registry.swap(name, body, there)


def move_to(registry: Documents, root: Root, channel: Channel, body: bytes, binding: Binding, head: Head) -> None:
    """Write a binding and point its channel to it.

    Raises:
        Conflict: somebody else moved the channel; says who and to which generation.
        StorageError, TrustError, Unavailable: the registry, or services would refuse it.
    """
    read_binding(body, root, channel, layout.pointer(channel))  # what services would refuse is not published
    put(registry, root, layout.binding(channel, binding.digest()), binding, body)
    point(registry, root, channel, body, head, binding)


def point(registry: Documents, root: Root, channel: Channel, body: bytes, head: Head, binding: Binding) -> None:
    """Move a channel's pointer from where it was found.

    Raises:
        Conflict: somebody else moved it; says who and to which generation.
        StorageError, Unavailable: the registry.
    """
    name = layout.pointer(channel)
    try:
        registry.swap(name, body, head.raw)
    except Conflict:
        based = head.binding.generation if head.binding else 0
        what = f"{channel} {moved(registry.read(name), root, channel)} while generation {binding.generation} was made"
        raise Conflict(f"{what} from generation {based}", where=name, fix=LOOK) from None


def moved(body: bytes | None, root: Root, channel: Channel) -> str:
    """Who moved a channel, and where to."""
    if body is None:
        return "lost its pointer"
    try:
        winner = read_binding(body, root, channel, layout.pointer(channel))
    except TrustError:
        return "was moved to a pointer that is not trusted here"
    return f"was moved to generation {winner.generation} by key {winner.actor[:12]} ({winner.reason})"
