"""What policies deny: exit code 1 and the place of the value. What cannot be judged: exit code 2, never a pass."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import CHECKOUT
from trtops.digest import Digest

if TYPE_CHECKING:
    from tests.support.repository import Repository

GPU = "  - backend: tensorrt\n    version: '8.6'\n    gpu: {name: H200, compute_capability: '9.0'}"
CPU = "  - backend: onnxruntime"

# rule -> edits of engine.yaml as (old, new, where the finding points to within the last one), words of the finding
SPEC_RULES: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "backend_allowed": ([(CPU, f"{CPU}\n    version: '0.9'", "'0.9'")], "onnxruntime 0.9 is not looked after"),
    "benchmark_covers_max_batch": ([("[1, 8]", "[1, 4]", "[")], "max_batch is 8, and the benchmark measures 1, 4"),
    "benchmark_long_enough": ([("100ms", "50ms", "5")], "each batch size is measured for 50 ms, tier bronze needs 100 ms"),
    "calibration_present": ([("fp32", "int8", "int8")], "precision is int8, with no calibration"),
    "executions_bounded": ([("\nbuilder:", "\nexecution: {instances: 17}\nbuilder:", "17")], "17 executions at once"),
    "gpu_allowed": ([(CPU, GPU.replace("H200", "GTX"), "{name")], "GTX with compute capability 9.0 is no GPU of the fleet"),
    "interface_version_valid": ([("version: 1.0.0", "version: 0.0.0", "0.0.0")], "0.0.0 is not MAJOR.MINOR.PATCH"),
    "max_batch_bounded": ([("max_batch: 8", "max_batch: 257", "257")], "257"),
    "max_batch_inside_profile": ([("max_batch: 8", "max_batch: 16", "16")], "the batch size 16 is outside every profile"),
    "optimization_level_sufficient": (
        [("bronze", "gold", "gold"), ("optimization_level: 3", "optimization_level: 2", "2")],
        "tier gold",
    ),
    "owner_present": ([("name: tiny\n  owner: team", "name: tiny", "name")], "the engine has no owner"),
    "pools_bounded": ([("16MiB", "9GiB", "9")], "device_pool is 9 GiB, tier bronze allows 8 GiB"),
    "precision_needs_accuracy": (
        [
            ("\naccuracy:\n  samples: file:samples.npz\n  atol: 1e-5\n  rtol: 1e-4\n", "\n", "\n"),
            ("mode: fp32", "mode: fp16", "fp16"),
        ],
        "precision is fp16",
    ),
    "preferred_sizes_inside": ([("[4, 8]", "[4, 9]", "9")], "9"),
    "preflight_errors": ([("opt: [2, 4]", "opt: [2, 4, 1]", "[")], "opt of 'x': [2,4,1] has 3 dimensions"),
    "priorities_bounded": ([("bronze", "gold", "gold"), ("max_batch: 8", "max_batch: 8\n  priorities: 5", "5")], "5 priority"),
    "queue_bounded": ([("max_size: 512", "max_size: 8193", "8193")], "the queue takes 8193 requests, tier bronze allows 8192"),
    "slo_present": ([("bronze", "gold", "gold"), (CPU, GPU, "backend")], "tier gold needs a p99 for tensorrt-8.6-h200"),
    "tier_known": ([("bronze", "glod", "glod")], "tier glod has no limits; there are bronze, gold, silver"),
    "tolerances_bounded": ([("atol: 1e-5", "atol: 1e-1", "1e-1")], "atol is 0.1, for fp32 it may be 0.001 at most"),
    "workspace_bounded": ([("64MiB", "9GiB", "9GiB")], "workspace is 9 GiB, tier bronze allows 8 GiB"),
    "workspace_set": ([(CPU, GPU, "-"), ("  workspace: 64MiB\n", "", "")], "no workspace is set"),
}  # fmt: skip
RUNTIME_RULES = {
    "server_port_unprivileged": ("port: 8000", "port: 80", "80", "port 80 is not in 1025 to 65535"),
    "secrets_are_references": (
        "port: 8000",
        "port: 8000\ndatabase: {url: 'postgresql://db/x', password: hunter2}",
        "hunter2",
        "password holds a secret in plain text",
    ),
}
ELSEWHERE = {
    "interface_compatible",  # needs a release before: tests/acceptance/test_cli_contract.py
    "preflight_warnings",  # warns, and denies nothing: a test of its own below
    "model_pinned",  # a model without its digest ends in the schema or in the fetch, before this last line of defence
}


def test_every_rule_for_specs_has_a_case_here() -> None:
    rules = {path.parent.name for path in (CHECKOUT / "policies" / "spec").glob("*/rule.rego")}
    assert rules == {*SPEC_RULES, *RUNTIME_RULES, *ELSEWHERE}


@pytest.mark.parametrize("rule", SPEC_RULES)
def test_a_rule_for_specs(repo: Repository, rule: str) -> None:
    edits, words = SPEC_RULES[rule]
    for old, new, at in edits:
        place = repo.edit(old, new, at=at)
    done = repo.call("check", "tiny").says(1, words)
    (finding,) = [line for line in done.out.splitlines() if f"denied spec.{rule}:" in line]
    assert words in finding
    if rule != "workspace_set":  # what is not there has the place of what it belongs to
        assert finding.startswith(f"{place}: ")
    assert re.match(r"engines/tiny/engine\.yaml:\d+:\d+: denied", finding)
    assert done.err == ""


@pytest.mark.parametrize("rule", RUNTIME_RULES)
def test_a_rule_for_runtime_configs(repo: Repository, rule: str) -> None:
    old, new, at, words = RUNTIME_RULES[rule]
    place = repo.edit(old, new, at=at, file=repo.engine / "runtime.yaml")
    done = repo.call("check", "tiny").says(1, f"{place}: denied spec.{rule}: ", words)
    assert "hunter2" not in done.out + done.err


def test_a_model_without_a_digest(repo: Repository) -> None:
    digest = Digest.of_file(repo.engine / "model.onnx").value
    repo.edit(f"  sha256: {digest}\n", "")
    repo.call("check", "tiny").says(2, "the key `sha256` is missing in `model`", "add `sha256:`")


@pytest.mark.parametrize(
    ("rule", "source", "words"),
    [
        ("paths_inside", "file:../tiny/model.onnx", "leaves the folder of the engine"),
        ("schemes_allowed", "http://github.com/model.onnx", "scheme http is not allowed"),
        ("hosts_allowed", "https://example.org/model.onnx", "host example.org is not allowed"),
        ("packages_exact", "pypi://a-package/model.onnx", "is not named with one exact version"),
        ("no_credentials", "https://me:hunter2@github.com/model.onnx", "carries credentials"),
    ],
)
def test_a_source_is_judged_before_anything_is_fetched(repo: Repository, rule: str, source: str, words: str) -> None:
    place = repo.edit("file:model.onnx", f"'{source}'")
    for verb in ("check", "ship"):
        done = repo.call(verb, "tiny").says(1, f"{place}: denied source.{rule}: ", words)
        assert "hunter2" not in done.out + done.err
    assert repo.files() == []


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("      x:", "      z:", "z", "profile 'default' gives no shapes for the input 'x' [N,4]"),
        ("opt: [2, 4]", "opt: [2, 4, 1]", "[", "opt of 'x': [2,4,1] has 3 dimensions, the model's [N,4] has 2"),
        ("opt: [2, 4]", "opt: [2, 5]", "5", "opt of 'x': [2,5] has 5 in dimension 1, the model fixes it to 4"),
        ("min: [1, 4]", "min: [3, 4]", "3", "dimension 0 is 3 in min and 2 in opt"),
        ("max: [8, 4]", "max: [1, 4]", "opt", "dimension 0 is 2 in opt and 1 in max"),
    ],
)
def test_a_profile_that_the_model_cannot_take(repo: Repository, old: str, new: str, at: str, words: str) -> None:
    if at in {"z", "opt"}:  # an input that is missing is told at the inputs, a size above max where it stands
        repo.edit(old, new)
        place = "engines/tiny/engine.yaml:17:7" if at == "z" else "engines/tiny/engine.yaml:19:15"
    else:
        place = repo.edit(old, new, at=at)
    repo.call("check", "tiny").says(1, f"{place}: denied spec.preflight_errors", words)
    assert not (repo.home / "registry").exists()
    assert not (repo.home / "store" / "records").exists()


def test_a_warning_lets_an_engine_pass(repo: Repository) -> None:
    repo.edit("16MiB", "32B")
    repo.call("check", "tiny").says(0, "engines/tiny/engine.yaml:28:16: warning spec.preflight_warnings: ")


@pytest.mark.parametrize("verb", ["build", "bench", "ship"])
def test_a_denied_engine_goes_no_further(repo: Repository, verb: str) -> None:
    place = repo.edit("64MiB", "9GiB")
    repo.call(verb, "tiny").says(1, f"{place}: denied spec.workspace_bounded", "policies deny tiny")
    assert not (repo.home / "registry").exists()
    assert not (repo.home / "store" / "records").exists()


def _no_folder(repo: Repository) -> None:
    shutil.rmtree(repo.root / "policies")


def _empty(repo: Repository) -> None:
    shutil.rmtree(repo.root / "policies")
    (repo.root / "policies").mkdir()


def _no_rule_for_specs(repo: Repository) -> None:
    shutil.rmtree(repo.root / "policies" / "spec")


def _no_rule_for_sources(repo: Repository) -> None:
    shutil.rmtree(repo.root / "policies" / "source")


def _broken_rule(repo: Repository) -> None:
    path = repo.root / "policies" / "spec" / "owner_present" / "rule.rego"
    path.write_text(path.read_text() + "\nfindings contains {\n")


def _undefined_name(repo: Repository) -> None:
    path = repo.root / "policies" / "spec" / "owner_present" / "rule.rego"
    path.write_text(path.read_text() + "\nfindings contains finding if some finding in nowhere.found\n")


def _broken_data(repo: Repository) -> None:
    (repo.root / "policies" / "data" / "limits.yaml").write_text("tiers: [\n")


def _data_that_its_schema_refuses(repo: Repository) -> None:
    repo.edit(
        "    workspace_mib: 8192", "    workspace_mib: many", file=repo.root / "policies" / "data" / "limits.yaml"
    )


def _no_governance(repo: Repository) -> None:
    shutil.rmtree(repo.root / "governance")


def _wrong_governance(repo: Repository) -> None:
    (repo.root / "governance" / "enforcement.yaml").write_text("level: soft\n")


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (_no_folder, "there is no folder of policies"),
        (_empty, "no rule for the stage 'source'"),
        (_no_rule_for_specs, "no rule for the stage 'spec'"),
        (_no_rule_for_sources, "no rule for the stage 'source'"),
        (_broken_rule, "policies/spec/owner_present/rule.rego:"),
        (_undefined_name, "policies/spec/owner_present/rule.rego:"),
        (_broken_data, "policies/data/limits.yaml:2:1: error"),
        (_data_that_its_schema_refuses, "policies/data/limits.yaml"),
        (_no_governance, "governance/enforcement.yaml: error: nothing says how strictly the rules hold"),
        (_wrong_governance, "governance/enforcement.yaml:1:1: error"),
    ],
)
def test_policies_that_cannot_judge_are_no_pass(repo: Repository, breaks: object, words: str) -> None:
    assert callable(breaks)
    breaks(repo)
    done = repo.call("ship", "tiny").says(2, words)
    assert "allowed" not in done.out
    assert not (repo.home / "registry").exists()


@pytest.mark.parametrize("stage", ["evidence", "release"])
def test_a_later_stage_without_rules_releases_nothing(shipped: Repository, stage: str) -> None:
    shutil.rmtree(shipped.root / "policies" / stage)
    shipped.edit("owner: team", "owner: other")
    shipped.call("ship", "tiny").says(2, f"no rule for the stage '{stage}'")
    assert shipped.generations() == [1]


def test_an_environment_that_demands_opa_is_not_judged_without_it(repo: Repository) -> None:
    demands = "the environment 'prod' demands the engine opa"
    repo.call("check", "tiny", "--env", "prod", "--engine", "embedded").says(2, demands)
    nowhere = {"TRTOPS_ENGINE": "auto", "PATH": str(repo.root)}
    repo.call("check", "tiny", "--env", "prod", **nowhere).says(2, "'prod' demands it", "install OPA")
    done = repo.call("check", "tiny", "--opa-url", "http://127.0.0.1:9", "--engine", "opa").says(2)
    assert "cannot be asked" in done.err or "pip install 'trtops[opa]'" in done.err
