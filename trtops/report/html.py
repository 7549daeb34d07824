"""The evidence of a release as one page: self-contained, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtops.report import tables
from trtops.report.escape import visible
from trtops.report.labels import label
from trtops.report.numbers import instant, latency, rate, size
from trtops.report.plots import Axes, Mark, Series, plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.accuracy.values import AccuracyReport
    from trtops.bench.results import Benchmark, Interval
    from trtops.digest import Digest
    from trtops.evidence import Evidence
    from trtops.policy.verdict import Finding, Verdict
    from trtops.report.rows import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #59636e; --line: #d1d9e0; --paper: #fff; --panel: #f6f8fa;
  --good: #116329; --bad: #b3191f; --warn: #7d4e00; --s0: #0550ae; --s1: #bc4c00; --s2: #6639ba; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117;
  --panel: #151b23; --good: #3fb950; --bad: #ff7b72; --warn: #d29922; --s0: #79c0ff; --s1: #ffa657; --s2: #d2a8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.3rem; margin: 0; }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
section { border: 1px solid var(--line); border-radius: 8px; padding: 1.1rem 1.25rem; margin-top: 1.5rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); } .right { text-align: right; }
tr.failed td { color: var(--bad); font-weight: 600; } tr.warned td { color: var(--warn); }
.badge { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; margin-top: 1rem; }
.plot { width: 100%; height: auto; background: var(--panel); border-radius: 6px; font: 12px system-ui, sans-serif; }
.heading { font-weight: 600; fill: var(--ink); font-size: 13px; } .tick, .axis { fill: var(--soft); }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; } .base { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; } .whisker { fill: none; stroke-width: 1.5; } .marker { stroke: var(--panel); }
.line.s0, .whisker.s0 { stroke: var(--s0); } .line.s1, .whisker.s1 { stroke: var(--s1); }
.line.s2, .whisker.s2 { stroke: var(--s2); } .marker.s0 { fill: var(--s0); } .marker.s1 { fill: var(--s1); }
.marker.s2 { fill: var(--s2); } ul { padding-left: 1.2rem; margin: .4rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .8rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; }
"""


