"""Input of the stage ``release``: what is about to run, who says so, and what runs now.

Documents come in as their JSON (``model_dump(mode="json")``), since releases lie above policies in the house. A change
of the interface is worked out here, so that rules only judge its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trtops.digest import Value
from trtops.policy.inputs import Numbers, StageInput, version_numbers
from trtops.policy.inputs_secrets import SecretField, secret_fields
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.policy.verdict import Verdict

Action = Literal["release", "promote", "rollback"]
ChangeKind = Literal["none", "compatible", "breaking"]

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Clock(Value):
    """Now in UTC: epoch seconds, ``2026-03-02``, ``mon`` and ``17:05``."""

    epoch: int
    date: str
    weekday: str
    time: str


class VerdictFacts(Value):
    """What an earlier stage said, by the digest ``identity``; ``decision`` is null where its verdict is not at hand."""

    identity: str
    stage: str | None
    decision: str | None
    environment: str | None
    engine: str | None
    waived: tuple[str, ...]


class ArtifactFacts(Value):
    """One released target.

    ``evidence_artifact``, ``evidence_spec`` and ``verified`` are read in its evidence; null where that is not at hand.
    ``provenance`` is the digest of the builder's signed statement; null where there is none.
    """

    target: str
    backend: str
    artifact: str
    model: str
    provenance: str | None
    evidence: str
    evidence_artifact: str | None
    evidence_spec: str | None
    verified: bool | None
    verdict: VerdictFacts


class ReleaseFacts(Value):
    """The engine release. ``schema_version`` is the number of its apiVersion; ``dirty``: its tree had changes."""

    identity: str
    tier: str
    spec: str
    schema_version: int | None
    interface_version: str
    interface_numbers: Numbers | None
    artifacts: tuple[ArtifactFacts, ...]
    skipped: dict[str, str]
    spec_verdict: VerdictFacts
    commit: str | None
    dirty: bool
    created: int
    trtops: str


class ConfigFacts(Value):
    """The config release; ``secrets`` are the places that hold, or should hold, a secret."""

    identity: str
    engine: str
    environment: str
    schema_version: int | None
    port: int
    secrets: tuple[SecretField, ...]


class BindingFacts(Value):
    """The pointer that would be written. ``lifetime_seconds`` is null where it never expires."""

    generation: int
    engine_release: str
    config_release: str
    weights: dict[str, int]
    previous: str | None
    actor: str
    lifetime_seconds: int | None


class PreviousFacts(Value):
    """What the channel points to now."""

    identity: str
    generation: int
    tier: str
    schema_version: int | None
    config_schema_version: int | None
    interface_version: str
    interface_numbers: Numbers | None
    targets: tuple[str, ...]


class InterfaceChange(Value):
    """What clients of the previous release see change. ``breaking``: one of them could fail."""

    kind: ChangeKind
    changes: tuple[str, ...]


class ApprovalFacts(Value):
    """One approval: a key's signature over the digest ``over``; ``valid`` if it was verified."""

    key: str
    valid: bool
    over: str
    created: int
    age_seconds: int


class SignatureFacts(Value):
    """One signature of the release. ``first_use``: the key was made on this machine when it was first needed."""

    key: str
    valid: bool
    first_use: bool


class ReleaseInput(StageInput):
    """``trtops.release/v1``. ``authors`` are key ids and identities of who wrote and who releases the change."""

    schema_id: Literal["trtops.release/v1"] = Field(default="trtops.release/v1", alias="schema")
    action: Action
    channel: str
    clock: Clock
    release: ReleaseFacts
    config: ConfigFacts
    binding: BindingFacts
    previous: PreviousFacts | None
    interface_change: InterfaceChange | None
    authors: tuple[str, ...]
    approvals: tuple[ApprovalFacts, ...]
    signatures: tuple[SignatureFacts, ...]


def clock(now: int) -> Clock:
    """Break epoch seconds down, in UTC."""
    moment = datetime.fromtimestamp(now, tz=timezone.utc)
    return Clock(
        epoch=now,
        date=moment.strftime("%Y-%m-%d"),
        weekday=_WEEKDAYS[moment.weekday()],
        time=moment.strftime("%H:%M"),
    )


