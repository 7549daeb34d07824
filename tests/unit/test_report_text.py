from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import records
from trtops.errors import BuildFailed, InputError, Location, Overloaded, Problem
from trtops.report import markdown, text
from trtops.report.numbers import instant, latency, latency_interval, rate, share, significant, size
from trtops.report.plan import plan
from trtops.report.rollout import rollout
from trtops.report.rows import StageRow, Table
from trtops.report.running import Pairing, pairing_table

HOSTILE = "a\x1b[31mred\x1b[0m\x07\u202eevil\r\nsecond|<b>"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_that_wants_them() -> None:
    assert text.Style.of(io.StringIO(), {}) == text.Style(color=False, width=None)
    assert text.Style.of(Terminal(), {"COLUMNS": "120"}) == text.Style(color=True, width=120)
    assert text.Style.of(Terminal(), {}, columns=90) == text.Style(color=True, width=90)
    assert not text.Style.of(Terminal(), {"NO_COLOR": "1"}).color
    assert text.Style.of(Terminal(), {"NO_COLOR": ""}).color
    assert not text.Style.of(Terminal(), {"TERM": "dumb"}).color
    assert text.Style.of(Terminal(), {"COLUMNS": "wide"}).width == 80
    assert text.Style.of(Terminal(), {"COLUMNS": "3"}).width == 40


def test_findings_that_deny_come_first_and_waived_ones_stay_visible() -> None:
    value = records.verdict(records.denial(waived_by="w-1"), records.warning(), records.denial(rule="spec.zzz"))
    lines = text.verdict(value).splitlines()
    heads = [line for line in lines if line.startswith("engines/")]
    assert [head.split(" ")[1] for head in heads] == ["denied", "warning", "waived"]
    assert "  waiver: w-1" in lines
    assert lines[-1].startswith("ppocr-cls: denied by 3 rules of stage spec (1 denied, 1 warning, 1 waived)")


def test_a_finding_without_a_line_shows_its_path() -> None:
    report = text.verdict(records.verdict(records.denial(location=None)))
    assert report.startswith("memory.workspace: denied spec.workspace_bounded: ")


def test_an_advisory_denial_is_a_warning_that_says_so() -> None:
    report = text.verdict(records.verdict(records.denial(level="advisory")))
    assert " warning spec.workspace_bounded" in report
    assert "the rule is advisory here" in report
    assert "allowed with warnings" in report


def test_a_brief_report_has_one_line_a_rule_and_leaves_denials_out() -> None:
    value = records.verdict(records.denial(), records.warning(), records.warning(), records.denial(waived_by="w-1"))
    report = text.brief(value)
    assert report.count("\n") == 2
    assert "(and 1 more)" in report
    assert "waived" in report
    assert "denied" not in report
    assert text.brief(records.verdict()) == ""


def test_an_allowed_document_is_one_line() -> None:
    report = text.verdict(records.verdict())
    assert report.count("\n") == 1
    assert report.startswith("ppocr-cls: allowed by 3 rules of stage spec; embedded regorus 0.9.1, environment local")


def test_nothing_from_a_file_reaches_the_terminal_raw() -> None:
    finding = records.denial(message=HOSTILE, fix=HOSTILE, rule=HOSTILE, docs=HOSTILE, waived_by=HOSTILE)
    value = records.verdict(finding, subject=HOSTILE)
    problem = Problem(HOSTILE, HOSTILE, Location(HOSTILE, 1, 2), HOSTILE)
    error = InputError(HOSTILE, where=HOSTILE, fix=HOSTILE, problems=[problem])
    evidence = records.evidence().model_copy(update={"engine": HOSTILE, "unverified": HOSTILE, "trtops": HOSTILE})
    binding = records.bindings()[0].model_copy(update={"reason": HOSTILE, "actor": HOSTILE, "weights": {HOSTILE: 100}})
    reports = [
        text.verdict(value),
        text.error(error),
        text.error(BuildFailed(HOSTILE, log=HOSTILE)),
        text.evidence(evidence),
        text.stages([StageRow(HOSTILE, HOSTILE)]),
        text.history([binding]),
        text.status([binding], now=0),
        rollout(binding, now=0),
        plan(records.plan().model_copy(update={"registry": HOSTILE, "judge": HOSTILE, "environment": HOSTILE})),
        text.table(
            pairing_table([Pairing(HOSTILE, HOSTILE, HOSTILE, None, None, (HOSTILE, None), "nothing", HOSTILE)])
        ),
    ]
    for report in reports:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", report)
        assert r"\x1b[31mred" in report


def test_markup_in_cells_is_not_interpreted() -> None:
    written = text.table(Table(("a",), (("[red]x[/red] :smile:",),)), text.Style(color=True, width=60))
    assert "[red]x[/red] :smile:" in written


def test_tables_never_wrap_where_there_is_no_terminal() -> None:
    long = "word " * 200
    assert text.table(Table(("a", "b"), ((long, "x"),))).count("\n") == 2
    assert text.table(Table(("a", "b"), ((long, "x"),)), text.Style(width=60)).count("\n") > 10


_CELLS = st.text(alphabet="ab0 .:", max_size=40)


