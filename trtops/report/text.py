"""Reports for a terminal. Plain and unwrapped where the output is no terminal, so that ``grep`` finds whole lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import BuildFailed, InputError
from trtops.report import tables
from trtops.report.checks import COMMAND, shortened
from trtops.report.escape import visible, visible_lines
from trtops.report.labels import label, rank
from trtops.report.numbers import instant, size

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from typing import TextIO

    from rich.table import Table as RichTable

    from trtops.accuracy.values import AccuracyReport
    from trtops.bench.results import Benchmark
    from trtops.digest import Digest
    from trtops.errors import Problem, TrtopsError
    from trtops.evidence import Evidence
    from trtops.policy.verdict import Finding, Verdict
    from trtops.release.documents import Binding
    from trtops.report.checks import CheckReport
    from trtops.report.rows import StageRow, Table

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_TONES = {"done": None, "reused": "cyan", "warned": "yellow", "skipped": "dim", "failed": "red"}
_UNWRAPPED = 100_000
_GAP = 2
_LONGEST_WHOLE = 20
_NARROWEST = 40
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Style:
    """How to write.

    Attributes:
        color: whether ANSI colours may be used.
        width: columns to wrap tables at; None: never wrap.
    """

    color: bool = False
    width: int | None = None

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str], *, columns: int | None = None) -> Style:
        """The style that fits a stream.

        Colours only on a terminal, never with ``NO_COLOR`` (https://no-color.org) or ``TERM=dumb``.

        Args:
            stream: where the report goes.
            environ: of the process.
            columns: width of the terminal; None: ``COLUMNS``, else 80.
        """
        if not stream.isatty():
            return cls()
        named = environ.get("COLUMNS", "")
        width = columns or (int(named) if named.isdecimal() and named.isascii() else 0) or 80
        color = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(color=color, width=max(_NARROWEST, width))

    def paint(self, text: str, *tones: str) -> str:
        """Text in colours, where they may be used."""
        if not self.color or not tones:
            return text
        return f"\x1b[{';'.join(_CODES[tone] for tone in tones)}m{text}\x1b[0m"


PLAIN = Style()


def verdict(value: Verdict, style: Style = PLAIN) -> str:
    """Findings as a linter shows them, those that deny first, then one line that sums up."""
    ordered = sorted(value.findings, key=lambda finding: (rank(finding), str(finding.location or ""), finding.rule))
    lines = [line for finding in ordered for line in _finding(finding, style)]
    lines.append(_summary(value, style))
    return _joined(lines)


def brief(value: Verdict, style: Style = PLAIN) -> str:
    """One line a rule that has findings which do not deny: the first finding, and how many more there are."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in value.findings:
        if not finding.blocking:
            by_rule.setdefault(finding.rule, []).append(finding)
    return _joined([_brief(visible(value.subject), found, style) for found in by_rule.values()])


def _brief(subject: str, found: Sequence[Finding], style: Style) -> str:
    first = min(found, key=rank)
    tone = {"warning": "yellow", "info": "cyan", "waived": "dim"}[label(first)]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{subject}: {style.paint(label(first), tone)} {visible(first.rule)}: {visible(first.message)}{more}"


def _finding(finding: Finding, style: Style) -> list[str]:
    tone = {"denied": "red", "warning": "yellow", "info": "cyan", "waived": "dim"}[label(finding)]
    where = visible(str(finding.location)) if finding.location else visible(".".join(map(str, finding.path)))
    head = f"{style.paint(where, 'bold')}: " if where else ""
    rule, message = visible(finding.rule), visible(finding.message)
    lines = [f"{head}{style.paint(label(finding), tone)} {style.paint(rule, 'bold')}: {message}"]
    if finding.fix:
        lines += _block("fix", finding.fix, style)
    if finding.waived_by:
        lines += _block("waiver", finding.waived_by, style)
    if finding.level == "advisory" and finding.severity == "deny":
        lines += _block("note", "the rule is advisory here, so it does not deny", style)
    if finding.docs:
        lines += _block("docs", finding.docs, style)
    return lines


def _block(name: str, text: str, style: Style) -> list[str]:
    first, *rest = visible_lines(text)
    indent = " " * (len(name) + 4)
    return [f"  {style.paint(name + ':', 'dim')} {first}", *(indent + line for line in rest)]


def _summary(value: Verdict, style: Style) -> str:
    counts: dict[str, int] = {}
    for finding in value.findings:
        counts[label(finding)] = counts.get(label(finding), 0) + 1
    decision = {"allow": "allowed", "warn": "allowed with warnings", "deny": "denied"}[value.decision]
    tone = {"allow": "green", "warn": "yellow", "deny": "red"}[value.decision]
    found = ", ".join(f"{counts[name]} {name}" for name in ("denied", "warning", "info", "waived") if name in counts)
    rules = f"{plural(len(value.rules), 'rule')} of stage {value.stage}{f' ({found})' if found else ''}"
    return (
        f"{visible(value.subject)}: {style.paint(decision, tone, 'bold')} by {rules}; {visible(value.engine)}, "
        f"environment {visible(value.environment)}, policies {value.policies.short}"
    )


def check(report: CheckReport, style: Style = PLAIN, *, errors: bool = True) -> str:
    """What a check found: what was looked at, verdicts, what could not be decided, what changed policies would do.

    Args:
        report: what was found.
        style: how to write.
        errors: whether to tell of what could not be decided; where they go elsewhere, :func:`check_errors` tells.
    """
    parts = [_section(report.scope())]
    parts += [verdict(value, style) for value in report.verdicts]
    if errors:
        parts.append(check_errors(report, style))
    parts.append(_section(report.proposed()))
    if report.change is not None:
        parts.append(_joined([visible(report.headline)]))
    return "".join(parts)


def _section(lines: Iterable[str]) -> str:
    """A line, and what belongs to it below."""
    shown = [visible(line) for line in lines]
    return _joined(shown[:1] + [f"  {line}" for line in shown[1:]])


def check_errors(report: CheckReport, style: Style = PLAIN) -> str:
    """What a check could not decide, each reason once."""
    parts = []
    for subjects, reason in report.grouped_failures():
        parts.append(error(reason, style))
        if len(subjects) > 1 or (not reason.where and subjects != (COMMAND,)):
            parts.append(_joined(_block("engines" if len(subjects) > 1 else "engine", shortened(subjects), style)))
    return "".join(parts)


def plural(count: int, noun: str) -> str:
    """Count things in words: ``1 rule``, ``2 rules``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def error(value: TrtopsError, style: Style = PLAIN) -> str:
    """An error: where, what, what to do next; every problem of an :class:`InputError`; the end of a builder's log."""
    problems = value.problems if isinstance(value, InputError) else ()
    lines = [line for problem in problems for line in _problem(problem, style)]
    where = f"{style.paint(visible(str(value.where)), 'bold')}: " if value.where else ""
    if not (len(problems) == 1 and value.what.endswith(problems[0].message)):  # else it would only be said again
        lines.append(f"{where}{style.paint('error', 'red', 'bold')}: {visible(value.what)}")
    if value.fix and not any(problem.fix == value.fix for problem in problems):
        lines += _block("fix", value.fix, style)
    if isinstance(value, BuildFailed) and value.log.strip():
        tail = visible_lines(value.log.strip())[-_LOG_LINES:]
        lines += [style.paint("  the builder's last words:", "dim"), *(f"    {line}" for line in tail)]
    return _joined(lines)


def _problem(problem: Problem, style: Style) -> list[str]:
    where = style.paint(visible(str(problem.location)), "bold")
    code = style.paint(visible(problem.code), "bold")
    lines = [f"{where}: {style.paint('error', 'red')} {code}: {visible(problem.message)}"]
    return [*lines, *_block("fix", problem.fix, style)] if problem.fix else lines


def accuracy(value: AccuracyReport, style: Style = PLAIN) -> str:
    """The checks, and the worst element always."""
    result = style.paint("equal within tolerance", "green") if value.passed else style.paint("differs", "red", "bold")
    samples = f"{plural(value.count, 'sample')} (digest {value.samples.short})"
    lines = [
        f"accuracy: {result}, on {samples} against {visible(value.reference)}",
        table(tables.accuracy_table(value), style).rstrip("\n"),
        f"worst element: {visible(tables.worst_element(value))}",
    ]
    return _joined(lines)


def benchmark(value: Benchmark, style: Style = PLAIN) -> str:
    """Latency and throughput by batch size with 95 % intervals, then what was wrong with the measurement."""
    head = f"benchmark: {visible(value.backend)} {visible(value.backend_version)} on {visible(value.device.label)}"
    lines = [f"{head}, 95 % intervals in brackets", table(tables.benchmark_table(value), style).rstrip("\n")]
    lines += [f"{style.paint('warning', 'yellow')}: {visible(warning)}" for warning in value.warnings]
    return _joined(lines)


def evidence(value: Evidence, style: Style = PLAIN) -> str:
    """All that is known of one artifact."""
    subject = f"{style.paint(visible(value.engine), 'bold')} for {visible(value.target.id)}"
    made_from = f"from spec {value.spec.short}, model {value.model.short}, plan {value.plan.short}"
    lines = [
        f"{subject}: artifact {value.artifact.short}, {size(value.size_bytes)}",
        f"{made_from}; recorded {instant(value.created)} by trtops {visible(value.trtops)}",
    ]
    if value.unverified:
        lines.append(f"{style.paint('not verified', 'yellow')}: {visible(value.unverified)}")
    if value.accuracy:
        lines.append(accuracy(value.accuracy, style).rstrip("\n"))
    if value.benchmark:
        lines.append(benchmark(value.benchmark, style).rstrip("\n"))
    return _joined(lines)


def stages(rows: Sequence[StageRow], style: Style = PLAIN) -> str:
    """The table that a long work ends with."""
    return table(tables.stage_table(rows), style)


def status(bindings: Sequence[Binding], style: Style = PLAIN, *, now: int) -> str:
    """What runs where. ``now`` in epoch seconds."""
    if not bindings:
        return "nothing is released yet\n"
    return table(tables.status_table(bindings, now=now), style)


def history(bindings: Sequence[Binding], style: Style = PLAIN, *, revoked: Container[Digest] = ()) -> str:
    """Every move of one channel, the newest first. ``revoked``: digests of those that a revoked key signed."""
    if not bindings:
        return "nothing is released yet\n"
    return table(tables.history_table(bindings, revoked), style)


def table(value: Table, style: Style = PLAIN) -> str:
    """Lay a table out. Cells are made harmless here; markup in them is not interpreted.

    No word is broken that is shorter than 20 characters: where the columns leave no room for that, each row is a block
    of lines, one a cell.
    """
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    widths = _widths(value, style.width or _UNWRAPPED)
    out = StringIO()
    console = Console(
        file=out,
        width=style.width or _UNWRAPPED,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        no_color=not style.color,
        legacy_windows=False,
        _environ={},
    )
    if value.title:
        console.print(Text(visible(value.title), style="bold"))
    console.print(_columns(value, widths) if widths else _blocks(value))
    return _joined(out.getvalue().splitlines())


def _widths(value: Table, room: int) -> list[int]:
    """Of each column, the widest made narrower first; empty where not every word would stay whole."""
    from rich.cells import cell_len

    columns = [[visible(cell) for cell in column] for column in zip(value.headings, *value.rows, strict=True)]
    words = [[word for cell in column for word in cell.split()] for column in columns]
    least = [min(_LONGEST_WHOLE, max(map(cell_len, column), default=1)) for column in words]
    room -= _GAP * (len(columns) - 1)
    if sum(least) > room:
        return []
    widths = [min(room, max(map(cell_len, column))) for column in columns]
    while sum(widths) > room:
        widest = max((at for at, width in enumerate(widths) if width > least[at]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _columns(value: Table, widths: Sequence[int]) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", title_justify="left")
    for number, heading in enumerate(value.headings):
        rich.add_column(
            Text(visible(heading)),
            justify="right" if number in value.right else "left",
            overflow="fold",
            width=widths[number],
        )
    for number, row in enumerate(value.rows):
        rich.add_row(*(Text(visible(cell)) for cell in row), style=_tone(value, number))
    return rich


def _blocks(value: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
    rich.add_column(no_wrap=True, style="bold")
    rich.add_column(overflow="fold")
    for number, row in enumerate(value.rows):
        if number:
            rich.add_row("", "")
        for heading, cell in zip(value.headings, row, strict=True):
            rich.add_row(Text(visible(heading)), Text(visible(cell)), style=_tone(value, number))
    return rich


def _tone(value: Table, row: int) -> str | None:
    return _TONES[value.tones[row]] if value.tones else None


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)
