"""Which documents of a registry nothing leads to: those of publishers that lost a race, or died before the pointer.

Every binding of every channel's history leads to its releases, and these to their proofs. Approvals are kept: they may
be of a release that is still to come. So are secrets, roots and the snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import TrustError
from trtops.release import layout
from trtops.release.documents import Channel, EngineRelease
from trtops.release.envelope import verify
from trtops.release.fetch import bodies, channels, history, read_binding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtops.digest import Digest
    from trtops.release.documents import Binding
    from trtops.release.fetch import Documents, Readable
    from trtops.release.root import Root

PREFIXES = ("bindings/", "engines/", "configs/", "provenance/", "evidence/", "verdicts/")
"""Kinds of documents that may be unreferenced."""


def unreferenced(registry: Documents, root: Root, environment: str) -> tuple[str, ...]:
    """Names of documents that nothing leads to, sorted.

    Args:
        registry: of the environment.
        root: the trusted keys.
        environment: its name.

    Raises:
        TrustError: a pointer or a history does not hold: nothing is known of what it leads to.
        Unavailable: the registry is away.
    """
    # Names first: what is written after this line is no candidate.
    names = [name for prefix in PREFIXES for name in registry.names(prefix)]
    kept = referenced(registry, root, environment)
    return tuple(sorted(name for name in names if name not in kept))


def referenced(registry: Documents, root: Root, environment: str) -> frozenset[str]:
    """Names of all documents that a channel's history leads to.

    Raises:
        TrustError, Unavailable: as for :func:`unreferenced`.
    """
    return frozenset(_referenced(registry, root, environment))


def _referenced(registry: Documents, root: Root, environment: str) -> Iterator[str]:
    pointed = channels(registry, environment)
    releases: set[tuple[str, Digest]] = set()
    for channel in (*pointed, *_orphans(registry, environment, pointed)):
        for binding in _bindings(registry, root, channel, pointed=channel in pointed):
            yield layout.binding(channel, binding.digest())
            for engine, config in _pairs(binding):
                releases.add((channel.engine, engine))
                yield layout.engine_release(channel.engine, engine)
                yield layout.config_release(channel.engine, config)
    for name, digest in releases:
        yield from _proofs(registry, root, name, digest)


def _orphans(registry: Documents, environment: str, pointed: Iterable[Channel]) -> Iterator[Channel]:
    """Channels whose pointer is gone: a publisher goes on from the bindings that they have, whichever was the last."""
    found = set()
    for name in registry.names("bindings/"):
        match name.split("/"):
            case [_, engine, channel, _]:
                found.add(Channel(engine=engine, environment=environment, name=channel))
            case _:
                continue
    yield from sorted(found - set(pointed), key=str)


def _bindings(registry: Documents, root: Root, channel: Channel, *, pointed: bool) -> Iterator[Binding]:
    if pointed:
        yield from history(registry, root, channel)
        return
    for name, body in bodies(registry, layout.bindings(channel)):
        yield read_binding(body, root, channel, name)


def _pairs(binding: Binding) -> Iterator[tuple[Digest, Digest]]:
    """Releases that a binding names; those of a rollout that has ended, too: its history is to be looked at."""
    yield binding.engine_release, binding.config_release
    if binding.rollout is not None:
        yield binding.rollout.engine_release, binding.rollout.config_release


def _proofs(registry: Readable, root: Root, engine: str, digest: Digest) -> Iterator[str]:
    where = layout.engine_release(engine, digest)
    body = registry.read(where)
    if body is None:
        return
    signed = verify(body, EngineRelease, root, where=where)
    if signed.digest != digest:
        raise TrustError(f"the document is {signed.digest.short}, expected {digest.short}", where=where)
    yield layout.verdict(signed.value.spec_verdict)
    for artifact in signed.value.artifacts:
        yield layout.evidence(artifact.evidence)
        yield layout.verdict(artifact.verdict)
        if artifact.provenance is not None:
            yield layout.provenance(artifact.provenance)
