from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trtops.document import parse_document
from trtops.errors import InputError, Location, Problem

# YAML ends a key at 1024 characters.
KEYS = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2000, exclude_categories=("Cc", "Cs", "Cf")),
    min_size=1,
    max_size=40,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


def outcome(content: bytes | str) -> tuple[dict[str, Any] | None, tuple[Problem, ...]]:
    try:
        return parse_document(content, file="f").data, ()
    except InputError as error:
        return None, error.problems


@given(st.binary(max_size=400))
def test_no_bytes_make_it_crash(content: bytes) -> None:
    data, problems = outcome(content)
    assert bool(problems) != isinstance(data, dict)


@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"#%@`?~<\n\t 01.x"), max_size=60))
def test_no_text_made_of_yaml_s_signs_makes_it_crash(content: str) -> None:
    data, problems = outcome(content)
    assert all(problem.location.line >= 1 for problem in problems)
    json.dumps(data, allow_nan=False)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_json_is_read_as_it_is_written(value: dict[str, Any]) -> None:
    assert parse_document(json.dumps(value), file="f").data == value


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), st.data())
def test_every_value_has_a_place_inside_the_text(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    read = parse_document(text, file="f")
    path: list[str | int] = []
    here: Any = value
    while isinstance(here, dict | list) and here and data.draw(st.booleans()):
        step: Any = data.draw(st.sampled_from(list(here) if isinstance(here, dict) else range(len(here))))
        path.append(step)
        here = here[step]
    place = read.locate(path)
    rest = text.split("\n")[place.line - 1][place.column - 1 :]
    assert isinstance(place, Location)
    first = json.dumps(here, ensure_ascii=False)
    assert rest.startswith(first if not isinstance(here, dict | list) else first[0])
