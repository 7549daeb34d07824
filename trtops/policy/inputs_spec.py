"""Input of the stage ``spec``: what the author wrote, the same resolved to plain numbers, and what preflight found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from trtops.digest import Value
from trtops.policy.inputs import StageInput
from trtops.policy.inputs_facts import SpecFacts, spec_facts
from trtops.policy.inputs_secrets import SecretField, secret_fields, withhold
from trtops.policy.interfaces import InterfaceFacts, InterfaceLock, interface_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.model.facts import Preflight
    from trtops.spec.engine import BatchingOverride, EngineSpec, RuntimeConfig

Path = tuple[str | int, ...]


class OverrideFacts(Value):
    """What ``runtime.yaml`` changes of the batching; null where it changes nothing."""

    max_batch: int | None
    preferred: tuple[int, ...] | None
    max_queue_delay_us: int | None
    queue_max_size: int | None
    queue_timeout_us: int | None
    queue_on_timeout: str | None
    priorities: int | None


class ServerFacts(Value):
    """Where a service listens; null where there is no config."""

    host: str | None
    port: int | None


class RuntimeFacts(Value):
    """``runtime.yaml`` of this environment; where the engine has none, ``present`` is false and all else is empty.

    ``secrets`` are the places that hold, or should hold, a secret.
    """

    present: bool
    batching: OverrideFacts
    server: ServerFacts
    secrets: tuple[SecretField, ...]


class ModelDocument(Value):
    """What the ONNX file says of itself."""

    content: str
    size_bytes: int
    ir_version: int
    opset: dict[str, int]
    operators: dict[str, int]
    initializer_bytes: int
    nodes: int


class PreflightFact(Value):
    """One thing that preflight found: ``error``, ``warning`` or ``repaired``."""

    code: str
    severity: str
    message: str
    path: Path
    node: str | None
    fix: str


class Estimate(Value):
    """Estimated memory of one profile at its largest shapes; null where preflight could not tell.

    ``bindings_bytes`` are inputs and outputs of one execution.
    """

    profile: str
    weights_bytes: int | None
    activations_bytes: int | None
    bindings_bytes: int | None


class PreflightFacts(Value):
    """What preflight found."""

    model: ModelDocument
    facts: tuple[PreflightFact, ...]
    estimates: tuple[Estimate, ...]


class SpecInput(StageInput):
    """``trtops.spec/v1``. ``document`` and ``runtime_document`` are the files as written, secrets withheld.

    ``interface`` compares the model with what clients of the released engine rely on.
    """

    schema_id: Literal["trtops.spec/v1"] = Field(default="trtops.spec/v1", alias="schema")
    document: dict[str, JsonValue]
    runtime_document: dict[str, JsonValue] | None
    facts: SpecFacts
    runtime: RuntimeFacts
    preflight: PreflightFacts
    interface: InterfaceFacts


def _override(override: BatchingOverride) -> OverrideFacts:
    queue = override.queue
    return OverrideFacts(
        max_batch=override.max_batch,
        preferred=override.preferred,
        max_queue_delay_us=override.max_queue_delay,
        queue_max_size=queue.max_size if queue else None,
        queue_timeout_us=queue.timeout if queue else None,
        queue_on_timeout=queue.on_timeout if queue else None,
        priorities=override.priorities,
    )


def _runtime(runtime: RuntimeConfig | None, secrets: tuple[SecretField, ...]) -> RuntimeFacts:
    from trtops.spec.engine import BatchingOverride

    return RuntimeFacts(
        present=runtime is not None,
        batching=_override(runtime.batching if runtime else BatchingOverride()),
        server=ServerFacts(
            host=runtime.server.host if runtime else None, port=runtime.server.port if runtime else None
        ),
        secrets=secrets,
    )


def _preflight(spec: EngineSpec, preflight: Preflight) -> PreflightFacts:
    model = preflight.model
    return PreflightFacts(
        model=ModelDocument(
            content=str(model.content),
            size_bytes=model.size_bytes,
            ir_version=model.ir_version,
            opset=model.opset,
            operators=model.operators,
            initializer_bytes=model.initializer_bytes,
            nodes=model.nodes,
        ),
        facts=tuple(
            PreflightFact(
                code=fact.code,
                severity=fact.severity,
                message=fact.message,
                path=fact.path,
                node=fact.node,
                fix=fact.fix,
            )
            for fact in preflight.facts
        ),
        estimates=tuple(
            Estimate(
                profile=profile.name,
                weights_bytes=preflight.estimate_bytes.get(profile.name, {}).get("weights"),
                activations_bytes=preflight.estimate_bytes.get(profile.name, {}).get("activations"),
                bindings_bytes=preflight.estimate_bytes.get(profile.name, {}).get("bindings"),
            )
            for profile in spec.profiles
        ),
    )


def spec_input(
    spec: EngineSpec,
    runtime: RuntimeConfig | None,
    preflight: Preflight,
    *,
    environment: str,
    document: Mapping[str, Any] | None = None,
    runtime_document: Mapping[str, Any] | None = None,
    released: InterfaceLock | None = None,
) -> SpecInput:
    """Build the document of the stage ``spec``.

    Args:
        spec: the spec.
        runtime: the runtime config of this environment, its overlay applied; None where the engine has none.
        preflight: what preflight found.
        environment: whose rules hold.
        document: ``engine.yaml`` as written; by default what the spec sets.
        runtime_document: the merged ``runtime.yaml`` as written; by default what the config sets.
        released: the interface that clients rely on; None: none is known.
    """
    written = spec.model_dump(mode="json", exclude_unset=True) if document is None else dict(document)
    below = None
    secrets: tuple[SecretField, ...] = ()
    if runtime is not None:
        plain = runtime.model_dump(mode="json", exclude_unset=True) if runtime_document is None else runtime_document
        secrets = secret_fields(plain)
        below = withhold(dict(plain), secrets)
    return SpecInput(
        environment=environment,
        engine=spec.name,
        tier=spec.tier,
        document=withhold(written, secret_fields(written)),
        runtime_document=below,
        facts=spec_facts(spec),
        runtime=_runtime(runtime, secrets),
        preflight=_preflight(spec, preflight),
        interface=interface_facts(released, preflight, spec.profiles),
    )
