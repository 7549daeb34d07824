"""One suite over every engine: the embedded one, an OPA of our own, and an OPA that runs apart."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.opa_server import running_opa
from tests.support.policies import OWNER, WORKSPACE, document, opa_binary, rego, repository, write, write_rule
from trtops.errors import Location, Undecided
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.gate import Gate, Subject
from trtops.policy.loader import load_policies
from trtops.policy.opa import connect, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtops.policy.port import PolicyEngine, PolicySet
    from trtops.policy.verdict import Verdict

pytestmark = pytest.mark.service

ENGINES = ("embedded", "opa", "opa-url")


@pytest.fixture(scope="module")
def shared_server() -> Iterator[str]:
    with running_opa(opa_binary()) as url:
        yield url


@pytest.fixture(params=ENGINES)
def judge(request: pytest.FixtureRequest) -> Iterator[Callable[..., tuple[Verdict, ...]]]:
    """Load a repository, judge documents with one of the engines."""
    kind = request.param
    url = request.getfixturevalue("shared_server") if kind == "opa-url" else None
    binary = opa_binary() if kind == "opa" else None

    with ExitStack() as stack:

        def run(root: Path, *documents: dict[str, Any]) -> tuple[Verdict, ...]:
            policies = load_policies(root)
            engine: PolicyEngine
            if url is not None:
                engine = connect(policies, url)
            elif binary is not None:
                engine = start(policies, binary)
            else:
                engine = EmbeddedEngine(policies)
            stack.callback(engine.close)
            subjects = [Subject(f"e{number}", f"e{number}", entry, _here) for number, entry in enumerate(documents)]
            return Gate(policies, engine, "local", dt.date(2026, 1, 1)).judge_all("spec", subjects)

        yield run


def _here(path: tuple[str | int, ...], kind: str) -> Location:
    return Location(f"{kind}.yaml", 10 + len(path), 3)


def test_verdicts_name_rule_place_level_and_fix(tmp_path: Path, judge: Any) -> None:
    good, bad = judge(
        repository(tmp_path), document(owner="a", memory={"workspace": 100}), document(memory={"workspace": 101})
    )
    assert good.decision == "allow"
    assert good.rules == ("spec.owner_present", "spec.workspace_bounded")
    assert bad.decision == "deny"
    owner, workspace = bad.findings
    assert (owner.rule, owner.message, owner.path) == ("spec.owner_present", "no owner", ("owner",))
    assert workspace.message == "workspace is 101"
    assert str(workspace.location) == "engine.yaml:12:3"
    assert (workspace.severity, workspace.level) == ("deny", "soft")
    assert workspace.fix == "Set memory.workspace."
    assert workspace.docs == "docs/rules/spec/workspace_bounded.md"


def test_findings_are_ordered_and_single(tmp_path: Path, judge: Any) -> None:
    body = """\
    findings contains {"message": "late", "path": ["b"]}
    findings contains {"message": "index ten", "path": ["a", 10], "document": "runtime", "fix": "do it"}
    findings contains {"message": "index two", "path": ["a", 2]}
    findings contains {"message": "whole", "path": []}
    findings contains {"path": [], "message": "whole"}
    """
    (verdict,) = judge(repository(tmp_path, {"probe": body}), document())
    assert [finding.message for finding in verdict.findings] == ["whole", "index two", "index ten", "late"]
    assert str(verdict.findings[2].location) == "runtime.yaml:12:3"
    assert verdict.findings[2].fix == "do it"


def test_values_cross_unchanged(tmp_path: Path, judge: Any) -> None:
    body = """\
    findings contains {"message": "no boolean", "path": []} if not is_boolean(input.document.flag)
    findings contains {"message": "not false", "path": []} if input.document.flag != false
    findings contains {"message": "not null", "path": []} if input.document.nothing != null
    findings contains {"message": "not text", "path": []} if input.document.text != "é\\u0000\\"\\\\"
    findings contains {"message": "not large", "path": []} if input.document.large != 1125899906842624
    findings contains {"message": "not a fraction", "path": []} if input.document.fraction != 0.1
    findings contains {"message": sprintf("flag %v, number %d, %s", [input.document.flag, input.document.large, "text"]), "path": []}
    """
    values = {"flag": False, "nothing": None, "text": 'é\0"\\', "large": 1 << 50, "fraction": 0.1}
    (verdict,) = judge(repository(tmp_path, {"probe": body}), document(**values))
    assert [finding.message for finding in verdict.findings] == ["flag false, number 1125899906842624, text"]


def test_many_documents_are_judged_apart(tmp_path: Path, judge: Any) -> None:
    documents = [document(owner="a", memory={"workspace": size}) for size in range(30, 200)]
    verdicts = judge(repository(tmp_path), *documents)
    assert [verdict.decision for verdict in verdicts] == ["allow"] * 71 + ["deny"] * 99
    assert len({verdict.input for verdict in verdicts}) == len(documents)


def test_a_library_is_shared(tmp_path: Path, judge: Any) -> None:
    root = repository(
        tmp_path,
        {
            "probe": """\
    import data.trtops.lib.sizes
    findings contains {"message": "large", "path": ["n"]} if sizes.large(input.document.n)
    """
        },
    )
    write(
        root, {"policies/lib/sizes/sizes.rego": "package trtops.lib.sizes\n\nlarge(n) if n > data.limits.workspace\n"}
    )
    small, large = judge(root, document(n=100), document(n=101))
    assert (small.decision, large.decision) == ("allow", "deny")


# Each way to pass by accident: the rule, the document that would pass, and the line and words of the error.
FAIL_OPEN: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "undefined decision": ("findings := set() if input.document.never", {}, 11, "findings"),
    "no decision": ("finding contains 1 if input.document.never", {}, 1, "findings"),
    "built-in raises": (
        'findings contains {"message": "m", "path": []} if 1 / input.document.zero > 1', {"zero": 0}, 11, "zero",
    ),
    "operand of a wrong type": (
        'findings contains {"message": "m", "path": []} if input.document.text + 1 > 1', {"text": "a"}, 11, "",
    ),
    "count of a number": (
        'findings contains {"message": "m", "path": []} if count(input.document.n) > 1', {"n": 1}, 11, "count",
    ),
    "unknown built-in, not reached": (
        'findings contains {"message": "m", "path": []} if {\n\tinput.document.never\n\tnosuch(1)\n}', {}, 13, "nosuch",
    ),
    "function of a library that is not there": (
        'import data.trtops.lib.gone\n\nfindings contains {"message": "m", "path": []} if {\n\tinput.x\n\tgone.away(1)\n}',
        {}, 11, "gone",
    ),
    "banned built-in": (
        'findings contains {"message": "m", "path": []} if {\n\tinput.document.never\n\ttime.now_ns() > 1\n}',
        {}, 13, "time.now_ns",
    ),
    "syntax of Rego v0": ('findings[f] {\n\tf := {"message": "m", "path": []}\n}', {}, 11, "if"),
    "conflicting values": (
        'a := 1 if input.tier\n\na := 2 if input.tier\n\nfindings contains {"message": "m", "path": []} if a > 5',
        {}, 13, "a",
    ),
    "conflicting rules, not reached": (
        'findings contains {"message": "m", "path": []} if input.document.never\n\nfindings := 1 if input.document.never',
        {}, 13, "findings",
    ),
    "unsafe variable": ('findings contains {"message": "m", "path": [nothing]}', {}, 11, "nothing"),
    "data that is not there": (
        'findings contains {"message": "m", "path": []} if input.document.n > data.limits.wrokspace', {"n": 1}, 11,
        "data.limits.wrokspace",
    ),
    "data file that is not there": (
        'findings contains {"message": "m", "path": []} if input.document.n > data.limit.workspace', {"n": 1}, 11,
        "data.limit",
    ),
    "finding is text": ('findings contains "no"', {}, 11, "no object"),
    "finding without a message": ('findings contains {"path": []}', {}, 11, "no message"),
    "finding with an empty message": ('findings contains {"message": " ", "path": []}', {}, 11, "no message"),
    "finding without a path": ('findings contains {"message": "m"}', {}, 11, "no path"),
    "finding with a path of text": ('findings contains {"message": "m", "path": "a.b"}', {}, 11, "no path"),
    "finding with a fraction in its path": ('findings contains {"message": "m", "path": [1.5]}', {}, 11, "1.5"),
    "finding with a boolean in its path": ('findings contains {"message": "m", "path": [true]}', {}, 11, "True"),
    "finding with a negative index": ('findings contains {"message": "m", "path": [-1]}', {}, 11, "-1"),
    "finding of an unknown document": (
        'findings contains {"message": "m", "path": [], "document": "other"}', {}, 11, "other",
    ),
    "finding with an unknown key": (
        'findings contains {"message": "m", "path": [], "severity": "info"}', {}, 11, "severity",
    ),
    "finding with an empty fix": ('findings contains {"message": "m", "path": [], "fix": ""}', {}, 11, "fix"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAIL_OPEN)
def test_nothing_passes_by_accident(tmp_path: Path, judge: Any, case: str) -> None:
    body, values, line, words = FAIL_OPEN[case]
    root = repository(tmp_path)
    write_rule(root, body)
    with pytest.raises(Undecided) as caught:
        judge(root, document(owner="a", **values))
    error = caught.value
    assert isinstance(error.where, Location), error
    assert error.where.file.endswith("policies/spec/probe/rule.rego")
    assert error.where.line == line, error
    assert "spec.probe" in error.what
    assert words in error.what
    assert error.fix
    assert "backtrace" not in str(error)
    assert "\n" not in str(error)


def test_an_error_names_the_document_that_caused_it(tmp_path: Path, judge: Any) -> None:
    root = repository(tmp_path, {"probe": 'findings contains {"message": "m", "path": []} if 6 / input.document.n > 5'})
    good = [document(n=number) for number in range(1, 90)]
    with pytest.raises(Undecided, match=r"judging e89\)"):
        judge(root, *good, document(n=0), document(n=1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}])
def test_a_document_that_is_no_json_is_not_judged(tmp_path: Path, judge: Any, value: Any) -> None:
    with pytest.raises(Undecided, match="is not JSON"):
        judge(repository(tmp_path), document(owner="a", n=value))


def test_a_stage_with_no_rule_is_undecided(tmp_path: Path, judge: Any) -> None:
    root = repository(tmp_path, {})
    write_rule(root, OWNER, stage="release")
    with pytest.raises(Undecided, match="no rule for the stage 'spec'"):
        judge(root, document(owner="a"))


def test_every_engine_gives_the_same_verdict(tmp_path: Path, shared_server: str) -> None:
    policies = load_policies(repository(tmp_path))
    documents = [
        document(),
        document(owner=""),
        document(owner=False, memory=None),
        document(owner="a", memory={"workspace": "much"}),
        document(owner="a", memory={"workspace": 1e3}),
        document(owner="a", memory=[{"workspace": 101}]),
    ]
    subjects = [Subject("e", "e", entry) for entry in documents]
    seen = []
    for engine in _all(policies, shared_server):
        with closing(engine):
            verdicts = Gate(policies, engine, "local", dt.date(2026, 1, 1)).judge_all("spec", subjects)
        seen.append([verdict.model_dump(exclude={"engine"}) for verdict in verdicts])
    assert seen[0] == seen[1] == seen[2]


def _all(policies: PolicySet, url: str) -> Iterator[PolicyEngine]:
    yield EmbeddedEngine(policies)
    yield start(policies, opa_binary())
    yield connect(policies, url)


COMPARISONS = """\
findings contains {"message": "greater", "path": ["x"]} if input.document.x > input.document.y
findings contains {"message": "equal", "path": ["x"]} if input.document.x == input.document.y
findings contains {"message": "member", "path": ["x"]} if input.document.x in [1, "a", null, false, [], {}]
findings contains {"message": "absent", "path": ["x"]} if not input.document.x
findings contains {"message": "typed", "path": [type_name(input.document.x)]} if true
findings contains {"message": "inner", "path": [key]} if some key, _ in object.get(input.document, "z", {})
findings contains {"message": "deep", "path": ["z"]} if object.get(input.document, ["z", "a"], 1) == 1
findings contains {"message": text, "path": []} if {
	is_string(input.document.x)
	text := sprintf("text %s, %v", [input.document.x, [input.document.x, null, true, 1]])
}
"""
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False, width=32)
TEXT = st.text('aé"\\😀 Zß\n', max_size=4)  # documents hold no control character; engines escape them differently
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.sampled_from(["a", "", 0, 1, -1, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"x": VALUES, "y": VALUES, "z": st.dictionaries(TEXT, VALUES, max_size=3)}
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gate, Gate]]:
    policies = load_policies(repository(tmp_path_factory.mktemp("pair"), {"compare": COMPARISONS}))
    with closing(start(policies, opa_binary())) as opa:
        day = dt.date(2026, 1, 1)
        yield Gate(policies, EmbeddedEngine(policies), "local", day), Gate(policies, opa, "local", day)


@settings(max_examples=25, phases=[Phase.generate])  # a request a step makes shrinking slow
@given(st.lists(DOCUMENTS, min_size=1, max_size=20))
def test_any_document_is_judged_alike(pair: tuple[Gate, Gate], documents: list[dict[str, Any]]) -> None:
    subjects = [Subject("e", "e", document(**values)) for values in documents]
    one, other = (gate.judge_all("spec", subjects) for gate in pair)
    assert [verdict.findings for verdict in one] == [verdict.findings for verdict in other]


def test_the_workspace_rule_reads_as_it_is_written() -> None:
    assert "data.limits.workspace" in rego("spec", "x", WORKSPACE)
