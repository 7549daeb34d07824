"""``trtops release``: evidence, gates, documents, signatures, the registry. Also status, history and rollback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Denied, InputError, Revoked, TrtopsError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.digest import Digest
    from trtops.evidence import Evidence
    from trtops.policy.gate import Gate
    from trtops.policy.verdict import Verdict
    from trtops.registry.port import Registry
    from trtops.release.assemble import Candidate
    from trtops.release.documents import Binding, Channel, ChannelSnapshot, ConfigRelease, EngineRelease
    from trtops.release.fetch import Status
    from trtops.release.history import Traced
    from trtops.release.publish import Published
    from trtops.release.rollback import RolledBack
    from trtops.spec.engine import RolloutPlan, RuntimeConfig
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.check import Checked
    from trtops.workflow.measure import Measured
    from trtops.workflow.workspace import Workspace

VERDICT = "verdict"
"""Kind of the store's records: environment and digest of evidence or spec -> what policies last said of it."""

DAY = 86_400


@dataclass(frozen=True)
class Judged:
    """A target with its evidence and what policies said of it."""

    build: TargetBuild
    measured: Measured
    verdict: Verdict


@dataclass(frozen=True)
class Current:
    """What a channel names now, verified; used as baseline and as the release before.

    Attributes:
        binding: the pointer.
        engine: the engine release; ``config`` the config release.
    """

    binding: Binding
    engine: EngineRelease
    config: ConfigRelease


@dataclass(frozen=True)
class Released:
    """What a release did: ``published`` tells whether anything was new; ``verdict`` is of the stage ``release``."""

    published: Published
    release: EngineRelease
    verdict: Verdict


def channel_of(workspace: Workspace, engine: str, name: str = "stable") -> Channel:
    """The channel of an engine in the workspace's environment."""
    from trtops.release.documents import Channel

    return Channel(engine=engine, environment=workspace.environment, name=name)


def current(workspace: Workspace, registry: Registry, channel: Channel) -> Current | None:
    """What the channel names; None if nothing was released, the pointer has expired, or its key was revoked.

    Raises:
        TrustError: what it names is forged.
    """
    from trtops.release.fetch import fetch, opened

    now = workspace.now()
    try:
        trusted = fetch(opened(registry, workspace.keys.root(), channel, now), registry, now)
    except (Revoked, Unavailable):
        return None
    return Current(trusted.binding, trusted.engine_release, trusted.config_release)


def judge_evidence(
    workspace: Workspace,
    checked: Checked,
    gate: Gate,
    pairs: Sequence[tuple[TargetBuild, Measured]],
    baseline: Current | None,
) -> tuple[Judged, ...]:
    """What policies say of each target's evidence, against the released one of the same target.

    A verdict that says what was said before of the same evidence is the one of before, so that a repeated run releases
    nothing new only because time has passed.

    Raises:
        Undecided: a policy could not be evaluated.
    """
    from trtops.policy.gate import Subject
    from trtops.policy.inputs_evidence import evidence_input

    subjects = []
    for build, measured in pairs:
        evidence = measured.evidence
        assert build.built is not None  # noqa: S101 - skipped targets have no evidence
        released = released_evidence(workspace, checked, baseline, build.target.id)
        document = evidence_input(
            evidence.model_dump(mode="json"),
            checked.spec,
            environment=workspace.environment,
            now=workspace.now(),
            preflight=checked.preflight,
            expected={
                "spec": str(checked.spec.digest()),
                "model": f"sha256:{checked.spec.model.sha256}",
                "plan": str(build.built.sidecar.plan),
                "artifact": str(build.built.sidecar.artifact),
            },
            baseline=released.model_dump(mode="json") if released else None,
        )
        name = f"{checked.spec.name}/{build.target.id}"
        subjects.append(Subject(name, checked.spec.name, document.to_json(), checked.locate))
    verdicts = gate.judge_all("evidence", subjects) if subjects else ()
    return tuple(
        Judged(build, measured, _settled(workspace, str(measured.evidence.digest()), verdict))
        for (build, measured), verdict in zip(pairs, verdicts, strict=True)
    )


def _settled(workspace: Workspace, judged: str, verdict: Verdict) -> Verdict:
    """The verdict of before if it says the same of the same thing, else this one, which is kept.

    What else a document holds may differ: the clock in that of evidence, the runtime config in that of a spec. A
    release would otherwise be a new one for no reason of its own.
    """
    from pydantic import ValidationError

    key = f"{verdict.environment}-{judged}"
    body = workspace.store.record(VERDICT, key)
    if body is not None:
        try:
            before = type(verdict).model_validate_json(body)
        except ValidationError:
            before = None
        if before is not None and before.model_copy(update={"input": verdict.input}) == verdict:
            return before
    workspace.store.keep(VERDICT, key, verdict.canonical_bytes())
    return verdict


