"""``trtops promote``: what runs in one environment moves to another, the same digests, with that environment's config.

Nothing is built or signed anew but the config and the pointer: documents come with the signatures that they have. The
other environment's own gates judge: its spec and evidence rules on the same spec and evidence, then its release rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trtops.digest import Value
from trtops.errors import Denied, InputError, TrustError, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.digest import Digest
    from trtops.evidence import Evidence
    from trtops.policy.gate import Gate
    from trtops.policy.verdict import Verdict
    from trtops.registry.port import Registry
    from trtops.release.assemble import Candidate
    from trtops.release.documents import EngineRelease
    from trtops.release.root import Root
    from trtops.release.trust import TrustedChannel
    from trtops.workflow.check import Checked
    from trtops.workflow.release import Current, Released
    from trtops.workflow.workspace import Workspace

V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class Promoted:
    """What a promotion did.

    Attributes:
        source: environment that it came from, and the generation that named it there.
        generation: of the source's channel.
        released: in the other environment.
        verdicts: of every gate, in order.
    """

    source: str
    generation: int
    released: Released
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class _Taken:
    """A release with everything that vouches for it, as one registry has it."""

    release: EngineRelease
    generation: int
    signers: tuple[str, ...]
    spec_verdict: Verdict
    candidates: tuple[Candidate, ...]
    signed: dict[Digest, bytes]


def promote(workspace: Workspace, folder: Path, source: str, gate: Gate) -> Promoted:
    """Move what the stable channel of another environment names into the workspace's.

    Args:
        workspace: of the environment that it goes to.
        folder: of the engine, as reviewed; its runtime config for this environment is released along.
        source: the environment that it comes from.
        gate: of the workspace's environment.

    Raises:
        Conflict: somebody else moved the channel meanwhile.
        Denied: a policy of this environment says no.
        FetchFailed: the store lacks an artifact.
        InputError: nothing is released there, it is this environment, or the spec here is another one.
        TrustError: what is in a registry is forged.
        StorageError, Unavailable: a registry.
    """
    from trtops.release.assemble import config_release
    from trtops.release.publish import Bundle, publish
    from trtops.workflow.gate import Move, judge_release, refuse
    from trtops.workflow.release import Released, channel_of, config_of, current, lifetime_of, plan_of
    from trtops.workflow.trust import keep_fresh

    if source == workspace.environment:
        raise InputError(f"it is in {source} already", fix="name another environment with --to")
    there, registry = workspace.registry(source), workspace.registry()
    checked = _allowed(workspace, folder, gate)
    taken = _take(workspace, there, source, checked)
    channel = channel_of(workspace, checked.spec.name)
    baseline = current(workspace, registry, channel)
    verdicts = (*checked.verdicts, *_judge_evidence(workspace, checked, gate, taken, baseline))
    bundle = Bundle(
        engine_release=taken.release,
        config_release=config_release(
            checked.spec.name, workspace.environment, config_of(checked), created=workspace.now()
        ),
        spec_verdict=taken.spec_verdict,
        candidates=taken.candidates,
        signed=taken.signed,
        judged_at=baseline.binding.generation if baseline else 0,
        rollout=plan_of(checked),
    )
    reason = f"promote from {source} generation {taken.generation}"
    move = Move("promote", reason=reason, signers=taken.signers, approvals_from=(registry, there))
    verdict = judge_release(workspace, gate, bundle, baseline, move)
    refuse(verdict, bundle)
    published = publish(
        registry,
        workspace.keys,
        channel,
        bundle,
        now=workspace.now(),
        lifetime=lifetime_of(workspace),
        reason=reason,
        has_artifact=workspace.store.has,
    )
    keep_fresh(workspace)
    released = Released(published, taken.release, verdict)
    return Promoted(source, taken.generation, released, (*verdicts, verdict))


def _allowed(workspace: Workspace, folder: Path, gate: Gate) -> Checked:
    """The engine, once this environment's rules on its source and spec let it through."""
    from trtops.workflow.check import check

    checked = check(workspace, folder, gate)
    if checked.denied:
        reasons = [f"{one.message} [{one.rule}]" for one in checked.verdicts[-1].findings if one.blocking]
        what = f"policies of {workspace.environment} deny {checked.spec.name}: {'; '.join(reasons)}"
        raise Denied(what, where=checked.engine.document.file, fix=f"trtops check --env {workspace.environment}")
    return checked


