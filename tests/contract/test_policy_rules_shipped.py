"""The rules with the data that ships: the shipped engine passes on a person's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.corpus_parts import PREFLIGHT
from tests.support.policy_corpus import changed
from trtops.document import load_document
from trtops.model.facts import Preflight
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.inputs_source import source_input
from trtops.policy.inputs_spec import spec_input
from trtops.policy.loader import load_policies
from trtops.spec.engine import EngineSpec
from trtops.spec.load import load_engine, load_runtime

if TYPE_CHECKING:
    from trtops.policy.verdict import Stage

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engines" / "ppocr-cls"


@pytest.fixture(scope="module")
def engine() -> EmbeddedEngine:
    return EmbeddedEngine(load_policies(ROOT))


def _findings(engine: EmbeddedEngine, stage: Stage, document: dict[str, Any]) -> dict[str, Any]:
    return {rule: values[0] for rule, values in engine.evaluate(stage, [document])[0].items() if values[0]}


def _preflight(spec: EngineSpec) -> Preflight:
    return Preflight.model_validate(changed(PREFLIGHT, {"model.content": f"sha256:{spec.model.sha256}"}))


def test_its_source_passes_with_any_index(engine: EmbeddedEngine) -> None:
    loaded = load_engine(ENGINE)
    document = source_input(
        loaded.spec,
        environment="local",
        document=loaded.document.data,
        indexes=["https://packages.example.org/simple", "http://mirror.internal/simple"],
    )
    assert _findings(engine, "source", document.to_json()) == {}


@pytest.mark.parametrize("environment", ["local", "prod"])
def test_its_spec_and_config_pass(engine: EmbeddedEngine, environment: str) -> None:
    loaded = load_engine(ENGINE)
    runtime = load_runtime(ENGINE, environment)
    document = spec_input(
        loaded.spec,
        runtime.config,
        _preflight(loaded.spec),
        environment=environment,
        document=loaded.document.data,
        runtime_document=runtime.data,
    )
    assert _findings(engine, "spec", document.to_json()) == {}


@pytest.mark.parametrize("tier", ["bronze", "silver", "gold"])
def test_every_tier_has_limits_that_an_engine_can_meet(engine: EmbeddedEngine, tier: str) -> None:
    loaded = load_engine(ENGINE)
    written = changed(
        loaded.document.data,
        {
            "metadata.labels.tier": tier,
            "targets": [{"backend": "onnxruntime"}],
            "benchmark.duration": "2s",
        },
    )
    spec = EngineSpec.model_validate(written)
    document = spec_input(spec, None, _preflight(spec), environment="local", document=written)
    assert _findings(engine, "spec", document.to_json()) == {}


def test_a_limit_is_changed_with_no_rego(tmp_path: Path) -> None:
    for folder in ("policies", "governance"):
        for source in (ROOT / folder).rglob("*"):
            if source.is_file():
                copy = tmp_path / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(source.read_bytes())
    limits = tmp_path / "policies" / "data" / "limits.yaml"
    tiers = load_document(limits).data["tiers"]
    before = f"workspace_mib: {tiers['bronze']['workspace_mib']}"
    limits.write_text(limits.read_text(encoding="utf-8").replace(before, "workspace_mib: 1", 1), encoding="utf-8")
    loaded = load_engine(ENGINE)
    document = spec_input(loaded.spec, None, _preflight(loaded.spec), environment="local")
    found = _findings(EmbeddedEngine(load_policies(tmp_path)), "spec", document.to_json())
    assert set(found) == {"spec.workspace_bounded"}
    assert found["spec.workspace_bounded"][0]["message"].endswith("tier bronze allows 1 MiB")