def _schema_version(document: Mapping[str, Any]) -> int | None:
    prefix, _, version = str(document.get("apiVersion")).partition("/v")
    return int(version) if prefix == "trtops" and version.isdecimal() else None


def _verdict(digest: str, verdicts: Mapping[str, Verdict]) -> VerdictFacts:
    verdict = verdicts.get(digest)
    if verdict is None:
        return VerdictFacts(identity=digest, stage=None, decision=None, environment=None, engine=None, waived=())
    return VerdictFacts(
        identity=digest,
        stage=verdict.stage,
        decision=verdict.decision,
        environment=verdict.environment,
        engine=verdict.engine,
        waived=tuple(finding.rule for finding in verdict.findings if finding.waived_by is not None),
    )


def _artifact(
    released: Mapping[str, Any], evidence: Mapping[str, Mapping[str, Any]], verdicts: Mapping[str, Verdict]
) -> ArtifactFacts:
    sidecar = released["sidecar"]
    known = evidence.get(released["evidence"])
    return ArtifactFacts(
        target=released["target"],
        backend=sidecar["backend"],
        artifact=sidecar["artifact"],
        model=sidecar["model"],
        provenance=released["provenance"],
        evidence=released["evidence"],
        evidence_artifact=known["artifact"] if known else None,
        evidence_spec=known["spec"] if known else None,
        verified=bool(known["accuracy"] and known["accuracy"]["passed"]) if known else None,
        verdict=_verdict(released["verdict"], verdicts),
    )


def _tensors(items: Iterable[Mapping[str, Any]]) -> dict[str, TensorInfo]:
    tensors = (TensorInfo.model_validate(item) for item in items)
    return {tensor.name: tensor for tensor in tensors}


def _tensor_change(kind: str, old: TensorInfo, new: TensorInfo) -> tuple[str, bool] | None:
    """What changed of one tensor, and whether it breaks a client."""
    label = f"{kind} {old.name}"
    if old.dtype != new.dtype:
        return f"{label}: {old.dtype} became {new.dtype}", True
    if len(old.shape) != len(new.shape):
        return f"{label}: rank {len(old.shape)} became {len(new.shape)}", True
    breaking, changed = False, False
    for before, after in zip(old.shape, new.shape, strict=True):
        if isinstance(before, str) and isinstance(after, str):
            continue  # only a name
        if before != after:
            changed = True
            # A client may keep sending what it sent, and must still understand what it gets.
            widened = isinstance(after, str) if kind == "input" else isinstance(before, str)
            breaking = breaking or not widened
    if not changed:
        return None
    return f"{label}: shape {list(old.shape)} became {list(new.shape)}", breaking


def interface_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> InterfaceChange:
    """Compare two contracts (``inputs`` and ``outputs`` as JSON of :class:`~trtops.tensor.TensorInfo`).

    Breaking: a tensor that is gone, a new input, another dtype or rank, an input size that is fixed now, an output
    size that is not fixed any more. Compatible: a new output, an input size that became dynamic, an output's that
    became fixed.
    """
    changes: list[tuple[str, bool]] = []
    for kind in ("input", "output"):
        before, after = _tensors(old[f"{kind}s"]), _tensors(new[f"{kind}s"])
        changes += [(f"{kind} {name} is gone", True) for name in before if name not in after]
        changes += [(f"{kind} {name} is new", kind == "input") for name in after if name not in before]
        pairs = ((before[name], after[name]) for name in before if name in after)
        changes += [change for one, other in pairs if (change := _tensor_change(kind, one, other)) is not None]
    kind_of: ChangeKind = "breaking" if any(breaks for _, breaks in changes) else "compatible" if changes else "none"
    return InterfaceChange(kind=kind_of, changes=tuple(text for text, _ in changes))


