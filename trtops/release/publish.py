"""Publishing: immutable documents first, the pointer last, by compare-and-swap.

Whatever moment a publisher dies at, a reader sees the old release or the new one, and running it again finishes.
What a publisher leaves behind that lost a race or died are immutable documents that no pointer names: harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Conflict, TrustError, Unavailable
from trtops.release import layout
from trtops.release.assemble import (
    next_binding,
    refreshed_binding,
    same_release,
)
from trtops.release.documents import Binding, EngineRelease
from trtops.release.envelope import role_of, sign, verify
from trtops.release.fetch import (
    fetch_arm,
    fetch_proofs,
    read_binding,
)
from trtops.release.head import Head, head_of
from trtops.release.rollout import (
    Held,
    Pair,
    at,
    because,
    candidate_of,
    check_admitted,
    released,
)
from trtops.release.signatures import gathered, short_of, whole
from trtops.release.trust import TrustedChannel
from trtops.release.writing import LOOK, check_store, move_to, moved, point, put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.digest import Digest, Value
    from trtops.policy.verdict import Verdict
    from trtops.release.assemble import Candidate
    from trtops.release.documents import Bound, Channel, ConfigRelease
    from trtops.release.fetch import Documents
    from trtops.release.keys import Keys
    from trtops.release.rollout import Moved
    from trtops.release.root import Root
    from trtops.spec.engine import RolloutPlan


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
        rollout: how it reaches a channel in which something else runs; None: at once.
    """

    engine_release: EngineRelease
    config_release: ConfigRelease
    spec_verdict: Verdict
    candidates: tuple[Candidate, ...]
    signed: Mapping[Digest, bytes]
    judged_at: int | None = None
    rollout: RolloutPlan | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication did.

    Attributes:
        generation: of the channel, now.
        release: digest of the engine release that the channel names, as its stable one or as its candidate.
        config: digest of the config release.
        new: False if the channel said the same already and nothing was written.
        rollout: whether it is the candidate of a rollout that is open.
    """

    generation: int
    release: Digest
    config: Digest
    new: bool
    rollout: bool = False


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
        Denied: it was aborted before and is in quarantine.
        FetchFailed: the store lacks an artifact of the release.
        InputError: a rollout of something else is open.
        StorageError: the registry could not write. The channel is as it was.
        TrustError: what is in the registry is forged, or the own keys are not trusted by the own root.
        Unavailable: the registry is away.
    """
    check_store(bundle.engine_release, has_artifact)
    root = keys.root()
    head = head_of(registry, root, channel)
    wanted, bound = _decided(registry, root, channel, head, bundle, now)
    if head.binding is not None and bound is None:
        if not _expired(head.binding, now) and head.settled and whole(registry, root, head.binding):
            return _settle(registry, channel, head, head.binding, wanted)
        bound = head.binding.bound
    assert bound is not None  # noqa: S101 - a channel that binds nothing says nothing already
    if bundle.judged_at is not None:
        _check_unmoved(registry, root, channel, head, bundle.judged_at, now)
    signer = keys.signer("channel")
    told = _told(reason, bound)
    binding = next_binding(head.binding, channel, bound, reason=told, actor=signer.key_id, now=now, lifetime=lifetime)
    documents = gathered(registry, root, _documents(keys, channel, bundle, wanted, binding))
    if few := short_of(root, documents):
        _leave_to_sign(registry, root, documents)
        raise few
    _rehearse(root, channel, registry, documents, wanted, now)
    _, pointer = documents.pop(layout.pointer(channel))
    for name, (value, body) in documents.items():
        put(registry, root, name, value, body)
    point(registry, root, channel, pointer, head, binding)
    return _published(binding, wanted, new=True)


def _decided(
    registry: Documents, root: Root, channel: Channel, head: Head, bundle: Bundle, now: int
) -> tuple[Pair, Bound | None]:
    """What is released, and what the channel binds then; None if it says so already."""
    wanted = _reuse(registry, root, channel, head, bundle)
    present = head.binding.bound if head.binding is not None else None
    if present is not None:
        check_admitted(present.rejected, bundle.engine_release, wanted)
    stands = head.binding is None or whole(registry, root, head.binding)  # else no service takes it: it is replaced
    return wanted, released(present, wanted, bundle.rollout if stands else None, now)


def _told(reason: str, bound: Bound) -> str:
    """The reason for the ledger, with the step that a rollout begins at."""
    return because(reason, f"rollout at {at(bound.rollout)}") if bound.rollout and bound.rollout.open else reason


def _published(binding: Binding, wanted: Pair, *, new: bool) -> Published:
    beside = candidate_of(binding) == wanted
    return Published(binding.generation, wanted.engine_release, wanted.config_release, new, beside)


def move(
    registry: Documents,
    keys: Keys,
    channel: Channel,
    decide: Callable[[Binding], Moved | Held],
    *,
    now: int,
    lifetime: int | None = None,
) -> Binding | Held:
    """Move a channel between the releases that it names already: the steps of a rollout.

    Args:
        registry: of the channel's environment.
        keys: as for :func:`publish`.
        channel: what moves.
        decide: what to bind after the present binding; called once, and not again if somebody else moves meanwhile.
        now: epoch seconds.
        lifetime: seconds until the pointer expires; None: never.

    Returns:
        the new binding, or why nothing moved.

    Raises:
        Conflict, StorageError, TrustError: as for :func:`publish`.
        Unavailable: nothing is released, or the registry is away.
    """
    root, name = keys.root(), layout.pointer(channel)
    raw = registry.read(name)
    if raw is None:
        raise Unavailable(f"nothing is released to {channel}", where=name)
    present = read_binding(raw, root, channel, name)
    decided = decide(present)
    if isinstance(decided, Held):
        return decided
    signer = keys.signer("channel")
    binding = next_binding(
        present, channel, decided.bound, reason=decided.reason, actor=signer.key_id, now=now, lifetime=lifetime
    )
    move_to(registry, root, channel, sign(binding, [signer]), binding, Head(raw, present))
    return binding


