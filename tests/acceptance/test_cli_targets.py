"""Targets that this machine cannot build, and precisions that lose too much: each verb says so, and by its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service

ELSEWHERE = '  - backend: tensorrt\n    version: "8.6"\n    gpu: {name: H200, compute_capability: "9.0"}'


@pytest.mark.parametrize("verb", ["build", "verify", "bench", "inspect"])
def test_what_was_done_for_no_target_is_no_success(repo: Repository, verb: str) -> None:
    repo.edit("  - backend: onnxruntime", ELSEWHERE)
    done = repo.call(verb, "tiny").says(2, "this machine can build no target of tiny", "tensorrt-8.6-h200: ", "doctor")
    assert "Traceback" not in done.err


def test_what_was_done_for_some_target_is(repo: Repository) -> None:
    repo.edit("  - backend: onnxruntime", f"  - backend: onnxruntime\n{ELSEWHERE}")
    repo.call("build", "tiny").says(0, "build onnxruntime", "skipped: ")
    done = repo.call("verify", "tiny").says(0, "equal within tolerance")
    assert "tensorrt-8.6-h200: skipped: " in done.err
    repo.call("verify", "tiny", "--target", "tensorrt-8.6-h200").says(2, "this machine can build no target of tiny")


def test_a_precision_that_loses_too_much_is_refused(repo: Repository) -> None:
    """INT8 with ranges that leave half of what was seen outside."""
    harsh = "{source: 'file:samples.npz', method: percentile, percentile: 51}"
    repo.edit("  mode: fp32\n", f"  mode: int8\n  calibration: {harsh}\n")
    repo.edit("  atol: 1e-5\n  rtol: 1e-4\n", "  atol: 5e-2\n  rtol: 5e-2\n  metric: {cosine: 0.99}\n")
    done = repo.call("verify", "tiny").says(1, "accuracy: differs", "worst element: y[")
    worst = next(line for line in done.out.splitlines() if line.startswith("worst element"))
    assert "times the tolerance" in worst
    repo.call("ship", "tiny").says(1, "denied evidence.")
    repo.call("status").says(0, "nothing is released yet")
    repo.edit("method: percentile, percentile: 51", "method: minmax")
    repo.call("verify", "tiny").says(0, "equal within tolerance")