def _take(workspace: Workspace, registry: Registry, source: str, checked: Checked) -> _Taken:
    """Read a release as a service would, with every document that it names."""
    from trtops.release import layout
    from trtops.release.documents import Channel, EngineRelease
    from trtops.release.envelope import verify
    from trtops.release.fetch import fetch, opened

    name, root = checked.spec.name, workspace.keys.root()
    try:
        trusted = opened(registry, root, Channel(engine=name, environment=source), workspace.now())
        fetch(trusted, registry, workspace.now())
    except Unavailable as error:
        fix = f"release it there first: trtops release {name} --env {source}"
        raise InputError(f"{name} cannot be taken from {source}: {error.what}", where=error.where, fix=fix) from None
    release = trusted.engine_release
    _same_spec(checked, release, source)
    from trtops.policy.verdict import Verdict

    signed: dict[Digest, bytes] = {}
    where = layout.engine_release(name, trusted.binding.engine_release)
    body = registry.read(where) or b""
    signers = verify(body, EngineRelease, root, where=where).key_ids
    signed[trusted.binding.engine_release] = body
    spec_verdict = _document(registry, root, layout.verdict(release.spec_verdict), Verdict, signed)
    candidates = tuple(_candidate(registry, root, trusted, one.target, signed) for one in release.artifacts)
    return _Taken(release, trusted.binding.generation, signers, spec_verdict, candidates, signed)


def _same_spec(checked: Checked, release: EngineRelease, source: str) -> None:
    """What is judged and configured here has to be what was released there."""
    if checked.spec.digest() == release.spec:
        return
    commit = release.commit.removesuffix("-dirty") if release.commit else None
    fix = f"check that commit out: git checkout {commit}" if commit else "check out what was released"
    raise InputError(
        f"{source} runs another spec of {release.engine} ({release.spec.short}) than stands here "
        f"({checked.spec.digest().short})",
        where=checked.engine.document.file,
        fix=f"{fix}; or release this one to {source} first",
    )


def _candidate(
    registry: Registry, root: Root, trusted: TrustedChannel, target: str, signed: dict[Digest, bytes]
) -> Candidate:
    from trtops.evidence import Evidence
    from trtops.policy.verdict import Verdict
    from trtops.release import layout
    from trtops.release.assemble import Candidate
    from trtops.release.documents import Provenance
    from trtops.release.fetch import fetch_proofs

    artifact = fetch_proofs(trusted, registry, target)
    assert artifact.provenance is not None  # noqa: S101 - fetch_proofs refuses an artifact without
    return Candidate(
        sidecar=artifact.sidecar,
        evidence=_document(registry, root, layout.evidence(artifact.evidence), Evidence, signed),
        verdict=_document(registry, root, layout.verdict(artifact.verdict), Verdict, signed),
        provenance=_document(registry, root, layout.provenance(artifact.provenance), Provenance, signed),
    )


def _document(registry: Registry, root: Root, name: str, kind: type[V], signed: dict[Digest, bytes]) -> V:
    from trtops.release.envelope import verify

    body = registry.read(name)
    if body is None:
        raise Unavailable("a document of the release is missing", where=name, fix="release it again")
    found = verify(body, kind, root, where=name)
    if not name.endswith(found.digest.value):
        raise TrustError("this is another document than its name says", where=name)
    signed[found.digest] = body
    return found.value


def _judge_evidence(
    workspace: Workspace, checked: Checked, gate: Gate, taken: _Taken, baseline: Current | None
) -> tuple[Verdict, ...]:
    """What this environment says of evidence that another one's gate let through.

    Raises:
        Denied: it is denied.
    """
    from trtops.policy.gate import Subject
    from trtops.policy.inputs_evidence import evidence_input
    from trtops.workflow.release import released_evidence

    subjects = []
    for one in taken.candidates:
        target = one.sidecar.target.id
        released: Evidence | None = released_evidence(workspace, checked, baseline, target)
        document = evidence_input(
            one.evidence.model_dump(mode="json"),
            checked.spec,
            environment=workspace.environment,
            now=workspace.now(),
            preflight=checked.preflight,
            expected={
                "spec": str(checked.spec.digest()),
                "model": f"sha256:{checked.spec.model.sha256}",
                "plan": str(one.sidecar.plan),
                "artifact": str(one.sidecar.artifact),
            },
            baseline=released.model_dump(mode="json") if released else None,
        )
        name = f"{checked.spec.name}/{target}"
        subjects.append(Subject(name, checked.spec.name, document.to_json(), checked.locate))
    verdicts = gate.judge_all("evidence", subjects)
    for verdict in verdicts:
        if verdict.decision == "deny":
            reasons = "; ".join(finding.message for finding in verdict.findings if finding.blocking)
            raise Denied(
                f"policies of {workspace.environment} deny {verdict.subject}: {reasons}",
                fix="measure it again and release it, or keep it where it is",
            )
    return verdicts
