"""JSON Schemas of the four input documents, for people who write rules and for ``trtops policy try``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trtops.policy.inputs import input_model
from trtops.policy.verdict import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent / "schemas"
STAGES: tuple[Stage, ...] = get_args(Stage)


def input_schema(stage: Stage) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a stage's document; ``$id`` is its ``schema`` field."""
    model = input_model(stage)
    body = model.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"trtops.{stage}/v1", **body}


def rendered() -> Mapping[str, str]:
    """File name -> text of all schema files."""
    return {f"{stage}.v1.json": json.dumps(input_schema(stage), indent=2) + "\n" for stage in STAGES}


def write(folder: Path = FOLDER) -> list[Path]:
    """Write the schema files anew; returns them.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in rendered().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    write()
