from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from trtops.document import load_document, parse_document
from trtops.errors import InputError
from trtops.spec.schema import KINDS, json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = Path(__file__).parents[2] / "engines" / "ppocr-cls"


def validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_schema_with_an_id_and_a_title(kind: str) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].endswith(f"/{kind.lower()}.schema.json")
    assert schema["title"] == f"trtops {kind}"


@pytest.mark.parametrize(
    ("kind", "file"), [("Engine", "engine.yaml"), ("Runtime", "runtime.yaml"), ("Runtime", "runtime.prod.yaml")]
)
def test_it_accepts_the_documents_as_they_are_written(kind: str, file: str) -> None:
    validator(kind).validate(load_document(ENGINE / file).data)


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, part in [("", schema), *schema["$defs"].items()]:
        for key, described in part.get("properties", {}).items():
            yield name, key, described


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_described(kind: str) -> None:
    schema = json_schema(kind)
    assert [(name, key) for name, key, described in keys(schema) if not described.get("description")] == []
    assert all(part.get("description") for part in schema["$defs"].values())


@pytest.mark.parametrize(
    "change",
    [
        "zzz: 1",
        "memory: {workspace: 5}",
        "memory: {workspace: 1Gib}",
        "batching: {max_queue_delay: 2 days}",
        "precision: {mode: fp17}",
        "kind: Runtime",
        "metadata: {name: A}",
    ],
)
def test_it_refuses_what_the_loader_refuses(change: str) -> None:
    data = dict(load_document(ENGINE / "engine.yaml").data)
    data.update(parse_document(change, file="f").data)
    assert not validator("Engine").is_valid(data)


@pytest.mark.parametrize("size", ["1GiB", "1.5MiB", " 512 B ", "0", "10KB"])
def test_it_takes_the_sizes_that_the_loader_takes(size: str) -> None:
    data = dict(load_document(ENGINE / "engine.yaml").data)
    data["memory"] = {"workspace": 0 if size == "0" else size}
    validator("Engine").validate(data)


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        json_schema("engine")
    assert caught.value.fix == "kinds: Engine, Runners, Runtime"