@given(rows=st.lists(st.tuples(*[_CELLS] * 5), min_size=1, max_size=4), width=st.integers(40, 120))
def test_no_line_is_wider_than_the_terminal_and_no_short_word_is_broken(
    rows: list[tuple[str, ...]], width: int
) -> None:
    headings = ("engine", "environment", "generation", "release", "since")
    written = text.table(Table(headings, tuple(rows)), text.Style(width=width))
    assert all(len(line) <= width for line in written.splitlines())
    short = {word for row in (headings, *rows) for cell in row for word in cell.split() if len(word) <= 20}
    assert short <= set(written.split())


def test_columns_that_leave_no_room_become_lines() -> None:
    table = Table(("engine", "environment", "release"), (("a", "local", "0" * 12), ("b", "prod", "1" * 12)))
    assert text.table(table, text.Style(width=40)).splitlines()[1] == "a       local        000000000000"
    written = text.table(table, text.Style(width=30)).splitlines()
    assert written[:5] == ["engine       a", "environment  local", "release      000000000000", "", "engine       b"]


def test_plain_reports_hold_no_escape_and_coloured_ones_do() -> None:
    value = records.verdict(records.denial())
    assert "\x1b" not in text.verdict(value)
    assert "\x1b[31mdenied\x1b[0m" in text.verdict(value, text.Style(color=True, width=80))


def test_an_error_tells_what_where_and_what_next() -> None:
    error = Overloaded("the queue is full", where="ppocr-cls", fix="try again in a second")
    assert text.error(error) == "ppocr-cls: error: the queue is full\n  fix: try again in a second\n"


def test_a_fix_is_not_told_twice() -> None:
    problem = Problem("a.b", "wrong", Location("f", 1, 1), "do this")
    assert text.error(InputError("bad", fix="do this", problems=[problem])).count("do this") == 1


def test_a_builders_log_is_cut_to_its_end() -> None:
    report = text.error(BuildFailed("no engine", log="\n".join(f"line {number}" for number in range(100))))
    assert "line 99" in report
    assert "line 79" not in report


def test_no_bindings_is_said() -> None:
    assert text.status([], now=0) == "nothing is released yet\n"
    assert text.history([]) == "nothing is released yet\n"


def test_status_marks_what_has_expired() -> None:
    (first, _) = records.bindings()
    assert "(expired)" not in text.status([first], now=first.created)
    assert "(expired)" in text.status([first], now=first.expires or 0)
    eternal = first.model_copy(update={"expires": None})
    assert "never" in text.status([first, eternal], now=0)
    assert "expires" not in text.status([eternal], now=0)
    elsewhere = first.model_copy(update={"environment": "prod"})
    assert text.status([first], now=0).startswith(f"in {first.environment}\nengine     channel")
    assert "environment" in text.status([first, elsewhere], now=0)


def test_history_begins_with_the_newest() -> None:
    lines = text.history(records.bindings()).splitlines()
    assert [line.split()[0] for line in lines] == ["gen", "2", "1"]
    first, second = records.bindings()
    lines = text.history([first, second], revoked={second.digest()}).splitlines()
    assert [line.endswith(f"{second.actor[:12]} (revoked)") for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (1.0, "1.00"), (1234.5, "1,234"), (0.00012, "0.00012"), (9.9e-9, "9.90e-09"), (float("inf"), "inf")],
)
def test_significant_digits(value: float, written: str) -> None:
    assert significant(value) == written


def test_units() -> None:
    assert [latency(us) for us in (0.5, 850.0, 1950.0, 2.4e6)] == ["0.500 µs", "850 µs", "1.95 ms", "2.40 s"]
    assert [rate(value) for value in (0.5, 12.3, 1234.4)] == ["0.500", "12.3", "1,234"]
    assert [size(n) for n in (0, 1023, 1024, 601_234, 1 << 31, 1 << 45)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "587 KiB",
        "2.00 GiB",
        "32.0 TiB",
    ]
    assert instant(0) == "1970-01-01 00:00:00Z"
    assert instant(10**18) == str(10**18)
    assert latency_interval(records.measurement(1, 1900.0).p50) == "1.90 [1.88, 1.92] ms"


def test_what_is_below_one_never_reads_as_one() -> None:
    assert [share(value) for value in (1.0, 0.999999, 0.9, 0.0, -0.5)] == ["1", "0.99999", "0.9", "0", "-0.5"]


def test_markdown_shows_text_as_it_is() -> None:
    finding = records.denial(message="@team see <img src=x> [a](http://b) `c` | d\n# e", docs="https://example.org/a_b")
    report = markdown.verdicts([records.verdict(finding)])
    assert "@" not in report
    assert "<img" not in report
    assert "http:" not in report.replace("https://example.org/a_b", "")
    assert "- docs: <https://example.org/a_b>" in report
    assert not any(line.startswith("# e") for line in report.splitlines())
    hostile = markdown.verdicts([records.verdict(records.denial(docs="javascript:alert(1)"))])
    assert "<javascript" not in hostile


def test_markdown_cells_keep_their_columns() -> None:
    written = markdown.stages([StageRow("a|b", "c\nd", 1.0)])
    assert {line.count("|") for line in written.splitlines()} == {5}
