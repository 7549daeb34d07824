"""An engine of the fake backend, as ``soak.py`` and ``workers.py`` load it: sums rows of 64 numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtops.backend.fake import FORMAT, FakeBackend
from trtops.backend.port import Sidecar
from trtops.digest import Digest, canonical
from trtops.executor.port import Opening
from trtops.spec.engine import Target
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

_X = TensorInfo(name="x", dtype="float32", shape=("n", 64))
_Y = TensorInfo(name="y", dtype="float32", shape=("n", 1))


def opening(folder: Path, **plays: float) -> Opening:
    """The engine as a file in a folder; ``plays`` are options of the fake backend."""
    backend = FakeBackend()
    path = folder / "engine.json"
    if not path.exists():
        tensors = {"inputs": [_X.model_dump(mode="json")], "outputs": [_Y.model_dump(mode="json")]}
        path.write_bytes(canonical({**tensors, "precision": "fp32"}))
    digest = Digest.of_file(path)
    sidecar = Sidecar(
        backend="fake",
        backend_version="1.0.0",
        target=Target(backend="fake"),
        device=backend.device(),
        plan=digest,
        model=digest,
        artifact=digest,
        size_bytes=path.stat().st_size,
        inputs=(_X,),
        outputs=(_Y,),
        profiles=(),
        format=FORMAT,
        extra={"fake": json.dumps(plays)},
    )
    return Opening(path, sidecar, backend.load)
