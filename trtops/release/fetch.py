"""Reading a channel: documents come from a registry, and all of them go through :class:`TrustedChannel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from trtops.errors import Revoked, TrtopsError, TrustError, Unavailable
from trtops.release import layout
from trtops.release.documents import Binding, Channel, ConfigRelease, EngineRelease, ReleasedArtifact
from trtops.release.envelope import Signed, read_unverified, verify
from trtops.release.snapshot import fetch_snapshot
from trtops.release.trust import Seen, TrustedChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtops.digest import Digest
    from trtops.release.root import Root


class Readable(Protocol):
    """What reading a release needs of a registry."""

    def read(self, name: str) -> bytes | None:
        """The newest bytes; None if there are none."""


class Documents(Readable, Protocol):
    """What publishing needs of a registry (the port in ``trtops.registry`` has it)."""

    def create(self, name: str, body: bytes) -> bool:
        """Write once. True if written, False if the same bytes are there already; else a Conflict."""

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        """Replace ``expected`` (None: absent) by ``body``, atomically; else a Conflict."""

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Names that start with a prefix, sorted."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a channel says now.

    Attributes:
        channel: whose pointer.
        state: ``released``; ``absent`` (nothing was released, or the pointer is gone); ``expired``; ``untrusted``
            (a document was refused).
        binding: the pointer's binding; None unless its signature holds.
        engine_release, config_release: what it names; None unless accepted.
        problem: the error that explains the state; None if released.
    """

    channel: Channel
    state: str
    binding: Binding | None = None
    engine_release: EngineRelease | None = None
    config_release: ConfigRelease | None = None
    problem: TrtopsError | None = None


def fetch(trusted: TrustedChannel, registry: Readable, now: int) -> TrustedChannel:
    """Bring a trusted channel up to what the registry says: pointer, engine release, config release.

    Take a new :class:`TrustedChannel` for each attempt: one that fails half-way is between two releases.

    Args:
        trusted: takes the documents; keep its :attr:`~TrustedChannel.seen` afterwards, also when this raises.
        registry: where they are read.
        now: epoch seconds.

    Raises:
        TrustError: a document was refused (the publisher, or whoever can write to the registry).
        Unavailable: the registry is away, the pointer has expired or is gone, or a document is missing.
    """
    trusted.update_pointer(registry.read(layout.pointer(trusted.channel)), now)
    return fetch_arm(trusted, registry)


def fetch_arm(trusted: TrustedChannel, registry: Readable) -> TrustedChannel:
    """Read the releases that the present arm names: the stable one, or what :meth:`TrustedChannel.beside` gave.

    Raises:
        TrustError, Unavailable: as for :func:`fetch`.
    """
    engine, arm = trusted.channel.engine, trusted.arm
    trusted.update_engine_release(registry.read(layout.engine_release(engine, arm.engine_release)))
    trusted.update_config_release(registry.read(layout.config_release(engine, arm.config_release)))
    return trusted


def fetch_proofs(trusted: TrustedChannel, registry: Readable, target: str) -> ReleasedArtifact:
    """Verify provenance, evidence and verdict of a target, and the verdict on the spec.

    What is left is its artifact's digest: :meth:`TrustedChannel.accept_artifact`.

    Raises:
        KeyError: the release has no such target.
        TrustError: a document was refused (the publisher, or whoever can write to the registry).
        Unavailable: the registry is away, or a document is missing.
    """
    artifact = trusted.engine_release.artifact(target)
    if artifact is None:
        raise KeyError(target)
    trusted.update_spec_verdict(registry.read(layout.verdict(trusted.engine_release.spec_verdict)))
    proof = registry.read(layout.provenance(artifact.provenance)) if artifact.provenance else None
    trusted.update_provenance(target, proof)
    trusted.update_evidence(target, registry.read(layout.evidence(artifact.evidence)))
    trusted.update_verdict(target, registry.read(layout.verdict(artifact.verdict)))
    return artifact


