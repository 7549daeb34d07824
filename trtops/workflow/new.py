"""``trtops new``: a first spec for an ONNX file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import Digest
from trtops.errors import InputError
from trtops.spec.load import ENGINE_FILE, ENGINES, load_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.workflow.workspace import Workspace

_CHUNK = 1 << 20
_URI = re.compile(r"[a-z][a-z0-9+.-]+:")
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def new(workspace: Workspace, name: str, model: str) -> Path:
    """Write ``engines/<name>/engine.yaml`` from the facts of a model.

    Args:
        workspace: where.
        name: of the engine.
        model: a path, or a URI as in ``model.source``. A file from elsewhere is copied into the engine's folder, since
            policies let no source leave it.

    Returns:
        The spec's path.

    Raises:
        InputError: the name is none, the engine exists, the file is no ONNX model, or it would be copied over another.
        FetchFailed: the model cannot be had.
        StorageError: the file could not be written.
    """
    from trtops.durable import write_durably
    from trtops.model.fetch import pin
    from trtops.model.read import read_facts
    from trtops.model.scaffold import scaffold

    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be an engine's name", fix="use lower-case letters, digits and dashes, 63 at most"
        )
    folder = workspace.root / ENGINES / name
    path = folder / ENGINE_FILE
    if path.exists():
        raise InputError(f"the engine {name} exists already", where=str(path), fix="edit it, or take another name")
    local = None if _URI.match(model) else Path(model).absolute()
    source, stored = pin(model if local is None else f"file:{local}", base=folder, store=workspace.store)
    beside = None if local is None else _inside(local, folder)
    try:
        facts = read_facts(stored)
    except InputError as error:
        error.where = model  # not the store's copy of it
        raise
    text = scaffold(name, facts, source.source if beside is None else f"file:{beside}", model=stored)
    if beside is not None and not (folder / beside).exists():
        write_durably(folder / beside, _chunks(stored))
    write_durably(path, [text.encode()])
    load_engine(path)  # what was written has to be readable
    return path


def _inside(model: Path, folder: Path) -> Path:
    """Where a model stands, or will stand, relative to the engine's folder.

    Raises:
        InputError: another file of its name is there already.
    """
    resolved, folder = model.resolve(), folder.resolve()
    if resolved.is_relative_to(folder):
        return resolved.relative_to(folder)
    name = _ODD.sub("-", model.name)  # policies take plain URIs only
    there = folder / name
    if there.exists() and Digest.of_file(there) != Digest.of_file(model):
        raise InputError(
            f"{model} would be copied over another file", where=str(there), fix="remove or rename one of the two"
        )
    return Path(name)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
