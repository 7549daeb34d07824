"""The three documents that are released apart and bound by a fourth (design §3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from trtops.backend.port import Sidecar
from trtops.digest import Digest, Value, digest_of
from trtops.spec.engine import Batching, Execution, Memory, Name, RolloutPlan, RuntimeConfig, SemVer
from trtops.tensor import TensorInfo

API_VERSION: Literal["trtops/v1"] = "trtops/v1"
STABLE = "stable"
"""Name, in a binding's weights, of the release that the binding itself names."""
MAX_REJECTED = 512
"""Digests that a binding keeps in quarantine: what fits into a document of 100 KB with room to spare."""
_PERCENT = 100
_WHOLE = {STABLE: _PERCENT}

SecretPath = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,3}$")]
"""Name of a secret: one to four segments, e.g. ``db/password``."""


class Contract(Value):
    """What clients see of an engine."""

    version: SemVer
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class Channel(Value):
    """Whose pointer: a channel of an engine in an environment."""

    engine: Name
    environment: Name
    name: Name = "stable"

    def __str__(self) -> str:
        """Render for messages: ``ppocr-cls/stable in dev``."""
        return f"{self.engine}/{self.name} in {self.environment}"


class Provenance(Value):
    """Who built which engine from what; signed by a builder key, since loading an engine runs its code.

    Attributes:
        engine, target: name of the engine, id of the target.
        builder: key id of the builder that vouches for it.
        commit: git commit that it was built from, ``-dirty`` if the tree was changed; None outside a repository.
        spec: digest of the engine spec at the build.
        model: digest of the source ONNX file.
        plan: cache key of the build.
        sidecar: digest of the sidecar, which tells how the bytes are loaded.
        artifact: digest of the engine's bytes.
        backend, backend_version: what built it.
        trtops: version of the tool.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["Provenance"] = "Provenance"
    engine: Name
    target: str
    builder: str
    commit: str | None = None
    spec: Digest
    model: Digest
    plan: Digest
    sidecar: Digest
    artifact: Digest
    backend: str
    backend_version: str
    trtops: str


class ReleasedArtifact(Value):
    """One verified target of an engine release: where its bytes are, and what let it through.

    Attributes:
        target: id of the target.
        sidecar: what has to be known before its bytes are loaded; names the artifact's digest.
        evidence, verdict, provenance: digests of these documents. Without provenance no service loads it.
    """

    target: str
    sidecar: Sidecar
    evidence: Digest
    verdict: Digest
    provenance: Digest | None = None


class EngineRelease(Value):
    """An immutable engine release: artifacts for all verified targets.

    Attributes:
        engine: name.
        spec: digest of the engine spec; ``spec_verdict`` what policies said of it.
        contract: the interface.
        batching, memory, execution: what the executor needs of the spec.
        artifacts: verified targets only, sorted by target.
        skipped: target id -> why it is not in this release.
        commit: git commit of the spec, ``-dirty`` if the tree was; None outside a repository.
        created: epoch seconds; not part of :meth:`identity`.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["EngineRelease"] = "EngineRelease"
    engine: Name
    tier: str
    spec: Digest
    spec_verdict: Digest
    contract: Contract
    batching: Batching
    memory: Memory
    execution: Execution
    artifacts: Annotated[tuple[ReleasedArtifact, ...], Field(min_length=1)]
    skipped: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    created: int
    trtops: str

    def identity(self) -> Digest:
        """Digest of everything but ``created``: equal for two runs over the same inputs."""
        return digest_of(self.model_dump(mode="json", exclude={"created"}))

    def content(self) -> Digest:
        """Digest of what services run by it: equal for a release that was only measured and judged anew."""
        return digest_of(
            {
                **self.model_dump(mode="json", include={"contract", "batching", "memory", "execution"}),
                "artifacts": [[one.target, str(one.sidecar.artifact)] for one in self.artifacts],
            }
        )

    def marks(self) -> frozenset[Digest]:
        """Digests that it is known again by in another form: of its content, and of each artifact's bytes."""
        return frozenset({self.content(), *(one.sidecar.artifact for one in self.artifacts)})

    def artifact(self, target: str) -> ReleasedArtifact | None:
        """The artifact of a target; None if this release has none for it."""
        return next((artifact for artifact in self.artifacts if artifact.target == target), None)


