"""Targets that this machine cannot build, and precisions that lose too much: each verb says so, and by its exit code."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from trtops.release.documents import Provenance
from trtops.release.envelope import read_unverified, sign
from trtops.release.keys import Signer

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


def test_two_engines_that_are_built_alike_share_the_bytes_and_nothing_else(repo: Repository) -> None:
    """Of one model, by one plan: the second is not built, and a builder vouches for it by its own name."""
    shutil.copytree(repo.engine, repo.root / "engines" / "twin")
    repo.edit("name: tiny", "name: twin", file=repo.root / "engines" / "twin" / "engine.yaml")
    repo.call("ship", "tiny").says(0, "generation 1 signed and published")
    artifact = repo.artifact()
    done = repo.call("ship", "twin", "--json").says(0)
    assert done.stages["build onnxruntime"]["outcome"] == "reused"
    assert done.stages["verify onnxruntime"]["outcome"] == "done", "its own samples, its own evidence"
    assert repo.artifact() == artifact
    for name in ("tiny", "twin"):
        repo.call("verify-release", name).says(0)
    for name in ("tiny", "twin", "tiny"):
        done = repo.call("ship", name, "--json").says(0)
        outcomes = {done.stages[f"{stage} onnxruntime"]["outcome"] for stage in ("build", "verify", "bench")}
        assert (outcomes, done.stages["release"]["outcome"]) == ({"reused"}, "reused"), name


def test_an_engine_takes_over_no_bytes_that_no_trusted_builder_vouches_for(repo: Repository) -> None:
    """Whoever writes to the store leaves an engine and a word for it, by a key of their own."""
    shutil.copytree(repo.engine, repo.root / "engines" / "twin")
    repo.edit("name: tiny", "name: twin", file=repo.root / "engines" / "twin" / "engine.yaml")
    repo.call("build", "tiny").says(0)
    records = repo.home / "store" / "records" / "provenance"
    mallory = Signer.generate()
    for record in records.iterdir():
        value = read_unverified(record.read_bytes(), Provenance).value
        record.write_bytes(sign(value.model_copy(update={"builder": mallory.key_id}), [mallory]))
    done = repo.call("ship", "twin", "--json").says(0)
    assert done.stages["build onnxruntime"]["outcome"] == "done"


def test_a_store_of_before_is_read(repo: Repository) -> None:
    """Records of provenance and evidence once lay under the plan's key alone."""
    repo.call("ship", "tiny").says(0)
    for kind in ("provenance", "evidence"):
        folder = repo.home / "store" / "records" / kind
        for record in folder.glob("*.tiny.json"):
            record.replace(folder / record.name.replace(".tiny.json", ".json"))
    done = repo.call("ship", "tiny", "--json").says(0)
    assert {done.stages[f"{stage} onnxruntime"]["outcome"] for stage in ("build", "verify", "bench")} == {"reused"}
