from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from tests.support import records
from trtops.errors import InputError, Location, Problem
from trtops.report import github, junit, markdown, sarif, text
from trtops.report.escape import visible, visible_lines

ANY = st.text(st.characters(codec=None)) | st.text(st.sampled_from("\x1b[31m\x07\r\n\t\x9b\u202e\u2066\ud800a%:,|<&`"))


def parse(written: str) -> ET.Element:
    return ET.fromstring(written)  # noqa: S314 - our own output


@given(ANY)
def test_what_is_shown_controls_nothing(value: str) -> None:
    shown = visible(value)
    assert not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in shown)
    assert not any(
        unicodedata.bidirectional(character) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        for character in shown
    )
    assert visible(shown) == shown
    shown.encode("utf-8")
    assert all("\n" not in line for line in visible_lines(value))


@given(st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="\ufeff")))
def test_ordinary_text_is_left_alone(value: str) -> None:
    assert visible(value) == value


@given(ANY, ANY, ANY)
def test_every_report_bears_any_text(message: str, fix: str, file: str) -> None:
    error = InputError(message, where=file, fix=fix, problems=[Problem("a.b", message, Location(file, 1, 1), fix)])
    place = records.denial().location
    assert place is not None
    finding = records.denial(message=message, fix=fix, location=place.model_copy(update={"file": file}))
    value = records.verdict(finding)
    for report in (text.error(error), text.verdict(value), markdown.verdicts([value])):
        report.encode("utf-8")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", report)
    assert github.error(error).count("\n") == 1
    assert github.verdicts([value]).count("\n") == 1
    json.loads(sarif.error(error))
    json.loads(sarif.verdicts([value]))
    parse(junit.error(error, name=file))
    parse(junit.verdicts([value]))
