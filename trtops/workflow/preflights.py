"""What preflight found, remembered: the same model and the same spec are not looked at again.

An entry stands in ``TRTOPS_HOME/preflight``, on this machine and never in a shared store: whoever can write an entry
can hide what is wrong with a model. Its name is the digest of all that the answer comes from: the spec but for its
``metadata`` (the model's digest is in it), the code that looks, the version of onnx. An entry that cannot be read is
made anew, and the work goes on where none can be written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import Digest

if TYPE_CHECKING:
    from trtops.model.facts import Preflight
    from trtops.spec.engine import EngineSpec
    from trtops.workflow.workspace import Workspace

FOLDER = "preflight"
_MAX_BYTES = 16 << 20
_MANY_NODES = 10_000
"""From here on preflight takes seconds, and says what it does (about 200 us a node on one core)."""


def preflight_of(workspace: Workspace, spec: EngineSpec, model: Path) -> Preflight:
    """What preflight finds of a spec and its model, remembered or found now.

    Args:
        workspace: whose home holds the entries.
        spec: the spec.
        model: the verified file of ``spec.model``.

    Raises:
        InputError: the file is no ONNX model.
    """
    path = workspace.resolved.home / FOLDER / f"{_key(spec).value}.json"
    found = _read(path)
    if found is not None:
        return found
    from trtops.model.preflight import preflight
    from trtops.model.read import read_facts

    facts = read_facts(model)
    if facts.nodes > _MANY_NODES:
        workspace.progress(f"check {spec.name}", f"infer the shapes of {facts.nodes} nodes", 0, 0)
    found = preflight(spec, model, facts)
    with suppress(OSError):  # a home that is full or read-only makes the next check slower, and this one no worse
        _write(path, found.model_dump_json().encode())
    return found


def _write(path: Path, body: bytes) -> None:
    """Put an entry in its place. Not flushed to the disk: one that a power cut tears is made anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        temporary.write_bytes(body)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> Preflight | None:
    """An entry; None where there is none that can be used."""
    from trtops.model.facts import Preflight

    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        return Preflight.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _key(spec: EngineSpec) -> Digest:
    """Digest of everything that the answer comes from."""
    body = spec.model_dump_json(exclude={"metadata"})
    return Digest.of_bytes(f"{_looker()}\n{body}".encode())


@cache
def _looker() -> str:
    """Who looks: the code's digest, since a checkout under work has no version that tells, and onnx's version."""
    import trtops.model
    import trtops.spec

    folders = [Path(path) for package in (trtops.model, trtops.spec) for path in package.__path__]
    files = sorted(file for folder in folders for file in folder.glob("*.py"))
    code = Digest.of_chunks(file.read_bytes() for file in files)
    return f"{code} onnx {metadata.version('onnx')}"