def page(
    evidence: Sequence[Evidence],
    *,
    release: Digest | None = None,
    commit: str | None = None,
    verdicts: Sequence[Verdict] = (),
) -> str:
    """One page for a release: what policies said, then a section a target with accuracy, plots and numbers.

    Args:
        evidence: of every artifact, one engine.
        release: digest of the release document; None before there is one.
        commit: that the spec came from.
        verdicts: of all stages, in their order.
    """
    names = sorted({record.engine for record in evidence})
    title = f"Evidence of {', '.join(names) or 'nothing'}"
    facts = [("release", _code(str(release)) if release else "not released"), ("commit", _code(commit or "unknown"))]
    body = [f"<h1>{_text(title)}</h1>", _facts(facts)]
    if verdicts:
        body.append(f"<section><h2>Policies</h2>{''.join(map(_verdict, verdicts))}</section>")
    body += [_section(record) for record in evidence]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(visible(text), quote=True)


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of names and values; values are HTML already."""
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{value}</dd>' for name, value in pairs)}</dl>"


def _table(value: Table) -> str:
    def cell(tag: str, number: int, text: str) -> str:
        mark = ' class="right"' if number in value.right else ""
        return f"<{tag}{mark}>{_text(text)}</{tag}>"

    head = "".join(cell("th", number, text) for number, text in enumerate(value.headings))
    rows = []
    for index, row in enumerate(value.rows):
        tone = f' class="{value.tones[index]}"' if value.tones else ""
        rows.append(f"<tr{tone}>{''.join(cell('td', number, text) for number, text in enumerate(row))}</tr>")
    body = "\n".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _verdict(value: Verdict) -> str:
    tone, words = {
        "allow": ("good", "allowed"),
        "warn": ("warn", "allowed with warnings"),
        "deny": ("bad", "denied"),
    }[value.decision]
    head = (
        f'<p><b>{_text(value.subject)}</b>, stage {value.stage}: <span class="badge {tone}">{words}</span> '
        f'<span class="soft">by {len(value.rules)} rules, {_text(value.engine)}, '
        f"environment {_text(value.environment)}, policies {_code(value.policies.short)}</span></p>"
    )
    return head + (f"<ul>{''.join(map(_finding, value.findings))}</ul>" if value.findings else "")


def _finding(finding: Finding) -> str:
    tone = {"denied": "bad", "warning": "warn", "info": "soft", "waived": "soft"}[label(finding)]
    where = f" {_code(str(finding.location))}" if finding.location else ""
    waiver = f" (waived by {_text(finding.waived_by)})" if finding.waived_by else ""
    fix = f'<br><span class="soft">fix: {_text(finding.fix)}</span>' if finding.fix else ""
    head = f'<span class="badge {tone}">{label(finding)}</span> {_code(finding.rule)}{where}'
    return f"<li>{head}: {_text(finding.message)}{waiver}{fix}</li>"


def _section(value: Evidence) -> str:
    facts = [
        ("artifact", f"{_code(str(value.artifact))}, {size(value.size_bytes)}"),
        ("measured on", _text(value.device.label)),
        ("recorded", f"{instant(value.created)} by trtops {_text(value.trtops)}"),
        ("from", f"spec {_code(value.spec.short)}, model {_code(value.model.short)}, plan {_code(value.plan.short)}"),
    ]
    parts = [f"<h2>{_text(value.target.id)}</h2>", _facts(facts)]
    if value.unverified:
        parts.append(f'<p><span class="badge warn">not verified</span>: {_text(value.unverified)}</p>')
    if value.accuracy:
        parts.append(_accuracy(value.accuracy))
    if value.benchmark:
        parts.append(_benchmark(value.benchmark))
    return f"<section>\n{chr(10).join(parts)}\n</section>"


def _accuracy(value: AccuracyReport) -> str:
    tone, words = ("good", "equal within tolerance") if value.passed else ("bad", "differs")
    head = f'<span class="badge {tone}">{words}</span>, {value.count} samples against {_text(value.reference)}'
    worst = f'<p class="soft">Worst element: {_text(tables.worst_element(value))}</p>'
    return f"<h3>Accuracy</h3>\n<p>{head}</p>\n{_table(tables.accuracy_table(value))}\n{worst}"


def _benchmark(value: Benchmark) -> str:
    head = f"{_text(value.backend)} {_text(value.backend_version)}; 95 % intervals in brackets and as whiskers"
    warnings = "".join(f'<li class="warn">{_text(warning)}</li>' for warning in value.warnings)
    return (
        f'<h3>Benchmark</h3>\n<p class="soft">{head}</p>\n{_table(tables.benchmark_table(value))}\n'
        f'<div class="plots">\n{_latency_plot(value)}{_throughput_plot(value)}</div>\n'
        + (f"<ul>{warnings}</ul>" if warnings else "")
    )


def _latency_plot(value: Benchmark) -> str:
    rows = sorted(value.rows, key=lambda row: row.batch)
    series = [
        Series(name, tuple(_mark(row.batch, getattr(row, name)) for row in rows)) for name in ("p50", "p90", "p99")
    ]
    return plot(Axes("Latency by batch size", "batch size", "latency", latency, log_y=True), series)


def _throughput_plot(value: Benchmark) -> str:
    rows = sorted(value.rows, key=lambda row: row.batch)
    marks = tuple(_mark(row.batch, row.throughput) for row in rows)
    return plot(Axes("Throughput by batch size", "batch size", "rows/s", rate), [Series("throughput", marks)])


def _mark(batch: int, interval: Interval) -> Mark:
    return Mark(batch, interval.value, interval.low, interval.high)
