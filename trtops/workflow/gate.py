"""The gate of the stage ``release``: what is about to be bound, who stands behind it, what policies say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import Denied, Undecided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.policy.gate import Gate
    from trtops.policy.inputs_release import Action, Proposal, SignatureFacts
    from trtops.policy.verdict import Verdict
    from trtops.registry.port import Registry
    from trtops.release.publish import Bundle
    from trtops.workflow.release import Current
    from trtops.workflow.workspace import Workspace

JUDGED = "release"
"""Kind of the store's records: digest of an engine release -> the release that a gate judged, for who approves it."""

_APPROVALS = "release.approvals_met"


@dataclass(frozen=True)
class Move:
    """Why a channel is about to move.

    Attributes:
        action: as policies know it.
        reason: as the binding will say it.
        signers: key ids whose signature on the engine release holds; empty: it is signed here, by this home's key.
        approvals_from: registries in which approvals may lie.
    """

    action: Action
    reason: str
    signers: tuple[str, ...] = ()
    approvals_from: tuple[Registry, ...] = ()


def judge_release(workspace: Workspace, gate: Gate, bundle: Bundle, baseline: Current | None, move: Move) -> Verdict:
    """What policies of the workspace's environment say of a release.

    Raises:
        StorageError: the store cannot keep what is judged.
        Undecided: a policy could not be evaluated.
        Unavailable: a registry that may hold approvals is away.
    """
    from trtops.policy.gate import Subject
    from trtops.policy.inputs_release import Consent, SignatureFacts, release_input
    from trtops.release.approval import approvals

    made = bundle.engine_release
    workspace.store.keep(JUDGED, made.digest().value, made.canonical_bytes())
    own = workspace.keys.signer("release").key_id
    first_use = workspace.keys.self_made()
    signatures: Sequence[SignatureFacts] = tuple(
        SignatureFacts(key=key, valid=True, first_use=first_use and key == own) for key in move.signers or (own,)
    )
    consent = Consent(
        authors=tuple(dict.fromkeys((own, *move.signers, *_authors(workspace, bundle, baseline)))),
        approvals=approvals(move.approvals_from, made.engine, made.digest()),
        signatures=signatures,
    )
    document = release_input(_proposal(workspace, bundle, baseline, move), consent, now=workspace.now())
    return gate.judge("release", Subject(made.engine, made.engine, document.to_json()))


def refuse(verdict: Verdict, bundle: Bundle) -> None:
    """Stop at a verdict that denies.

    Raises:
        Denied: with every reason; and how to approve it, where approvals lack.
    """
    if verdict.decision != "deny":
        return
    made = bundle.engine_release
    blocking = [finding for finding in verdict.findings if finding.blocking]
    fix = "see docs/rules/release for what each rule asks"
    if _APPROVALS in {finding.rule for finding in blocking}:
        fix = f"somebody who is no author approves it: trtops approve {made.engine}@{made.digest()} --as KEY"
        fix += f" --env {verdict.environment}"
    raise Denied(
        f"policies deny the release of {made.engine}: "
        + "; ".join(f"{finding.message} [{finding.rule}]" for finding in blocking),
        fix=fix,
    )


def _proposal(workspace: Workspace, bundle: Bundle, baseline: Current | None, move: Move) -> Proposal:
    from trtops.policy.inputs_release import Proposal, previous_facts
    from trtops.release.assemble import next_binding
    from trtops.release.documents import Bound
    from trtops.workflow.release import channel_of, lifetime_of

    made, config = bundle.engine_release, bundle.config_release
    binding = next_binding(
        baseline.binding if baseline else None,
        channel_of(workspace, made.engine),
        Bound(engine_release=made.digest(), config_release=config.digest()),
        reason=move.reason,
        actor=workspace.keys.signer("channel").key_id,
        now=workspace.now(),
        lifetime=lifetime_of(workspace),
    )
    previous = None
    if baseline is not None:
        before = baseline.engine.model_dump(mode="json")
        facts = previous_facts(
            before,
            str(baseline.binding.engine_release),
            baseline.binding.generation,
            baseline.config.model_dump(mode="json"),
        )
        previous = (facts, before["contract"])
    return Proposal(
        action=move.action,
        release=(str(made.digest()), made.model_dump(mode="json")),
        config=(str(config.digest()), config.model_dump(mode="json")),
        binding=binding.model_dump(mode="json"),
        evidence={str(one.evidence.digest()): one.evidence.model_dump(mode="json") for one in bundle.candidates},
        verdicts={
            str(verdict.digest()): verdict
            for verdict in (bundle.spec_verdict, *(one.verdict for one in bundle.candidates))
        },
        previous=previous,
    )


def _authors(workspace: Workspace, bundle: Bundle, baseline: Current | None) -> tuple[str, ...]:
    """Who wrote what is released, as git knows them: nobody approves their own. Empty where git does not know.

    They are the author of the released commit, and those who touched the engine's folder since the release before.
    """
    from trtops.spec.load import ENGINES

    made = bundle.engine_release
    commit = _clean(made.commit)
    if commit is None:
        return ()
    told = _asked(workspace, "show", "--no-patch", "--format=%ae", commit, "--")
    before = _clean(baseline.engine.commit) if baseline is not None else None
    if before is not None:
        since = f"{before}..{commit}"
        told += _asked(workspace, "log", "--no-merges", "--format=%ae", since, "--", f"{ENGINES}/{made.engine}")
    return tuple(dict.fromkeys(told))


def _clean(commit: str | None) -> str | None:
    return None if commit is None else commit.removesuffix("-dirty")


def _asked(workspace: Workspace, *words: str) -> list[str]:
    """The lines that git prints; none where it cannot tell."""
    from trtops.workflow.git import Git

    try:
        told = Git(workspace.root).ask(*words)
    except Undecided:
        return []
    return told.decode("utf-8", "replace").split() if told else []
