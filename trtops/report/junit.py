"""Verdicts and stages as JUnit XML, in the form that CI systems read (testsuites, testsuite, testcase)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.report.escape import visible, visible_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.errors import TrtopsError
    from trtops.policy.verdict import Finding, Verdict
    from trtops.report.checks import CheckReport
    from trtops.report.rows import StageRow

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def _attribute(text: str) -> str:
    # U+FFFE and U+FFFF are no characters of XML 1.0.
    return escape(visible(text).replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff"), quote=True)


def _body(text: str) -> str:
    return "\n".join(_attribute(line) for line in visible_lines(text))


def verdicts(values: Sequence[Verdict]) -> str:
    """One suite a verdict, one case a rule: failed if it denies, skipped if all that it found is waived."""
    return _suites([_verdict(value) for value in values])


def _verdict(value: Verdict) -> tuple[str, list[str]]:
    by_rule: dict[str, list[Finding]] = {rule: [] for rule in value.rules}
    for finding in value.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    name = f"{value.stage}: {value.subject}"
    return name, [_case(value, rule, findings) for rule, findings in by_rule.items()]


def _case(value: Verdict, rule: str, findings: Sequence[Finding]) -> str:
    blocking = [finding for finding in findings if finding.blocking]
    waived = [finding for finding in findings if finding.waived_by]
    shown = [finding for finding in findings if not finding.blocking and not finding.waived_by]
    inner = ""
    if blocking:
        inner += f'      <failure type="deny" message="{_attribute(blocking[0].message)}">{_told(blocking)}</failure>\n'
    elif waived:
        inner += f'      <skipped message="{_attribute(f"waived by {waived[0].waived_by}: {waived[0].message}")}"/>\n'
    if shown:
        inner += f"      <system-out>{_told(shown)}</system-out>\n"
    return _testcase(rule, f"{value.stage}.{value.subject}", inner)


def check(report: CheckReport) -> str:
    """Verdicts as :func:`verdicts`; a suite an engine that could not be decided; one of what the change does beside."""
    suites = [_verdict(value) for value in report.verdicts]
    suites += [(failure.subject, [_undecided(failure.subject, failure.error)]) for failure in report.undecided]
    beside = [_testcase(name, "change", _output(words)) for name, words in _beside(report)]
    return _suites([*suites, ("change", beside)] if beside else suites)


def _beside(report: CheckReport) -> Iterator[tuple[str, list[str]]]:
    if report.change is not None:
        yield "scope", [*report.scope(), report.headline]
    if report.proposal is not None:
        yield "policies", [*report.proposed()]


def _output(lines: Sequence[str]) -> str:
    return f"      <system-out>{_body(chr(10).join(lines))}</system-out>\n"


def _told(findings: Sequence[Finding]) -> str:
    texts = []
    for finding in findings:
        head = f"{finding.location}: " if finding.location else ""
        texts.append(
            _body(f"{head}{finding.severity}: {finding.message}{f' (fix: {finding.fix})' if finding.fix else ''}")
        )
    return "\n".join(texts)


def stages(rows: Sequence[StageRow], *, name: str) -> str:
    """One suite with a case a stage and its seconds."""
    cases = []
    for row in rows:
        inner = ""
        if row.outcome == "failed":
            inner = f'      <failure type="stage" message="{_attribute(row.result)}"/>\n'
        elif row.outcome == "skipped":
            inner = f'      <skipped message="{_attribute(row.result)}"/>\n'
        cases.append(_testcase(row.stage, name, inner, row.seconds))
    return _suites([(name, cases)])


def error(value: TrtopsError, *, name: str) -> str:
    """One case that ended in an error: the document could not be judged."""
    return _suites([(name, [_undecided(name, value)])])


def _undecided(name: str, value: TrtopsError) -> str:
    text = str(value)
    if isinstance(value, InputError):
        text = "\n".join([text, *map(str, value.problems)])
    inner = f'      <error type="{type(value).__name__}" message="{_attribute(value.what)}">{_body(text)}</error>\n'
    return _testcase(name, "trtops", inner)


def _testcase(name: str, classname: str, inner: str, seconds: float | None = None) -> str:
    time = f' time="{seconds:.3f}"' if seconds is not None else ""
    head = f'    <testcase name="{_attribute(name)}" classname="{_attribute(classname)}"{time}'
    return f"{head}>\n{inner}    </testcase>\n" if inner else f"{head}/>\n"


def _suites(suites: Sequence[tuple[str, list[str]]]) -> str:
    written = [
        f'  <testsuite name="{_attribute(name)}" {_counts(cases)}>\n{"".join(cases)}  </testsuite>\n'
        for name, cases in suites
    ]
    every = [case for _, cases in suites for case in cases]
    return f'{_HEAD}<testsuites name="trtops" {_counts(every, skipped=False)}>\n{"".join(written)}</testsuites>\n'


def _counts(cases: Sequence[str], *, skipped: bool = True) -> str:
    kinds = {"failures": "<failure ", "errors": "<error ", **({"skipped": "<skipped "} if skipped else {})}
    found = " ".join(f'{name}="{sum(mark in case for case in cases)}"' for name, mark in kinds.items())
    return f'tests="{len(cases)}" {found}'
