"""What lint tells a rule's author, and what it leaves alone."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.support.policies import METADATA, OWNER, rego, repository, write, write_rule
from trtops.policy.lint import lint
from trtops.policy.loader import load_policies

if TYPE_CHECKING:
    from pathlib import Path

F = 'findings contains {"message": "m", "path": []}'
TEST = "test_it if true\n"


def codes(root: Path, body: str, *, metadata: str = METADATA, stage: str = "spec") -> list[tuple[str, int]]:
    repository(root, {})
    write_rule(root, body, stage=stage, metadata=metadata)
    write(root, {f"policies/{stage}/probe/rule_test.rego": f"package trtops.{stage}.probe_test\n\n{TEST}"})
    return [(entry.code, entry.location.line) for entry in lint(load_policies(root)) if entry.code != "unused-data"]


GOOD = [
    f"{F} if input.engine",
    f"{F} if not input.engine",
    f"{F} if not input.document.owner",
    f"{F} if not input.document.memory.workspace == 3",
    f"{F} if {{\n\tname := input.document.owner\n\tnot name in {{1}}\n}}",
    f'{F} if not input.engine in {{"a"}}',
    f"{F} if not data.limits.workspace > 3",
    f"{F} if not count([x | some x in input.document.never]) > 3",
    f'{F} if not big(input.engine)\n\nbig(x) if x == "a"',
    f"{F} if not big(half(input.tier))\n\nbig(x) if x == 1\n\nhalf(x) := [x]",
    f'{F} if not big(half(input.tier))\n\nbig(x) if x == 1\n\ndefault half(_) := 1\n\nhalf(x) := 2 if x == "a"',
    f'{F} if not "a" in names\n\nnames contains x if some x in input.document.names',
    f"{F} if not big(size)\n\ndefault size := 1\n\nsize := 2 if input.document.x\n\nbig(x) if x == 1",
    f"{F} if not named\n\nnamed if input.document.name",
    f'{F} if {{\n\tis_string(input.document.x)\n\tstartswith(input.document.x, "a")\n}}',
    f'{F} if {{\n\tsome x in input.document.list\n\tnot startswith(x, "a")\n}}',
    f'{F} if a(input.document.x)\n\na(x) if startswith(x, "a")',
    f'{F} if sprintf("%s %v %d %% %.2f", [input.engine, 1, 2, 0.5]) == ""',
    f'{F} if regex.match("^[a-z0-9]+$", input.engine)',
    f"{F} if input.document.x * 3 / 2 > 1",
    f"{F} if some fact in input.facts.profiles",
]

BAD = [
    (f"{F} if not input.document.owner in {{1}}", [("undefined-under-not", 11)]),
    (f"{F} if not input.document.size > 3", [("undefined-under-not", 11)]),
    (f"{F} if not input.document.size != 3", [("undefined-under-not", 11)]),
    (f'{F} if not startswith(input.document.x, "a")', [("undefined-under-not", 11)]),
    (f"{F} if not input.document.x == input.document.y + 1", [("undefined-under-not", 11)]),
    (f"{F} if not [input.document.x] == [1]", [("undefined-under-not", 11)]),
    (f"{F} if not input.document[input.document.x]", [("undefined-under-not", 11)]),
    (f'{F} if not "a" in input.document.names', [("undefined-under-not", 11)]),
    (f"{F} if {{\n\tsome x in input.document.list\n\tnot x.name in {{1}}\n}}", [("undefined-under-not", 13)]),
    (f"{F} if {{\n\tevery x in [1] {{\n\t\tnot input.document.y > x\n\t}}\n}}", [("undefined-under-not", 13)]),
    (f"{F} if not big(half(1))\n\nbig(x) if x == 1\n\nhalf(x) := 2 if x == 2", [("undefined-under-not", 11)]),
    (f"{F} if not big(size)\n\nbig(x) if x == 1\n\nsize := 2 if input.document.x", [("undefined-under-not", 11)]),
    (f'{F} if startswith(input.document.x, "a")', [("unguarded-prefix", 11)]),
    (f'{F} if {{\n\tstartswith(input.document.x, "a")\n\tis_string(input.document.x)\n}}', [("unguarded-prefix", 12)]),
    (f'{F} if {{\n\tx := input.document.x\n\tendswith(x, "a")\n}}', [("unguarded-prefix", 13)]),
    (f'{F} if sprintf("%q", [1]) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf("%t", [true]) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf("%5d", [1]) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf("%v %v", [1]) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf("%v", [1, 2]) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf("100%", []) == ""', [("sprintf", 11)]),
    (f'{F} if sprintf(input.engine, []) == ""', [("sprintf", 11)]),
    (f"{F} if regex.match(`^\\d+$`, input.engine)", [("regex-class", 11)]),
    (f'{F} if regex.match("\\\\bsecret", input.engine)', [("regex-class", 11)]),
    (f"{F} if input.document.x * 1.1 > 1", [("fraction", 11)]),
    (f"{F} if named with input as {{}}\n\nnamed if input.engine", [("with", 11)]),
    (f"import future.keywords.if\n\n{F} if true", [("future-keywords", 11)]),
    (f"{F} if aB\n\naB := 1", [("name", 13)]),
    (f"{F} if input.enviroment", [("unknown-input", 11)]),
    (f"{F} if input.facts.nothing.x", [("unknown-input", 11)]),
    (f'{F} if {{\n\tsome p in input.facts.profiles\n\tp.nmae == "x"\n}}', [("unknown-input", 13)]),
    (f"{F} if nosuch(1)", [("unknown-function", 11)]),
    (f"{F} if time.now_ns() > 1", [("banned-builtin", 11)]),
    (f"{F} if opa.runtime().x", [("banned-builtin", 11)]),
    (f"{F} if rego.metadata.rule().x", [("banned-builtin", 11)]),
    (f'{F} if net.cidr_contains("10.0.0.0/8", "10.0.0.1")', [("banned-builtin", 11)]),
    (f'{F} if rand.intn("a", 2) == 1', [("banned-builtin", 11)]),
    (f"{F} if print(1)", [("banned-builtin", 11)]),
    (f'{F} if trace("a")', [("banned-builtin", 11)]),
    (f"{F} if data.limits.wrokspace > 1", [("missing-data", 11)]),
    (f"{F} {{ true }}", [("syntax", 11)]),
    ('findings contains {"message": $"{input.engine}", "path": []}', [("syntax", 11)]),
]


@pytest.mark.parametrize("body", GOOD)
def test_what_is_fine(tmp_path: Path, body: str) -> None:
    assert codes(tmp_path, body) == []


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_what_is_not(tmp_path: Path, body: str, expected: list[tuple[str, int]]) -> None:
    assert codes(tmp_path, body) == expected


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("title: Workspace is bounded", "title: Workspace is bounded.", "title"),
        ("title: Workspace is bounded", f"title: {'long ' * 20}", "title"),
        ('since: "0.1"', "since: yesterday", "since"),
    ],
)
def test_metadata(tmp_path: Path, old: str, new: str, code: str) -> None:
    assert [found for found, _ in codes(tmp_path, f"{F} if input.engine", metadata=METADATA.replace(old, new))] == [
        code
    ]


def test_a_rule_without_a_test_and_data_that_nobody_reads(tmp_path: Path) -> None:
    found = lint(load_policies(repository(tmp_path, {"owner_present": OWNER})))
    assert [(entry.code, entry.rule) for entry in found] == [
        ("unused-data", "data.limits"),
        ("no-test", "spec.owner_present"),
    ]


def test_every_file_is_looked_at_though_one_is_broken(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a": "findings[x] { x := 1 }", "b": f"{F} if nosuch(1)", "c": f"{F} if print(1)"})
    found = [entry.code for entry in lint(load_policies(root)) if entry.code not in ("no-test", "unused-data")]
    assert sorted(found) == ["banned-builtin", "syntax", "unknown-function"]


def test_a_library_is_held_against_every_stage(tmp_path: Path) -> None:
    root = repository(tmp_path, {})
    text = "package trtops.lib.tiers\n\nodd if not input.tier in {1}\n\nnamed(x) if not input.facts.y in {x}\n"
    write(root, {"policies/lib/tiers/tiers.rego": text})
    found = [(entry.code, entry.location.line) for entry in lint(load_policies(root)) if entry.code != "unused-data"]
    assert found == [("undefined-under-not", 5)]


def test_waivers_are_held_against_the_day(tmp_path: Path) -> None:
    root = repository(tmp_path)
    text = (
        "apiVersion: trtops/v1\nkind: Waiver\nrule: spec.owner_present\nselector: {engine: x}\nreason: r\nowner: a\n"
        "approver: b\ngranted: 2026-01-01\nexpires: 2026-01-02\n"
    )
    write(root, {"governance/waivers/a.yaml": text, "governance/waivers/b.yaml": "kind: Waiver\n"})
    policies = load_policies(root)
    found = [entry.code for entry in lint(policies, today=dt.date(2026, 1, 3)) if entry.code.startswith("waiver")]
    assert found == ["waiver-expired", "waiver-invalid"]
    assert not [entry for entry in lint(policies) if entry.code.startswith("waiver")]


def test_a_defect_renders_as_a_link(tmp_path: Path) -> None:
    root = repository(tmp_path, {"probe": f"{F} if nosuch(1)"})
    (defect,) = [entry for entry in lint(load_policies(root)) if entry.code == "unknown-function"]
    assert str(defect).endswith(
        "policies/spec/probe/rule.rego:11:51: spec.probe: unknown function `nosuch` [unknown-function]"
    )


def test_the_rule_file_of_the_helper_is_what_is_tested() -> None:
    assert rego("spec", "probe", "x").splitlines()[10] == "x"
