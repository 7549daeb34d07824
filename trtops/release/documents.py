"""The three documents that are released apart and bound by a fourth (design §3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trtops.backend.port import Sidecar
from trtops.digest import Digest, Value
from trtops.spec.engine import Batching, Execution, Memory, Name, RuntimeConfig, SemVer
from trtops.tensor import TensorInfo

API_VERSION: Literal["trtops/v1"] = "trtops/v1"


class Contract(Value):
    """What clients see of an engine."""

    version: SemVer
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class ReleasedArtifact(Value):
    """One verified target of an engine release: where its bytes are, and the evidence that let it through."""

    target: str
    sidecar: Sidecar
    evidence: Digest
    verdict: Digest


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


class ConfigRelease(Value):
    """An immutable runtime config of one environment; secrets are references."""

    apiVersion: Literal["trtops/v1"] = API_VERSION  # noqa: N815
    kind: Literal["ConfigRelease"] = "ConfigRelease"
    engine: Name
    environment: Name
    config: RuntimeConfig
    created: int


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


class Envelope(Value):
    """A DSSE envelope (https://github.com/secure-systems-lab/dsse): payload in base64, its type, signatures."""

    payloadType: str  # noqa: N815
    payload: str
    signatures: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