def released_evidence(workspace: Workspace, checked: Checked, baseline: Current | None, target: str) -> Evidence | None:
    """Evidence of what runs now, to compare a target's with; None if there is none of that target.

    Raises:
        TrustError: it is forged.
    """
    from trtops.evidence import Evidence
    from trtops.release import layout
    from trtops.release.envelope import verify

    artifact = baseline.engine.artifact(target) if baseline else None
    if artifact is None:
        return None
    where = layout.evidence(artifact.evidence)
    body = workspace.registry().read(where)
    if body is None:
        return None
    try:
        released = verify(body, Evidence, workspace.keys.root(), where=where).value
    except Revoked:  # who signed it is not trusted any more: there is nothing to compare with
        return None
    # A target that the spec does not have any more cannot be compared.
    return released if target in {one.id for one in checked.spec.targets} else None


def refuse_denied(checked: Checked, judged: Sequence[Judged]) -> None:
    """Stop if an engine that was verified here is denied; one that this machine cannot load is only left out.

    Raises:
        Denied: names target and findings.
    """
    for one in judged:
        if one.measured.evidence.unverified is None and one.verdict.decision == "deny":
            reasons = "; ".join(finding.message for finding in one.verdict.findings if finding.blocking)
            raise Denied(
                f"policies deny {checked.spec.name}/{one.build.target.id}: {reasons}",
                where=checked.engine.document.file,
                fix="mend what the findings name; `trtops bench` measures again",
            )


def release(
    workspace: Workspace,
    checked: Checked,
    gate: Gate,
    builds: Sequence[TargetBuild],
    judged: Sequence[Judged],
    *,
    baseline: Current | None,
) -> Released:
    """Release to the stable channel of the workspace's environment. Publishes nothing if nothing is new.

    Raises:
        Denied: a policy says no, or no target is left.
        Conflict: somebody else moved the channel meanwhile.
        StorageError, Unavailable: the registry failed; the channel is as it was.
        TrustError: what is in the registry is forged.
    """
    import trtops
    from trtops.release.assemble import config_release, engine_release
    from trtops.release.publish import Bundle, publish
    from trtops.workflow.gate import Move, judge_release, refuse
    from trtops.workflow.trust import keep_fresh
    from trtops.workflow.workspace import commit_of

    refuse_denied(checked, judged)
    candidates = _candidates(judged)
    spec_verdict = _settled(workspace, str(checked.spec.digest()), checked.spec_verdict)
    made = engine_release(
        checked.spec,
        spec_verdict,
        candidates,
        skipped={build.target.id: build.skipped for build in builds if build.skipped},
        commit=commit_of(checked.folder),
        trtops=trtops.__version__,
    )
    config = config_release(checked.spec.name, workspace.environment, config_of(checked), created=workspace.now())
    bundle = Bundle(
        engine_release=made,
        config_release=config,
        spec_verdict=spec_verdict,
        candidates=candidates,
        signed=_envelopes(judged),
        judged_at=baseline.binding.generation if baseline else 0,
        rollout=plan_of(checked),
    )
    registry = workspace.registry()
    move = Move("release", reason="release", approvals_from=(registry,))
    verdict = judge_release(workspace, gate, bundle, baseline, move)
    refuse(verdict, bundle)
    published = publish(
        registry,
        workspace.keys,
        channel_of(workspace, checked.spec.name),
        bundle,
        now=workspace.now(),
        lifetime=lifetime_of(workspace),
        has_artifact=workspace.store.has,
    )
    keep_fresh(workspace)
    return Released(published, made, verdict)


def _envelopes(judged: Sequence[Judged]) -> dict[Digest, bytes]:
    """What builders have signed: digest of each provenance, and of evidence of other machines -> its envelope."""
    found = {}
    for one in judged:
        if one.build.provenance is not None and one.build.envelope is not None:
            found[one.build.provenance.digest()] = one.build.envelope
        if one.measured.envelope is not None:
            found[one.measured.evidence.digest()] = one.measured.envelope
    return found


def _candidates(judged: Sequence[Judged]) -> tuple[Candidate, ...]:
    from trtops.release.assemble import Candidate

    return tuple(
        Candidate(
            sidecar=one.build.built.sidecar,
            evidence=one.measured.evidence,
            verdict=one.verdict,
            provenance=one.build.provenance,
        )
        for one in judged
        if one.build.built is not None and one.build.provenance is not None
    )


def config_of(checked: Checked) -> RuntimeConfig:
    """The runtime config that is released; the defaults where the engine's folder has none.

    How it is rolled out is no part of it: other steps alone are nothing that a service would run anew.
    """
    from trtops.spec.engine import RuntimeConfig

    if checked.runtime is None:
        return RuntimeConfig(apiVersion="trtops/v1", kind="Runtime")
    return checked.runtime.config.model_copy(update={"rollout": None})


def plan_of(checked: Checked) -> RolloutPlan | None:
    """How a release reaches this environment; None: at once."""
    return checked.runtime.config.rollout if checked.runtime else None


def lifetime_of(workspace: Workspace) -> int | None:
    """Seconds until a pointer expires; None: never."""
    days = workspace.resolved.settings.expires
    return days * DAY if days else None


