"""The bundle and the authoring commands against a real OPA."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.policies import OWNER, document, opa_binary, repository, write, write_rule
from trtops.errors import Undecided
from trtops.policy.bundle import bundle
from trtops.policy.lint import strict_check
from trtops.policy.loader import load_policies
from trtops.policy.scaffold import new_rule
from trtops.policy.testing import run_embedded, run_opa

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service

TEST = """\
package trtops.spec.owner_present_test

import data.trtops.spec.owner_present

test_found if count(owner_present.findings) == 1 with input as {"document": {}}

test_passes if count(owner_present.findings) == 0 with input as {"document": {"owner": "a"}}
"""


def opa(*arguments: str, stdin: str = "") -> Any:
    done = subprocess.run([opa_binary(), *arguments], input=stdin, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_opa_judges_by_the_bundle(tmp_path: Path) -> None:
    packed = tmp_path / "bundle.tar.gz"
    packed.write_bytes(bundle(load_policies(repository(tmp_path / "r"))))
    answer = opa("eval", "-b", str(packed), "--stdin-input", "data.trtops.gate.spec", stdin=json.dumps(document()))
    found = answer["result"][0]["expressions"][0]["value"]
    assert found == {
        "spec.owner_present": [[{"message": "no owner", "path": ["owner"]}]],
        "spec.workspace_bounded": [[]],
    }


def test_opa_reads_our_revision_and_strict_check_is_clean(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path / "r"))
    packed = tmp_path / "bundle.tar.gz"
    packed.write_bytes(bundle(policies))
    shown = opa("inspect", "--format=json", str(packed))
    assert shown["manifest"]["revision"] == str(policies.digest)
    assert sorted(shown["manifest"]["roots"]) == ["limits", "trtops"]
    subprocess.run([opa_binary(), "check", "--strict", "-b", str(packed)], check=True, capture_output=True)


def test_equal_sets_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bundle(load_policies(repository(tmp_path / "a")))
    root = repository(tmp_path / "b", {})
    for name in ("workspace_bounded", "owner_present"):  # written in another order, at another time
        source = tmp_path / "a" / "policies" / "spec" / name / "rule.rego"
        write(root, {f"policies/spec/{name}/rule.rego": source.read_text()})
        os.utime(root / f"policies/spec/{name}/rule.rego", (0, 0))
    monkeypatch.setattr("time.time", lambda: 1.0)
    assert bundle(load_policies(root)) == one


def test_the_bundle_holds_what_judges_and_nothing_else(tmp_path: Path) -> None:
    root = repository(tmp_path)
    write(root, {"policies/spec/owner_present/rule_test.rego": TEST, "policies/README.md": "words"})
    with tarfile.open(fileobj=io.BytesIO(bundle(load_policies(root)))) as archive:
        names = archive.getnames()
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive} == {(0, 0, "")}
    assert sorted(name.lstrip("/") for name in names) == [
        ".manifest",
        "data.json",
        "policies/gate.rego",
        "policies/spec/owner_present/rule.rego",
        "policies/spec/workspace_bounded/rule.rego",
    ]


def test_another_limit_is_another_revision(tmp_path: Path) -> None:
    one = bundle(load_policies(repository(tmp_path)))
    write(tmp_path, {"policies/data/limits.yaml": "workspace: 101\n"})
    assert bundle(load_policies(tmp_path)) != one


def test_opa_runs_the_same_tests(tmp_path: Path) -> None:
    root = repository(tmp_path, {"owner_present": OWNER})
    write(root, {"policies/spec/owner_present/rule_test.rego": TEST})
    policies = load_policies(root)
    mine, theirs = run_embedded(policies), run_opa(policies, opa_binary())
    assert mine.passed
    assert theirs.passed
    assert [(case.name, case.outcome, case.location.line) for case in mine.cases] == [
        (case.name, case.outcome, case.location.line) for case in theirs.cases
    ]
    assert [entry.missed for entry in theirs.coverage] == [()]


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("test_no if 1 == 2\n", "not true"),
        ("todo_test_no if true\n", "to be done"),
        ("tset_no if true\n", "begins with test_"),
    ],
)
def test_opa_tests_that_do_not_pass(tmp_path: Path, test: str, words: str) -> None:
    root = repository(tmp_path, {"owner_present": OWNER})
    write(root, {"policies/spec/owner_present/rule_test.rego": "package trtops.spec.owner_present_test\n\n" + test})
    report = run_opa(load_policies(root), opa_binary())
    assert not report.passed
    assert words in report.cases[0].message


def test_opa_lines_that_no_test_reaches(tmp_path: Path) -> None:
    root = repository(tmp_path, {"owner_present": OWNER})
    half = "\n\n".join(TEST.split("\n\n")[:2]) + "\n\n" + TEST.split("\n\n")[3]
    write(root, {"policies/spec/owner_present/rule_test.rego": half})
    report = run_opa(load_policies(root), opa_binary())
    assert [case.outcome for case in report.cases] == ["passed"]
    assert report.coverage[0].missed
    assert not report.passed


def test_opa_tests_that_do_not_compile_name_their_line(tmp_path: Path) -> None:
    root = repository(tmp_path, {"owner_present": OWNER})
    broken = "package trtops.spec.owner_present_test\n\ntest_it if nosuch(1)\n"
    write(root, {"policies/spec/owner_present/rule_test.rego": broken})
    with pytest.raises(Undecided, match="nosuch") as caught:
        run_opa(load_policies(root), opa_binary())
    assert "rule_test.rego:3" in str(caught.value.where)


def test_strict_check_names_the_line(tmp_path: Path) -> None:
    root = repository(tmp_path)
    write_rule(
        root, 'import data.limits\n\nfindings contains {"message": "m", "path": []} if {\n\tx := 1\n\tinput.y\n}\n'
    )
    found = strict_check(load_policies(root), opa_binary())
    assert {(entry.code, entry.rule, entry.location.line) for entry in found} == {
        ("opa-strict", "spec.probe", 11),
        ("opa-strict", "spec.probe", 14),
    }
    assert strict_check(load_policies(repository(tmp_path / "clean")), opa_binary()) == ()


def test_a_new_rule_is_formatted_strict_and_passes_in_opa(tmp_path: Path) -> None:
    root = repository(tmp_path, {})
    written = new_rule(root, "evidence/no_surprises", since="0.1.0")
    for path in written:
        assert subprocess.run([opa_binary(), "fmt", "--diff", "--fail", path], check=False).returncode == 0
    policies = load_policies(root)
    assert strict_check(policies, opa_binary()) == ()
    assert run_opa(policies, opa_binary()).passed
