"""Targets that this machine cannot build, and precisions that lose too much: each verb says so, and by its exit code."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from trtops.backend.port import Sidecar
from trtops.backend.trt_plugins import LIBRARIES
from trtops.evidence import Evidence
from trtops.release.documents import Provenance
from trtops.release.envelope import read_unverified, sign
from trtops.release.keys import Signer
from trtops.store import Store

if TYPE_CHECKING:
    from pathlib import Path

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


def _plant_library(repo: Repository) -> tuple[Path, Sidecar]:
    """Have the record of the one build name a plugin library that the builder never saw; its bytes are there."""
    store = Store(repo.home / "store")
    library = store.put_bytes(b"\x7fELF and what runs when it is loaded")
    (record,) = (repo.home / "store" / "records" / "sidecar").iterdir()
    forged = Sidecar.model_validate_json(record.read_bytes()).model_copy(update={"extra": {LIBRARIES: str(library)}})
    record.write_bytes(forged.canonical_bytes())
    return record, forged


@pytest.mark.parametrize("name", ["tiny", "twin"])
def test_arbitrary_software_a_builder_signs_no_sidecar_that_it_finds(repo: Repository, name: str) -> None:
    """The builder has vouched for the artifact; the record that says how it is loaded is signed by nobody."""
    shutil.copytree(repo.engine, repo.root / "engines" / "twin")
    repo.edit("name: tiny", "name: twin", file=repo.root / "engines" / "twin" / "engine.yaml")
    repo.call("ship", "tiny").says(0)
    genuine = repo.artifact().name
    record, forged = _plant_library(repo)
    plan = json.loads(repo.call("plan", name, "--format", "json").says(0).out)
    assert plan["engines"][0]["targets"][0]["build"] == "build"
    done = repo.call("ship", name, "--json").says(0)
    assert done.stages["build onnxruntime"]["outcome"] == "done"
    assert (repo.artifact().name, LIBRARIES in record.read_text()) == (genuine, False)
    said = [
        read_unverified(one.read_bytes(), Provenance).value.sidecar
        for one in (repo.home / "store" / "records" / "provenance").iterdir()
    ]
    assert forged.digest() not in said
    repo.call("verify-release", name).says(0)


def test_arbitrary_software_no_engine_is_opened_with_a_library_that_nobody_vouches_for(repo: Repository) -> None:
    repo.call("build", "tiny").says(0)
    artifact = repo.artifact().name
    _plant_library(repo)
    repo.call("inspect", "--diff", artifact, artifact).says(2, "what is signed is not the artifact", "--rebuild")


def test_a_store_of_before_is_read(repo: Repository) -> None:
    """Provenance and evidence once lay under the plan's key alone, and nobody signed evidence: it is found anew."""
    repo.call("ship", "tiny").says(0)
    evidence = _handed_on(repo)
    for kind in ("provenance", "evidence"):
        folder = repo.home / "store" / "records" / kind
        for record in folder.glob("*.tiny.json"):
            record.replace(folder / record.name.replace(".tiny.json", ".json"))
            if kind == "evidence":
                (folder / record.name.replace(".tiny.json", ".json")).write_bytes(evidence.canonical_bytes())
    done = repo.call("ship", "tiny", "--json").says(0)
    outcomes = [done.stages[f"{stage} onnxruntime"]["outcome"] for stage in ("build", "verify", "bench")]
    assert outcomes == ["reused", "done", "done"]


def _handed_on(repo: Repository) -> Evidence:
    """What the builder says of the one engine that was measured."""
    (record,) = (repo.home / "store" / "records" / "handover").iterdir()
    return read_unverified(json.loads(record.read_bytes())["evidence"].encode(), Evidence).value


@pytest.mark.parametrize("signed", [False, True])
def test_forged_evidence_in_the_store_is_not_signed_on(repo: Repository, signed: bool) -> None:
    """Whoever writes to the store leaves better numbers, signed by nobody or by a key of their own."""
    repo.call("ship", "tiny").says(0)
    (record,) = (repo.home / "store" / "records" / "evidence").iterdir()
    forged = _handed_on(repo).model_copy(update={"trtops": "9.9.9"})
    record.write_bytes(sign(forged, [Signer.generate()]) if signed else forged.canonical_bytes())
    done = repo.call("ship", "tiny", "--json").says(0)
    assert [done.stages[f"{stage} onnxruntime"]["outcome"] for stage in ("verify", "bench")] == ["done", "done"]
    assert _handed_on(repo).trtops != "9.9.9"
    done = repo.call("ship", "tiny", "--json").says(0)
    assert [done.stages[f"{stage} onnxruntime"]["outcome"] for stage in ("verify", "bench")] == ["reused", "reused"]
