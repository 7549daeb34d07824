"""What the adapters touch of a TensorRT, read off their source, resolved against the classes of a real release.

Run as a program, with nothing but the standard library: ``python trt_api.py MODULE CUDA SOURCE...`` prints JSON; CUDA
is the module of the CUDA runtime, ``-`` for none. Types of results come from the signatures in the bindings' own docstrings, so that a chain such as
``builder.create_network(flags).get_input(0).shape`` is followed to its end.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What parameters annotated ``Any`` are, by name; "" is the module.
SEEDS = {
    "trt": "",
    "builder": "Builder",
    "network": "INetworkDefinition",
    "config": "IBuilderConfig",
    "error": "ParserError",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "tensor": "ITensor",
    "registry": "IPluginRegistry",
    "severity": "ILogger.Severity",
    "layer": "ILayer",
}
# Parameters annotated ``Any`` that are nothing of TensorRT's.
OTHERS = {"cudart", "model", "log", "owner", "event", "stream", "graph", "pointer", "value", "mark", "told"}
# Fields and local names that are set from elsewhere.
NAMED = {"engine": "ICudaEngine", "context": "IExecutionContext"}
_ENUM_LIKE = re.compile(r"[A-Z][A-Z0-9]{2,}(_[A-Z0-9]+)*")
_LOOKUPS = {"getattr", "hasattr", "_called", "_required", "_set_pool"}


@dataclass(frozen=True)
class Kind:
    """Type of an expression: the module, a class, an instance, a method of a class, or an iterable of a kind."""

    what: str
    of: Any = None
    items: Kind | None = None


@dataclass
class Findings:
    """What was touched, as ``Class.name``: what every release must have, and what only some have."""

    required: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    resolved: set[str] = field(default_factory=set)
    strange: set[str] = field(default_factory=set)


class Reader:
    """Walks one source file."""

    def __init__(self, library: Any, cuda: Any, findings: Findings) -> None:
        self.library = library
        self.cuda = cuda
        self.found = findings
        self.functions: dict[str, ast.FunctionDef] = {}
        self.fields: dict[str, Kind] = {}
        self.returning: set[str] = set()

    def read(self, source: str) -> None:
        tree = ast.parse(source)
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        everything = {**self.functions}
        for _ in range(2):  # the second time, fields that methods set are known
            for function in everything.values():
                self._function(function)
        for node in ast.walk(tree):
            self._strings(node)

    # Functions, statements

    def _seeded(self, function: ast.FunctionDef) -> dict[str, Kind]:
        known = {}
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        for argument in arguments:
            if not (isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"):
                continue
            if argument.arg in SEEDS:
                known[argument.arg] = self._seed(SEEDS[argument.arg])
            elif argument.arg not in OTHERS:
                self.found.strange.add(f"{function.name}({argument.arg})")
        return known

    def _seed(self, name: str) -> Kind:
        if not name:
            return Kind("module", self.library)
        owner = self.library
        for part in name.split("."):
            owner = getattr(owner, part)
        return Kind("instance", owner)

    def _function(
        self, function: ast.FunctionDef, outer: dict[str, Kind] | None = None, *, guarded: bool = False
    ) -> Kind | None:
        known = {**(outer or {}), **self._seeded(function)}
        result: Kind | None = None
        for statement in function.body:
            found, guarded = self._statement(statement, known, guarded=guarded)
            result = result or found
        return result

    def _statement(self, node: ast.stmt, known: dict[str, Kind], *, guarded: bool) -> tuple[Kind | None, bool]:
        if isinstance(node, ast.FunctionDef):
            self._function(node, known, guarded=guarded)
            return None, guarded
        result: Kind | None = None
        inner = guarded or (isinstance(node, ast.If) and _asks_version(node.test))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, known, guarded=inner)
        if isinstance(node, ast.Return) and node.value is not None:
            result = self._kind(node.value, known)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, known)
        if isinstance(node, ast.For):
            self._bind_item(node.target, self._kind(node.iter, known), known)
        for part in ("body", "orelse", "finalbody"):
            for child in getattr(node, part, []):
                found, _ = self._statement(child, known, guarded=inner)
                result = result or found
        for handler in getattr(node, "handlers", []):
            for child in handler.body:
                self._statement(child, known, guarded=inner)
        return result, inner if isinstance(node, ast.If) and _leaves(node) else guarded

    def _bind(self, target: ast.expr, value: ast.expr, known: dict[str, Kind]) -> None:
        kind = self._kind(value, known)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._bind(one, other, known)
        elif isinstance(target, ast.Name):
            known.pop(target.id, None)
            if kind is not None:
                known[target.id] = kind
        elif isinstance(target, ast.Attribute) and _is_self(target.value) and kind is not None:
            self.fields[target.attr] = kind

    @staticmethod
    def _bind_item(target: ast.expr, kind: Kind | None, known: dict[str, Kind]) -> None:
        if isinstance(target, ast.Name):
            known.pop(target.id, None)
            if kind is not None and kind.items is not None:
                known[target.id] = kind.items

    # What expressions touch

    def _expression(self, node: ast.expr, known: dict[str, Kind], *, guarded: bool) -> None:
        if isinstance(node, (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            known = dict(known)
            for comprehension in node.generators:
                self._expression(comprehension.iter, known, guarded=guarded)
                self._bind_item(comprehension.target, self._kind(comprehension.iter, known), known)
        if isinstance(node, ast.BoolOp) and any(_is_lookup(value) for value in node.values):
            guarded = True
        if isinstance(node, ast.IfExp) and _asks_version(node.test):
            guarded = True
        if isinstance(node, ast.Attribute):
            self._touch(node, known, guarded=guarded)
        if isinstance(node, ast.Call):
            self._call(node, known)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child, known, guarded=guarded)
            elif isinstance(child, (ast.keyword, ast.comprehension)):
                for part in ast.iter_child_nodes(child):
                    if isinstance(part, ast.expr):
                        self._expression(part, known, guarded=guarded)

    def _touch(self, node: ast.Attribute, known: dict[str, Kind], *, guarded: bool) -> None:
        base = self._kind(node.value, known)
        if base is None or base.of is None or base.what == "method":
            return
        name = f"{getattr(base.of, '__name__', base.of)}.{node.attr}"
        there = hasattr(base.of, node.attr)
        if guarded:
            self.found.optional.add(name)
            if there:
                self.found.resolved.add(name)
            return
        self.found.required.add(name)
        if not there:
            self.found.missing.add(name)

    def _call(self, node: ast.Call, known: dict[str, Kind]) -> None:
        kind = self._kind(node.func, known)
        if kind is None or kind.what not in {"method", "class"}:
            return
        doc = (kind.of.__init__ if kind.what == "class" else kind.of).__doc__ or ""
        takes = _parameters(doc)
        called = ast.unparse(node.func)
        if not takes or called.endswith("__init__"):
            return
        wanted = [keyword.arg for keyword in node.keywords if keyword.arg]
        for name in wanted:
            if not any(name in parameters for parameters in takes):
                self.found.missing.add(f"{called}({name}=)")
        given = len(node.args) + len(wanted)
        if not any(isinstance(argument, ast.Starred) for argument in node.args) and all(
            given > len(parameters) for parameters in takes
        ):
            self.found.missing.add(f"{called} with {given} arguments")

    def _strings(self, node: ast.AST) -> None:
        """Names that are looked up: enum-like strings, and the second argument of getattr and hasattr."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _ENUM_LIKE.fullmatch(node.value):
            self.found.optional.add(node.value)
            if any(node.value in getattr(kind, "__members__", {}) for kind in self._classes()):
                self.found.resolved.add(node.value)
        if isinstance(node, ast.Call) and _is_lookup(node) and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and not _ENUM_LIKE.fullmatch(name.value):
                if name.value in {"errors", "shown", "name"}:  # of our own logger, of every enum
                    return
                self.found.optional.add(name.value)
                if hasattr(self.library, name.value) or any(hasattr(kind, name.value) for kind in self._classes()):
                    self.found.resolved.add(name.value)

    def _classes(self) -> list[type]:
        return [value for value in vars(self.library).values() if isinstance(value, type)]

    # What kind expressions are of

    def _kind(self, node: ast.expr, known: dict[str, Kind]) -> Kind | None:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name.lstrip("_") == "cudart":
            return Kind("module", self.cuda) if self.cuda else None
        if isinstance(node, ast.Name):
            return known.get(node.id) or (self._seed(NAMED[node.id]) if node.id in NAMED else None)
        if isinstance(node, ast.Attribute):
            if not _is_self(node.value):
                return self._attribute(node, known)
            named = NAMED.get(node.attr.lstrip("_"))
            return self.fields.get(node.attr) or (self._seed(named) if named else None)
        if isinstance(node, ast.Call):
            return self._result(node, known)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            inner = dict(known)
            for comprehension in node.generators:
                self._bind_item(comprehension.target, self._kind(comprehension.iter, inner), inner)
            return Kind("iterable", None, self._kind(node.elt, inner))
        if isinstance(node, ast.BoolOp):
            return next((kind for value in node.values if (kind := self._kind(value, known))), None)
        if isinstance(node, ast.IfExp):
            return self._kind(node.body, known) or self._kind(node.orelse, known)
        return None

    def _attribute(self, node: ast.Attribute, known: dict[str, Kind]) -> Kind | None:
        base = self._kind(node.value, known)
        if base is None or base.of is None:
            return None
        found = getattr(base.of, node.attr, None)
        if isinstance(found, type):
            return Kind("class", found)
        if isinstance(found, property):
            return self._documented(found.fget.__doc__ or "")
        if base.what == "class" and type(found) is base.of:
            return Kind("instance", base.of)
        return Kind("method", found) if callable(found) else None

    def _result(self, node: ast.Call, known: dict[str, Kind]) -> Kind | None:
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            name = node.func.id
            if name in self.returning:
                return None
            self.returning.add(name)
            try:
                return self._function(self.functions[name])
            finally:
                self.returning.discard(name)
        kind = self._kind(node.func, known)
        if kind is None:
            return None
        if kind.what == "class":
            return Kind("instance", kind.of)
        return self._documented(kind.of.__doc__ or "") if kind.what == "method" else None

    def _documented(self, doc: str) -> Kind | None:
        match = re.search(r"-> (?:List\[|list\[|collections\.abc\.Sequence\[)?([\w.:]+)", doc)
        if match is None:
            return None
        name = re.split(r"[.:]+", match[1])[-1]
        # The parser's errors are named after the C++ interface in signatures, and after the binding in the module.
        found = getattr(self.library, name, None) or getattr(self.library, name.removeprefix("I"), None)
        if not isinstance(found, type):
            return None
        kind = Kind("instance", found)
        return Kind("iterable", None, kind) if match[0].endswith("[" + match[1]) else kind


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_lookup(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LOOKUPS


def _asks_version(test: ast.expr) -> bool:
    calls = (node.func.id for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return bool({"hasattr", "_major", "major"}.intersection(calls))


def _leaves(node: ast.If) -> bool:
    """Whether what follows an ``if`` runs only where its test was false."""
    return isinstance(node.body[-1], (ast.Return, ast.Raise))


def _parameters(doc: str) -> list[list[str]]:
    """Names of the parameters of each overload that a docstring shows, without ``self``."""
    found = []
    for match in re.finditer(r"^(?:\d+\. )?\w+\((?P<inside>.*)\)(?: -> .*)?$", doc, re.MULTILINE):
        names, depth, start = [], 0, 0
        inside = match["inside"] + ","
        for position, letter in enumerate(inside):
            depth += (letter in "([<{") - (letter in ")]>}")
            if letter == "," and depth == 0:
                names.append(inside[start:position].strip().partition(":")[0].strip())
                start = position + 1
        if "*args" not in names:
            found.append([name for name in names if name not in {"self", "", "arg0"} or name == "arg1"])
    return found


def main(arguments: list[str]) -> int:
    library = importlib.import_module(arguments[0])
    cuda = None if arguments[1] == "-" else importlib.import_module(arguments[1])
    findings = Findings()
    for path in arguments[2:]:
        Reader(library, cuda, findings).read(Path(path).read_text(encoding="utf-8"))
    version = str(getattr(library, "__version__", ""))
    sys.stdout.write(
        json.dumps({"version": version, **{name: sorted(found) for name, found in vars(findings).items()}})
    )
    return 0


if __name__ == "__main__":
    sys.path.pop(0)  # this folder has a module cuda of its own
    sys.exit(main(sys.argv[1:]))
