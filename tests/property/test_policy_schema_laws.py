"""Our validation of data files decides as the reference implementation of JSON Schema does."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.policy.schema import SchemaError, examine, problems

NAMES = st.sampled_from(["a", "b", "ab", "c1", ""])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5, -2.5]) | NAMES
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]+$", "1", "^$"])
COUNTS = st.integers(0, 3)
LEAF: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "required": st.lists(NAMES, max_size=2, unique=True),
    "pattern": PATTERNS,
    "uniqueItems": st.booleans(),
    "minimum": st.integers(-3, 3),
    "maximum": st.sampled_from([-1, 0, 1.5, 2]),
    "exclusiveMinimum": st.integers(-3, 3),
    "exclusiveMaximum": st.integers(-3, 3),
    **dict.fromkeys(("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"), COUNTS),
    "description": st.text(max_size=3),
}


def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    optional = {
        **LEAF,
        **dict.fromkeys(("items", "additionalProperties", "propertyNames", "not"), inner),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), st.lists(inner, min_size=1, max_size=2)),
        "$ref": st.just("#/$defs/shared"),
    }
    return st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True).flatmap(
        lambda keys: st.fixed_dictionaries({key: optional[key] for key in keys})
    )


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=LEAF), extend, max_leaves=5)
SHARED = st.booleans() | st.fixed_dictionaries({}, optional=LEAF)


@settings(max_examples=400)
@given(SCHEMAS, SHARED, VALUES)
def test_decisions_are_those_of_the_reference(schema: Any, shared: Any, value: Any) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"shared": shared}}
    examine(schema)
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (next(problems(value, schema), None) is None) == expected


@settings(max_examples=100)
@given(SCHEMAS, st.sampled_from(["format", "multipleOf", "if", "prefixItems", "contains", "dependentRequired", "typ"]))
def test_what_is_not_known_is_refused_wherever_it_stands(schema: Any, keyword: str) -> None:
    inner = {**(schema if isinstance(schema, dict) else {}), keyword: 1}
    for whole in ({keyword: 1}, {"properties": {"a": {"items": inner}}, "$defs": {"shared": True}}):
        with pytest.raises(SchemaError, match=keyword):
            examine(whole)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": 1},
        {"enum": []},
        {"required": "a"},
        {"pattern": "["},
        {"patternProperties": {"[": True}},
        {"minItems": -1},
        {"minimum": "1"},
        {"properties": []},
        {"anyOf": []},
        {"items": [True]},
        {"$ref": "#/$defs/gone"},
        {"$ref": "https://example.org/schema"},
        {"additionalProperties": None},
        [],
        1,
    ],
)
def test_a_schema_that_is_none(schema: Any) -> None:
    with pytest.raises(SchemaError):
        examine(schema)


def test_the_end_of_a_text_is_its_end() -> None:
    assert list(problems("ab\n", {"pattern": "^ab$"}))
    assert list(problems("\u0661", {"pattern": "^\\d$"}))


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    examine(loop)
    assert next(problems(1, loop), None) is not None
