"""What is found in a syntax tree before anything is evaluated, and what is not a defect."""

from __future__ import annotations

import textwrap

import pytest

from trtops.errors import Undecided
from trtops.policy.port import PolicyFile
from trtops.policy.soundness import defects
from trtops.policy.syntax import MAX_NESTING, parse

DATA = {"limits": {"tiers": {"gold": {"max": 1}}, "list": [1]}}
LIBRARY = """\
package trtops.lib.facts

default ok(_) := false

ok(x) if x > 1

size(a, b) := a + b

table[key] := 1 if some key in ["a"]

first.second := 1
"""


def file(path: str, text: str) -> PolicyFile:
    return PolicyFile(path, path, text)


def found(body: str, *, data: dict[str, object] | None = None) -> list[tuple[str, int]]:
    rule = file("policies/spec/probe/rule.rego", "package trtops.spec.probe\n\n" + textwrap.dedent(body))
    modules = parse([file("policies/lib/facts/facts.rego", LIBRARY), rule])
    return [(defect.code, defect.location.line) for defect in defects(modules, DATA if data is None else data)]


GOOD = [
    "findings contains {} if false",
    "import rego.v1\n\nfindings contains {} if false",
    "findings contains {} if data.trtops.lib.facts.ok(1)",
    "import data.trtops.lib.facts\nfindings contains {} if facts.ok(1)",
    "import data.trtops.lib.facts as f\nfindings contains {} if f.size(1, 2) > 2",
    "import data.trtops.lib.facts.ok\nfindings contains {} if ok(3)",
    "import data.trtops.lib.facts\nfindings contains {} if facts.table.a == 1",
    "import data.trtops.lib.facts\nfindings contains {} if facts.first.second == 1",
    'findings contains {} if walk(input, [["a"], 1])',
    "findings contains {} if count(input.x, 3)",
    "findings contains {} if data.limits.tiers[input.tier].max > 1",
    "findings contains {} if data.limits.tiers.gold.max > 1",
    "findings contains {} if data.limits.list[0] > 1",
    "import data.limits\nfindings contains {} if limits.tiers.gold.max > 1",
    "default a := 1\na := 2 if input.x\nfindings contains {} if a > 1",
    "default f(_) := 1\nf(x) := 2 if x\nfindings contains {} if f(1) > 1",
    "a.b := 1\na.c := 2\nfindings contains {} if a.b > 1",
    "a[x] := 1 if some x in input.y\nfindings contains {} if a.b > 1",
    'findings contains {"count": count(input.x)} if input.count > 1',
]

