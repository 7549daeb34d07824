"""Validation of data files by their JSON Schema, in the embedded engine: fast to start, and no further package."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trtops.errors import Location, Undecided

if TYPE_CHECKING:
    from trtops.document import Document


def check(document: Document, schema: Any, schema_label: str) -> None:  # noqa: ANN401 - any JSON value
    """Hold a document against a schema.

    Raises:
        Undecided: it does not meet it, or the schema is none.
    """
    import regorus

    if not isinstance(schema, dict) or not schema:
        raise Undecided(
            "the schema is empty, so that any value would do", where=schema_label, fix="say what is allowed"
        )
    engine = regorus.Engine()
    engine.set_input_json(json.dumps({"document": document.data, "schema": schema}))
    try:
        answer = json.loads(engine.eval_query_as_json("json.match_schema(input.document, input.schema)"))
        valid, reason = answer["result"][0]["expressions"][0]["value"]
    except (RuntimeError, LookupError, ValueError) as error:
        reason = str(error).partition("\n\nStack backtrace")[0].strip().rpartition("error: ")[2]
        raise Undecided(f"the schema cannot be used: {reason}", where=schema_label, fix="write JSON Schema") from error
    if valid is not True:
        raise Undecided(
            f"the data does not meet its schema: {reason}",
            where=_place(document, schema),
            fix=f"see what {schema_label} allows",
        )


def _place(document: Document, schema: dict[str, Any]) -> Location:
    """Where the first difference is: the line if jsonschema is installed, else the file."""
    try:
        jsonschema = import_module("jsonschema")
    except ImportError:
        return Location(document.file)
    validator = jsonschema.Draft202012Validator(schema)
    error = next(iter(validator.iter_errors(document.data)), None)
    return document.locate(tuple(error.absolute_path)) if error else Location(document.file)