def refresh(registry: Documents, keys: Keys, channel: Channel, *, now: int, lifetime: int | None) -> Binding:
    """Let a channel say what it says for longer, also when it has expired already.

    Raises:
        Conflict, StorageError, TrustError, Unavailable: as for :func:`publish`.
    """
    root = keys.root()
    head = head_of(registry, root, channel)
    if head.binding is None:
        raise Unavailable(f"nothing is released to {channel}", where=layout.pointer(channel))
    signer = keys.signer("channel")
    binding = refreshed_binding(head.binding, actor=signer.key_id, now=now, lifetime=lifetime)
    move_to(registry, root, channel, sign(binding, [signer]), binding, head)
    return binding


def _reuse(registry: Documents, root: Root, channel: Channel, head: Head, bundle: Bundle) -> Pair:
    """What to bind: digests that the present binding names already, where those documents say the same."""
    arms = head.binding.arms if head.binding is not None else ()
    engine, config = bundle.engine_release, bundle.config_release
    engines = (arm.engine_release for arm in reversed(arms))
    configs = (arm.config_release for arm in reversed(arms))
    return Pair(
        next(
            (one for one in engines if _same(registry, root, layout.engine_release(channel.engine, one), engine)),
            engine.digest(),
        ),
        next(
            (one for one in configs if _same(registry, root, layout.config_release(channel.engine, one), config)),
            config.digest(),
        ),
    )


def _same(registry: Documents, root: Root, name: str, wanted: EngineRelease | ConfigRelease) -> bool:
    body = registry.read(name)
    if body is None:
        return False
    try:
        return same_release(verify(body, type(wanted), root, where=name).value, wanted)
    except TrustError:  # a damaged document is no reason not to publish a good one under another name
        return False


def _settle(registry: Documents, channel: Channel, head: Head, binding: Binding, wanted: Pair) -> Published:
    """Nothing to release; put the pointer back if it was lost, or never set by a publisher that died."""
    if head.raw is None and head.orphan is not None:
        registry.swap(layout.pointer(channel), head.orphan, None)
    return _published(binding, wanted, new=head.raw is None)


def _documents(
    keys: Keys, channel: Channel, bundle: Bundle, wanted: Pair, binding: Binding
) -> dict[str, tuple[Value, bytes]]:
    """Every document of a publication by name, in the order of writing: each after all that it names."""
    release, config = bundle.engine_release, bundle.config_release
    values: dict[str, Value] = {layout.verdict(bundle.spec_verdict.digest()): bundle.spec_verdict}
    for candidate in bundle.candidates:
        if release.artifact(candidate.sidecar.target.id) is None:
            continue
        values[layout.evidence(candidate.evidence.digest())] = candidate.evidence
        values[layout.verdict(candidate.verdict.digest())] = candidate.verdict
        values[layout.provenance(candidate.provenance.digest())] = candidate.provenance
    if wanted.engine_release == release.digest():
        values[layout.engine_release(channel.engine, wanted.engine_release)] = release
    if wanted.config_release == config.digest():
        values[layout.config_release(channel.engine, wanted.config_release)] = config
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
    root: Root,
    channel: Channel,
    registry: Documents,
    documents: Mapping[str, tuple[Value, bytes]],
    wanted: Pair,
    now: int,
) -> None:
    """Be the service that will read this, before anything is written: what it refuses is not published."""
    overlay = _Overlay(registry, documents)
    trusted = TrustedChannel(root, channel)
    binding = trusted.update_pointer(overlay.read(layout.pointer(channel)), now)
    arm = next(arm for arm in binding.arms if Pair(arm.engine_release, arm.config_release) == wanted)
    new = fetch_arm(trusted.beside(arm), overlay)
    for artifact in new.engine_release.artifacts:
        fetch_proofs(new, overlay, artifact.target)


def _leave_to_sign(registry: Documents, root: Root, documents: Mapping[str, tuple[Value, bytes]]) -> None:
    """Write what holders of other keys have to see before they sign; nothing points to it."""
    for name, (value, body) in documents.items():
        if not isinstance(value, Binding):
            put(registry, root, name, value, body)


def _expired(binding: Binding, now: int) -> bool:
    return binding.expires is not None and now >= binding.expires


def _check_unmoved(registry: Documents, root: Root, channel: Channel, head: Head, judged_at: int, now: int) -> None:
    # An expired pointer, or none, or one whose key was revoked, is nothing to compare with: policies saw generation 0.
    if head.raw is None or head.binding is None or head.revoked or _expired(head.binding, now):
        return
    if head.binding.generation != judged_at and (judged_at or whole(registry, root, head.binding)):
        what = f"{channel} {moved(head.raw, root, channel)} while a release after generation {judged_at} was judged"
        raise Conflict(what, where=layout.pointer(channel), fix=LOOK)
