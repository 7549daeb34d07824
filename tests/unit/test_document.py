from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from trtops import document as module
from trtops.document import MAX_BYTES, MAX_DEPTH, MAX_NODES, load_document, parse_document
from trtops.errors import InputError, Location

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["libyaml", "pure"], autouse=True)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "libyaml" and not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML is built without libyaml here")
    monkeypatch.setattr(module, "_LOADER", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)
    return str(request.param)


def problems(text: str | bytes) -> list[tuple[str, int, int]]:
    with pytest.raises(InputError) as caught:
        parse_document(text, file="f.yaml")
    assert caught.value.problems
    assert all(problem.fix for problem in caught.value.problems)
    assert all(problem.location.file == "f.yaml" for problem in caught.value.problems)
    return [(p.code.removeprefix("document."), p.location.line, p.location.column) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("010", "010"),
        ("0o17", "0o17"),
        ("0x1F", "0x1F"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("8.6.1", "8.6.1"),
        ("'8.6'", "8.6"),
        ('"true"', "true"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("8.6", 8.6),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_plain_text_is_read_as_yaml_1_2_says(text: str, value: Any) -> None:
    read = parse_document(f"a: {text}\n", file="f.yaml").data["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("not-a-mapping", 1, 1)]),
        ("# only a comment\n", [("not-a-mapping", 1, 1)]),
        ("[1, 2]", [("not-a-mapping", 1, 1)]),
        ("\n\ntext", [("not-a-mapping", 3, 1)]),
        ("a: 1\nb: {c: 1,\n  c: 2}", [("duplicate-key", 3, 3)]),
        ("a:\n\tb: 1", [("tab", 2, 1)]),
        ("a: .nan\nb: [1, -.inf, .NaN]", [("not-finite", 1, 4), ("not-finite", 2, 8), ("not-finite", 2, 15)]),
        ("a: {<<: {b: 1}}", [("merge-key", 1, 5)]),
        ("a: 1\n---\nb: 2", [("several", 2, 1)]),
        ("a: !!python/object:os.system x", [("tag", 1, 4)]),
        ("a: !!str 1", [("tag", 1, 4)]),
        ("1: a\ntrue: b\nnull: c", [("key", 1, 1), ("key", 2, 1), ("key", 3, 1)]),
        ("? [a, b]\n: c", [("key", 1, 3)]),
        ("a: \x07", [("control-character", 1, 4)]),
        ("a: b\nc: 'x\u202ey'", [("control-character", 2, 6)]),
        ("a: b  # a comment\u2028c: d", [("control-character", 1, 18)]),
        ("a: b  # a comment\u0085c: d", [("control-character", 1, 18)]),
        ('a: "\\x00"', [("control-character", 1, 4)]),
        ("a: *b", [("undefined-alias", 1, 4)]),
        ("a: &b [*b]", [("undefined-alias", 1, 8)]),
        ("a: 1e999\nb: 123456789012345678901", [("number", 1, 4), ("number", 2, 4)]),
        ("a: 9223372036854775808", [("number", 1, 4)]),
        ("a: b: c", [("syntax", 1, 5)]),
        ("a: @b", [("syntax", 1, 4)]),
    ],
)
def test_what_is_refused_is_named_with_its_place(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert problems(text) == expected


def test_bytes_that_are_no_utf_8_are_refused_at_their_place() -> None:
    assert problems("a: 1\nü: ".encode() + b"\xff") == [("not-utf-8", 2, 4)]


def test_a_file_in_another_encoding_is_refused() -> None:
    assert problems("a: 1".encode("utf-16"))[0][0] == "not-utf-8"


def test_a_byte_order_mark_is_no_content() -> None:
    assert parse_document(b"\xef\xbb\xbfa: 1", file="f.yaml").data == {"a": 1}


def test_a_tab_between_values_is_refused_and_one_inside_text_is_kept() -> None:
    assert problems("a: {b: 1,\tc: 2}")[0][0] == "tab"
    assert parse_document("a: {b: 'x\ty', c: 2}", file="f.yaml").data == {"a": {"b": "x\ty", "c": 2}}


def test_an_anchor_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(12)]
    began = time.process_time()
    found = problems("\n".join(lines))
    assert found[0][0] == "too-many-values"
    assert time.process_time() - began < 30  # 10**12 values would take days


def test_aliases_within_the_bounds_are_values() -> None:
    read = parse_document("a: &shape [1, 3]\nb: {c: *shape}", file="f.yaml")
    assert read.data == {"a": [1, 3], "b": {"c": [1, 3]}}
    assert read.locate(("b", "c", 1)) == Location("f.yaml", 1, 15)


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_nesting_is_bounded(opening: str) -> None:
    assert problems("a: " + opening * 20_000)[0][0] == "too-deep"
    assert problems("a: " + opening * MAX_DEPTH)[0][0] == "too-deep"


def test_block_nesting_is_bounded() -> None:
    text = "\n".join(" " * depth + "a:" for depth in range(MAX_DEPTH + 2))
    assert problems(text)[0][0] == "too-deep"


def test_size_is_bounded() -> None:
    assert problems("a: " + "x" * MAX_BYTES)[0][0] == "too-large"
    assert problems("a: [" + "1," * MAX_NODES + "]")[0][0] == "too-many-values"


def test_every_problem_is_told_up_to_a_bound() -> None:
    assert problems("a: .nan\nb: 1\nb: 2\nc: !x 1") == [("not-finite", 1, 4), ("duplicate-key", 3, 1), ("tag", 4, 4)]
    assert len(problems("\n".join(f"a{n}: .nan" for n in range(500)))) == module.MAX_PROBLEMS


TEXT = """\
metadata:
  name: x
profiles:
  - name: a
    shape: [1, 3,
            48]
"""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        ((), 1, 1),
        (("metadata",), 2, 3),
        (("metadata", "name"), 2, 9),
        (("profiles", 0), 4, 5),
        (("profiles", 0, "shape", 2), 6, 13),
        (("profiles", 0, "missing", 1), 4, 5),
        (("profiles", 7, "name"), 4, 3),
        (("nothing",), 1, 1),
    ],
)
def test_a_value_is_located_or_its_nearest_parent(path: tuple[str | int, ...], line: int, column: int) -> None:
    assert parse_document(TEXT, file="f.yaml").locate(path) == Location("f.yaml", line, column)


