"""Whole checks in every format: verdicts, what could not be decided, what was looked at, what policies would do."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from tests.support import records
from trtops.document import invalid
from trtops.errors import Denied, FetchFailed, InputError, Location, Problem, Undecided
from trtops.report import markdown, text
from trtops.report.bounded import Section, joined
from trtops.report.checks import COMMAND, Change, CheckReport, Effect, Failure, Gone, Proposal, shortened
from trtops.workflow.outputs import Format, render

FORMATS = get_args(Format)
HOSTILE = "a\x1b[31m<b>&\"'\u202e]]> %0A::error::x\r\n::add-mask::y\n##[error]z,:|`@team\uffff\udcff"
SCHEMA = json.loads((Path(__file__).parents[1] / "golden" / "sarif" / "sarif-schema-2.1.0.json").read_text("utf-8"))
WRONG = InputError(
    "wrong",
    where="engines/b/engine.yaml",
    problems=[
        Problem("spec.unknown-key", "unknown key `memry`", Location("engines/b/engine.yaml", 9, 1), "write memory"),
        Problem("spec.missing", "the key `model` is missing", Location("engines/b/engine.yaml", 1, 1)),
    ],
)
AWAY = FetchFailed("the index is away", where=Location("engines/c/engine.yaml", 7, 3), fix="try again")
BROKEN = Undecided(
    "rego_parse_error: var cannot be used", where=Location("policies/spec/x/rule.rego", 3, 1), fix="mend"
)


def report(**changes: Any) -> CheckReport:
    values: dict[str, Any] = {
        "verdicts": (
            records.verdict(records.denial(), records.warning(waived_by="w-1")),
            records.verdict(subject="quiet"),
        ),
        "failures": (Failure("b", WRONG), Failure("c", AWAY)),
        "change": Change(
            "origin/main",
            "ab" * 20,
            {"b": ("engines/b/engine.yaml changed",), "c": ("policies/data/limits.yaml changed",)},
            (Gone("old", None, ("not released in prod",)), Gone("was", "is", ())),
            ("policies/release/signer_allowed/rule.rego",),
        ),
        "proposal": Proposal(
            records.digest("before"),
            records.digest("after"),
            ("rule spec.gone taken away",),
            2,
            (
                Effect("quiet", "spec", None, records.denial()),
                Effect("ppocr-cls", "spec", records.denial(), records.denial(waived_by="w-2")),
                Effect("ppocr-cls", "spec", records.warning(), None),
            ),
        ),
    }
    return CheckReport(**{**values, **changes})


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_tells_everything(form: Format) -> None:
    written = render(report(), form).replace("&#95;", "_").replace("&#x27;", "'").replace("&#96;", "`")
    for words in (
        "memory.workspace is not set",  # denied
        "metadata.owner is empty",  # waived
        "w-1",
        "unknown key `memry`",  # every problem of what could not be decided
        "the key `model` is missing",
        "the index is away",
        "origin/main",  # what was looked at
        "not released in prod",
        "signer_allowed",
        "rule spec.gone taken away",  # what the change to the policies does
        "spec.workspace_bounded would deny",
        "would be waived by w-2, not deny",
        "would no longer warn",
    ):
        assert words in written, words


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_before_anything_was_judged_is_in_every_format(form: Format) -> None:
    broken = CheckReport(
        failures=(Failure(COMMAND, Undecided("git knows no revision 'x'", where="here", fix="fetch")),)
    )
    written = render(broken, form)
    assert "git knows no revision" in written.replace("&#x27;", "'")
    assert "fetch" in written
    assert broken.exit_code == 2


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_to_judge_is_said_in_every_format(form: Format) -> None:
    nothing = CheckReport(change=Change("main", "0" * 40))
    assert nothing.exit_code == 0
    assert "no engine is touched, nothing had to be judged" in render(nothing, form) or form == "json"
    if form == "json":
        assert json.loads(render(nothing, form))["change"]["engines"] == {}


def hostile() -> CheckReport:
    finding = records.denial(message=HOSTILE, fix=HOSTILE, rule=HOSTILE, docs=HOSTILE, waived_by=HOSTILE)
    place = Location(HOSTILE, 1, 2)
    error = InputError(HOSTILE, where=HOSTILE, fix=HOSTILE, problems=[Problem(HOSTILE, HOSTILE, place, HOSTILE)])
    return CheckReport(
        (records.verdict(finding, subject=HOSTILE),),
        (Failure(HOSTILE, error), Failure(HOSTILE, Undecided(HOSTILE, where=place, fix=HOSTILE))),
        Change(HOSTILE, HOSTILE, {HOSTILE: (HOSTILE,)}, (Gone(HOSTILE, HOSTILE, (HOSTILE,)),), (HOSTILE,)),
        Proposal(
            records.digest("a"),
            None,
            (HOSTILE,),
            1,
            (Effect(HOSTILE, "spec", None, finding),),
            (Failure(HOSTILE, Undecided(HOSTILE)),),
        ),
    )


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_from_a_file_breaks_a_format(form: Format) -> None:
    written = render(hostile(), form)
    written.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", written)


def test_github_gets_one_command_a_line_and_no_other() -> None:
    lines = render(hostile(), "github").splitlines()
    assert lines
    for line in lines:
        assert re.match(r"::(error|warning|notice) [a-z]+=", line), line
        properties = line[2:].partition("::")[0].partition(" ")[2]
        assert all(re.fullmatch(r"(file|line|col|title)=[^:,]*", part) for part in properties.split(",")), line


def test_junit_of_hostile_text_is_well_formed_and_counts_right() -> None:
    root = ET.fromstring(render(hostile(), "junit").encode())  # noqa: S314 - written here
    assert int(root.get("errors", "")) == len(root.findall(".//error")) == 3
    for suite in root.findall("testsuite"):
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))


def test_markdown_of_hostile_text_mentions_nobody_and_holds_no_html() -> None:
    written = render(hostile(), "markdown")
    assert "<b>" not in written
    assert "@team" not in written


def test_a_summary_that_github_would_not_take_keeps_what_denies_and_counts_the_rest() -> None:
    """Over 1 MiB GitHub shows nothing at all."""
    value = report()
    denied = next(one for one in value.verdicts if one.decision == "deny")
    warned = denied.model_copy(
        update={
            "findings": tuple(one.model_copy(update={"severity": "warn", "level": "soft"}) for one in denied.findings)
        }
    )
    assert warned.decision == "warn"
    many = tuple(
        (denied if number % 50 == 0 else warned).model_copy(update={"subject": f"engine-{number}"})
        for number in range(3000)
    )
    whole = CheckReport(verdicts=many)
    written = markdown.check(whole)
    assert 900_000 < len(written.encode()) <= 1_000_000
    assert "".join((f"### engine-{number}: ❌" in written and ".") or "" for number in range(0, 3000, 50)) == "." * 60
    head, last = written.splitlines()[0], written.splitlines()[-1]
    assert head.startswith("## ❌ denied")
    shown = written.count("\n### ")
    assert re.fullmatch(r"✂️ \*\*Left out\*\*: .*\d+ sections?, for GitHub shows 1 MiB.*", last)
    assert f"and {3001 - shown} section" in last or f": {3001 - shown} section" in last
    assert "Left out" not in markdown.check(value)


@pytest.mark.parametrize("limit", [500, 700, 1200, 5000])
def test_a_cut_report_is_never_larger_than_its_limit_nor_cut_within_a_character(limit: int) -> None:
    sections = [Section("## head"), Section("\n".join("é" * 30 for _ in range(40)), 1), Section("x" * 100, 2)]
    written = joined(sections, limit)
    assert len(written.encode()) <= limit
    assert written.startswith("## head\n")
    assert set(written.split("\n\n✂")[0]) <= set("#heads éx\n")
    if limit == 5000:
        assert written.endswith(f"{'x' * 100}\n")


def test_one_problem_is_said_once_and_several_are_summed_up() -> None:
    problem = Problem("spec.type", "`a` is 'b'", Location("engine.yaml", 3, 1), "write a number")
    other = Problem("spec.type", "`c` is 'd'", Location("engine.yaml", 4, 1), "write a number")
    assert text.error(invalid("engine.yaml", [problem])).count("`a` is 'b'") == 1
    both = text.error(invalid("engine.yaml", [problem, other]))
    assert "2 problems, the first: `a` is 'b'" in both
    assert both.count("`c` is 'd'") == 1


@pytest.mark.parametrize("value", [report(), hostile(), CheckReport(), CheckReport(failures=(Failure("b", WRONG),))])
def test_sarif_meets_its_schema(value: CheckReport) -> None:
    document = json.loads(render(value, "sarif"))
    jsonschema.Draft4Validator(SCHEMA).validate(document)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [result["ruleId"] for result in run["results"]]
    assert run["invocations"][0]["executionSuccessful"] is (not value.undecided)


def test_sarif_keeps_what_only_informs_out_of_the_alerts() -> None:
    (run,) = json.loads(render(report(), "sarif"))["runs"]
    rules = [result["ruleId"] for result in run["results"]]
    assert rules == [
        "spec.workspace_bounded",
        "spec.owner_present",
        "spec.unknown-key",
        "spec.missing",
        "trtops.fetch-failed",
    ]
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert any("would deny" in note for note in notes)


def test_sarif_links_a_rule_only_where_there_is_a_link() -> None:
    value = records.verdict(records.denial(), records.warning(docs="docs/rules/spec/owner_present.md"))
    (run,) = json.loads(render(CheckReport((value,)), "sarif"))["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert rules["spec.workspace_bounded"]["helpUri"] == "https://example.org/rules/workspace_bounded"
    assert rules["spec.owner_present"] == {
        "id": "spec.owner_present",
        "help": {"text": "docs/rules/spec/owner_present.md"},
    }


def test_fingerprints_of_a_check_are_those_of_its_parts_and_unique() -> None:
    (run,) = json.loads(render(report(), "sarif"))["runs"]
    prints = [result["partialFingerprints"]["trtopsFinding/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    assert render(report(), "sarif") == render(report(), "sarif")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"failures": ()}, 1),
        ({}, 2),
        ({"failures": (), "verdicts": (records.verdict(records.warning()),)}, 0),
        ({"failures": (), "verdicts": ()}, 0),  # what the change to policies would do counts nothing
        ({"failures": (Failure("a", Denied("no")),), "verdicts": ()}, 1),
        (
            {
                "failures": (),
                "verdicts": (),
                "proposal": Proposal(records.digest("a"), None, failures=(Failure("x", BROKEN),)),
            },
            2,
        ),
    ],
)
def test_exit_codes(changes: dict[str, Any], code: int) -> None:
    assert report(**changes).exit_code == code


def test_a_reason_that_holds_up_many_is_told_once() -> None:
    names = [f"e{number}" for number in range(30)]
    value = CheckReport(failures=tuple(Failure(name, Undecided("OPA is away", where="opa")) for name in names))
    told = text.check_errors(value)
    assert told.count("OPA is away") == 1
    assert "e0, e1, e2, e3, e4, e5, e6, e7, e8, e9 and 20 more" in told
    assert render(value, "github").count("::error") == 1
    root = ET.fromstring(render(value, "junit"))  # noqa: S314 - written here
    assert root.get("errors") == "30"  # a machine is told of each
    assert len(json.loads(render(value, "json"))["errors"]) == 30


def test_a_plain_check_says_no_more_than_its_verdicts() -> None:
    value = CheckReport((records.verdict(),))
    assert render(value, "text") == text.verdict(records.verdict())


def test_many_engines_with_one_reason_are_one_line() -> None:
    change = Change("main", "0" * 40, {f"e{number}": ("policies/data/limits.yaml changed",) for number in range(500)})
    scope = [*CheckReport(change=change).scope()]
    assert scope == [
        "changed since main (from commit 000000000000): 500 engines to judge",
        "e0, e1, e2, e3, e4, e5, e6, e7, e8, e9 and 490 more: policies/data/limits.yaml changed",
    ]
    assert shortened(["a"]) == "a"
