"""From what was built, measured and judged to the documents that are released. Pure: no clock, no disk, no keys."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from trtops.backend.port import Sidecar
from trtops.digest import Value
from trtops.errors import Denied, InputError, IntegrityError, Revoked
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release.contract import contract_of
from trtops.release.documents import (
    Binding,
    Bound,
    Channel,
    ConfigRelease,
    EngineRelease,
    Provenance,
    ReleasedArtifact,
)
from trtops.release.rollout import Pair, because, brought_back, candidate_of, stable_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.digest import Digest
    from trtops.spec.engine import EngineSpec, RuntimeConfig


class Candidate(Value):
    """One target that was built: what is known of it and what the policies said.

    Attributes:
        sidecar: of the build.
        evidence: of this machine or another.
        verdict: of the stage ``evidence``.
        provenance: who built it from what.
    """

    sidecar: Sidecar
    evidence: Evidence
    verdict: Verdict
    provenance: Provenance


def provenance_of(spec: EngineSpec, sidecar: Sidecar, *, builder: str, commit: str | None, trtops: str) -> Provenance:
    """What the builder says of an engine that it has just built.

    Args:
        spec: the engine spec of the build.
        sidecar: of the engine.
        builder: key id of the builder.
        commit: git commit, ``-dirty`` if the tree was changed.
        trtops: version of the tool.
    """
    return Provenance(
        engine=spec.name,
        target=sidecar.target.id,
        builder=builder,
        commit=commit,
        spec=spec.digest(),
        model=sidecar.model,
        plan=sidecar.plan,
        sidecar=sidecar.digest(),
        artifact=sidecar.artifact,
        backend=sidecar.backend,
        backend_version=sidecar.backend_version,
        trtops=trtops,
    )


def engine_release(
    spec: EngineSpec,
    spec_verdict: Verdict,
    candidates: Sequence[Candidate],
    *,
    skipped: Mapping[str, str],
    commit: str | None,
    trtops: str,
    created: int | None = None,
) -> EngineRelease:
    """Put together an engine release. Only verified targets that policies allow get in; every other says why not.

    Args:
        spec: the engine spec.
        spec_verdict: what policies said of it.
        candidates: targets that were built, one each.
        skipped: target id -> why it was not built.
        commit: git commit of the spec.
        trtops: version of the tool.
        created: epoch seconds; by default those of the newest evidence, so that a run that is repeated makes the
            very same document.

    Raises:
        Denied: policies deny the spec, or no target is left; the message names each one's reason.
        InputError: two candidates for one target, a target that the spec does not have, or targets with different
            interfaces.
        IntegrityError: a candidate's parts are of different engines, specs or builds (mix and match).
    """
    if spec_verdict.stage != "spec" or spec_verdict.decision == "deny":
        raise Denied(f"policies deny the spec of {spec.name}: {_denials(spec_verdict)}", fix="run trtops check")
    reasons = {target.id: skipped.get(target.id, "it was not built") for target in spec.targets}
    chosen: dict[str, Candidate] = {}
    for candidate in candidates:
        target = candidate.sidecar.target.id
        if target in chosen or target not in reasons:
            raise InputError(f"target {target} was built twice, or the spec of {spec.name} does not have it")
        _check_one_build(spec, candidate)
        chosen[target] = candidate
        reasons[target] = _refusal(candidate)
    allowed = {target: chosen[target] for target in sorted(chosen) if not reasons[target]}
    if not allowed:
        raise Denied(
            f"no target of {spec.name} can be released: {_list(reasons)}",
            fix="build and verify at least one target on a machine that can load it",
        )
    return EngineRelease(
        engine=spec.name,
        tier=spec.tier,
        spec=spec.digest(),
        spec_verdict=spec_verdict.digest(),
        contract=contract_of(spec.interface.version, {target: one.sidecar for target, one in allowed.items()}),
        batching=spec.batching,
        memory=spec.memory,
        execution=spec.execution,
        artifacts=tuple(_artifact(target, candidate) for target, candidate in allowed.items()),
        skipped={target: reason for target, reason in sorted(reasons.items()) if reason},
        commit=commit,
        created=created if created is not None else max(one.evidence.created for one in allowed.values()),
        trtops=trtops,
    )


def config_release(engine: str, environment: str, config: RuntimeConfig, *, created: int) -> ConfigRelease:
    """Put together a config release of one environment. ``created`` is in epoch seconds."""
    return ConfigRelease(engine=engine, environment=environment, config=config, created=created)


def same_release(one: EngineRelease | ConfigRelease, other: EngineRelease | ConfigRelease) -> bool:
    """Whether two releases are the same but for when they were made: publishing the second would change nothing."""
    return type(one) is type(other) and one.identity() == other.identity()


def next_binding(
    previous: Binding | None,
    channel: Channel,
    bound: Bound,
    *,
    reason: str,
    actor: str,
    now: int,
    lifetime: int | None = None,
) -> Binding:
    """The binding that follows another in its channel: one generation on, chained to it by its digest.

    Args:
        previous: what the channel says now; None if it says nothing yet.
        channel: whose pointer.
        bound: what is to run.
        reason: why it moves.
        actor: key id that moves it.
        now: epoch seconds.
        lifetime: seconds after which it expires; None: never.

    Raises:
        ValueError: ``previous`` is of another channel, weights do not sum to 100, or they name what does not run.
    """
    if previous is not None and previous.where != channel:
        raise ValueError(f"the binding before is of {previous.where}, not of {channel}")
    return Binding(
        engine=channel.engine,
        environment=channel.environment,
        channel=channel.name,
        generation=previous.generation + 1 if previous else 1,
        engine_release=bound.engine_release,
        config_release=bound.config_release,
        weights=bound.weights,
        previous=previous.digest() if previous else None,
        reason=reason,
        actor=actor,
        created=now,
        expires=None if lifetime is None else now + lifetime,
        rollout=bound.rollout,
        rejected=bound.rejected,
    )


def rollback_targets(
    history: Sequence[Binding],
    to: int | None,
    *,
    lost: bool = False,
    revoked: Mapping[int, Revoked] = MappingProxyType({}),
) -> tuple[tuple[Pair, str], ...]:
    """What a rollback may bring back, each with its reason in words, the first choice first.

    Args:
        history: bindings of a channel, newest first.
        to: the generation whose stable release is wanted, then there is one choice; None: the present stable release,
            if a rollout is open beside it, then the newest that differ from it and are not in quarantine.
        lost: something else runs than the newest binding says: that is brought back first.
        revoked: generations that revoked keys alone have signed, and what is to be said of each: a thief may have bound
            what was never to run together. None of them is a choice, unless another generation bound the same.

    Raises:
        InputError: there is no such generation, or it binds what runs already.
        Revoked: no trusted key ever bound that, or anything to go back to.
    """
    present = history[0]
    running, alone = stable_of(present), candidate_of(present) is None and not lost
    fix = "see trtops history for the generations that there are"
    if to is not None:
        wanted = next((binding for binding in history if binding.generation == to), None)
        if wanted is None:
            raise InputError(f"{present.where} has no generation {to} to go back to", fix=fix)
        if to in revoked and stable_of(wanted) not in _trusted(history, revoked):
            raise revoked[to]
        if alone and stable_of(wanted) == running:
            what = f"generation {wanted.generation} of {present.where} binds what runs already"
            raise InputError(f"{what} (generation {present.generation})", fix=fix)
        return ((stable_of(wanted), _back(wanted)),)
    barred, found = set(present.rejected), dict[Pair, str]()
    if not alone:
        found[running] = _back(present) if lost else "rollback to the stable release"
    for one in history[1:]:
        admitted = not barred & {one.engine_release, one.config_release}
        if stable_of(one) != running and admitted and one.generation not in revoked:
            found.setdefault(stable_of(one), _back(one))
    if not found:
        for error in passed_over(history, None, revoked):
            raise error
        raise InputError(f"{present.where} has never run anything else to go back to", fix=fix)
    return tuple(found.items())


def passed_over(history: Sequence[Binding], chosen: Pair | None, revoked: Mapping[int, Revoked]) -> tuple[Revoked, ...]:
    """What is to be said of generations that a rollback would have brought back, had revoked keys not bound them.

    Args:
        history: bindings of a channel, newest first.
        chosen: what it brought back; None: nothing.
        revoked: as for :func:`rollback_targets`.

    Returns:
        one for each pair that differs from the present one and is newer than the chosen one, newest first.
    """
    present, trusted = history[0], _trusted(history, revoked)
    found = dict[Pair, Revoked]()
    for one in history:
        pair = stable_of(one)
        if pair == chosen and one.generation not in revoked:
            break
        if pair not in trusted and not {*present.rejected} & {one.engine_release, one.config_release}:
            found.setdefault(pair, revoked[one.generation])
    return tuple(found.values())


def _trusted(history: Sequence[Binding], revoked: Mapping[int, Revoked]) -> frozenset[Pair]:
    return frozenset(stable_of(one) for one in history if one.generation not in revoked)


def rollback_binding(
    present: Binding,
    target: tuple[Pair, str],
    *,
    actor: str,
    now: int,
    lifetime: int | None = None,
    marks: Sequence[Digest] = (),
    reject: str | None = None,
) -> Binding:
    """The binding that brings back what an earlier generation bound, as a new generation.

    Args:
        present: the channel's newest binding.
        target: one of :func:`rollback_targets`.
        actor: key id that moves it.
        now: epoch seconds.
        lifetime: seconds after which it expires; None: never.
        marks: of what goes into quarantine, less those of what it goes back to.
        reject: why what runs now goes into quarantine; None: it does not, unless it is an open rollout's candidate.
    """
    wanted, reason = target
    bound = brought_back(present.bound, wanted, marks, reject=reject is not None)
    return next_binding(
        present, present.where, bound, reason=because(reason, reject or ""), actor=actor, now=now, lifetime=lifetime
    )


def _back(to: Binding) -> str:
    return f"rollback to generation {to.generation}"


def refreshed_binding(present: Binding, *, actor: str, now: int, lifetime: int | None) -> Binding:
    """The binding that says what the present one says, for longer.

    It has a generation of its own, since services hold on to one digest a generation.

    Args:
        present: what the channel says now.
        actor: key id that refreshes it.
        now: epoch seconds.
        lifetime: seconds after which it expires; None: never.
    """
    return next_binding(
        present, present.where, present.bound, reason="refresh", actor=actor, now=now, lifetime=lifetime
    )


def _check_one_build(spec: EngineSpec, candidate: Candidate) -> None:
    """Evidence, verdict and provenance have to be of this very artifact: none is borrowed from a better one."""
    sidecar, evidence, provenance = candidate.sidecar, candidate.evidence, candidate.provenance
    digest = spec.digest()
    pairs = {
        "engine of the evidence": (evidence.engine, spec.name),
        "engine of the provenance": (provenance.engine, spec.name),
        "spec of the evidence": (evidence.spec, digest),
        "artifact of the evidence": (evidence.artifact, sidecar.artifact),
        "artifact of the provenance": (provenance.artifact, sidecar.artifact),
        "sidecar of the provenance": (provenance.sidecar, sidecar.digest()),
        "plan of the evidence": (evidence.plan, sidecar.plan),
        "model of the evidence": (evidence.model, sidecar.model),
        "model of the sidecar": (sidecar.model.value, spec.model.sha256),
        "target of the evidence": (evidence.target.id, sidecar.target.id),
        "target of the provenance": (provenance.target, sidecar.target.id),
        "stage of the verdict": (candidate.verdict.stage, "evidence"),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise IntegrityError(
                f"the {name} is {found}, expected {expected}",
                where=f"{spec.name}/{sidecar.target.id}",
                fix="build and verify this target again",
            )


def _refusal(candidate: Candidate) -> str:
    """Why a target is not released; empty if it is."""
    accuracy = candidate.evidence.accuracy
    if accuracy is None:
        return f"not verified: {candidate.evidence.unverified or 'this machine cannot load it'}"
    if not accuracy.passed:
        return "its outputs are outside of the spec's tolerance"
    if candidate.verdict.decision == "deny":
        return f"denied: {_denials(candidate.verdict)}"
    return ""


def _artifact(target: str, candidate: Candidate) -> ReleasedArtifact:
    return ReleasedArtifact(
        target=target,
        sidecar=candidate.sidecar,
        evidence=candidate.evidence.digest(),
        verdict=candidate.verdict.digest(),
        provenance=candidate.provenance.digest(),
    )


def _denials(verdict: Verdict) -> str:
    blocking = [f"{finding.message} [{finding.rule}]" for finding in verdict.findings if finding.blocking]
    return "; ".join(blocking) or f"the verdict is of the stage {verdict.stage}"


def _list(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{target}: {reason}" for target, reason in sorted(reasons.items()))