def test_keys_are_located_and_scalars_keep_their_text() -> None:
    read = parse_document(TEXT + "version: 8.60\n", file="f.yaml")
    assert read.locate_key(("profiles", 0, "shape")) == Location("f.yaml", 5, 5)
    assert read.locate_key(("profiles", 0)) == Location("f.yaml", 4, 5)
    assert read.locate_key(("metadata", "gone")) == Location("f.yaml", 2, 3)
    assert read.raw(("version",)) == "8.60"
    assert read.raw(("metadata",)) is None
    assert read.raw(("version", "x")) is None
    assert read.depth(("profiles", 0, "gone")) == 2


class TestFiles:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            load_document(tmp_path / "none.yaml")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="not a file"):
            load_document(tmp_path)

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="not a file"):
            load_document(tmp_path / "pipe")

    def test_a_path_with_a_nul(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            load_document(tmp_path / "a\0b")

    def test_a_file_over_the_limit_is_not_read_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "large.yaml"
        with path.open("wb") as file:
            file.truncate(10 << 30)  # sparse
        with pytest.raises(InputError, match="over 1048576 bytes"):
            load_document(path)

    def test_a_name_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("a: [")
        with pytest.raises(InputError) as caught:
            load_document(tmp_path / "a.yaml", name="engines/a.yaml")
        assert str(caught.value.problems[0].location).startswith("engines/a.yaml:")
