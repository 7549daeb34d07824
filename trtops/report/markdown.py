"""Reports as GitHub's Markdown, for comments on pull requests and step summaries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtops.report import tables
from trtops.report.escape import visible
from trtops.report.numbers import instant, size
from trtops.report.text import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.evidence import Evidence
    from trtops.policy.verdict import Verdict
    from trtops.report.rows import StageRow, Table

_SPECIAL = re.compile(r"[\\`*_{}\[\]#+!|<>~&$]")
_LINK = re.compile(r"https://[A-Za-z0-9._~:/?#=%-]+")
_MARKS = {"denied": "❌", "warning": "⚠️", "info": "ℹ️", "waived": "☑️"}  # noqa: RUF001 - emoji


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
    decision = {"allow": "✅ allowed", "warn": "⚠️ allowed with warnings", "deny": "❌ denied"}[value.decision]
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
