"""Writing a rule and reading about one: ``policy new`` and ``policy explain``."""

from __future__ import annotations

import datetime as dt
import errno
from typing import TYPE_CHECKING

import pytest

from tests.support.policies import ENFORCEMENT, METADATA, WORKSPACE, repository, write, write_rule
from trtops.errors import InputError, StorageError, Undecided
from trtops.policy.explain import explain
from trtops.policy.lint import lint
from trtops.policy.loader import load_policies
from trtops.policy.port import STAGES
from trtops.policy.scaffold import new_rule
from trtops.policy.testing import run_embedded

if TYPE_CHECKING:
    from pathlib import Path

TODAY = dt.date(2026, 1, 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_new_rule_passes_lint_and_tests(tmp_path: Path, stage: str) -> None:
    root = repository(tmp_path, {})
    written = new_rule(root, f"{stage}/no_surprises", since="0.1.0")
    assert [path.name for path in written] == ["rule.rego", "rule_test.rego"]
    policies = load_policies(root)
    assert policies.rule(f"{stage}.no_surprises").metadata.title == "No surprises"
    assert [entry for entry in lint(policies) if entry.code != "unused-data"] == []
    report = run_embedded(policies)
    assert report.passed
    assert len(report.cases) == 2


def test_a_new_rule_has_one_place_to_fill_in(tmp_path: Path) -> None:
    rule, _ = new_rule(repository(tmp_path, {}), "spec.small", since="0.1.0", title="Engines are small")
    assert rule.read_text().count("FILL IN") == 1
    assert load_policies(tmp_path).rule("spec.small").metadata.title == "Engines are small"


@pytest.mark.parametrize(
    "name", ["small", "specs/small", "spec/Small", "spec/sm-all", "spec/../x", "spec/", "/spec/x", ""]
)
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no name of a rule"):
        new_rule(tmp_path, name, since="0.1.0")
    assert list(tmp_path.iterdir()) == []


def test_a_rule_is_never_overwritten(tmp_path: Path) -> None:
    root = repository(tmp_path)
    before = (root / "policies/spec/owner_present/rule.rego").read_text()
    with pytest.raises(InputError, match="exists"):
        new_rule(root, "spec/owner_present", since="0.1.0")
    assert (root / "policies/spec/owner_present/rule.rego").read_text() == before


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path, {})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trtops.policy.scaffold.os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        new_rule(root, "spec/small", since="0.1.0")
    assert not list((root / "policies").glob("spec/*"))


def test_a_rule_in_words(tmp_path: Path) -> None:
    text = ENFORCEMENT + "rules: {spec.workspace_bounded: advisory}\n"
    root = repository(tmp_path, enforcement=text)
    write_rule(root, WORKSPACE, name="workspace_bounded", metadata=METADATA)
    waiver = (
        "apiVersion: trtops/v1\nkind: Waiver\nrule: spec.workspace_bounded\nselector: {engine: big}\n"
        "reason: pool comes\nowner: a\napprover: b\ngranted: 2025-12-01\nexpires: 2025-12-31\n"
    )
    write(root, {"governance/waivers/big.yaml": waiver})
    shown = explain(load_policies(root), "spec/workspace_bounded", today=TODAY)
    for words in (
        "spec.workspace_bounded: Workspace is bounded",
        "A builder with no bound takes the whole card.",
        "severity     deny (since 0.1)",
        "Set memory.workspace.",
        "rule.rego:11",
        "docs/rules/spec/workspace_bounded.md",
        "document.memory.workspace",
        "policies/data/limits.yaml",
        "prod         advisory  (from rules.spec.workspace_bounded)",
        "big: big at *, does not count: it expired on 2025-12-31",
        "pool comes (owner a, approved by b)",
    ):
        assert words in shown, shown
    assert explain(load_policies(root), "spec.workspace_bounded", today=TODAY) == shown


def test_a_rule_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Undecided, match=r"unknown rule 'spec\.owner'") as caught:
        explain(load_policies(repository(tmp_path)), "spec.owner", today=TODAY)
    assert "owner_present" in str(caught.value.fix)
