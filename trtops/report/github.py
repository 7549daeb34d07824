"""Findings as workflow commands of GitHub Actions: annotations at the line of the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import InputError, Location
from trtops.report.checks import shortened
from trtops.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.errors import TrtopsError
    from trtops.policy.verdict import Finding, SourceLocation, Verdict
    from trtops.report.checks import CheckReport

_LINES = 50
"""So many lines of one notice: a log is read by people."""


def _data(text: str) -> str:
    r"""A message: ``%``, carriage return and line feed are written in percent (the runner's own rule)."""
    safe = "\n".join(visible(line) for line in text.splitlines())
    return safe.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property: a message's rule, and ``:`` and ``,`` too."""
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")


def _command(kind: str, where: Location | SourceLocation | None, title: str, message: str) -> str:
    properties = []
    if where:
        properties.append(f"file={_property(where.file)}")
        if where.line:
            properties.append(f"line={where.line}")
        if where.line and where.column:
            properties.append(f"col={where.column}")
    properties.append(f"title={_property(title)}")
    return f"::{kind} {','.join(properties)}::{_data(message)}\n"


def verdicts(values: Sequence[Verdict]) -> str:
    """One annotation a finding: error if it denies, warning, or notice (waived ones and information)."""
    return "".join(_finding(value, finding) for value in values for finding in value.findings)


def _finding(value: Verdict, finding: Finding) -> str:
    kind = "error" if finding.blocking else "notice" if finding.waived_by or finding.severity == "info" else "warning"
    text = finding.message if finding.location else f"{value.subject}: {finding.message}"
    if finding.waived_by:
        text += f" (waived by {finding.waived_by})"
    if finding.fix:
        text += f"\nFix: {finding.fix}"
    if finding.docs:
        text += f"\n{finding.docs}"
    return _command(kind, finding.location, finding.rule, text)


def error(value: TrtopsError) -> str:
    """One annotation a problem, or one for the error itself."""
    problems = value.problems if isinstance(value, InputError) else ()
    if problems:
        return "".join(
            _command("error", problem.location, problem.code, _with_fix(problem.message, problem.fix))
            for problem in problems
        )
    place = value.where if isinstance(value.where, Location) else None
    head = f"{value.where}: " if value.where and place is None else ""
    return _command("error", place, type(value).__name__, _with_fix(f"{head}{value.what}", value.fix))


def check(report: CheckReport) -> str:
    """Findings and errors as annotations, and notices of what was looked at and what changed policies would do."""
    parts = [verdicts(report.verdicts)]
    for subjects, reason in report.grouped_failures():
        parts.append(error(reason))
        if len(subjects) > 1:
            parts.append(_command("notice", None, "not decided", shortened(subjects, _LINES)))
    if report.change is not None:
        parts.append(_command("notice", None, "trtops check", "\n".join([report.headline, *report.scope()])))
    if report.proposal is not None:
        lines = [*report.proposed()]
        more = [f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
        parts.append(_command("notice", None, "change to policies", "\n".join([*lines[:_LINES], *more])))
    return "".join(parts)


def _with_fix(message: str, fix: str | None) -> str:
    return f"{message}\nFix: {fix}" if fix else message