class ConfigRelease(Value):
    """An immutable runtime config of one environment; secrets are references."""

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["ConfigRelease"] = "ConfigRelease"
    engine: Name
    environment: Name
    config: RuntimeConfig
    created: int

    def identity(self) -> Digest:
        """Digest of everything but ``created``: equal for two runs over the same inputs."""
        return digest_of(self.model_dump(mode="json", exclude={"created"}))


Weights = dict[str, Annotated[int, Field(ge=0, le=100)]]
"""Channel -> share of the traffic in percent; sums to 100."""

Phase = Literal["progressing", "paused", "promoted", "aborted"]
"""Of a rollout: ``progressing`` and ``paused`` are open, the candidate runs; the others are its two ends."""


class Rollout(Value):
    """A candidate beside the stable release, and how far it has come.

    Attributes:
        engine_release, config_release: digests of the candidate's documents.
        shadow: share of the stable release's requests in percent that are copied to the candidate; its answers to them
            are compared and thrown away. Its share of the answered traffic is the binding's ``weights[plan.channel]``.
        phase: whether it is open. ``promoted``: the binding's own digests are the candidate's. ``aborted``: the
            candidate is in the binding's ``rejected``, and gets nothing.
        step: index into ``plan.steps`` of the step that it is in.
        since: epoch seconds when it came into this step.
        plan: its steps, as they stood when it began.
    """

    engine_release: Digest
    config_release: Digest
    shadow: Annotated[int, Field(ge=0, le=100)] = 0
    phase: Phase = "progressing"
    step: Annotated[int, Field(ge=0)] = 0
    since: int
    plan: RolloutPlan

    @property
    def open(self) -> bool:
        """Whether the candidate runs."""
        return self.phase in {"progressing", "paused"}

    @model_validator(mode="after")
    def _inside(self) -> Rollout:
        if self.step >= len(self.plan.steps):
            raise ValueError(f"step {self.step} of {len(self.plan.steps)}")
        if self.shadow and not self.open:
            raise ValueError("a rollout that has ended shadows nothing")
        return self


class Arm(Value):
    """One of the releases that serve an engine by a binding.

    Attributes:
        channel: ``stable``, or the name of the candidate's channel. The label ``channel`` of a service's metrics.
        engine_release, config_release: what it runs.
        weight: share of the traffic in percent; all arms together have 100.
        shadow: share of the stable arm's requests in percent that are copied to it as well.
    """

    channel: Name
    engine_release: Digest
    config_release: Digest
    weight: Annotated[int, Field(ge=0, le=100)]
    shadow: Annotated[int, Field(ge=0, le=100)] = 0


class Bound(Value):
    """What a binding says that runs, and what may not run again.

    Attributes:
        engine_release: digest of an engine release.
        config_release: digest of a config release.
        weights: as in :class:`Binding`.
        rollout, rejected: as in :class:`Binding`.
    """

    engine_release: Digest
    config_release: Digest
    weights: Weights = Field(default_factory=lambda: dict(_WHOLE))
    rollout: Rollout | None = None
    rejected: tuple[Digest, ...] = ()