BAD = [
    ("deny contains {} if true", [("no-decision", 1)]),
    ("findings := []", [("decision-shape", 3)]),
    ("default findings := set()\nfindings contains {} if false", [("decision-shape", 3), ("conflicting-rules", 4)]),
    ("findings[x] := 1 if some x in input.y", [("decision-shape", 3)]),
    ("findings(x) := 1 if x", [("decision-shape", 3)]),
    ("findings contains {} if nosuch(1)", [("unknown-function", 3)]),
    ("findings contains {} if facts.ok(1)", [("unknown-function", 3)]),
    ("findings contains {} if data.trtops.lib.facts.gone(1)", [("unknown-function", 3)]),
    ("findings contains {} if data.trtops.lib.gone.ok(1)", [("unknown-function", 3)]),
    ("import data.trtops.lib.facts\nfindings contains {} if facts.size(1)", [("arguments", 4)]),
    ("findings contains {} if count() > 1", [("arguments", 3)]),
    ("findings contains {} if every x in [1] {\n\tnosuch(x)\n}", [("unknown-function", 4)]),
    ('findings contains {"a": nosuch(1)} if true', [("unknown-function", 3)]),
    ("findings contains {} if count([y | y := nosuch(1)]) > 1", [("unknown-function", 3)]),
    ("findings contains {} if not nosuch(1)", [("unknown-function", 3)]),
    ("f(x) := nosuch(x)\nfindings contains {} if f(1)", [("unknown-function", 3)]),
    ("f(x) := 1 if x\n\nelse := nosuch(x)\nfindings contains {} if f(1)", [("unknown-function", 5)]),
    ('findings contains {} if semver.compare("1.0.0", "1.0.0") == 0', [("banned-builtin", 3)]),
    ("findings contains {} if http.send({}).x", [("banned-builtin", 3)]),
    ("findings contains {} if json.patch({}, []) == 1", [("unknown-function", 3)]),
    ("a := 1\na contains 1\nfindings contains {} if a", [("conflicting-rules", 4)]),
    ("f(x) := x\nf(x, y) := x + y\nfindings contains {} if f(1, 2)", [("conflicting-rules", 4)]),
    ("a := 1\na(x) := x\nfindings contains {} if a", [("conflicting-rules", 4)]),
    ("findings contains {} if data.limits.tires.gold.max > 1", [("missing-data", 3)]),
    ("findings contains {} if data.limits.tiers.silver.max > 1", [("missing-data", 3)]),
    ('findings contains {} if data["limit"].tiers', [("missing-data", 3)]),
    ("findings contains {} if data[input.x].tiers", [("missing-data", 3)]),
    ("findings contains {} if some x in data", [("missing-data", 3)]),
    ("import data.limit\nfindings contains {} if limit.tiers.gold.max > 1", [("missing-data", 3), ("missing-data", 4)]),
    ("import data.trtops.lib.facts\nfindings contains {} if facts.gone > 1", [("missing-data", 4)]),
    ("import data.trtops.lib.gone\nfindings contains {} if true", [("missing-data", 3)]),
    ("findings contains {} if data.trtops.release.other.findings", [("missing-data", 3)]),
]


@pytest.mark.parametrize("body", GOOD)
def test_what_is_sound(body: str) -> None:
    assert found(body) == []


@pytest.mark.parametrize(("body", "expected"), BAD)
def test_what_could_pass_by_accident(body: str, expected: list[tuple[str, int]]) -> None:
    assert sorted(found(body)) == sorted(expected)


def test_values_through_imports_are_written_out_too() -> None:
    text = "package trtops.spec.probe\nimport data.trtops.lib.facts\nx := {facts.a, facts.b[facts.c], input.facts.d}\n"
    (module,) = parse([file("policies/spec/probe/rule.rego", text)])
    full = "data.trtops.lib.facts"
    assert module.expanded() == text.replace("{facts.a, facts.b[facts.c]", f"{{{full}.a, {full}.b[{full}.c]")


def test_calls_through_imports_are_written_out_for_regorus() -> None:
    lines = [
        "package trtops.spec.probe",
        "import data.trtops.lib.facts",
        "import data.trtops.lib.facts.ok as fine",
        'findings contains {"é": facts.size(1, facts.size(2, 3))} if {',
        "\tfine(facts.table.a); facts := 1",
        "\tnot fine(2)",
        "}",
    ]
    text = "\n".join(lines)
    (module,) = parse([file("policies/spec/probe/rule.rego", text)])
    expected = text.replace("facts.size(", "data.trtops.lib.facts.size(").replace(
        "\tfine(", "\tdata.trtops.lib.facts.ok("
    )
    expected = expected.replace("not fine(", "not data.trtops.lib.facts.ok(")
    assert module.expanded() == expected


@pytest.mark.parametrize("opening", ["[", "{", "("])
def test_nesting_is_bounded_before_a_native_parser_sees_it(opening: str) -> None:
    text = "package trtops.spec.probe\n\nx := " + opening * 200_000
    with pytest.raises(Undecided, match=f"more than {MAX_NESTING} deep") as caught:
        parse([file("policies/spec/probe/rule.rego", text)])
    assert str(caught.value.where) == "policies/spec/probe/rule.rego:3"
