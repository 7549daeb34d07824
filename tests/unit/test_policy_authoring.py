"""Writing a rule and reading about one: ``policy new`` and ``policy explain``."""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.policies import ENFORCEMENT, METADATA, WORKSPACE, repository, write, write_rule
from trtops.errors import InputError, StorageError, Undecided
from trtops.policy.engines import find_opa
from trtops.policy.explain import explain
from trtops.policy.lint import lint
from trtops.policy.loader import load_policies
from trtops.policy.port import STAGES
from trtops.policy.scaffold import new_rule
from trtops.policy.testing import run_embedded, run_opa

ROOT = Path(__file__).parents[2]
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


def test_a_rule_written_by_the_book_takes_one_command_and_one_file(tmp_path: Path) -> None:
    """What `docs/concepts/writing-rules.md` says, done: the rule's file is all that is filled in."""
    book = (ROOT / "docs" / "concepts" / "writing-rules.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^trtops policy new (\S+) --title \"(.*)\"$", book, re.MULTILINE)
    for folder in ("policies", "governance"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    rule, _ = new_rule(tmp_path, command[0], since="0.1.0", title=command[1])
    assert "FILL IN" in rule.read_text(encoding="utf-8")
    (text,) = re.findall(r"^```rego\n(.*?)^```$", book, re.MULTILINE | re.DOTALL)
    rule.write_text(text, encoding="utf-8")
    policies = load_policies(tmp_path)
    name = command[0].replace("/", ".")
    assert policies.rule(name).metadata.title == command[1]
    assert lint(policies) == ()
    reports = [run_embedded(policies, only=[name])]
    opa = find_opa(os.environ)
    if opa is not None:
        reports.append(run_opa(policies, opa, only=[name]))
    for report in reports:
        assert report.passed, report
        assert [case.outcome for case in report.cases] == ["passed", "passed"]
        assert [entry.missed for entry in report.coverage if entry.rule == name] == [()]


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
