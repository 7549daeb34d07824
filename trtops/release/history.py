"""The moves of a channel for people to look at, also where a key that was revoked since has signed the pointer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Revoked, TrustError
from trtops.release import layout
from trtops.release.documents import Binding
from trtops.release.envelope import read_unverified
from trtops.release.fetch import Link, links, read_binding
from trtops.release.head import head_of

if TYPE_CHECKING:
    from trtops.release.documents import Channel
    from trtops.release.fetch import Documents
    from trtops.release.root import Root


@dataclass(frozen=True, slots=True)
class Traced:
    """What is to be seen of a channel's moves.

    Attributes:
        links: newest first; those that a revoked key signed say so.
        problems: why the pointer does not count, and where what it goes back to does not hold; empty: all is well.
    """

    links: tuple[Link, ...]
    problems: tuple[TrustError, ...] = ()


def traced(registry: Documents, root: Root, channel: Channel) -> Traced:
    """Every move of a channel that can be told. Nothing is to be decided by it: a thief may have written the top.

    A pointer of a trusted key has its chain verified down to generation 1. One of a revoked key is shown as what it is,
    with what it goes back to, and the chain of the newest binding that still counts, which the channel goes on from.

    Raises:
        TrustError: the pointer is forged, or the chain of what counts has a gap (whoever can write to the registry).
        Unavailable: the registry is away.
    """
    name = layout.pointer(channel)
    raw = registry.read(name)
    if raw is None:
        return Traced(())
    try:
        return Traced(tuple(links(registry, root, read_binding(raw, root, channel, name))))
    except Revoked as error:
        revoked = error
    found: list[Link] = []
    problems: list[TrustError] = [revoked]
    try:
        for link in links(registry, root, _believed_by_nobody(raw, channel, name)):
            found.append(link if found else Link(link.binding, revoked))
    except TrustError as error:  # fast-forward, or a history that was never: as far as it is one, it is shown
        problems.append(error)
    counts = head_of(registry, root, channel).binding
    told = {link.binding.digest() for link in found}
    if counts is not None and counts.digest() not in told:
        found += [link for link in links(registry, root, counts) if link.binding.digest() not in told]
    return Traced(tuple(found), tuple(problems))


def _believed_by_nobody(raw: bytes, channel: Channel, name: str) -> Binding:
    binding = read_unverified(raw, Binding, where=name).value
    if binding.where != channel:
        raise TrustError(f"this binding is of {binding.where}, not of {channel}", where=name)
    return binding
