"""Going back: what an earlier generation bound, as a new generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError, Revoked, TrtopsError, TrustError, Unavailable
from trtops.release import layout
from trtops.release.assemble import passed_over, rollback_binding, rollback_targets
from trtops.release.envelope import sign
from trtops.release.fetch import fetch_arm, fetch_proofs, links, own_marks
from trtops.release.head import Head, head_of
from trtops.release.rollout import candidate_of, check_admitted, stable_of
from trtops.release.trust import TrustedChannel
from trtops.release.writing import check_store, move_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.digest import Digest
    from trtops.release.documents import Binding, Channel, EngineRelease
    from trtops.release.fetch import Documents, Link
    from trtops.release.keys import Keys
    from trtops.release.rollout import Pair
    from trtops.release.root import Root


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did.

    Attributes:
        binding: what the channel binds now.
        skipped: what was passed over, and why: nobody vouches for it, or bound it, but keys that were revoked since.
    """

    binding: Binding
    skipped: tuple[TrtopsError, ...] = ()


def rollback(
    registry: Documents,
    keys: Keys,
    channel: Channel,
    *,
    to: int | None = None,
    now: int,
    lifetime: int | None = None,
    has_artifact: Callable[[Digest], bool] | None = None,
    reject: str | None = None,
) -> RolledBack:
    """Bring back what an earlier generation bound, as a new generation. Aborts a rollout that is open.

    Where the pointer's key was revoked, it goes on from the newest binding that still counts, and brings that back.

    Args:
        registry: of the channel's environment.
        keys: as for :func:`~trtops.release.publish.publish`.
        channel: what moves.
        to: the generation; None: the stable release that a candidate runs beside, else the newest that bound something
            else than the present one, that trusted keys have bound and still vouch for.
        now: epoch seconds.
        lifetime: seconds until the pointer expires; None: never.
        has_artifact: whether the store holds an artifact; None: it is not asked.
        reject: why what runs now goes into quarantine; None: it does not.

    Raises:
        Denied: what it would go back to is in quarantine.
        InputError: there is no such generation, or what is to be rejected is not known.
        Revoked: only a key that was revoked since bound that, or all that there is.
        Conflict, FetchFailed, StorageError, TrustError, Unavailable: as for :func:`~trtops.release.publish.publish`;
            Unavailable also if a document of that generation is gone.
    """
    root = keys.root()
    head = head_of(registry, root, channel)
    present = _present(head, channel, reject)
    found = _history(registry, root, present, to)
    bindings = [link.binding for link in found]
    revoked = {link.binding.generation: link.revoked for link in found if link.revoked is not None}
    skipped: list[TrtopsError] = [head.revoked] if head.revoked is not None else []
    targets = rollback_targets(bindings, to, lost=head.revoked is not None, revoked=revoked)
    signer = keys.signer("channel")
    for number, target in enumerate(targets):
        binding = rollback_binding(
            present,
            target,
            actor=signer.key_id,
            now=now,
            lifetime=lifetime,
            marks=_marks(registry, root, present, target[0], reject),
            reject=reject,
        )
        body = sign(binding, [signer])
        try:
            engine, refused = _vouched(registry, root, channel, body, now)
        except Revoked as error:
            if number + 1 == len(targets):
                raise
            skipped.append(error)  # an older one may do; it is no reason to stay where nobody wants to be
            continue
        check_admitted(binding.rejected, engine, target[0])
        if has_artifact is not None:
            check_store(engine, has_artifact)
        move_to(registry, root, channel, body, binding, head)
        unbound = passed_over(bindings, target[0], revoked) if to is None else ()
        return RolledBack(binding, (*skipped, *unbound, *refused))
    raise AssertionError("there is a target, or an error says why not")


def _history(registry: Documents, root: Root, present: Binding, to: int | None) -> list[Link]:
    """What to choose from, newest first: no further back than the generation that is asked for, if that will do.

    One that a revoked key signed will not: then it goes on until a trusted key is found to have bound the same.
    """
    found: list[Link] = []
    wanted: Pair | None = None
    for link in links(registry, root, present):
        found.append(link)
        if to is not None and link.binding.generation <= to:
            wanted = wanted or stable_of(link.binding)
            if any(one.revoked is None and stable_of(one.binding) == wanted for one in found):
                break
    return found


def _present(head: Head, channel: Channel, reject: str | None) -> Binding:
    """The binding to go back from."""
    where = layout.pointer(channel)
    if head.raw is None:
        raise Unavailable(f"nothing is released to {channel}", where=where)
    if head.binding is None:
        raise head.revoked or TrustError("there is no binding that counts", where=where)
    if head.revoked is not None and reject is not None:
        what = "a revoked key bound what runs now: what that is cannot be believed, and so not rejected"
        raise InputError(what, where=where, fix="leave --reject out: services load nothing by that key any more")
    return head.binding


def _marks(registry: Documents, root: Root, present: Binding, wanted: Pair, reject: str | None) -> tuple[Digest, ...]:
    bad = candidate_of(present) or (wanted if reject is None else stable_of(present))
    return own_marks(registry, root, present.engine, bad.engine_release, wanted.engine_release)


def _vouched(
    registry: Documents, root: Root, channel: Channel, body: bytes, now: int
) -> tuple[EngineRelease, Sequence[TrustError]]:
    """What a rollback goes back to, and why some of its targets are refused.

    It has to be whole for one target at least: better refused here than by every service.
    """
    trusted = TrustedChannel(root, channel)
    trusted.update_pointer(body, now)
    engine = fetch_arm(trusted, registry).engine_release
    refused = []
    for artifact in engine.artifacts:
        try:
            fetch_proofs(trusted, registry, artifact.target)
        except Revoked as error:  # noqa: PERF203 - one target more or less
            refused.append(error)
    if len(refused) == len(engine.artifacts):
        raise refused[0]
    return engine, refused
