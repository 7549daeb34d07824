"""``not`` over something undefined: OPA evaluates the parts of a negated expression before it, regorus does not.

``not allowed(input.gpu)`` is undefined in OPA where the input has no ``gpu``, so that the rule stays silent, and true
in regorus. What stands below ``not`` therefore has to be defined whatever the document is: a variable that is bound
already, a literal, a comprehension, a fact that the input always has, a function or rule with a default. The negated
thing itself may be undefined: ``not input.owner`` is what negation is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.policy.builtins import ALLOWED
from trtops.policy.shapes import Scope
from trtops.policy.syntax import Module, Node, dotted, references, whole_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtops.policy.shapes import Shape

_LITERALS = frozenset({"String", "RawString", "Number", "Bool", "Null", "ArrayCompr", "SetCompr", "ObjectCompr"})
_REFS = frozenset({"Var", "RefDot", "RefBrack"})


def undefined_under_not(
    modules: Sequence[Module], documents: Mapping[str, Sequence[Shape]]
) -> Iterator[tuple[Module, int, str]]:
    """Parts of negated expressions that may be undefined: module, offset, source.

    Args:
        modules: everything that judges a stage.
        documents: package -> shapes of the documents that it may be asked about.
    """
    definitions = _Definitions(modules)
    for module in modules:
        for rule in module.rules:
            scopes = [Scope(shape, rule) for shape in documents.get(module.package, ())]
            judge = _Judge(module, definitions, scopes)
            for expression in _negated(rule):
                for part in judge.undefined(expression):
                    span = whole_span(part)
                    yield module, span["start"], module.text(span)


def _negated(tree: Any) -> Iterator[Node]:  # noqa: ANN401 - a part of a syntax tree
    if isinstance(tree, list):
        for part in tree:
            yield from _negated(part)
    elif isinstance(tree, dict):
        for kind, body in tree.items():
            if kind == "NotExpr":
                yield body["expr"]
            if kind != "span":
                yield from _negated(body)


class _Definitions:
    """Which rules and functions of a set of modules are defined whatever the document is."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = {module.package: module for module in modules}
        self._known: dict[tuple[str, str], bool] = {}

    def total(self, package: str, name: str) -> bool:
        """Whether ``data.<package>.<name>``, or a call of it, is always defined."""
        key = (package, name)
        if key not in self._known:
            self._known[key] = False  # a rule that needs itself is none
            self._known[key] = self._total(package, name)
        return self._known[key]

    def _total(self, package: str, name: str) -> bool:
        module = self._modules.get(package)
        if module is None:
            return False
        for head, rule in zip(module.heads, module.rules, strict=True):
            if head.name != name:
                continue
            if head.kind in ("default", "set", "object") or self._unconditional(module, rule):
                return True
        return False

    def _unconditional(self, module: Module, rule: Node) -> bool:
        """A rule with no body whose value is always defined: ``size(x) := x * 2``."""
        body = rule["Spec"]
        if body["bodies"]:
            return False
        ((_, head),) = body["head"].items()
        assigned = head.get("assign")
        arguments = head.get("args") or []
        if any("Var" not in argument for argument in arguments) or not assigned:
            return not arguments and not assigned
        return not list(_Judge(module, self, []).parts(assigned["value"]))


class _Judge:
    """Tells what may be undefined within an expression of a rule."""

    def __init__(self, module: Module, definitions: _Definitions, scopes: Sequence[Scope]) -> None:
        self._module = module
        self._definitions = definitions
        self._scopes = scopes

    def undefined(self, expression: Node) -> Iterator[Node]:
        """Parts of a negated expression that may be undefined; the negated thing itself is left out."""
        ((kind, body),) = expression.items()
        if kind in _REFS:
            yield from self._indices(expression)
        elif kind == "Call":
            for argument in body["params"]:
                yield from self.parts(argument)
        elif kind == "BoolExpr" and body["op"] == "Eq":
            for side in (body["lhs"], body["rhs"]):
                yield from self._indices(side) if next(iter(side)) in _REFS else self.parts(side)
        else:
            yield from self.parts(expression)

    def parts(self, node: Node) -> Iterator[Node]:
        """Parts of a value that may be undefined, itself included."""
        ((kind, body),) = node.items()
        if kind in _LITERALS:
            return
        if kind in _REFS:
            if not self._defined(node):
                yield node
            yield from self._indices(node)
        elif kind == "Call":
            if not self._function(dotted(body["fcn"])):
                yield node
            for argument in body["params"]:
                yield from self.parts(argument)
        else:
            yield from self._below(body)

    def _below(self, body: Any) -> Iterator[Node]:  # noqa: ANN401 - a part of a syntax tree
        if isinstance(body, list):
            for part in body:
                yield from self._below(part)
        elif isinstance(body, dict):
            if len(body) == 1 and next(iter(body))[:1].isupper():
                yield from self.parts(body)
                return
            for kind, part in body.items():
                if kind != "span":
                    yield from self._below(part)

    def _indices(self, node: Node) -> Iterator[Node]:
        """Parts of the expressions in a reference's brackets."""
        while True:
            ((kind, body),) = node.items()
            if kind == "RefBrack":
                yield from self.parts(body["index"])
            if kind not in ("RefDot", "RefBrack"):
                return
            node = body["refr"]

    def _defined(self, node: Node) -> bool:
        reference = references(node)[0]
        path = (*self._module.imports.get(reference.root, (reference.root,)), *reference.segments)
        if path[0] == "data":
            return self._data(path[1:])
        if path[0] in self._module.names and not reference.segments:
            return self._definitions.total(self._module.package, str(path[0]))
        if not reference.segments:
            return True
        shapes = [scope.shape(reference) for scope in self._scopes]
        return bool(shapes) and all(shape is not None and shape.presence == "always" for shape in shapes)

    def _data(self, path: Sequence[str | None]) -> bool:
        if None in path:
            return False
        if path[:1] != ("trtops",):
            return True  # that it is there was looked at before
        package, rest = ".".join(str(part) for part in path[:3]), path[3:]
        return not rest or (len(rest) == 1 and self._definitions.total(package, str(rest[0])))

    def _function(self, name: str) -> bool:
        target = self._module.resolve(name)
        if target in ALLOWED:
            return True
        package, _, function = target.removeprefix("data.").rpartition(".")
        return self._definitions.total(package, function)
