"""YAML in, values with their line and column out, bounded. Every file that a person writes comes in through here.

The language is YAML 1.2 with the core schema, less what surprises a reviewer:

* plain ``true``, ``false``, ``null`` and decimal numbers are values; everything else is text (``on``, ``no``, ``010``,
  ``0x1F``, ``12:30:00``, ``2024-01-01``);
* one document a file, a mapping at its top, text as keys, each key once;
* no tags, no merge keys (``<<``, which YAML 1.2 does not have), no NaN or infinity, no tabs outside of text, no control
  characters (those that reorder text on the screen included: what is reviewed must be what is read);
* aliases are allowed, and count as often as they are used: an anchor bomb is refused while it is being read.

Parsing is iterative over events (libyaml's where it is there), so that no nesting can exhaust the stack.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

from trtops.errors import InputError, Location, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 50_000
MAX_PROBLEMS = 50
_SHOWN = 80

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
# C0 and C1 controls but tab, line feed and carriage return; surrogates; the bidirectional overrides and isolates that
# make a line read otherwise than it is parsed (CVE-2021-42574); line breaks that YAML 1.1 has and editors do not show,
# behind which a comment goes on as a value.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _place(event: yaml.Event) -> tuple[int, int]:
    """Line and column of an event, from 1."""
    mark: Any = event.start_mark
    return mark.line + 1, mark.column + 1


class _Node:
    """A value with its position, and its children by key or index."""

    __slots__ = ("children", "column", "key_marks", "keys", "line", "raw", "value", "weight")

    def __init__(self, event: yaml.Event, value: Any, raw: str | None = None) -> None:  # noqa: ANN401 - any YAML value
        self.line, self.column = _place(event)
        self.value = value
        self.raw = raw
        self.weight = 1
        self.children: dict[str | int, _Node] = {}
        self.key_marks: dict[str, tuple[int, int]] = {}
        self.keys: list[str | None] = []  # the key that waits for its value; None: its pair is left out


class Document:
    """A file that was read.

    Attributes:
        file: the name that errors show.
        data: the value: a mapping of text to values. Shared parts (aliases) are one object: do not mutate it.
    """

    __slots__ = ("_root", "data", "file")

    def __init__(self, file: str, data: dict[str, Any], root: _Node) -> None:
        """Made by :func:`parse_document` and :func:`load_document`."""
        self.file = file
        self.data = data
        self._root = root

    def __repr__(self) -> str:
        """Show the file and its top-level keys."""
        return f"Document({self.file!r}, keys={list(self.data)})"

    def _walk(self, path: Sequence[str | int]) -> Iterator[tuple[str | int, _Node, _Node]]:
        parent = self._root
        for segment in path:
            child = parent.children.get(segment)
            if child is None:
                return
            yield segment, parent, child
            parent = child

    def depth(self, path: Sequence[str | int]) -> int:
        """How many leading segments of a path this document has."""
        return sum(1 for _ in self._walk(path))

    def locate(self, path: Sequence[str | int]) -> Location:
        """Position of the value at a path; of its nearest parent where the document has no such value."""
        node = self._root
        for _, _, child in self._walk(path):
            node = child
        return Location(self.file, node.line, node.column)

    def locate_key(self, path: Sequence[str | int]) -> Location:
        """Position of the key that the path ends in; as :meth:`locate` where it ends in an index or is not there."""
        last: tuple[int, int] | None = None
        steps = 0
        for segment, parent, _ in self._walk(path):
            steps += 1
            last = parent.key_marks.get(segment) if isinstance(segment, str) else None
        return Location(self.file, *last) if last and steps == len(path) else self.locate(path)

    def raw(self, path: Sequence[str | int]) -> str | None:
        """The text of a scalar as it is written, without quotes; None where the path is no scalar of this document."""
        node = self._root
        steps = 0
        for _, _, child in self._walk(path):
            node = child
            steps += 1
        return node.raw if steps == len(path) else None


def load_document(path: Path, *, name: str | None = None) -> Document:
    """Read a file.

    Args:
        path: the file.
        name: what errors call it; by default the path.

    Raises:
        InputError: the file is missing, not a file, unreadable, or not a document (all problems that were found).
    """
    file = name or str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path.name} is not a file", where=file, fix="give the path of a YAML file")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("the file does not exist", where=file, fix="check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the file cannot be read: {reason}", where=file, fix="check its permissions") from error
    return parse_document(content, file=file)


def parse_document(content: bytes | str, *, file: str) -> Document:
    """Read a document from memory.

    Raises:
        InputError: it is not a document; the error's problems say what is wrong and where.
    """
    text = _text(content, file)
    reader = _Reader(text, file)
    root = reader.read()
    if reader.problems:
        raise invalid(file, reader.problems)
    if root is None or not isinstance(root.value, dict):
        found = "the document is empty" if root is None or root.value is None else f"found {describe(root.value)}"
        where = Location(file, root.line, root.column) if root else Location(file, 1, 1)
        problem = Problem(
            "document.not-a-mapping",
            f"{found} where a mapping is expected",
            where,
            "write `key: value` lines, beginning with `apiVersion: trtops/v1`",
        )
        raise invalid(file, [problem])
    return Document(file, root.value, root)


def describe(value: object) -> str:
    """Name a YAML value in words, for messages: ``the number 8.6``, ``a list of 3``, ``'text'``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(_short(value))
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} keys" if len(value) != 1 else "a mapping of 1 key"
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def invalid(file: str, problems: Sequence[Problem]) -> InputError:
    """Make one error of all problems of a file, in the order of its lines."""
    ordered = sorted(
        problems, key=lambda problem: (problem.location.file, problem.location.line, problem.location.column)
    )
    first = ordered[0]
    count = f"{len(ordered)} problems, the first" if len(ordered) > 1 else "1 problem"
    return InputError(
        f"{count}: {first.message}",
        where=first.location if first.location.line else file,
        fix=first.fix,
        problems=ordered,
    )


