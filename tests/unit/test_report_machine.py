"""Reports that programs read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from tests.support import records
from trtops.bench.results import Interval
from trtops.errors import BuildFailed, InputError, Location, Problem, Undecided
from trtops.report import github, html, jsonout, junit, sarif
from trtops.report.plots import Axes, Mark, Series, plot
from trtops.report.rows import StageRow

HOSTILE = "a\x1b[31m<b>&\"'\u202e %0A::error::x\r\n,:|\uffff"
WRONG = InputError(
    "wrong",
    where=Location("engines/a b/engine.yaml", 1, 1),
    problems=[
        Problem("a.b", "one", Location("engines/a b/engine.yaml", 4, 3), "keep one"),
        Problem("a.b", "two", Location("f", 0, 0)),
    ],
)

# The parts of the SARIF 2.1.0 schema that code scanning needs.
_LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "additionalProperties": False,
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "pattern": "^[A-Za-z0-9._~/%:-]+$"}},
                },
                "region": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["startLine"],
                    "properties": {name: {"type": "integer", "minimum": 1} for name in ("startLine", "startColumn")},
                },
            },
        }
    },
}
_RESULT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"],
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
        "locations": {"type": "array", "items": _LOCATION},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "properties": {"type": "object"},
        "suppressions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["kind"],
                "properties": {
                    "kind": {"enum": ["inSource", "external"]},
                    "status": {"enum": ["accepted", "underReview", "rejected"]},
                },
            },
        },
    },
}


def parse(written: str) -> ET.Element:
    return ET.fromstring(written)  # noqa: S314 - our own output


def run_of(report: str) -> Any:
    log = json.loads(report)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    jsonschema.validate(run["results"], {"type": "array", "items": _RESULT})
    driver = run["tool"]["driver"]
    assert driver["name"] == "trtops"
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def prints(report: str) -> list[str]:
    return [result["partialFingerprints"]["trtopsFinding/v1"] for result in run_of(report)["results"]]


def test_sarif_levels_follow_what_a_finding_means() -> None:
    value = records.verdict(
        records.denial(), records.denial(level="advisory"), records.warning(), records.warning(severity="info")
    )
    levels = [result["level"] for result in run_of(sarif.verdicts([value]))["results"]]
    assert levels == ["error", "warning", "warning", "note"]


def test_sarif_lists_rules_that_found_nothing() -> None:
    rules = run_of(sarif.verdicts([records.verdict()]))["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(records.verdict().rules)


def test_sarif_shows_waived_findings_as_suppressed() -> None:
    (result,) = run_of(sarif.verdicts([records.verdict(records.denial(waived_by="w-1"))]))["results"]
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": "waived by w-1"}]


def test_fingerprints_survive_moves_and_rewording_and_tell_places_apart() -> None:
    def of(*findings: Any) -> list[str]:
        return prints(sarif.verdicts([records.verdict(*findings)]))

    place = records.denial().location
    assert place is not None
    moved = records.denial(message="other words", location=place.model_copy(update={"line": 99}))
    assert of(records.denial()) == of(moved)
    assert of(records.denial()) != of(records.denial(path=("memory", "dla")))
    assert of(records.denial()) != of(records.denial(location=place.model_copy(update={"file": "other.yaml"})))
    twice = of(records.denial(), records.denial())
    assert len(set(twice)) == 2
    assert prints(sarif.error(WRONG))[0] != prints(sarif.error(WRONG))[1]


def test_sarif_of_errors_says_that_the_run_failed() -> None:
    run = run_of(sarif.error(WRONG))
    assert run["invocations"] == [{"executionSuccessful": False}]
    first, second = run["results"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "engines/a%20b/engine.yaml"},
        "region": {"startLine": 4, "startColumn": 3},
    }
    assert "region" not in second["locations"][0]["physicalLocation"]
    (lone,) = run_of(sarif.error(Undecided("no rule was evaluated", where="policies")))["results"]
    assert lone["ruleId"] == "trtops.undecided"
    assert run_of(sarif.error(BuildFailed("x")))["results"][0]["ruleId"] == "trtops.build-failed"


@pytest.mark.parametrize(
    ("file", "uri"),
    [("./a/b.yaml", "a/b.yaml"), ("/a b", "file:///a%20b"), ("c:d.yaml", "c%3Ad.yaml"), ("ä\udcff", "%C3%A4%FF")],
)
def test_sarif_paths_are_uri_references(file: str, uri: str) -> None:
    error = InputError("x", problems=[Problem("a.b", "m", Location(file, 1, 1))])
    place = run_of(sarif.error(error))["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri


def test_json_carries_decisions_and_digests() -> None:
    body = json.loads(jsonout.verdicts([records.verdict(records.denial(), records.warning())]))
    assert (body["apiVersion"], body["kind"]) == ("trtops/v1", "Verdicts")
    (verdict,) = body["verdicts"]
    assert verdict["decision"] == "deny"
    assert [finding["blocking"] for finding in verdict["findings"]] == [True, False]
    evidence = records.evidence()
    (record,) = json.loads(jsonout.evidence([evidence]))["evidence"]
    assert record.pop("digest") == str(evidence.digest())
    assert type(evidence).model_validate(record) == evidence
    assert json.loads(jsonout.benchmark(records.benchmark()))["rows"][2]["batch"] == 32
    listed = json.loads(jsonout.bindings(records.bindings()))["bindings"]
    assert [binding["generation"] for binding in listed] == [1, 2]
    first, second = records.bindings()
    told = json.loads(jsonout.history([second, first], {second.digest(): "stolen"}))
    assert [binding["generation"] for binding in told["bindings"]] == [2, 1]
    assert told["revoked"] == [{"digest": str(second.digest()), "generation": 2, "reason": "stolen"}]


def test_json_of_numbers_that_are_not_finite_is_still_json() -> None:
    report = records.accuracy(passed=False).model_copy(update={"max_abs": float("inf"), "max_rel": float("nan")})
    body = json.loads(jsonout.accuracy(report), parse_constant=pytest.fail)
    assert (body["max_abs"], body["max_rel"]) == ("Infinity", "NaN")


def test_json_errors_name_class_and_exit_code() -> None:
    body = json.loads(jsonout.error(WRONG))
    assert (body["error"], body["exit_code"], len(body["problems"])) == ("InputError", 2, 2)
    assert body["where"] == {"file": "engines/a b/engine.yaml", "line": 1, "column": 1}
    assert json.loads(jsonout.error(BuildFailed("x", where="y", log="l")))["log"] == "l"


def test_every_json_report_is_ascii() -> None:
    value = records.verdict(records.denial(message=HOSTILE))
    for report in (jsonout.verdicts([value]), sarif.verdicts([value]), jsonout.error(BuildFailed(HOSTILE))):
        assert report.isascii()
        assert "\x1b" not in report
        json.loads(report)


def test_junit_counts_failures_skips_and_errors() -> None:
    value = records.verdict(records.denial(), records.denial(rule="spec.owner_present", waived_by="w-1"))
    root = parse(junit.verdicts([value]))
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {
        "spec.max_batch_in_profile": [],
        "spec.owner_present": ["skipped"],
        "spec.workspace_bounded": ["failure"],
    }
    assert parse(junit.error(WRONG, name="check")).get("errors") == "1"


def test_junit_takes_any_text() -> None:
    value = records.verdict(
        records.denial(message=HOSTILE, rule=HOSTILE), records.warning(message=HOSTILE), subject=HOSTILE
    )
    root = parse(junit.verdicts([value]))
    assert any("a\\x1b[31m<b>&\"'" in (node.get("message") or "") for node in root.iter("failure"))
    parse(junit.stages([StageRow(HOSTILE, HOSTILE, outcome="failed")], name=HOSTILE))
    parse(junit.error(BuildFailed(HOSTILE), name=HOSTILE))


def test_annotations_cannot_be_forged() -> None:
    finding = records.denial(message=HOSTILE, rule=HOSTILE, fix="x\n::error::forged")
    place = records.denial().location
    assert place is not None
    finding = finding.model_copy(update={"location": place.model_copy(update={"file": "a,b:c\n::error::.yaml"})})
    report = github.verdicts([records.verdict(finding)])
    assert report.count("\n") == 1
    assert report.startswith("::error file=a%2Cb%3Ac\\n%3A%3Aerror%3A%3A.yaml,line=12,col=3,title=")
    assert "%250A" in report
    assert "\x1b" not in report
    assert github.error(WRONG).count("::error ") == 2
    assert github.error(Undecided("no rule", where="policies/spec", fix="add one")) == (
        "::error title=Undecided::policies/spec: no rule%0AFix: add one\n"
    )


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    hostile = records.evidence().model_copy(update={"unverified": HOSTILE, "trtops": "<script>alert(1)</script>"})
    value = records.verdict(records.denial(message="<script>x</script>", docs="javascript:x"), subject=HOSTILE)
    written = html.page([records.evidence(), hostile], release=records.digest("r"), verdicts=[value])
    page = _Page()
    page.feed(written)
    assert page.open == []
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "a", "form", "base"})
    assert not [pair for pair in page.attributes if pair[0] in {"src", "href", "style"} or pair[0].startswith("on")]
    assert "url(" not in written
    assert "@import" not in written
    assert "\x1b" not in written
    assert "default-src 'none'" in written
    assert written.count("<svg") == 4


def test_the_page_names_what_was_not_verified() -> None:
    bare = records.evidence().model_copy(update={"accuracy": None, "benchmark": None, "unverified": "needs a GPU"})
    written = html.page([bare])
    assert "needs a GPU" in written
    assert "<svg" not in written
    assert "not released" in written


def axes(*, log_y: bool = False) -> Axes:
    return Axes("t", "x", "y", lambda value: f"{value:g}", log_y=log_y)


def svg(series: list[Series], *, log_y: bool = False) -> ET.Element:
    return parse(plot(axes(log_y=log_y), series))


@pytest.mark.parametrize("log_y", [False, True])
def test_plots_place_larger_values_higher_and_further(log_y: bool) -> None:
    marks = tuple(Mark(x, 10.0 * x, 9.0 * x, 12.0 * x) for x in (1, 8, 32))
    root = svg([Series("a", marks)], log_y=log_y)
    (line,) = root.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert len({point[1] for point in points}) == 3
    assert all(0 < x < 520 and 0 < y < 300 for x, y in points)
    assert [title.text for title in root.iter("title")][1] == "a, x 8: 80, 95 % interval 72 to 96"
    ticks = [float(node.text or "") for node in root.iter("text") if node.get("class") == "tick end"]
    assert 3 <= len(ticks) <= 10
    assert ticks == sorted(ticks)
    assert (ticks[0] == 0) is not log_y


def test_plots_bear_one_point_equal_points_and_zeros() -> None:
    assert plot(axes(), []) == ""
    for log_y in (False, True):
        svg([Series("a", (Mark(4, 5.0, 5.0, 5.0),))], log_y=log_y)
        svg([Series("a", (Mark(1, 0.0, 0.0, 0.0), Mark(2, 0.0, 0.0, 0.0)))], log_y=log_y)
        svg([Series("<&>", (Mark(1, 1e-9, 1e-12, 1e9),))], log_y=log_y)


def test_labels_that_would_overlap_are_left_out() -> None:
    marks = tuple(Mark(x, 1.0, 1.0, 1.0) for x in (1, 31, 32, 64))
    labels = [node.text for node in svg([Series("a", marks)]).iter("text") if node.get("class") == "tick middle"]
    assert labels == ["1", "31", "64"]


def test_a_row_of_any_interval_can_be_drawn() -> None:
    wide = Interval(value=1.0, low=0.0, high=2.0)
    row = records.measurement(1, 5.0).model_copy(update={"p50": wide, "throughput": wide})
    benchmark = records.benchmark().model_copy(update={"rows": (row,)})
    assert "<svg" in html.page([records.evidence().model_copy(update={"benchmark": benchmark})])
