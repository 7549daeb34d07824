"""Publishing: immutable documents first, the pointer last, by compare-and-swap.

Whatever moment a publisher dies at, a reader sees the old release or the new one, and running it again finishes.
What a publisher leaves behind that lost a race or died are immutable documents that no pointer names: harmless.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Conflict, FetchFailed, Revoked, TrustError, Unavailable
from trtops.release import layout
from trtops.release.assemble import next_binding, refreshed_binding, rollback_binding, same_release
from trtops.release.documents import Binding, Bound
from trtops.release.envelope import read_unverified, role_of, sign, verify
from trtops.release.fetch import bindings_back_to, bodies, fetch, fetch_proofs, history, read_binding
from trtops.release.signatures import gathered, short_of
from trtops.release.trust import TrustedChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.digest import Digest, Value
    from trtops.policy.verdict import Verdict
    from trtops.release.assemble import Candidate
    from trtops.release.documents import Channel, ConfigRelease, EngineRelease
    from trtops.release.fetch import Documents
    from trtops.release.keys import Keys
    from trtops.release.root import Root


@dataclass(frozen=True, slots=True)
class Bundle:
    """Everything that one publication puts into a registry.

    Attributes:
        engine_release: to bind.
        config_release: to bind.
        spec_verdict: what policies said of the spec.
        candidates: built targets; those in the release bring evidence, verdict and provenance.
        signed: digest -> envelope of a document that was signed elsewhere (by a build runner's builder key); the rest
            is signed here.
        judged_at: the channel's generation when policies compared this with what was released (0: nothing). A channel
            that has moved since is not what they compared it with. None: nothing was compared.
    """

    engine_release: EngineRelease
    config_release: ConfigRelease
    spec_verdict: Verdict
    candidates: tuple[Candidate, ...]
    signed: Mapping[Digest, bytes]
    judged_at: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication did.

    Attributes:
        generation: of the channel, now.
        release: digest of the engine release that the channel names.
        config: digest of the config release.
        new: False if the channel said the same already and nothing was written.
    """

    generation: int
    release: Digest
    config: Digest
    new: bool


@dataclass(frozen=True, slots=True)
class _Head:
    """Where a channel stands.

    Attributes:
        raw: the pointer's bytes; None if there is no pointer.
        binding: the one to go on from.
        orphan: without a pointer, the bytes of ``binding`` if the pointer may be made to hold it.
        revoked: the pointer was signed by a key that was revoked since; ``binding`` is the newest that still counts.
    """

    raw: bytes | None
    binding: Binding | None
    orphan: bytes | None = None
    revoked: bool = False

    @property
    def settled(self) -> bool:
        """Whether services can be left with what is there."""
        return (self.raw is not None and not self.revoked) or self.orphan is not None


def publish(
    registry: Documents,
    keys: Keys,
    channel: Channel,
    bundle: Bundle,
    *,
    now: int,
    lifetime: int | None = None,
    reason: str = "release",
    has_artifact: Callable[[Digest], bool],
) -> Published:
    """Release to a channel. Idempotent: what is there already is neither written again nor given a new generation.

    Args:
        registry: of the channel's environment.
        keys: sign; also name the keys that the present pointer has to be signed by.
        channel: what moves.
        bundle: what to release.
        now: epoch seconds.
        lifetime: seconds until the pointer expires; None: never.
        reason: goes into the binding.
        has_artifact: whether the store holds an artifact.

    Raises:
        Conflict: somebody else moved the channel meanwhile; says who and to which generation. Nothing is lost.
        FetchFailed: the store lacks an artifact of the release.
        StorageError: the registry could not write. The channel is as it was.
        TrustError: what is in the registry is forged, or the own keys are not trusted by the own root.
        Unavailable: the registry is away.
    """
    _check_store(bundle.engine_release, has_artifact)
    root = keys.root()
    head = _head(registry, root, channel)
    bound = _reuse(registry, root, channel, head, bundle)
    said = head.binding is not None and bound == head.binding.bound and not _expired(head.binding, now)
    if head.binding is not None and said and head.settled:
        return _settle(registry, channel, head, head.binding)
    if bundle.judged_at is not None:
        _check_unmoved(root, channel, head, bundle.judged_at, now)
    signer = keys.signer("channel")
    binding = next_binding(head.binding, channel, bound, reason=reason, actor=signer.key_id, now=now, lifetime=lifetime)
    documents = gathered(registry, root, _documents(keys, channel, bundle, binding))
    if few := short_of(root, documents):
        _leave_to_sign(registry, root, documents)
        raise few
    _rehearse(root, channel, registry, documents, now)
    _, pointer = documents.pop(layout.pointer(channel))
    for name, (value, body) in documents.items():
        _put(registry, root, name, value, body)
    _point(registry, root, channel, pointer, head, binding)
    return Published(binding.generation, bound.engine_release, bound.config_release, new=True)


def rollback(
    registry: Documents,
    keys: Keys,
    channel: Channel,
    *,
    to: int | None = None,
    now: int,
    lifetime: int | None = None,
    has_artifact: Callable[[Digest], bool] | None = None,
) -> Binding:
    """Bring back what an earlier generation bound, as a new generation.

    Args:
        registry: of the channel's environment.
        keys: as for :func:`publish`.
        channel: what moves.
        to: the generation; None: the newest that bound something else than the present one.
        now: epoch seconds.
        lifetime: seconds until the pointer expires; None: never.
        has_artifact: whether the store holds an artifact; None: it is not asked.

    Raises:
        InputError: there is no such generation.
        Conflict, FetchFailed, StorageError, TrustError, Unavailable: as for :func:`publish`; Unavailable also if a
            document of that generation is gone.
    """
    root = keys.root()
    raw = registry.read(layout.pointer(channel))
    if raw is None:
        raise Unavailable(f"nothing is released to {channel}", where=layout.pointer(channel))
    bindings = history(registry, root, channel) if to is None else bindings_back_to(registry, root, channel, to)
    signer = keys.signer("channel")
    binding = rollback_binding(bindings, to, actor=signer.key_id, now=now, lifetime=lifetime)
    body = sign(binding, [signer])
    # What it goes back to has to be whole: better refused here than by every service.
    trusted = TrustedChannel(root, channel)
    trusted.update_pointer(body, now)
    engine = trusted.update_engine_release(registry.read(layout.engine_release(channel.engine, binding.engine_release)))
    trusted.update_config_release(registry.read(layout.config_release(channel.engine, binding.config_release)))
    if has_artifact is not None:
        _check_store(engine, has_artifact)
    _move(registry, root, channel, body, binding, _Head(raw, bindings[0]))
    return binding


def refresh(registry: Documents, keys: Keys, channel: Channel, *, now: int, lifetime: int | None) -> Binding:
    """Let a channel say what it says for longer, also when it has expired already.

    Raises:
        Conflict, StorageError, TrustError, Unavailable: as for :func:`publish`.
    """
    root = keys.root()
    head = _head(registry, root, channel)
    if head.binding is None:
        raise Unavailable(f"nothing is released to {channel}", where=layout.pointer(channel))
    signer = keys.signer("channel")
    binding = refreshed_binding(head.binding, actor=signer.key_id, now=now, lifetime=lifetime)
    _move(registry, root, channel, sign(binding, [signer]), binding, head)
    return binding


def _move(registry: Documents, root: Root, channel: Channel, body: bytes, binding: Binding, head: _Head) -> None:
    _put(registry, root, layout.binding(channel, binding.digest()), binding, body)
    _point(registry, root, channel, body, head, binding)


def _check_store(release: EngineRelease, has_artifact: Callable[[Digest], bool]) -> None:
    for artifact in release.artifacts:
        if not has_artifact(artifact.sidecar.artifact):
            raise FetchFailed(
                f"the store has no artifact {artifact.sidecar.artifact.short} of target {artifact.target}",
                where=release.engine,
                fix="run trtops build",
            )


def _head(registry: Documents, root: Root, channel: Channel) -> _Head:
    """The binding to go on from. Never one that is forged: a chain must not be continued from an attacker's."""
    name = layout.pointer(channel)
    raw = registry.read(name)
    if raw is not None:
        with suppress(Revoked):  # key compromise: an attacker's pointer, or an honest one that nobody takes any more
            return _Head(raw, read_binding(raw, root, channel, name))
    # Deleted pointer: starting again at generation 1 would be refused by every service that has seen more. (Two first
    # releases of a channel at once look the same: the winner's is then generation 2, which harms nobody.)
    found = []
    for document, body in bodies(registry, layout.bindings(channel)):
        with suppress(Revoked):
            found.append((read_binding(body, root, channel, document), body))
    if not found:
        return _Head(raw, None, revoked=raw is not None)
    newest = max(binding.generation for binding, _ in found)
    last = [(binding, body) for binding, body in found if binding.generation == newest]
    binding, body = last[0]
    # Two of one generation: only one was ever pointed to, and nobody knows which. Go on from either, point to none.
    if raw is not None:
        return _Head(raw, binding, revoked=True)
    return _Head(None, binding, body if len(last) == 1 else None)


def _reuse(registry: Documents, root: Root, channel: Channel, head: _Head, bundle: Bundle) -> Bound:
    """What to bind: the digests of the present binding where its documents say the same."""
    engine, config = bundle.engine_release, bundle.config_release
    engine_digest, config_digest = engine.digest(), config.digest()
    if head.binding is not None:
        present = head.binding.bound
        if _same(registry, root, layout.engine_release(channel.engine, present.engine_release), engine):
            engine_digest = present.engine_release
        if _same(registry, root, layout.config_release(channel.engine, present.config_release), config):
            config_digest = present.config_release
    return Bound(engine_release=engine_digest, config_release=config_digest)


def _same(registry: Documents, root: Root, name: str, wanted: EngineRelease | ConfigRelease) -> bool:
    body = registry.read(name)
    if body is None:
        return False
    try:
        return same_release(verify(body, type(wanted), root, where=name).value, wanted)
    except TrustError:  # a damaged document is no reason not to publish a good one under another name
        return False


def _settle(registry: Documents, channel: Channel, head: _Head, binding: Binding) -> Published:
    """Nothing to release; put the pointer back if it was lost, or never set by a publisher that died."""
    if head.raw is None and head.orphan is not None:
        registry.swap(layout.pointer(channel), head.orphan, None)
    return Published(binding.generation, binding.engine_release, binding.config_release, new=head.raw is None)


def _documents(keys: Keys, channel: Channel, bundle: Bundle, binding: Binding) -> dict[str, tuple[Value, bytes]]:
    """Every document of a publication by name, in the order of writing: each after all that it names."""
    release, config = bundle.engine_release, bundle.config_release
    values: dict[str, Value] = {layout.verdict(bundle.spec_verdict.digest()): bundle.spec_verdict}
    for candidate in bundle.candidates:
        if release.artifact(candidate.sidecar.target.id) is None:
            continue
        values[layout.evidence(candidate.evidence.digest())] = candidate.evidence
        values[layout.verdict(candidate.verdict.digest())] = candidate.verdict
        values[layout.provenance(candidate.provenance.digest())] = candidate.provenance
    if binding.engine_release == release.digest():
        values[layout.engine_release(channel.engine, binding.engine_release)] = release
    if binding.config_release == config.digest():
        values[layout.config_release(channel.engine, binding.config_release)] = config
    values[layout.binding(channel, binding.digest())] = binding
    values[layout.pointer(channel)] = binding
    signed: dict[Digest, bytes] = {}
    for value in values.values():
        digest = value.digest()
        if digest not in signed:  # the binding and the pointer are one document
            signed[digest] = bundle.signed.get(digest) or sign(value, [keys.signer(role_of(type(value)))])
    return {name: (value, signed[value.digest()]) for name, value in values.items()}


class _Overlay:
    """A registry as it will look once documents are written."""

    def __init__(self, registry: Documents, documents: Mapping[str, tuple[Value, bytes]]) -> None:
        self._registry = registry
        self._documents = documents

    def read(self, name: str) -> bytes | None:
        return self._documents[name][1] if name in self._documents else self._registry.read(name)


def _rehearse(
    root: Root, channel: Channel, registry: Documents, documents: Mapping[str, tuple[Value, bytes]], now: int
) -> None:
    """Be the service that will read this, before anything is written: what it refuses is not published."""
    overlay = _Overlay(registry, documents)
    trusted = fetch(TrustedChannel(root, channel), overlay, now)
    for artifact in trusted.engine_release.artifacts:
        fetch_proofs(trusted, overlay, artifact.target)


def _leave_to_sign(registry: Documents, root: Root, documents: Mapping[str, tuple[Value, bytes]]) -> None:
    """Write what holders of other keys have to see before they sign; nothing points to it."""
    for name, (value, body) in documents.items():
        if not isinstance(value, Binding):
            _put(registry, root, name, value, body)


def _put(registry: Documents, root: Root, name: str, value: Value, body: bytes) -> None:
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


def _expired(binding: Binding, now: int) -> bool:
    return binding.expires is not None and now >= binding.expires


def _check_unmoved(root: Root, channel: Channel, head: _Head, judged_at: int, now: int) -> None:
    # An expired pointer, or none, is nothing to compare with: policies saw generation 0.
    if head.raw is None or head.binding is None or _expired(head.binding, now):
        return
    if head.binding.generation != judged_at:
        what = f"{channel} {_moved(head.raw, root, channel)} while a release after generation {judged_at} was judged"
        raise Conflict(what, where=layout.pointer(channel), fix=_LOOK)


_LOOK = "look at trtops status, then run this again if it is still wanted"


def _point(registry: Documents, root: Root, channel: Channel, body: bytes, head: _Head, binding: Binding) -> None:
    name = layout.pointer(channel)
    try:
        registry.swap(name, body, head.raw)
    except Conflict:
        based = head.binding.generation if head.binding else 0
        what = f"{channel} {_moved(registry.read(name), root, channel)} while generation {binding.generation} was made"
        raise Conflict(f"{what} from generation {based}", where=name, fix=_LOOK) from None


def _moved(body: bytes | None, root: Root, channel: Channel) -> str:
    """Who moved a channel, and where to."""
    if body is None:
        return "lost its pointer"
    try:
        winner = read_binding(body, root, channel, layout.pointer(channel))
    except TrustError:
        return "was moved to a pointer that is not trusted here"
    return f"was moved to generation {winner.generation} by key {winner.actor[:12]} ({winner.reason})"
