"""Which documents of a registry nothing leads to: those of publishers that lost a race, or died before the pointer.

Every binding of every channel's history leads to its releases, and these to their proofs. Approvals are kept: they may
be of a release that is still to come. So are secrets, roots and the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Revoked, TrustError
from trtops.release import layout
from trtops.release.documents import Binding, ChannelSnapshot, EngineRelease
from trtops.release.envelope import read_unverified, verify
from trtops.release.fetch import bodies, chain, channels, named, read_binding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtops.digest import Digest
    from trtops.release.documents import Channel
    from trtops.release.fetch import Documents
    from trtops.release.root import Root

PREFIXES = ("bindings/", "engines/", "configs/", "provenance/", "evidence/", "verdicts/")
"""Kinds of documents that may be unreferenced."""


@dataclass(frozen=True)
class References:
    """What leads to what.

    Attributes:
        names: of documents that a channel's history leads to, sorted.
        distrusted: documents on the way that nobody vouches for, and why. What they name is among ``names``, unless it
            was said that documents of revoked keys lead to nothing.
    """

    names: frozenset[str]
    distrusted: tuple[TrustError, ...] = ()


def unreferenced(
    registry: Documents, root: Root, environment: str, *, revoked: bool = False
) -> tuple[tuple[str, ...], tuple[TrustError, ...]]:
    """Names of documents that nothing leads to, sorted, and what was met on the way that nobody vouches for.

    Args:
        registry: of the environment.
        root: the trusted keys.
        environment: its name.
        revoked: also what only documents of revoked keys lead to.

    Raises:
        TrustError: a pointer or a history does not hold: nothing is known of what it leads to.
        Unavailable: the registry is away.
    """
    # Names first: what is written after this line is no candidate.
    names = [name for prefix in PREFIXES for name in registry.names(prefix)]
    found = referenced(registry, root, environment, revoked=revoked)
    return tuple(sorted(name for name in names if name not in found.names)), found.distrusted


def referenced(registry: Documents, root: Root, environment: str, *, revoked: bool = False) -> References:
    """All documents that a channel's history leads to.

    A document of a revoked key is believed in nothing, and what it names is not thrown away by that: it may be what
    runs, or the only way to tell what a thief did.

    Args:
        registry: of the environment.
        root: the trusted keys.
        environment: its name.
        revoked: documents of revoked keys lead to nothing.

    Raises:
        TrustError, Unavailable: as for :func:`unreferenced`.
    """
    walk = _Walk(registry, root, follow=not revoked)
    pointed = channels(registry, environment)
    releases: set[tuple[str, Digest]] = set()
    for channel in (*pointed, *_orphans(registry, environment, pointed)):
        for name, binding in walk.bindings(channel, pointed=channel in pointed):
            walk.names.add(name)
            for engine, config in _pairs(binding):
                releases.add((channel.engine, engine))
                walk.names.add(layout.engine_release(channel.engine, engine))
                walk.names.add(layout.config_release(channel.engine, config))
    walk.names.update(_listed(registry, environment))
    for engine_name, digest in sorted(releases):
        walk.names.update(walk.proofs(engine_name, digest))
    return References(frozenset(walk.names), tuple(walk.distrusted))


def _listed(registry: Documents, environment: str) -> Iterator[str]:
    """Bindings that the snapshot names as the floor of channels.

    That a floor is void, since its key was revoked, can be told by the very document alone: without it, no honest
    pointer below could ever follow.
    """
    body = registry.read(layout.SNAPSHOT)
    try:
        found = read_unverified(body, ChannelSnapshot, where=layout.SNAPSHOT).value if body is not None else None
    except TrustError:
        return
    for key, listed in found.channels.items() if found is not None else ():
        engine, _, name = key.partition("/")
        channel = named(engine, environment, name)
        if channel is not None:
            yield layout.binding(channel, listed.binding)


def _orphans(registry: Documents, environment: str, pointed: Iterable[Channel]) -> Iterator[Channel]:
    """Channels whose pointer is gone: a publisher goes on from the bindings that they have, whichever was the last."""
    found = set()
    for name in registry.names("bindings/"):
        match name.split("/"):
            case [_, engine, channel, _]:
                found.add(named(engine, environment, channel))
            case _:
                continue
    yield from sorted((one for one in found if one is not None and one not in pointed), key=str)


def _pairs(binding: Binding) -> Iterator[tuple[Digest, Digest]]:
    """Releases that a binding names; those of a rollout that has ended, too: its history is to be looked at."""
    yield binding.engine_release, binding.config_release
    if binding.rollout is not None:
        yield binding.rollout.engine_release, binding.rollout.config_release


class _Walk:
    """Reads from documents to those that they name.

    ``follow``: also from those of revoked keys.
    """

    def __init__(self, registry: Documents, root: Root, *, follow: bool) -> None:
        self._registry, self._root, self._follow = registry, root, follow
        self.names: set[str] = set()
        self.distrusted: list[TrustError] = []

    def bindings(self, channel: Channel, *, pointed: bool) -> Iterator[tuple[str, Binding]]:
        """Every binding of a channel that leads anywhere, by the name of its document."""
        if pointed:
            name = layout.pointer(channel)
            body = self._registry.read(name)
            try:
                present = read_binding(body, self._root, channel, name) if body is not None else None
            except Revoked as error:
                # Key compromise: whoever has the key may have pointed past all that was ever released here.
                self.distrusted.append(error)
                if self._follow and body is not None:
                    yield name, read_unverified(body, Binding, where=name).value
                yield from self._every(channel)
                return
            if present is not None:
                yield from self._chain(present)
                return
        yield from self._every(channel)

    def _chain(self, present: Binding) -> Iterator[tuple[str, Binding]]:
        for binding in chain(self._registry, self._root, present):
            name = layout.binding(binding.where, binding.digest())
            if name in self.names:
                return  # the rest of it was walked before
            yield name, binding

    def _every(self, channel: Channel) -> Iterator[tuple[str, Binding]]:
        """Of a channel whose pointer tells nothing: its publisher goes on from any that holds."""
        for name, body in bodies(self._registry, layout.bindings(channel)):
            try:
                yield from self._chain(read_binding(body, self._root, channel, name))
            except Revoked as error:  # noqa: PERF203 - the others count
                self.distrusted.append(error)
                if self._follow:
                    yield name, read_unverified(body, Binding, where=name).value

    def proofs(self, engine: str, digest: Digest) -> Iterator[str]:
        """What an engine release names. Its digest is vouched for by who named it, whoever has signed it."""
        where = layout.engine_release(engine, digest)
        body = self._registry.read(where)
        if body is None:
            return
        try:
            signed = verify(body, EngineRelease, self._root, where=where)
        except TrustError as error:
            signed = read_unverified(body, EngineRelease, where=where)
            self.distrusted.append(error)
            if isinstance(error, Revoked) and not self._follow:
                return
        if signed.digest != digest:
            raise TrustError(f"the document is {signed.digest.short}, expected {digest.short}", where=where)
        yield layout.verdict(signed.value.spec_verdict)
        for artifact in signed.value.artifacts:
            yield layout.evidence(artifact.evidence)
            yield layout.verdict(artifact.verdict)
            if artifact.provenance is not None:
                yield layout.provenance(artifact.provenance)