def status(workspace: Workspace, engine: str | None = None) -> tuple[Status, ...]:
    """What every channel of the environment says now, forged and expired ones too.

    Raises:
        InputError: the engine is not released here.
        Unavailable: the registry is away.
    """
    from trtops.release.fetch import channels
    from trtops.release.fetch import status as of

    registry = workspace.registry()
    found = channels(registry, workspace.environment, engine)
    if engine is not None and not found:
        raise nothing_released(workspace, registry, engine)
    return tuple(of(registry, workspace.keys.root(), channel, workspace.now()) for channel in found)


def history(workspace: Workspace, engine: str) -> Traced:
    """Every move of an engine's stable channel, newest first, its chain verified; told also where its key was revoked.

    Raises:
        InputError: nothing of this name was ever released.
        TrustError: the pointer is forged, or the chain has a gap or a forged link.
    """
    from trtops.release.history import traced

    registry = workspace.registry()
    found = traced(registry, workspace.keys.root(), channel_of(workspace, engine))
    if not found.links:
        raise found.problems[0] if found.problems else nothing_released(workspace, registry, engine)
    return found


def rollback(workspace: Workspace, engine: str, to: int | None, reject: str | None = None) -> RolledBack:
    """Bring back an earlier generation, as a new one; a rollout that is open is aborted by it.

    Args:
        workspace: whose environment.
        engine: name.
        to: the generation; None: what ran before, or beside the candidate.
        reject: why what runs now goes into quarantine; None: it does not.

    Raises:
        Denied: what it would go back to is in quarantine.
        InputError: there is no such generation, or nothing was released.
        Conflict: somebody else moved the channel meanwhile.
    """
    from trtops.release import layout
    from trtops.release.rollback import rollback as bring_back
    from trtops.workflow.trust import keep_fresh

    registry = workspace.registry()
    channel = channel_of(workspace, engine)
    if registry.read(layout.pointer(channel)) is None:
        raise nothing_released(workspace, registry, engine)
    done = bring_back(
        registry,
        workspace.keys,
        channel,
        to=to,
        now=workspace.now(),
        lifetime=lifetime_of(workspace),
        has_artifact=workspace.store.has,
        reject=reject,
    )
    keep_fresh(workspace)
    return done


@dataclass(frozen=True)
class Refreshed:
    """What ``trtops registry refresh`` did.

    Attributes:
        bindings: what the channels say now, each in a generation of its own; empty where a snapshot did it.
        snapshot: of all channels, where the root has a refresh key.
        problems: pointers and secrets that were left out of it, and why.
    """

    bindings: tuple[Binding, ...] = ()
    snapshot: ChannelSnapshot | None = None
    problems: tuple[TrtopsError, ...] = ()


def refresh(workspace: Workspace, engine: str | None) -> Refreshed:
    """Let every channel of the environment say what it says for longer, expired ones too.

    Where the root has a refresh key, that key signs a snapshot of all channels and no pointer moves; elsewhere the
    channel key signs new generations.

    Raises:
        InputError: nothing is released, the settings let no pointer expire, or one engine is named where a snapshot of
            all is taken.
        Conflict, StorageError, TrustError, Unavailable: the registry.
    """
    from trtops.release.fetch import channels
    from trtops.release.publish import refresh as extend
    from trtops.release.refresh import refresh_snapshot
    from trtops.workflow.trust import publish_kept

    lifetime = lifetime_of(workspace)
    if workspace.keys.root().refreshed:
        publish_kept(workspace)
        if engine is not None:
            raise InputError("here one snapshot keeps all channels fresh", fix="leave the engine out")
        return Refreshed(
            (),
            *refresh_snapshot(
                workspace.registry(), workspace.keys, workspace.environment, now=workspace.now(), lifetime=lifetime
            ),
        )
    if lifetime is None:
        raise InputError("pointers never expire here", fix="set `expires` (days) in trtops.toml, or TRTOPS_EXPIRES")
    registry = workspace.registry()
    found = channels(registry, workspace.environment, engine)
    if not found:
        raise nothing_released(workspace, registry, engine or "anything")
    moved = tuple(extend(registry, workspace.keys, one, now=workspace.now(), lifetime=lifetime) for one in found)
    return Refreshed(moved)


def nothing_released(workspace: Workspace, registry: Registry, engine: str) -> InputError:
    """The error for an engine that has no channel here; lists those that have one."""
    from trtops.release.fetch import channels

    names = sorted({channel.engine for channel in channels(registry, workspace.environment)})
    fix = f"released here: {', '.join(names)}" if names else f"release it: trtops ship {engine}"
    return InputError(f"{engine} is not released in the environment {workspace.environment}", fix=fix)


def problems_of(found: Sequence[Status]) -> tuple[tuple[Channel, TrtopsError], ...]:
    """Channels that do not say anything that a service would take, with the reason."""
    return tuple((one.channel, one.problem) for one in found if one.problem is not None)
