"""The three documents that are released apart and bound by a fourth (design §3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from trtops.backend.port import Sidecar
from trtops.digest import Digest, Value, digest_of
from trtops.spec.engine import Batching, Execution, Memory, Name, RuntimeConfig, SemVer
from trtops.tensor import TensorInfo

API_VERSION: Literal["trtops/v1"] = "trtops/v1"
_PERCENT = 100

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


class Bound(Value):
    """What a binding says that runs.

    Attributes:
        engine_release: digest of an engine release.
        config_release: digest of a config release.
        weights: channel -> share of the traffic in percent; sums to 100.
    """

    engine_release: Digest
    config_release: Digest
    weights: dict[str, Annotated[int, Field(ge=0, le=100)]] = Field(default_factory=lambda: {"stable": 100})


class Binding(Value):
    """The small signed document of an environment that says what runs: the channel pointer.

    Attributes:
        generation: counts up by one with every move; a service refuses a lower one than it has seen (rollback attack).
        channel: ``stable``, ``canary`` or another name.
        engine_release, config_release: digests of the released documents.
        weights: channel -> share of the traffic in percent; sums to 100.
        previous: digest of the binding before; None for the first (a chain that history verifies).
        reason: why it moved: ``release``, ``rollback to generation 3``, ``promote from staging`` …
        actor: key id that moved it.
        created, expires: epoch seconds; an expired pointer means "registry away" (design §4.8).
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["Binding"] = "Binding"
    engine: Name
    environment: Name
    channel: Name = "stable"
    generation: Annotated[int, Field(ge=1)]
    engine_release: Digest
    config_release: Digest
    weights: dict[str, Annotated[int, Field(ge=0, le=100)]] = Field(default_factory=lambda: {"stable": 100})
    previous: Digest | None = None
    reason: str
    actor: str
    created: int
    expires: int | None = None

    @field_validator("weights")
    @classmethod
    def _whole(cls, weights: dict[str, int]) -> dict[str, int]:
        if sum(weights.values()) != _PERCENT:
            raise ValueError(f"weights must sum to {_PERCENT}, not {sum(weights.values())}")
        return weights

    @property
    def where(self) -> Channel:
        """The channel that this binding points in."""
        return Channel(engine=self.engine, environment=self.environment, name=self.channel)

    @property
    def bound(self) -> Bound:
        """What runs by this binding."""
        return Bound(engine_release=self.engine_release, config_release=self.config_release, weights=self.weights)


class SealedSecret(Value):
    """A secret that only its recipients can open. Never part of a release: a rollback brings back no old password.

    Attributes:
        engine, environment, path: where it belongs; repeated inside the sealed payload, which nobody else can alter.
        recipients: age public keys that can open it, sorted.
        sealed: the age payload in base64.
        created: epoch seconds.
    """

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["SealedSecret"] = "SealedSecret"
    engine: Name
    environment: Name
    path: SecretPath
    recipients: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    sealed: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=90_000)]
    created: int


class Envelope(Value):
    """A DSSE envelope (https://github.com/secure-systems-lab/dsse): payload in base64, its type, signatures."""

    payloadType: str  # noqa: N815
    payload: str
    signatures: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
