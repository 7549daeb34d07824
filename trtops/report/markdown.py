"""Reports as GitHub's Markdown, for comments on pull requests and step summaries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.report import tables
from trtops.report.bounded import SUMMARY_BYTES, Section, joined
from trtops.report.checks import shortened
from trtops.report.escape import visible
from trtops.report.labels import label
from trtops.report.numbers import instant, size
from trtops.report.rows import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.errors import TrtopsError
    from trtops.evidence import Evidence
    from trtops.policy.verdict import Verdict
    from trtops.report.checks import CheckReport
    from trtops.report.rows import StageRow

_SPECIAL = re.compile(r"[\\`*_{}\[\]#+!|<>~&$]")
_LINK = re.compile(r"https://[A-Za-z0-9._~:/?#=%-]+")
_DECISIONS = {"allow": "✅ allowed", "warn": "⚠️ allowed with warnings", "deny": "❌ denied"}
_RESULTS = ("✅ allowed", "❌ denied", "❗ not decided")
_MARKS = {"denied": "❌", "warning": "⚠️", "info": "ℹ️", "waived": "☑️"}  # noqa: RUF001 - emoji

_DENIES, _WARNS, _TABLE = 1, 2, 3
"""Ranks of sections: a table of a thousand engines goes before what is said of them."""


def inline(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no mention of a user, no link."""
    safe = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", visible(text))
    return safe.replace("@", "&#64;").replace("://", "&#58;//").replace("www.", "www&#46;")


def table(value: Table) -> str:
    """A table with its columns aligned."""
    rule = ["---:" if number in value.right else "---" for number in range(len(value.headings))]
    rows = [value.headings, *value.rows]
    written = ["| " + " | ".join(inline(cell) for cell in row) + " |" for row in rows]
    written.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(written) + "\n"


def verdicts(values: Sequence[Verdict]) -> str:
    """A section a verdict: decision first, then its findings."""
    return "\n".join(_verdict(value) for value in values)


def _verdict(value: Verdict) -> str:
    decision = _DECISIONS[value.decision]
    judged = f"{len(value.rules)} rules of stage {value.stage}, {inline(value.engine)}"
    lines = [
        f"### {inline(value.subject)}: {decision}",
        "",
        f"{judged}, environment {inline(value.environment)}, policies `{value.policies.short}`",
        "",
    ]
    for finding in value.findings:
        kind = label(finding)
        where = f" {inline(str(finding.location))}" if finding.location else ""
        lines.append(f"- {_MARKS[kind]} **{kind}** {inline(finding.rule)}{where}: {inline(finding.message)}")
        if finding.fix:
            lines.append(f"  - fix: {inline(finding.fix)}")
        if finding.waived_by:
            lines.append(f"  - waiver: {inline(finding.waived_by)}")
        if finding.docs:
            link = f"<{finding.docs}>" if _LINK.fullmatch(finding.docs) else inline(finding.docs)
            lines.append(f"  - docs: {link}")
    return "\n".join(lines).rstrip() + "\n"


def check(report: CheckReport, limit: int = SUMMARY_BYTES) -> str:
    """The result in a line, what was looked at, a table of engines; then each verdict that says something.

    Args:
        report: what was found.
        limit: bytes of UTF-8. Where more would be said, what denies is kept before what warns.
    """
    parts = [Section(f"## {_RESULTS[min(report.exit_code, 2)]}: {inline(report.headline)}")]
    scope = [f"- {inline(line)}" for line in report.scope()]
    parts += [Section("\n".join(scope))] if scope else []
    parts += [Section(table(_engines(report)).rstrip("\n"), _TABLE)] if report.verdicts else []
    parts += [Section(_undecided(subjects, reason), _DENIES) for subjects, reason in report.grouped_failures()]
    for value in report.verdicts:
        if value.findings:
            parts.append(Section(_verdict(value).rstrip("\n"), _DENIES if value.decision == "deny" else _WARNS))
    if report.proposal is not None:
        head, *lines = report.proposed()
        parts.append(Section(f"### Change to policies\n\n{inline(head)}", _DENIES))
        parts += [Section("\n".join(f"- {inline(line)}" for line in lines), _DENIES)] if lines else []
    return joined(parts, limit)


def _engines(report: CheckReport) -> Table:
    rows = tuple(
        (value.subject, value.stage, _DECISIONS[value.decision], str(len(value.rules)), str(len(value.findings)))
        for value in report.verdicts
    )
    return Table(("engine", "stage", "decision", "rules", "findings"), rows, frozenset({3, 4}))


def _undecided(subjects: Sequence[str], reason: TrtopsError) -> str:
    where = f"{inline(str(reason.where))}: " if reason.where else ""
    lines = [f"### {inline(shortened(subjects))}: ❗ not decided", "", f"{where}{inline(reason.what)}", ""]
    for problem in reason.problems if isinstance(reason, InputError) else ():
        lines.append(f"- {inline(str(problem.location))}: {inline(problem.message)}")
        lines += [f"  - fix: {inline(problem.fix)}"] if problem.fix else []
    lines += [f"Fix: {inline(reason.fix)}"] if reason.fix else []
    return "\n".join(lines).rstrip()


def evidence(values: Sequence[Evidence]) -> str:
    """A section a record: accuracy with its worst element, then the benchmark."""
    return "\n".join(_evidence(value) for value in values)


def _evidence(value: Evidence) -> str:
    head = f"artifact `{value.artifact.short}`, {size(value.size_bytes)}, recorded {instant(value.created)}"
    parts = [f"### {inline(value.engine)} for {inline(value.target.id)}", f"{head} on {inline(value.device.label)}"]
    if value.unverified:
        parts.append(f"⚠️ **not verified**: {inline(value.unverified)}")
    if value.accuracy:
        result = "✅ equal within tolerance" if value.accuracy.passed else "❌ differs"
        parts += [
            f"**Accuracy**: {result}, {value.accuracy.count} samples against {inline(value.accuracy.reference)}",
            table(tables.accuracy_table(value.accuracy)).rstrip("\n"),
            f"Worst element: {inline(tables.worst_element(value.accuracy))}",
        ]
    if value.benchmark:
        backend = inline(f"{value.benchmark.backend} {value.benchmark.backend_version}")
        parts += [
            f"**Benchmark**: {backend}, 95 % intervals in brackets",
            table(tables.benchmark_table(value.benchmark)).rstrip("\n"),
        ]
        parts += [f"⚠️ {inline(warning)}" for warning in value.benchmark.warnings]
    return "\n\n".join(parts) + "\n"


def stages(rows: Sequence[StageRow]) -> str:
    """The table that a long work ends with."""
    return table(tables.stage_table(rows))
