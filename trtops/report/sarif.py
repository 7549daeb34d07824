"""Findings as SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for code scanning.

Fingerprints hold no line, no value and no message: a finding that moved, or whose wording changed, stays the same one.
"""

from __future__ import annotations

import json
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

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HOME = "https://github.com/trtops/trtops"
_FINGERPRINT = "trtopsFinding/v1"
_LEVELS = {"deny": "error", "warn": "warning", "info": "note"}


def verdicts(values: Sequence[Verdict]) -> str:
    """One run with the findings of all verdicts. Waived findings are there as suppressed ones."""
    findings = [(value, finding) for value in values for finding in value.findings]
    docs = {finding.rule: finding.docs for _, finding in findings}
    ids = sorted({rule for value in values for rule in value.rules} | set(docs))
    seen: dict[str, int] = {}
    results = [_result(value, finding, ids.index(finding.rule), seen) for value, finding in findings]
    rules = [{"id": rule, **({"helpUri": docs[rule]} if docs.get(rule) else {})} for rule in ids]
    return _log(rules, results, succeeded=True)


def _result(value: Verdict, finding: Finding, index: int, seen: dict[str, int]) -> dict[str, Any]:
    level = "warning" if finding.level == "advisory" and finding.severity == "deny" else _LEVELS[finding.severity]
    where = finding.location
    file = where.file if where else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
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


def error(value: TrtopsError) -> str:
    """What could not be done or decided, as results of level error: every problem, or the error itself."""
    problems = value.problems if isinstance(value, InputError) else ()
    seen: dict[str, int] = {}
    ids = sorted({problem.code for problem in problems}) or [_error_id(value)]
    if problems:
        results = [_problem(problem, ids.index(problem.code), seen) for problem in problems]
    else:
        where = value.where if isinstance(value.where, Location) else None
        results = [
            {
                "ruleId": ids[0],
                "ruleIndex": 0,
                "level": "error",
                "message": {"text": _message(value.what, value.fix)},
                "locations": [_location(where.file, where.line, where.column)] if where else [],
                "partialFingerprints": _fingerprint([ids[0], str(where.file if where else value.where)], seen),
            }
        ]
    return _log([{"id": rule} for rule in ids], results, succeeded=False)


def _error_id(value: TrtopsError) -> str:
    name = type(value).__name__
    return "trtops." + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


def _problem(problem: Problem, index: int, seen: dict[str, int]) -> dict[str, Any]:
    place = problem.location
    return {
        "ruleId": problem.code,
        "ruleIndex": index,
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


def _log(rules: list[dict[str, Any]], results: list[dict[str, Any]], *, succeeded: bool) -> str:
    driver = {"name": "trtops", "version": trtops.__version__, "informationUri": _HOME, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": succeeded}],
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=True) + "\n"
