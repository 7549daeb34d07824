"""Holding specs against models that tests make, and reading what preflight finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.onnx_models import save
from tests.support.specs import spec
from trtops.model.facts import Fact, Preflight
from trtops.model.preflight import preflight
from trtops.model.read import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TENSORRT = {"backend": "tensorrt", "version": "8.6"}
SEVERITIES = {"error", "warning", "repaired"}


def checker(folder: Path) -> Callable[..., Preflight]:
    """Save a model in a folder and hold a spec with these changes against it."""

    def run(proto: Any, **changes: Any) -> Preflight:
        path = save(proto, folder / "m.onnx")
        found = preflight(spec(**changes), path, read_facts(path))
        assert Preflight.model_validate_json(found.canonical_bytes()) == found
        assert all(fact.fix and fact.severity in SEVERITIES for fact in found.facts)
        return found

    return run


def codes(found: Preflight) -> list[str]:
    return [fact.code for fact in found.facts]


def one(found: Preflight, code: str) -> Fact:
    facts = [fact for fact in found.facts if fact.code == code]
    assert len(facts) == 1, found.facts
    return facts[0]