def opened(
    registry: Readable, root: Root, channel: Channel, now: int, seen: Seen | None = None, *, accepts: str | None = None
) -> TrustedChannel:
    """A channel that is held to its environment's snapshot, where the root asks for one; for :func:`fetch`.

    Raises:
        TrustError: the snapshot was refused (whoever can write to the registry).
        Unavailable: the registry is away, or the snapshot is gone or has expired.
    """
    snapshot = fetch_snapshot(registry, root, channel.environment, now)
    return TrustedChannel(root, channel, seen, accepts=accepts, snapshot=snapshot)


def own_marks(registry: Readable, root: Root, engine: str, bad: Digest, good: Digest) -> tuple[Digest, ...]:
    """The marks that only the first of two engine releases has: they go into quarantine with it.

    Raises:
        Unavailable: the registry is away.
    """
    return tuple(sorted(marks_of(registry, root, engine, bad) - marks_of(registry, root, engine, good)))


def marks_of(registry: Readable, root: Root, engine: str, release: Digest) -> frozenset[Digest]:
    """The marks of a release. None where its document is gone or damaged: an abort must not depend on it.

    Raises:
        Unavailable: the registry is away.
    """
    where = layout.engine_release(engine, release)
    body = registry.read(where)
    try:
        found = verify(body, EngineRelease, root, where=where) if body is not None else None
    except TrustError:
        return frozenset()
    if found is None or found.digest != release:
        return frozenset()
    return found.value.marks()


def status(registry: Readable, root: Root, channel: Channel, now: int, seen: Seen | None = None) -> Status:
    """Tell what a channel says now, also where it cannot be trusted.

    Raises:
        Unavailable: the registry is away.
    """
    body = registry.read(layout.pointer(channel))
    if body is None:
        problem = Unavailable(f"nothing is released to {channel}", where=layout.pointer(channel))
        return Status(channel, "absent", problem=problem)
    try:
        trusted = opened(registry, root, channel, now, seen)
        binding = trusted.update_pointer(body, now)
    except TrustError as error:
        return Status(channel, "untrusted", problem=error)
    except Unavailable as error:
        return _stale(body, root, channel, error)
    engine_body = registry.read(layout.engine_release(channel.engine, binding.engine_release))
    config_body = registry.read(layout.config_release(channel.engine, binding.config_release))
    try:
        engine = trusted.update_engine_release(engine_body)
        config = trusted.update_config_release(config_body)
    except (TrustError, Unavailable) as error:
        return Status(channel, "untrusted", binding=binding, problem=error)
    return Status(channel, "released", binding, engine, config)


def _stale(body: bytes, root: Root, channel: Channel, problem: Unavailable) -> Status:
    """What a pointer says that is genuine and not fresh."""
    try:
        binding = verify(body, Binding, root, where=layout.pointer(channel)).value
    except TrustError as error:
        return Status(channel, "untrusted", problem=error)
    return Status(channel, "expired", binding=binding, problem=problem)


def channels(registry: Documents, environment: str, engine: str | None = None) -> tuple[Channel, ...]:
    """The channels that a registry has a pointer for, sorted. A name that no channel can have is passed over.

    Args:
        registry: of the environment.
        environment: its name.
        engine: only this engine's; None: all.

    Raises:
        Unavailable: the registry is away.
    """
    prefix = f"{layout.POINTERS}{engine}/" if engine else layout.POINTERS
    found = []
    for name in registry.names(prefix):
        match name.split("/"):
            case [_, owner, channel]:
                found.append(named(owner, environment, channel))
            case _:  # somebody else's document; a channel has exactly this form
                continue
    return tuple(channel for channel in found if channel is not None)


def named(engine: str, environment: str, name: str) -> Channel | None:
    """A channel by names that stand in a registry, where anybody may have put them; None where none is called so."""
    try:
        return Channel(engine=engine, environment=environment, name=name)
    except ValidationError:
        return None


