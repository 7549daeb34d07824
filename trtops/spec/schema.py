"""JSON Schema (draft 2020-12) of the documents that people write, for editors."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, Literal

from trtops.errors import InputError
from trtops.spec import bindings, engine, runners
from trtops.spec.engine import EngineSpec, RuntimeConfig
from trtops.spec.problems import closest
from trtops.spec.runners import Runners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.digest import Value

Kind = Literal["Engine", "Runtime", "Runners"]
KINDS: Mapping[str, type[Value]] = {"Engine": EngineSpec, "Runtime": RuntimeConfig, "Runners": Runners}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
BASE = "https://trtops.github.io/schemas/v1"


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of a kind of document.

    It accepts what the loader accepts, less the rules that JSON Schema cannot say (unique ids), and describes every
    key, so that an editor shows it: ``# yaml-language-server: $schema=FILE`` in a document's first line.

    Args:
        kind: ``Engine``, ``Runtime`` or ``Runners``.

    Raises:
        InputError: there is no such kind.
    """
    if kind not in KINDS:
        kinds = ", ".join(closest(kind, KINDS))
        raise InputError(f"there is no kind of document {kind!r}", fix=f"kinds: {kinds}")
    model = KINDS[kind]
    body = model.model_json_schema(mode="validation", by_alias=True)
    described = _key_descriptions()
    for name, schema in [(model.__name__, body), *body.get("$defs", {}).items()]:
        for key, words in described.get(name, {}).items():
            schema["properties"][key]["description"] = words
    return {"$schema": DIALECT, "$id": f"{BASE}/{kind.lower()}.schema.json", **body, "title": f"trtops {kind}"}


def _key_descriptions() -> dict[str, dict[str, str]]:
    """What the docstring under each key of the spec's classes says.

    Python keeps no docstrings of attributes: they are read off the module's source, here only, so that commands that
    need no schema pay nothing for it.
    """
    found: dict[str, dict[str, str]] = {}
    for node in (node for module in (bindings, engine, runners) for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef):
            for key, words in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(key, ast.AnnAssign)
                    and isinstance(key.target, ast.Name)
                    and isinstance(words, ast.Expr)
                    and isinstance(words.value, ast.Constant)
                    and isinstance(words.value.value, str)
                ):
                    found.setdefault(node.name, {})[key.target.id] = words.value.value
    return found