def hidden_character(text: str) -> tuple[str, int] | None:
    """The first character of a text by which it reads otherwise than it is parsed: ``U+202E``, and its line from 1."""
    match = _CONTROL.search(text)
    return None if match is None else (f"U+{ord(match[0]):04X}", text.count("\n", 0, match.start()) + 1)


def _text(content: bytes | str, file: str) -> str:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        problem = Problem(
            "document.too-large",
            f"the file is over {MAX_BYTES} bytes",
            Location(file),
            "split it, or move data out of it",
        )
        raise invalid(file, [problem])
    text = content if isinstance(content, str) else _decode(content, file)
    text = text.removeprefix("\ufeff")
    if match := _CONTROL.search(text):
        problem = Problem(
            "document.control-character",
            f"control character U+{ord(match[0]):04X}",
            _position(text, match.start(), file),
            "remove it, or write it as an escape in double quotes if it is a line break",
        )
        raise invalid(file, [problem])
    return text


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        column = len(content[content.rfind(b"\n", 0, error.start) + 1 : error.start].decode("utf-8", "replace")) + 1
        problem = Problem(
            "document.not-utf-8",
            f"byte 0x{content[error.start]:02x} is not UTF-8",
            Location(file, line, column),
            "save the file as UTF-8",
        )
        raise invalid(file, [problem]) from None


