"""``trtops new``: a first spec for an ONNX file."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.spec.load import ENGINE_FILE, ENGINES, load_engine

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.workflow.workspace import Workspace

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def new(workspace: Workspace, name: str, model: str) -> Path:
    """Write ``engines/<name>/engine.yaml`` from the facts of a model.

    Args:
        workspace: where.
        name: of the engine.
        model: a path, or a URI as in ``model.source``. A path is written relative to the engine's folder.

    Returns:
        The file's path.

    Raises:
        InputError: the name is none, the engine exists, or the file is no ONNX model.
        FetchFailed: the model cannot be had.
        StorageError: the file could not be written.
    """
    from trtops.model.fetch import pin
    from trtops.model.read import read_facts
    from trtops.spec.scaffold import scaffold
    from trtops.store import write_durably

    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be an engine's name", fix="use lower-case letters, digits and dashes, 63 at most"
        )
    folder = workspace.root / ENGINES / name
    path = folder / ENGINE_FILE
    if path.exists():
        raise InputError(f"the engine {name} exists already", where=str(path), fix="edit it, or take another name")
    uri = model if re.match(r"[a-z][a-z0-9+.-]+:", model) else f"file:{os.path.relpath(model, folder)}"
    source, stored = pin(uri, base=folder, store=workspace.store)
    text = scaffold(name, read_facts(stored), source.source)
    write_durably(path, [text.encode()])
    load_engine(path)  # what was written has to be readable
    return path