def history(registry: Readable, root: Root, channel: Channel) -> tuple[Binding, ...]:
    """Every binding of a channel, newest first, its chain of digests verified down to generation 1.

    The pointer's signature vouches for all of them, since each names the digest of the one before. An expired pointer
    is no hindrance.

    Raises:
        TrustError: a document was refused, or the chain has a gap (whoever can write to the registry).
        Unavailable: the registry is away.
    """
    return tuple(_walk(registry, root, channel))


def back_to(bindings: Iterable[Binding], generation: int) -> tuple[Binding, ...]:
    """Bindings of a chain, newest first, no further back than a generation; a gap further down does not matter."""
    found = []
    for binding in bindings:
        found.append(binding)
        if binding.generation <= generation:
            break
    return tuple(found)


def _walk(registry: Readable, root: Root, channel: Channel) -> Iterator[Binding]:
    name = layout.pointer(channel)
    body = registry.read(name)
    if body is not None:
        yield from chain(registry, root, read_binding(body, root, channel, name))


@dataclass(frozen=True, slots=True)
class Link:
    """A binding of a chain.

    Attributes:
        binding: the one after it names it by its digest, so it is what was there.
        revoked: None if trusted keys signed it; else why they did not: what it binds, no trusted key vouches for.
    """

    binding: Binding
    revoked: Revoked | None = None


def chain(registry: Readable, root: Root, current: Binding) -> Iterator[Binding]:
    """A binding that is trusted and every one before it, newest first: each is named by its digest in the one after.

    Raises:
        TrustError: the chain has a gap (whoever can write to the registry).
        Unavailable: the registry is away.
    """
    return (link.binding for link in links(registry, root, current))


def links(registry: Readable, root: Root, current: Binding) -> Iterator[Link]:
    """The links of a :func:`chain`, with what is to be said of who signed them.

    Raises:
        TrustError, Unavailable: as for :func:`chain`.
    """
    channel = current.where
    name = layout.binding(channel, current.digest())
    yield Link(current)
    while current.previous is not None:
        name = layout.binding(channel, current.previous)
        body = registry.read(name)
        if body is None:
            raise TrustError(f"the history of {channel} ends before generation {current.generation}", where=name)
        link = _chained(body, current, root, name)
        yield link
        current = link.binding
    if current.generation != 1:
        raise TrustError(f"the history of {channel} starts at generation {current.generation}", where=name)


def _chained(body: bytes, after: Binding, root: Root, name: str) -> Link:
    signed, revoked = _older(body, root, name)
    before = _placed(signed, after.where, name)
    if signed.digest != after.previous or before.generation != after.generation - 1:
        # Rewritten history: the later binding names the digest and the number of the one before.
        raise TrustError(f"this is not the binding before generation {after.generation}", where=name)
    return Link(before, revoked)


def _older(body: bytes, root: Root, name: str) -> tuple[Signed[Binding], Revoked | None]:
    """A binding that a later one names by its digest. A key that was revoked since does not break the chain."""
    try:
        return verify(body, Binding, root, where=name), None
    except Revoked as error:
        return read_unverified(body, Binding, where=name), error


def read_binding(body: bytes, root: Root, channel: Channel, name: str) -> Binding:
    """Verify a binding of a channel, expired or not.

    Raises:
        TrustError: it is forged, or of another channel (whoever can write to the registry).
    """
    return _placed(verify(body, Binding, root, where=name), channel, name)


def _placed(signed: Signed[Binding], channel: Channel, name: str) -> Binding:
    if signed.value.where != channel:
        raise TrustError(f"this binding is of {signed.value.where}, not of {channel}", where=name)
    return signed.value


def bodies(registry: Documents, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of all documents under a prefix; one that vanishes meanwhile is left out."""
    for name in registry.names(prefix):
        body = registry.read(name)
        if body is not None:
            yield name, body