class Binding(Value):
    """The small signed document of an environment that says what runs: the channel pointer.

    Attributes:
        generation: counts up by one with every move; a service refuses a lower one than it has seen (rollback attack).
        channel: ``stable``, or a name of its own that services follow instead.
        engine_release, config_release: digests of the released documents.
        weights: ``stable`` (the digests above) and, while a rollout is open, its candidate's channel -> share of the
            traffic in percent; sums to 100.
        previous: digest of the binding before; None for the first (a chain that history verifies).
        reason: why it moved: ``release``, ``rollback to generation 3``, ``promote from staging`` …
        actor: key id that moved it.
        created, expires: epoch seconds; an expired pointer means "registry away" (design §4.8).
        rollout: the last rollout, open or ended; None if there was none since the last other move.
        rejected: digests of what was aborted, oldest first: of releases, and the marks that they are known again by. No
            verb binds them.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["Binding"] = "Binding"
    engine: Name
    environment: Name
    channel: Name = "stable"
    generation: Annotated[int, Field(ge=1)]
    engine_release: Digest
    config_release: Digest
    weights: Weights = Field(default_factory=lambda: dict(_WHOLE))
    previous: Digest | None = None
    reason: str
    actor: str
    created: int
    expires: int | None = None
    rollout: Rollout | None = None
    rejected: Annotated[tuple[Digest, ...], Field(max_length=MAX_REJECTED)] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what bindings of before rollouts do not have: their digests, and so their chain, hold for ever."""
        fields: dict[str, Any] = handler(self)
        for name in ("rollout", "rejected"):
            if not getattr(self, name):
                fields.pop(name, None)
        return fields

    @field_validator("weights")
    @classmethod
    def _whole(cls, weights: dict[str, int]) -> dict[str, int]:
        if sum(weights.values()) != _PERCENT:
            raise ValueError(f"weights must sum to {_PERCENT}, not {sum(weights.values())}")
        return weights

    @model_validator(mode="after")
    def _served(self) -> Binding:
        """No share of the traffic goes to a channel that nothing runs in."""
        known = {STABLE, self.rollout.plan.channel} if self.rollout is not None and self.rollout.open else {STABLE}
        if unknown := sorted(self.weights.keys() - known):
            raise ValueError(f"weights name channels that nothing runs in: {', '.join(unknown)}")
        return self

    @property
    def where(self) -> Channel:
        """The channel that this binding points in."""
        return Channel(engine=self.engine, environment=self.environment, name=self.channel)

    @property
    def bound(self) -> Bound:
        """What runs by this binding."""
        return Bound(
            engine_release=self.engine_release,
            config_release=self.config_release,
            weights=self.weights,
            rollout=self.rollout,
            rejected=self.rejected,
        )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What a service runs by this binding: the stable release first, then the candidate of an open rollout.

        A candidate is listed from the first step on, also with no traffic and no shadow: a service loads it then.
        """
        stable = Arm(
            channel=STABLE,
            engine_release=self.engine_release,
            config_release=self.config_release,
            weight=self.weights.get(STABLE, 0),
        )
        if self.rollout is None or not self.rollout.open:
            return (stable,)
        channel = self.rollout.plan.channel
        candidate = Arm(
            channel=channel,
            engine_release=self.rollout.engine_release,
            config_release=self.rollout.config_release,
            weight=self.weights.get(channel, 0),
            shadow=self.rollout.shadow,
        )
        return (stable, candidate)


class SealedSecret(Value):
    """A secret that only its recipients can open. Never part of a release: a rollback brings back no old password.

    Attributes:
        engine, environment, path: where it belongs; repeated inside the sealed payload, which nobody else can alter.
        recipients: age public keys that can open it, sorted.
        sealed: the age payload in base64.
        created: epoch seconds.
        generation: counts up by one with every value and every rotation, and is inside the payload as well; a service
            refuses a lower one than it has seen (replay). None in those of version 0.1.0.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["SealedSecret"] = "SealedSecret"
    engine: Name
    environment: Name
    path: SecretPath
    recipients: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    sealed: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=90_000)]
    created: int
    generation: Annotated[int, Field(ge=1)] | None = None

    @model_serializer(mode="wrap")
    def _as_signed(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave an absent generation out: the digest of a secret that was signed without one stays what it was."""
        written: dict[str, Any] = serialise(self)
        if self.generation is None:
            written.pop("generation", None)
        return written


class Listed(Value):
    """Where a channel stood when its environment's snapshot was taken."""

    generation: Annotated[int, Field(ge=1)]
    binding: Digest


class ChannelSnapshot(Value):
    """How far every channel of an environment has come, signed by an online key: nothing older is to be believed.

    Attributes:
        environment: whose channels.
        version: counts up with every snapshot; a service refuses a lower one than it has seen.
        root: version of the root of trust that was in force; a service that knows only an older one is being fooled.
        channels: ``ENGINE/CHANNEL`` -> the pointer.
        secrets: ``ENGINE/PATH`` -> generation of the sealed secret.
        created, expires: epoch seconds. Until then every pointer that is listed counts as fresh.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["ChannelSnapshot"] = "ChannelSnapshot"
    environment: Name
    version: Annotated[int, Field(ge=1)]
    root: Annotated[int, Field(ge=1)]
    channels: dict[str, Listed]
    secrets: dict[str, int] = Field(default_factory=dict)
    created: int
    expires: int | None = None


class Envelope(Value):
    """A DSSE envelope (https://github.com/secure-systems-lab/dsse): payload in base64, its type, signatures."""

    payloadType: str  # noqa: N815
    payload: str
    signatures: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
