"""Findings as SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for code scanning.

Fingerprints hold no line, no value and no message: a finding that moved, or whose wording changed, stays the same one.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trtops
from trtops.digest import digest_of
from trtops.errors import InputError, Location
from trtops.report.escape import path_bytes, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.errors import Problem, TrtopsError
    from trtops.policy.verdict import Finding, Verdict
    from trtops.report.checks import CheckReport

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HOME = "https://github.com/trtops/trtops"
_FINGERPRINT = "trtopsFinding/v1"
_LINK = re.compile(r"https?://[^\s<>\"{}|\\^`]+")
_LEVELS = {"deny": "error", "warn": "warning", "info": "note"}


def verdicts(values: Sequence[Verdict]) -> str:
    """One run with the findings of all verdicts. Waived findings are there as suppressed ones."""
    return _log(_Run().judged(values))


def check(report: CheckReport) -> str:
    """One run of a whole check.

    Findings and what could not be decided are results; what was looked at, and what changed policies would do, are
    notifications, so that nobody's list of alerts has them.
    """
    run = _Run().judged(report.verdicts)
    for _, reason in report.grouped_failures():
        run.failed(reason)
    notes = [*report.scope(), report.headline] if report.change is not None else []
    return _log(run, [*notes, *report.proposed()])


def error(value: TrtopsError) -> str:
    """What could not be done or decided, as results of level error: every problem, or the error itself."""
    return _log(_Run().failed(value))


class _Run:
    """Results as they are gathered, with the rules that they name."""

    def __init__(self) -> None:
        self.docs: dict[str, str | None] = {}
        self.results: list[dict[str, Any]] = []
        self.succeeded = True
        self._seen: dict[str, int] = {}

    def judged(self, values: Sequence[Verdict]) -> _Run:
        """Add the findings of verdicts."""
        for value in values:
            for rule in value.rules:
                self.docs.setdefault(rule, None)
            for finding in value.findings:
                self.docs[finding.rule] = finding.docs or self.docs.get(finding.rule)
                self.results.append(_result(value, finding, self._seen))
        return self

    def failed(self, value: TrtopsError) -> _Run:
        """Add an error: each of its problems, or the error itself."""
        self.succeeded = False
        problems = value.problems if isinstance(value, InputError) else ()
        found = [_problem(problem, self._seen) for problem in problems] or [_failure(value, self._seen)]
        for result in found:
            self.docs.setdefault(result["ruleId"], None)
        self.results += found
        return self


def _result(value: Verdict, finding: Finding, seen: dict[str, int]) -> dict[str, Any]:
    level = "warning" if finding.level == "advisory" and finding.severity == "deny" else _LEVELS[finding.severity]
    where = finding.location
    file = where.file if where else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": level,
        "message": {"text": _message(finding.message, finding.fix)},
        "locations": [_location(where.file, where.line, where.column)] if where else [],
        "partialFingerprints": _fingerprint([finding.rule, value.subject, file, *map(str, finding.path)], seen),
        "properties": {
            "stage": finding.stage,
            "subject": visible(value.subject),
            "environment": value.environment,
            "enforcement": finding.level,
            "path": [*finding.path],
        },
    }
    if finding.waived_by:
        justification = f"waived by {visible(finding.waived_by)}"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": justification}]
    return result


def _failure(value: TrtopsError, seen: dict[str, int]) -> dict[str, Any]:
    rule = _error_id(value)
    where = value.where if isinstance(value.where, Location) else None
    head = f"{value.where}: " if value.where and where is None else ""
    return {
        "ruleId": rule,
        "level": "error",
        "message": {"text": _message(head + value.what, value.fix)},
        "locations": [_location(where.file, where.line, where.column)] if where else [],
        "partialFingerprints": _fingerprint([rule, str(where.file if where else value.where)], seen),
    }


def _error_id(value: TrtopsError) -> str:
    name = type(value).__name__
    return "trtops." + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


def _problem(problem: Problem, seen: dict[str, int]) -> dict[str, Any]:
    place = problem.location
    return {
        "ruleId": problem.code,
        "level": "error",
        "message": {"text": _message(problem.message, problem.fix)},
        "locations": [_location(place.file, place.line, place.column)],
        "partialFingerprints": _fingerprint([problem.code, place.file], seen),
    }


def _message(message: str, fix: str | None) -> str:
    return visible(message) + (f"\nFix: {visible(fix)}" if fix else "")


def _location(file: str, line: int, column: int) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if line:
        place["region"] = {"startLine": line, **({"startColumn": column} if column else {})}
    return {"physicalLocation": place}


def _uri(file: str) -> str:
    """A path as a URI reference; relative paths stay relative, and no first segment reads as a scheme."""
    path = quote(path_bytes(file.replace("\\", "/").removeprefix("./")), safe="/-._~")
    return f"file://{path}" if path.startswith("/") else path


def _fingerprint(parts: list[str], seen: dict[str, int]) -> dict[str, str]:
    """Digest of the parts and of how many equal ones came before."""
    key = digest_of([path_bytes(part).hex() for part in parts]).value
    seen[key] = seen.get(key, 0) + 1
    return {_FINGERPRINT: f"{key}:{seen[key]}"}


def _log(run: _Run, notes: Sequence[str] = ()) -> str:
    ids = sorted(run.docs)
    places = {rule: number for number, rule in enumerate(ids)}
    invocation: dict[str, Any] = {"executionSuccessful": run.succeeded}
    if notes:
        invocation["toolExecutionNotifications"] = [
            {"level": "note", "message": {"text": visible(note)}} for note in notes
        ]
    written = {
        "tool": {
            "driver": {
                "name": "trtops",
                "version": trtops.__version__,
                "informationUri": _HOME,
                "rules": [_rule(rule, run.docs[rule]) for rule in ids],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": [_ordered(result, places) for result in run.results],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [written]}, indent=2, ensure_ascii=True) + "\n"


def _rule(rule: str, docs: str | None) -> dict[str, Any]:
    """A rule with where it is described: a link if it is one, else words, since a link has to be absolute."""
    if not docs:
        return {"id": rule}
    return {"id": rule, "helpUri": docs} if _LINK.fullmatch(docs) else {"id": rule, "help": {"text": visible(docs)}}


def _ordered(result: dict[str, Any], places: dict[str, int]) -> dict[str, Any]:
    return {"ruleId": result["ruleId"], "ruleIndex": places[result["ruleId"]], **result}
