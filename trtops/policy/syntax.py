"""Rego files as syntax trees, and their parts: calls, references, rule heads. Parsed by regorus, walked here."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.errors import Location, Undecided
from trtops.policy.native import NativeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtops.policy.port import PolicyFile, PolicySet
    from trtops.policy.verdict import Stage

Node = dict[str, Any]
Segment = str | None
"""A key that is written out; None for a variable or an expression."""

MAX_NESTING = 100
_KEPT = 8
_PARSED: dict[tuple[str, str, str], list[Module]] = {}
_PLACE = re.compile(r"-->\s*(?P<file>.+):(?P<line>\d+):(?P<column>\d+)")
_LITERALS = frozenset({"String", "RawString", "Number", "Bool", "Null"})
_LEAVES = frozenset({"span", "String", "RawString", "Number", "Bool", "Null"})
_REFS = frozenset({"Var", "RefDot", "RefBrack"})


@dataclass(frozen=True, slots=True)
class Reference:
    """``input.a.b[x]``: its root and the segments that follow."""

    root: str
    segments: tuple[Segment, ...]
    offset: int
    node: Node = field(compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: the name as written, and the arguments' nodes."""

    name: str
    arguments: tuple[Node, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Head:
    """A rule's head.

    Attributes:
        name: with its static path: ``findings``, ``limits.max``.
        kind: ``set``, ``value``, ``object``, ``function`` or ``default``.
        arity: arguments of a function; 0 otherwise.
    """

    name: str
    kind: str
    arity: int
    offset: int


class RegorusPanic(Exception):
    """The native code of regorus broke down. Its own exception is no ``Exception``, so that nobody would catch it."""


@contextmanager
def panics() -> Iterator[None]:
    """Turn a breakdown of regorus into :class:`RegorusPanic`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RegorusPanic(str(error)) from None
        raise


class Module:
    """A parsed file.

    Attributes:
        file: what was parsed.
        package: its package.
        imports: alias -> path.
        rules: the rules' nodes.
        heads: of the rules, in their order; ``names`` are theirs.
        calls: every call, in the order of the source.
        references: every reference that is not a part of another; names of called functions are left out.
    """

    def __init__(self, file: PolicyFile, tree: Node) -> None:
        """Made by :func:`parse`."""
        self.file = file
        self.package = ".".join(part or "" for part in _chain(tree["package"]["refr"])[0])
        self.imports: dict[str, tuple[str, ...]] = {}
        self.import_offsets: dict[str, int] = {}
        self.rules: list[Node] = tree["rules"]
        self._bytes = file.text.encode()
        self.heads = tuple(head for rule in self.rules for head in _heads(rule))
        self.names = frozenset(head.name for head in self.heads)
        self.calls, self.references = scan(self.rules)
        for entry in tree["imports"]:
            path = tuple(part or "" for part in _chain(entry["refr"])[0])
            alias = entry.get("as")
            name = self.text(alias) if alias else path[-1]
            self.imports[name] = path
            self.import_offsets[name] = entry["span"]["start"]

    def text(self, span: Mapping[str, int]) -> str:
        """The source between two offsets."""
        return self._bytes[span["start"] : span["end"]].decode("utf-8", "replace")

    def at(self, offset: int) -> Location:
        """Position of a byte."""
        before = self._bytes[:offset]
        start = before.rfind(b"\n") + 1
        return self.file.at(before.count(b"\n") + 1, len(before[start:].decode("utf-8", "replace")) + 1)

    def expanded(self) -> str:
        """The text with everything through an import of data written out, for regorus.

        It does not look calls up there, and for a value it evaluates the whole package that the import names.
        ``facts.at(path)`` becomes ``data.trtops.lib.facts.at(path)``: the same by its full name, the same lines.
        """
        pieces: list[bytes] = []
        done = 0
        for offset, name in sorted(self._imported()):
            pieces += [self._bytes[done:offset], ".".join(self.imports[name]).encode()]
            done = offset + len(name.encode())
        return b"".join([*pieces, self._bytes[done:]]).decode()

    def _imported(self) -> Iterator[tuple[int, str]]:
        """Offset and alias of what is called or read through an import of data.

        A name that stands alone anywhere may be a variable that hides the import: nothing is read through it, then.
        """
        alone = {reference.root for reference in self.references if not reference.segments}
        used = {(call.offset, call.name.partition(".")[0]) for call in self.calls}
        used |= {(read.offset, read.root) for read in self.references if read.root not in alone}
        for offset, name in used:
            if self.imports.get(name, ("",))[0] == "data" and self._bytes[offset:].startswith(name.encode()):
                yield offset, name

    def resolve(self, name: str) -> str:
        """The full path of a name: an import's alias replaced, a rule of this package under ``data``."""
        head, _, tail = name.partition(".")
        if head in self.imports:
            return ".".join((*self.imports[head], tail)) if tail else ".".join(self.imports[head])
        if head != "data" and name in self.names:
            return f"data.{self.package}.{name}"
        return name


def parse(files: Sequence[PolicyFile]) -> list[Module]:
    """Parse files as Rego v1.

    Raises:
        Undecided: a file is no Rego v1; names its line.
    """
    engine = NativeEngine()
    for file in files:
        too_deep = _too_deep(file.text)
        if too_deep:
            raise Undecided(f"nested more than {MAX_NESTING} deep", where=file.at(too_deep), fix="flatten it")
        try:
            with panics():
                engine.add_policy(file.path, file.text)
        except (RuntimeError, ValueError) as error:
            raise from_regorus(error, {file.path: file}, "the file is not Rego v1") from None
        except RegorusPanic as panic:
            raise Undecided(f"regorus broke down: {panic}", where=file.at(1), fix="write the rule otherwise") from None
    trees = {entry["source"]["file"]: entry["ast"] for entry in json.loads(engine.get_ast_as_json())}
    return [Module(file, trees[file.path]) for file in files]


def parsed(policies: PolicySet, stage: Stage) -> list[Module]:
    """The modules that judge a stage, parsed; the last few sets are kept (a set's digest is of all its files).

    Raises:
        Undecided: as :func:`parse`, and where the stage has no rule.
    """
    key = (str(policies.digest), policies.origin, stage)
    if key not in _PARSED:
        while len(_PARSED) >= _KEPT:
            del _PARSED[next(iter(_PARSED))]
        _PARSED[key] = parse(policies.modules(stage))
    return _PARSED[key]


def from_regorus(error: Exception, files: Mapping[str, PolicyFile], what: str) -> Undecided:
    """Turn an error of regorus into one that names the rule and the line, without its stack."""
    text = str(error).partition("Stack backtrace")[0].strip()
    reason = text.rpartition("error: ")[2].splitlines()[0].strip() if "error: " in text else text.splitlines()[-1]
    conflict = re.search(r"error: (rule conflicts with[^\n:]*)", text)
    if conflict:
        reason = "complete rules of one name give different values"
    if "statements not scheduled" in reason:
        reason = "regorus cannot order a comprehension in a rule's head: bind it to a variable in the rule's body"
    match = _PLACE.search(text)
    file = files.get(match["file"]) if match else None
    where = file.at(int(match["line"]), int(match["column"])) if match and file else None
    rule = f"{rule_of(file)}: " if file else ""
    return Undecided(f"{rule}{what}: {reason}", where=where, fix="mend the rule; `trtops policy test` shows it again")


def rule_of(file: PolicyFile) -> str:
    """The id of the rule that a file belongs to: ``spec.name``; of a library ``lib.name``."""
    parts = file.path.split("/")
    return f"{parts[1]}.{parts[2]}" if len(parts) > 3 else file.path  # noqa: PLR2004 - policies/<stage>/<rule>/<file>


def _too_deep(text: str) -> int:
    """Line at which brackets nest too deep, 0 if none does. Parsers recurse, and a native stack has no exception."""
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        depth += sum(line.count(mark) for mark in "([{")
        if depth > MAX_NESTING:
            return number
        depth = max(0, depth - sum(line.count(mark) for mark in ")]}"))
    return 0


def references(tree: Any) -> tuple[Reference, ...]:  # noqa: ANN401 - a part of a syntax tree
    """Every whole reference below, in the order of the source."""
    return scan(tree)[1]


def scan(tree: Any) -> tuple[tuple[Call, ...], tuple[Reference, ...]]:  # noqa: ANN401 - a part of a syntax tree
    """Every call and every whole reference below, in the order of the source."""
    calls: list[Call] = []
    references: list[Reference] = []
    pending: list[Any] = [tree]
    while pending:
        part = pending.pop()
        if type(part) is list:
            pending += part
        elif type(part) is dict:
            for kind, body in part.items():
                if type(body) is list:
                    pending.append(body)
                elif type(body) is dict and kind not in _LEAVES:
                    pending += _parts(kind, body, calls, references)
    calls.sort(key=lambda call: call.offset)
    references.sort(key=lambda reference: reference.offset)
    return tuple(calls), tuple(references)


def _parts(kind: str, body: Node, calls: list[Call], references: list[Reference]) -> list[Any]:
    """Note a node, and give what is to be looked at below it."""
    if kind in _REFS:
        chain, inner = _chain({kind: body})
        if chain[0] is not None:
            references.append(Reference(chain[0], tuple(chain[1:]), _offset({kind: body}), {kind: body}))
        return inner
    if kind == "Call":
        calls.append(Call(dotted(body["fcn"]), tuple(body["params"]), body["span"]["start"]))
        return list(body["params"])
    if kind == "head":
        return _head_values(body)
    return [] if kind == "refr" else [body]


def _head_values(head: Node) -> list[Any]:
    (body,) = head.values()
    return [body.get("key"), body.get("assign"), body.get("args")]


def _chain(node: Node) -> tuple[list[Segment], list[Node]]:
    """Root and segments of a reference, and the expressions that stand in its brackets or before its first dot."""
    segments: list[Segment] = []
    inner: list[Node] = []
    while True:
        ((kind, body),) = node.items()
        if kind == "Var":
            segments.append(body["value"])
            break
        if kind == "RefDot":
            segments.append(body["field"][1])
        elif kind == "RefBrack":
            ((index_kind, index),) = body["index"].items()
            literal = index_kind in ("String", "RawString")
            segments.append(index["value"] if literal else None)
            if index_kind not in _LITERALS:
                inner.append(body["index"])
        else:
            segments.append(None)
            inner.append(node)
            break
        node = body["refr"]
    segments.reverse()
    return segments, inner


def _offset(node: Node) -> int:
    while True:
        ((kind, body),) = node.items()
        if kind not in ("RefDot", "RefBrack"):
            return int(body["span"]["start"])
        node = body["refr"]


def whole_span(node: Node) -> dict[str, int]:
    """Start and end of a node; of a reference from its root on, which the parser leaves out."""
    ((kind, body),) = node.items()
    span = dict(body["span"])
    while kind in ("RefDot", "RefBrack"):
        ((kind, body),) = body["refr"].items()
        span["start"] = body["span"]["start"]
    return span


def dotted(node: Node) -> str:
    """A reference as it is written, dynamic segments as ``[]``."""
    return ".".join("[]" if part is None else part for part in _chain(node)[0])


def _heads(rule: Node) -> Iterator[Head]:
    ((kind, body),) = rule.items()
    if kind == "Default":
        yield Head(dotted(body["refr"]), "default", len(body.get("args") or ()), _offset(body["refr"]))
        return
    ((head_kind, head),) = body["head"].items()
    name = dotted(head["refr"])
    arity = 0
    if head_kind == "Func":
        kind, arity = "function", len(head["args"])
    elif head_kind == "Set":
        kind = "set"
    else:
        kind = "object" if "[]" in name else "value"
    yield Head(name.partition(".[]")[0], kind, arity, _offset(head["refr"]))