def _release(
    release: Mapping[str, Any],
    digest: str,
    evidence: Mapping[str, Mapping[str, Any]],
    verdicts: Mapping[str, Verdict],
) -> ReleaseFacts:
    commit = release["commit"]
    return ReleaseFacts(
        identity=digest,
        tier=release["tier"],
        spec=release["spec"],
        schema_version=_schema_version(release),
        interface_version=release["contract"]["version"],
        interface_numbers=version_numbers(release["contract"]["version"]),
        artifacts=tuple(_artifact(item, evidence, verdicts) for item in release["artifacts"]),
        skipped=release["skipped"],
        spec_verdict=_verdict(release["spec_verdict"], verdicts),
        commit=commit,
        dirty=bool(commit) and commit.endswith("-dirty"),
        created=release["created"],
        trtops=release["trtops"],
    )


def _binding(binding: Mapping[str, Any]) -> BindingFacts:
    expires = binding["expires"]
    return BindingFacts(
        generation=binding["generation"],
        engine_release=binding["engine_release"],
        config_release=binding["config_release"],
        weights=binding["weights"],
        previous=binding["previous"],
        actor=binding["actor"],
        lifetime_seconds=None if expires is None else expires - binding["created"],
    )


def previous_facts(
    release: Mapping[str, Any], digest: str, generation: int, config: Mapping[str, Any] | None = None
) -> PreviousFacts:
    """What a channel points to now: its engine release and config release as JSON."""
    return PreviousFacts(
        identity=digest,
        generation=generation,
        tier=release["tier"],
        schema_version=_schema_version(release),
        config_schema_version=_schema_version(config) if config else None,
        interface_version=release["contract"]["version"],
        interface_numbers=version_numbers(release["contract"]["version"]),
        targets=tuple(sorted(item["target"] for item in release["artifacts"])),
    )


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would happen to a channel, in the documents' JSON.

    Attributes:
        action: why the channel would move.
        release: digest and JSON of the engine release.
        config: digest and JSON of the config release.
        binding: JSON of the pointer that would be written; names environment and channel.
        evidence: digest -> JSON of the evidence of each artifact.
        verdicts: digest -> verdict, of the spec and of each artifact's evidence.
        previous: facts of what the channel points to now (:func:`previous_facts`) and its contract's JSON; None where
            it points to nothing yet.
    """

    action: Action
    release: tuple[str, Mapping[str, Any]]
    config: tuple[str, Mapping[str, Any]]
    binding: Mapping[str, Any]
    evidence: Mapping[str, Mapping[str, Any]]
    verdicts: Mapping[str, Verdict]
    previous: tuple[PreviousFacts, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Consent:
    """Who stands behind it.

    Attributes:
        authors: key ids and identities of who wrote the change and who releases it.
        approvals: ``{key, valid, over, created}`` each, its signature checked by the caller.
        signatures: of the engine release, checked by the caller.
    """

    authors: Sequence[str] = ()
    approvals: Sequence[Mapping[str, Any]] = ()
    signatures: Sequence[SignatureFacts] = ()


def release_input(proposal: Proposal, consent: Consent, *, now: int) -> ReleaseInput:
    """Build the document of the stage ``release``; ``now`` in epoch seconds."""
    (digest, engine), (config_digest, below) = proposal.release, proposal.config
    previous = proposal.previous
    return ReleaseInput(
        environment=proposal.binding["environment"],
        engine=engine["engine"],
        tier=engine["tier"],
        action=proposal.action,
        channel=proposal.binding["channel"],
        clock=clock(now),
        release=_release(engine, digest, proposal.evidence, proposal.verdicts),
        config=ConfigFacts(
            identity=config_digest,
            engine=below["engine"],
            environment=below["environment"],
            schema_version=_schema_version(below),
            port=below["config"]["server"]["port"],
            secrets=secret_fields(below["config"]),
        ),
        binding=_binding(proposal.binding),
        previous=previous[0] if previous else None,
        interface_change=interface_change(previous[1], engine["contract"]) if previous else None,
        authors=tuple(consent.authors),
        approvals=tuple(ApprovalFacts(**item, age_seconds=now - item["created"]) for item in consent.approvals),
        signatures=tuple(consent.signatures),
    )
