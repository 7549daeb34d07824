"""Validation of data files by their JSON Schema (draft 2020-12), as much of it as they need.

A library costs a check from a cold process a sixth of its second, for small tables. What is known here is known in
full; a schema with any other keyword is refused, so that nothing it says is passed over. A property test holds the
decisions against the reference implementation's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtops.document import describe
from trtops.errors import Location, Undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtops.document import Document

Path = tuple[str | int, ...]
Schema = dict[str, Any] | bool

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
}
_ANNOTATIONS = frozenset({"$schema", "$id", "$comment", "title", "description", "examples", "default"})
_COUNTS = frozenset(
    {"minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"},
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SINGLE = frozenset({"items", "additionalProperties", "propertyNames", "not"})
_MAPS = frozenset({"properties", "patternProperties", "$defs"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf"})
_OTHERS = frozenset({"type", "enum", "const", "required", "pattern", "uniqueItems", "$ref"})
_MAX_REFS = 100


class SchemaError(ValueError):
    """A schema that is none, or says what is not known here."""


def check(document: Document, schema: Any, schema_label: str) -> None:  # noqa: ANN401 - any JSON value
    """Hold a document against a schema.

    Raises:
        Undecided: it does not meet it (named with its line), or the schema is none.
    """
    if not isinstance(schema, dict) or not schema.keys() - _ANNOTATIONS:
        raise Undecided(
            "the schema says nothing, so that any value would do", where=schema_label, fix="say what is allowed"
        )
    try:
        examine(schema)
        found = next(problems(document.data, schema), None)
    except (SchemaError, RecursionError) as error:
        raise Undecided(f"the schema cannot be used: {error}", where=schema_label, fix="write JSON Schema") from error
    if found is not None:
        path, message = found
        name = ".".join(str(part) for part in path) or "the document"
        where: Location = document.locate(path)
        raise Undecided(
            f"the data does not meet its schema: `{name}` {message}", where=where, fix=f"see what {schema_label} allows"
        )


def examine(schema: Any) -> None:  # noqa: ANN401 - any JSON value
    """Look at every part of a schema.

    Raises:
        SchemaError: a keyword that is not known here, or whose value is of the wrong kind.
    """
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, where = pending.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise SchemaError(f"{where} is {describe(node)}, not a schema")
        for keyword, value in node.items():
            place = f"{where}/{keyword}"
            if not _well_formed(keyword, value, schema):
                raise SchemaError(f"{place}: {describe(value)} is not what `{keyword}` takes, or it is not known here")
            if keyword in _SINGLE:
                pending.append((value, place))
            elif keyword in _MAPS:
                pending += [(part, f"{place}/{name}") for name, part in value.items()]
            elif keyword in _LISTS:
                pending += [(part, f"{place}/{number}") for number, part in enumerate(value)]


def _well_formed(keyword: str, value: Any, root: Any) -> bool:  # noqa: ANN401 - any JSON value
    if keyword in _ANNOTATIONS or keyword in ("enum", "const"):
        return keyword != "enum" or (isinstance(value, list) and bool(value))
    if keyword in _COUNTS:
        return _TYPES["integer"](value) and value >= 0
    if keyword in _NUMBERS:
        return _TYPES["number"](value)
    if keyword in _SINGLE:
        return isinstance(value, dict | bool)
    if keyword in _MAPS:
        patterns = keyword == "patternProperties"
        return isinstance(value, dict) and all(not patterns or _compiles(name) for name in value)
    if keyword in _LISTS:
        return isinstance(value, list) and bool(value)
    return keyword in _OTHERS and _other(keyword, value, root)


def _other(keyword: str, value: Any, root: Any) -> bool:  # noqa: ANN401 - any JSON value
    if keyword == "type":
        return all(isinstance(name, str) and name in _TYPES for name in (value if isinstance(value, list) else [value]))
    if keyword == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if keyword == "pattern":
        return isinstance(value, str) and _compiles(value)
    if keyword == "$ref":
        return isinstance(value, str) and _follow(value, root) is not None
    return isinstance(value, bool)


def _compiles(pattern: str) -> bool:
    try:
        _regex(pattern)
    except re.error:
        return False
    return True


def _regex(pattern: str) -> re.Pattern[str]:
    """A pattern of ECMA-262: classes are ASCII, and ``$`` is the end, not the line feed before it."""
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = f"{pattern[:-1]}\\Z"
    return re.compile(pattern, re.ASCII)


def _follow(reference: str, root: Any) -> Schema | None:  # noqa: ANN401 - any JSON value
    if reference == "#":
        return root  # type: ignore[no-any-return] # a JSON Schema
    if not reference.startswith("#/"):
        return None
    node = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node if isinstance(node, dict | bool) else None


def _resolved(reference: str, root: Schema) -> Schema:
    found = _follow(reference, root)
    return False if found is None else found


def problems(value: Any, schema: Schema, root: Schema | None = None, path: Path = ()) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - any JSON value
    """What is wrong with a value: path and words. The schema has been examined."""
    root = schema if root is None else root
    for _ in range(_MAX_REFS):
        if isinstance(schema, bool) or "$ref" not in schema:
            break
        yield from problems(
            value, {key: part for key, part in schema.items() if key not in ("$ref", "$defs")}, root, path
        )
        schema = _resolved(schema["$ref"], root)
    else:
        schema = False
    if isinstance(schema, bool):
        if not schema:
            yield path, "is not allowed"
        return
    yield from ((path, message) for message in _whole(value, schema))
    if isinstance(value, str):
        yield from ((path, message) for message in _text(value, schema))
    elif isinstance(value, list):
        yield from _array(value, schema, root, path)
    elif isinstance(value, dict):
        yield from _object(value, schema, root, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from ((path, message) for message in _number(value, schema))
    yield from _combined(value, schema, root, path)


def _whole(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    types = schema.get("type")
    if types is not None:
        names = types if isinstance(types, list) else [types]
        if not any(_TYPES[name](value) for name in names):
            yield f"is {describe(value)}, not of type {' or '.join(names)}"
    if "enum" in schema and not any(_equal(value, allowed) for allowed in schema["enum"]):
        yield f"is {describe(value)}, not one of {', '.join(str(allowed) for allowed in schema['enum'])}"
    if "const" in schema and not _equal(value, schema["const"]):
        yield f"is {describe(value)}, not {schema['const']}"


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Equality of JSON: 1 and 1.0 are one number, 1 and true are not one value."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _text(value: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from _counted(len(value), schema, "Length", "characters")
    if "pattern" in schema and _regex(schema["pattern"]).search(value) is None:
        yield f"is {describe(value)}, which does not match {schema['pattern']}"


def _counted(count: int, schema: Mapping[str, Any], what: str, words: str) -> Iterator[str]:
    if count < schema.get(f"min{what}", 0):
        yield f"has {count} {words}, less than the minimum of {schema[f'min{what}']}"
    if count > schema.get(f"max{what}", count):
        yield f"has {count} {words}, more than the maximum of {schema[f'max{what}']}"


def _number(value: float, schema: Mapping[str, Any]) -> Iterator[str]:
    if value < schema.get("minimum", value):
        yield f"is {value}, less than the minimum of {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield f"is {value}, more than the maximum of {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"is {value}, not above {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield f"is {value}, not below {schema['exclusiveMaximum']}"


def _array(value: list[Any], schema: Mapping[str, Any], root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    yield from ((path, message) for message in _counted(len(value), schema, "Items", "elements"))
    if schema.get("uniqueItems"):
        for number, entry in enumerate(value):
            if any(_equal(entry, before) for before in value[:number]):
                yield (*path, number), "is there twice"
    if "items" in schema:
        for number, entry in enumerate(value):
            yield from problems(entry, schema["items"], root, (*path, number))


def _object(value: dict[str, Any], schema: Mapping[str, Any], root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    yield from ((path, message) for message in _counted(len(value), schema, "Properties", "keys"))
    properties = schema.get("properties", {})
    patterns = {_regex(pattern): part for pattern, part in schema.get("patternProperties", {}).items()}
    for name, entry in value.items():
        if "propertyNames" in schema:
            yield from (
                (path, f"has a key that {message}") for _, message in problems(name, schema["propertyNames"], root)
            )
        matching = [part for pattern, part in patterns.items() if pattern.search(name)]
        if name in properties:
            matching.append(properties[name])
        if not matching and "additionalProperties" in schema:
            rest = schema["additionalProperties"]
            if rest is False:
                yield (*path, name), "is an unknown key"
                continue
            matching.append(rest)
        for part in matching:
            yield from problems(entry, part, root, (*path, name))
    for name in schema.get("required", ()):
        if name not in value:
            yield path, f"has no `{name}`"


def _combined(value: Any, schema: Mapping[str, Any], root: Schema, path: Path) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - any JSON value
    def meets(part: Schema) -> bool:
        return next(problems(value, part, root, path), None) is None

    for part in schema.get("allOf", ()):
        yield from problems(value, part, root, path)
    if "anyOf" in schema and not any(meets(part) for part in schema["anyOf"]):
        yield path, f"is {describe(value)}, which meets none of the alternatives"
    if "oneOf" in schema and sum(meets(part) for part in schema["oneOf"]) != 1:
        yield path, f"is {describe(value)}, which does not meet exactly one of the alternatives"
    if "not" in schema and meets(schema["not"]):
        yield path, f"is {describe(value)}, which is excluded"
