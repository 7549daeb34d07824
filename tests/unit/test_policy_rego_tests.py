"""Running Rego tests in the embedded engine: what passes, what fails, what was never reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.policies import OWNER, repository, write
from trtops.errors import Undecided
from trtops.policy.loader import load_policies
from trtops.policy.testing import Coverage, Report, run_embedded

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "package trtops.spec.owner_present_test\n\nimport data.trtops.spec.owner_present\n\n"
FOUND = 'test_found if count(owner_present.findings) == 1 with input as {"document": {}}\n'
PASSES = 'test_passes if count(owner_present.findings) == 0 with input as {"document": {"owner": "a"}}\n'


def run(root: Path, test: str, *, rule: str = OWNER, only: list[str] | None = None) -> Report:
    repository(root, {"owner_present": rule})
    write(root, {"policies/spec/owner_present/rule_test.rego": PACKAGE + test})
    return run_embedded(load_policies(root), only=only)


def outcomes(report: Report) -> list[tuple[str, str, int]]:
    return [(case.name, case.outcome, case.location.line) for case in report.cases]


def test_tests_that_pass_and_cover(tmp_path: Path) -> None:
    report = run(tmp_path, FOUND + "\n" + PASSES)
    assert outcomes(report) == [("test_found", "passed", 5), ("test_passes", "passed", 7)]
    assert report.passed
    assert [(entry.rule, entry.percent, entry.missed) for entry in report.coverage] == [
        ("spec.owner_present", 100.0, ())
    ]


def test_a_line_that_no_test_reaches(tmp_path: Path) -> None:
    report = run(tmp_path, PASSES)
    assert [case.outcome for case in report.cases] == ["passed"]
    assert not report.passed
    assert report.coverage[0].missed == (11, 13)
    assert 0 < report.coverage[0].percent < 100


@pytest.mark.parametrize(
    ("test", "outcome", "words"),
    [
        ("test_no if 1 == 2\n", "failed", "undefined"),
        ("test_no := false\n", "failed", "false"),
        ("test_no := 1\n", "failed", "1"),
        ('test_no if 1 / input.zero == 1 with input as {"zero": 0}\n', "error", "zero"),
        ("todo_test_no if true\n", "failed", "to be done"),
        ("tset_no if true\n", "error", "begins with test_"),
    ],
)
def test_tests_that_do_not_pass(tmp_path: Path, test: str, outcome: str, words: str) -> None:
    report = run(tmp_path, test)
    assert [case.outcome for case in report.cases] == [outcome]
    assert words in report.cases[0].message
    assert not report.passed


def test_one_bad_test_does_not_hide_the_others(tmp_path: Path) -> None:
    bad = 'test_raises if 1 / input.zero == 1 with input as {"zero": 0}\n\n'
    report = run(tmp_path, bad + FOUND + "\n" + PASSES)
    assert [case.outcome for case in report.cases] == ["error", "passed", "passed"]


def test_a_rule_with_no_test_fails(tmp_path: Path) -> None:
    report = run_embedded(load_policies(repository(tmp_path)))
    assert [case.outcome for case in report.cases] == ["error", "error"]
    assert not report.passed


def test_no_rule_is_no_success(tmp_path: Path) -> None:
    assert not run_embedded(load_policies(repository(tmp_path, {}))).passed


def test_one_rule_alone(tmp_path: Path) -> None:
    repository(tmp_path)
    report = run(tmp_path, FOUND, only=["spec.owner_present"])
    assert [case.rule for case in report.cases] == ["spec.owner_present"]
    with pytest.raises(Undecided, match=r"unknown rule 'spec\.gone'"):
        run(tmp_path, FOUND, only=["spec.gone"])


def test_tests_see_data_and_may_replace_it(tmp_path: Path) -> None:
    rule = 'findings contains {"message": "m", "path": []} if input.n > data.limits.workspace\n'
    tests = (
        'test_at if count(owner_present.findings) == 0 with input as {"n": 100}\n\n'
        'test_above if count(owner_present.findings) == 1 with input as {"n": 101}\n\n'
        'test_other if count(owner_present.findings) == 1 with input as {"n": 2} with data.limits.workspace as 1\n'
    )
    assert run(tmp_path, tests, rule=rule).passed


def test_lines_of_a_library_are_reached_by_any_test(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "policies/lib/names/names.rego": 'package trtops.lib.names\n\nbad(name) if name == ""\n\nworse := 1 if input.never\n'
        },
    )
    rule = 'import data.trtops.lib.names\n\nfindings contains {"message": "m", "path": []} if names.bad(input.n)\n'
    report = run(tmp_path, 'test_it if count(owner_present.findings) == 1 with input as {"n": ""}\n', rule=rule)
    library = report.coverage[0]
    assert library.rule == "lib.names"
    assert library.missed == (5,)
    more = 'package trtops.lib.names_test\n\nimport data.trtops.lib.names\n\ntest_worse if names.worse == 1 with input as {"never": 1}\n'
    write(tmp_path, {"policies/lib/names/names_test.rego": more})
    assert run_embedded(load_policies(tmp_path)).passed


def test_a_test_that_is_no_rego_is_undecided(tmp_path: Path) -> None:
    with pytest.raises(Undecided) as caught:
        run(tmp_path, "test_it {")
    assert str(caught.value.where).startswith(str(caught.value.where).partition(":")[0])
    assert "rule_test.rego:5" in str(caught.value.where)


def test_percent() -> None:
    assert Coverage("spec.x", "x", 4, (1,)).percent == 75.0
    assert Coverage("spec.x", "x", 0, ()).percent == 100.0
