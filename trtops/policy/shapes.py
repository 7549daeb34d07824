"""What an input's JSON Schema says of a path: that it is always there, may be there, or cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trtops.policy.syntax import Node, Reference, references

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtops.policy.syntax import Segment

Presence = Literal["always", "maybe", "never"]
_WORDS = frozenset({"title", "description", "default", "examples"})
_STEPS = 1000  # alternatives of one place; more is a schema that refers to itself
_SCALARS = frozenset({"string", "integer", "number", "boolean", "null"})


class Shape:
    """The schemas that a value may have; ``known`` is False where any value may stand.

    Attributes:
        always: whether the value is there in every document.
    """

    __slots__ = ("_nodes", "_root", "always", "known")

    def __init__(
        self, root: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], *, always: bool, known: bool
    ) -> None:
        """Made by :func:`of_schema` and the steps from it."""
        self._root = root
        self._nodes = nodes
        self.always = always
        self.known = known

    @property
    def presence(self) -> Presence:
        """Whether the value is there."""
        if not self.known:
            return "maybe"
        if not self._nodes:
            return "never"
        return "always" if self.always else "maybe"

    def step(self, segment: Segment) -> Shape:
        """The value under a key or index; None is one that is not written out."""
        if not self.known:
            return self
        found: list[Mapping[str, Any]] = []
        always = self.always and segment is not None
        for node in self._nodes:
            inner = _children(node, segment)
            if inner is None:
                return Shape(self._root, (), always=False, known=False)
            always = always and bool(inner) and segment in node.get("required", ())
            found += inner
        return _resolved(self._root, found, always=always)

    def walk(self, segments: Iterable[Segment]) -> Shape:
        """The value at a path."""
        shape: Shape = self
        for segment in segments:
            shape = shape.step(segment)
        return shape

    def element(self) -> Shape:
        """Any element: it is always there, since it is the element that is looked at."""
        inner = self.step(None)
        return Shape(inner._root, inner._nodes, always=True, known=inner.known)  # noqa: SLF001 - its own class


def of_schema(schema: Mapping[str, Any]) -> Shape:
    """The shape of a whole document."""
    return _resolved(schema, [schema], always=True)


def _resolved(root: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], *, always: bool) -> Shape:
    """Follow references and alternatives; a node that says nothing makes the shape unknown."""
    pending = list(nodes)
    found: list[Mapping[str, Any]] = []
    seen = 0
    while pending:
        node = pending.pop()
        seen += 1
        if seen > _STEPS or not set(node) - _WORDS:
            return Shape(root, (), always=False, known=False)
        if "$ref" in node:
            pending.append(_follow(root, str(node["$ref"])))
        elif "anyOf" in node or "oneOf" in node:
            pending += node.get("anyOf") or node["oneOf"]
        else:
            found.append(node)
    return Shape(root, found, always=always, known=True)


def _follow(root: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node  # type: ignore[no-any-return] # a part of a JSON Schema


def _children(node: Mapping[str, Any], segment: Segment) -> list[Mapping[str, Any]] | None:
    """Schemas below a node; None where any value may stand there."""
    kind = node.get("type")
    if kind == "array":
        items = [*node.get("prefixItems", ()), *([node["items"]] if isinstance(node.get("items"), dict) else [])]
        if segment is not None:
            return []
        return items or None
    if kind == "object":
        properties = node.get("properties", {})
        rest = node.get("additionalProperties", True)
        if segment is not None and segment in properties:
            return [properties[segment]]
        if rest is False:
            return [] if segment is not None else list(properties.values())
        if rest is True:
            return None
        return [rest] if segment is not None else [*properties.values(), rest]
    return [] if kind in _SCALARS else None


class Scope:
    """The shapes of a rule's variables, as far as they are bound to parts of the input.

    A name that is bound twice to different things is unknown; Rego's scopes need no more here.
    """

    def __init__(self, document: Shape, rule: Node) -> None:
        """Collect the bindings of a rule."""
        self._shapes: dict[str, Shape | None] = {"input": document}
        self._collect(rule)

    def shape(self, reference: Reference) -> Shape | None:
        """The shape of what a reference names; None where its root is nothing of the input."""
        root = self._shapes.get(reference.root)
        return root.walk(reference.segments) if root is not None else None

    def _bind(self, name: str, shape: Shape | None) -> None:
        self._shapes[name] = None if name in self._shapes else shape

    def _collect(self, tree: Any) -> None:  # noqa: ANN401 - a part of a syntax tree
        if isinstance(tree, list):
            for part in tree:
                self._collect(part)
        elif isinstance(tree, dict):
            for kind, body in tree.items():
                if kind == "SomeIn":
                    self._element(body["value"], body["collection"])
                    self._unknown(body.get("key"))
                elif kind == "Every":
                    self._bind(str(body.get("name") or ""), None)
                elif kind == "AssignExpr" and body["op"] == "ColEq":
                    self._assigned(body["lhs"], body["rhs"])
                elif kind == "Func":
                    for argument in body["args"]:
                        self._unknown(argument)
                if kind not in ("span", "refr"):
                    self._collect(body)

    def _element(self, variable: Node, collection: Node) -> None:
        shape = self._of(collection)
        if "Var" in variable:
            self._bind(variable["Var"]["value"], shape.element() if shape is not None else None)

    def _assigned(self, variable: Node, value: Node) -> None:
        if "Var" in variable:
            self._bind(variable["Var"]["value"], self._of(value))

    def _unknown(self, variable: Node | None) -> None:
        if variable and "Var" in variable:
            self._bind(variable["Var"]["value"], None)

    def _of(self, node: Node) -> Shape | None:
        if next(iter(node)) not in ("Var", "RefDot", "RefBrack"):
            return None
        found = next(iter(references(node)), None)
        shape = self.shape(found) if found is not None else None
        if shape is None:
            return None
        # A statement that binds is reached only where its value is there.
        return Shape(shape._root, shape._nodes, always=True, known=shape.known)  # noqa: SLF001 - the same module
