"""Where a channel stands, also where a key that was revoked since has signed its pointer.

A revoked pointer is believed in nothing: whoever has the key could have written it. What an earlier binding says that
a trusted key has signed still counts, and a channel goes on from there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Revoked, TrustError, Unavailable
from trtops.release import layout
from trtops.release.documents import Binding
from trtops.release.envelope import read_unverified
from trtops.release.fetch import bodies, read_binding
from trtops.release.snapshot import fetch_snapshot, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.digest import Digest
    from trtops.release.documents import Channel
    from trtops.release.fetch import Documents
    from trtops.release.root import Root


@dataclass(frozen=True, slots=True)
class Head:
    """Where a channel stands.

    Attributes:
        raw: the pointer's bytes; None if there is no pointer.
        binding: the one to go on from.
        orphan: without a pointer, the bytes of ``binding`` if the pointer may be made to hold it.
        revoked: the pointer was signed by a key that was revoked since, and why it does not count; ``binding`` is the
            newest that still counts.
    """

    raw: bytes | None
    binding: Binding | None
    orphan: bytes | None = None
    revoked: Revoked | None = None

    @property
    def settled(self) -> bool:
        """Whether services can be left with what is there."""
        return (self.raw is not None and self.revoked is None) or self.orphan is not None


def head_of(registry: Documents, root: Root, channel: Channel) -> Head:
    """The binding to go on from. Never one that is forged: a chain must not be continued from an attacker's.

    Raises:
        TrustError: the pointer is forged, or a binding of a channel that lost its pointer (whoever can write to the
            registry).
        Unavailable: the registry is away.
    """
    name = layout.pointer(channel)
    raw, revoked = registry.read(name), None
    if raw is not None:
        try:
            return Head(raw, read_binding(raw, root, channel, name))
        except Revoked as error:  # key compromise: an attacker's pointer, or an honest one that nobody takes any more
            revoked = error
    # Deleted pointer: to start again at generation 1 would be refused by every service that has seen more.
    found = []
    for document, body in bodies(registry, layout.bindings(channel)):
        with suppress(Revoked):
            found.append((read_binding(body, root, channel, document), body))
    if not found:
        return Head(raw, None, revoked=revoked)
    newest = max(binding.generation for binding, _ in found)
    last = [(binding, body) for binding, body in found if binding.generation == newest]
    if len(last) == 1:
        binding, body = last[0]
        return Head(raw, binding, None if raw is not None else body, revoked)
    # Two of one generation: writers met, and only one binding was ever pointed to.
    named = _named(registry, root, channel) if raw is None else _led_to(registry, channel, raw, newest)
    for binding, body in last:
        if binding.digest() == named:
            return Head(raw, binding, None if raw is not None else body, revoked)
    return Head(raw, _safest([binding for binding, _ in last]), None, revoked)  # nobody knows which: point to none


def _safest(last: Sequence[Binding]) -> Binding:
    """What to go on from where nobody knows which one was pointed to.

    The one that bars most: what an abort put into quarantine must not come back because a publisher that lost to it
    had written a binding, too. What was let in again is let in once more by a person.
    """
    return max(last, key=lambda binding: (len(binding.rejected), binding.digest()))


def _named(registry: Documents, root: Root, channel: Channel) -> Digest | None:
    """The digest of the pointer that the environment's snapshot names, expired or not; None where there is none."""
    try:
        snapshot = fetch_snapshot(registry, root, channel.environment, 0)
    except (TrustError, Unavailable):
        return None
    listed = snapshot.channels.get(key_of(channel)) if snapshot is not None else None
    return listed.binding if listed is not None else None


def _led_to(registry: Documents, channel: Channel, raw: bytes, generation: int) -> Digest | None:
    """The digest of the binding of a generation that a pointer goes back to, whoever signed it.

    It chooses among bindings that trusted keys have signed, all of the newest generation, and nothing else: a thief
    who points to an older one brings that back by no means.
    """
    try:
        one = read_unverified(raw, Binding).value
        while one.generation > generation + 1 and one.previous is not None:
            body = registry.read(layout.binding(channel, one.previous))
            signed = read_unverified(body, Binding) if body is not None else None
            if signed is None or signed.digest != one.previous:
                return None
            one = signed.value
    except TrustError:
        return None
    return one.previous if one.generation == generation + 1 else None