def _position(text: str, index: int, file: str) -> Location:
    return Location(file, text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


class _Stop(Exception):
    """Reading cannot go on."""


class _Reader:
    """Turns events into nodes, noting every problem."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._text = text
        self._lines = text.splitlines() if "\t" in text else None
        self._anchors: dict[str, _Node] = {}
        self._open: list[tuple[_Node, str | None]] = []
        self._nodes = 0
        self._root: _Node | None = None

    def read(self) -> _Node | None:
        """Read the whole stream; the root, or None where there is none or reading stopped."""
        documents = 0
        end: Any = None
        try:
            for event in yaml.parse(self._text, Loader=_LOADER):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._stop("document.several", "a second document begins", event, "keep one document a file")
                elif isinstance(event, yaml.NodeEvent):
                    self._tab(event, end)
                    self._node(event)
                elif isinstance(event, yaml.CollectionEndEvent):
                    self._close()
                end = event.end_mark
        except _Stop:
            return None
        except yaml.YAMLError as error:
            self._syntax(error)
        return self._root

    def _note(self, code: str, message: str, event: yaml.Event, fix: str) -> None:
        self.problems.append(Problem(code, message, Location(self.file, *_place(event)), fix))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Stop

    def _stop(self, code: str, message: str, event: yaml.Event, fix: str) -> None:
        self._note(code, message, event, fix)
        raise _Stop

    def _count(self, weight: int, event: yaml.Event) -> None:
        self._nodes += weight
        if self._nodes > MAX_NODES:
            self._stop(
                "document.too-many-values",
                f"more than {MAX_NODES} values, those that aliases repeat included",
                event,
                "split the file, or write out what the aliases repeat only where it is needed",
            )

    def _node(self, event: yaml.NodeEvent) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._add(self._alias(event), event)
            return
        self._count(1, event)
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._note("document.tag", f"the tag {_short(tag)} is not allowed", event, "remove it; quote text instead")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(event, self._scalar(event), event.value)
            if event.anchor:
                self._anchors[event.anchor] = node
            self._add(node, event)
        else:
            self._begin(event)

    def _begin(self, event: yaml.NodeEvent) -> None:
        """Open a collection. It is added to its parent when it is closed."""
        if len(self._open) >= MAX_DEPTH:
            self._stop("document.too-deep", f"nested more than {MAX_DEPTH} deep", event, "flatten the document")
        container: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        node = _Node(event, container)
        if self._expects_key():
            self._note("document.key", "a key that is not text", event, "write the key as text")
        self._open.append((node, event.anchor))

    def _close(self) -> None:
        node, anchor = self._open.pop()
        if anchor:
            self._anchors[anchor] = node
        self._add(node, None)

    def _alias(self, event: yaml.AliasEvent) -> _Node:
        name = event.anchor or ""
        node = self._anchors.get(name)
        if node is None:
            message = f"the alias *{_short(name)} has no finished anchor before it"
            self._note("document.undefined-alias", message, event, f"define it first: `&{_short(name)}`")
            raise _Stop
        self._count(node.weight, event)
        return node

    def _expects_key(self) -> bool:
        if not self._open:
            return False
        parent = self._open[-1][0]
        return isinstance(parent.value, dict) and not parent.keys

    def _add(self, node: _Node, event: yaml.NodeEvent | None) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1][0]
        if self._expects_key():
            parent.keys.append(self._key(node, parent, event))
            return
        parent.weight += node.weight
        if isinstance(parent.value, list):
            parent.children[len(parent.value)] = node
            parent.value.append(node.value)
            return
        key = parent.keys.pop()
        if key is not None:
            parent.children[key] = node
            parent.value[key] = node.value

    def _key(self, node: _Node, parent: _Node, event: yaml.NodeEvent | None) -> str | None:
        if event is None:  # a collection as a key: noted when it was opened
            return None
        key = node.value
        if not isinstance(key, str):
            shown = node.raw or describe(key)
            self._note("document.key", f"the key {shown} is not text", event, f'quote it: "{node.raw or ""}"')
            return None
        if key == "<<" and not getattr(event, "style", "'"):
            self._note("document.merge-key", "merge keys (<<) are not allowed", event, "write the keys out")
            return None
        if key in parent.key_marks:
            line = parent.key_marks[key][0]
            self._note(
                "document.duplicate-key",
                f"the key {key!r} is there twice, first in line {line}",
                event,
                "keep one of the two",
            )
            return None
        parent.key_marks[key] = _place(event)
        return key

    def _scalar(self, event: yaml.ScalarEvent) -> str | float | bool | None:
        text: str = event.value
        if match := _CONTROL.search(text):
            self._note(
                "document.control-character",
                f"control character U+{ord(match[0]):04X} in a value",
                event,
                "remove it",
            )
        if event.style or not event.implicit[0]:  # plain is None, or "" from libyaml
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            return self._number(int(text) if len(text) <= 20 else math.inf, event)  # noqa: PLR2004 - 2**63 has 19 digits
        if _FLOAT.fullmatch(text):
            return self._number(float(text), event)
        if _NOT_FINITE.fullmatch(text):
            self._note(
                "document.not-finite", f"{text} is not a number that can be compared", event, "write a finite number"
            )
        return text

    def _number(self, number: float, event: yaml.ScalarEvent) -> float:
        if not -(1 << 63) <= number < (1 << 63) and (isinstance(number, int) or math.isinf(number)):
            shown = _short(event.value)
            self._note("document.number", f"the number {shown} is out of range", event, "quote it if it is text")
            return 0
        return number

    def _tab(self, event: yaml.NodeEvent, after: Any) -> None:  # noqa: ANN401 - a mark of either parser
        """Note a tab between the end of the event before and the start of this one."""
        mark: Any = event.start_mark
        if self._lines is None or mark.line >= len(self._lines):
            return
        begin = after.column if after and after.line == mark.line else 0
        column = self._lines[mark.line].find("\t", begin, mark.column)
        if column >= 0:
            place = Location(self.file, mark.line + 1, column + 1)
            self.problems.append(Problem("document.tab", "a tab between values", place, _TAB_FIX))

    def _syntax(self, error: yaml.YAMLError) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "the text is not YAML"
        line, column = (mark.line, mark.column) if mark else (0, 0)
        lines = self._text.splitlines()
        near = lines[line] if line < len(lines) else ""
        where = Location(self.file, line + 1, column + 1)
        if "nesting" in str(problem):  # libyaml looks ahead, and stops by itself at 1000
            fix = "flatten the document"
            self.problems.append(Problem("document.too-deep", f"nested more than {MAX_DEPTH} deep", where, fix))
        elif "\t" in near[: len(near) - len(near.lstrip())] or near[column : column + 1] == "\t":
            where = Location(self.file, line + 1, near.index("\t") + 1)
            self.problems.append(Problem("document.tab", "a tab between values", where, _TAB_FIX))
        else:
            context = str(getattr(error, "context", None) or "")
            message = f"{problem} {context}" if context.startswith("while") else str(problem)
            fix = "check the indentation, the quotes and the colons before this place"
            self.problems.append(Problem("document.syntax", message, where, fix))


_TAB_FIX = "YAML indents with spaces: replace each tab by two spaces"
