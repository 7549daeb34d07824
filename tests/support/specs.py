"""Engine specs for tests."""

from __future__ import annotations

from typing import Any

from trtops.spec.engine import EngineSpec

SHA = "0" * 64


def spec(**changes: Any) -> EngineSpec:
    """A spec of ``x`` [batch, 4] with one profile of 1 to 8 rows; ``changes`` replace top-level keys."""
    data: dict[str, Any] = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "test-engine"},
        "model": {"source": "file:m.onnx", "sha256": SHA},
        "targets": [{"backend": "onnxruntime"}],
        "profiles": [profile(x=([1, 4], [4, 4], [8, 4]))],
        "batching": {"max_batch": 8},
        **changes,
    }
    return EngineSpec.model_validate(data)


def profile(name: str = "default", **inputs: tuple[list[int], list[int], list[int]]) -> dict[str, Any]:
    """A profile from input name -> (min, opt, max)."""
    shapes = {key: {"min": low, "opt": middle, "max": high} for key, (low, middle, high) in inputs.items()}
    return {"name": name, "inputs": shapes}
