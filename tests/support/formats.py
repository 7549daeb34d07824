"""Engines whose inputs and outputs are not linear, and arrays that lie as theirs do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper

from tests.support.builds import engine_spec, model_of, save, value
from tests.support.releases import sidecar
from trtops.backend.port import BuildRequest
from trtops.backend.select import backend as by_name
from trtops.tensor import in_format, stored_elements

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from trtops.backend.port import Backend, BuildResult, Session
    from trtops.tensor import MemoryFormat

    Array = np.ndarray[Any, Any]

TAIL = (3, 8, 8)
RANGES = {"x": {"min": [1, *TAIL], "opt": [2, *TAIL], "max": [8, *TAIL]}}


def conv(kind: int = TensorProto.FLOAT, rank: int = 4) -> onnx.ModelProto:
    """``y = conv(x, w)``: x [N, 3, 8, 8], y [N, 4, 8, 8]; of another rank, ``y = relu(x)``."""
    if rank != 4:
        shape: list[int | str | None] = ["N", *[3] * (rank - 1)]
        return model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", shape, kind)], [value("y", shape, kind)])
    weights = (np.arange(4 * 3 * 9).reshape(4, 3, 3, 3) % 7 - 3).astype(helper.tensor_dtype_to_np_dtype(kind))
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    return model_of([node], [value("x", ["N", *TAIL], kind)], [value("y", ["N", 4, 8, 8], kind)], {"w": weights})


def build(folder: Path, backend: str | Backend, model: onnx.ModelProto | None = None, **changes: Any) -> BuildResult:
    """Build ``folder/engine`` in this process, of :func:`conv` unless told otherwise; ``changes`` of the spec."""
    builder = by_name(backend) if isinstance(backend, str) else backend
    of = engine_spec(builder.name, changes.pop("ranges", RANGES), **changes)
    request = BuildRequest(
        target=of.targets[0],
        model=str(save(model or conv(), folder / "model.onnx")),
        output=str(folder / "engine"),
        precision=of.precision,
        profiles=of.profiles,
        bindings=of.bindings,
        memory=of.memory,
        builder=of.builder,
    )
    return builder.build(request, lambda _: None)


def load(folder: Path, backend: str | Backend, result: BuildResult) -> Session:
    """Load what :func:`build` built."""
    loader = by_name(backend) if isinstance(backend, str) else backend
    known = sidecar(
        of=engine_spec(loader.name, RANGES),
        backend_version=result.backend_version,
        device=result.device,
        inputs=result.inputs,
        outputs=result.outputs,
        format=result.format,
    )
    return loader.load(folder / "engine", known)


def images(rows: int, first: int = 0, tail: tuple[int, ...] = TAIL) -> Array:
    """Images of whole numbers."""
    return (np.arange(rows * np.prod(tail)) % 97 + first).astype(np.float32).reshape(rows, *tail)


def lying(array: Array, lies: MemoryFormat) -> Array:
    """The same, as it lies in a format."""
    there: Array = in_format(np.zeros(stored_elements(array.shape, lies), array.dtype), array.shape, lies)
    there[...] = array
    return there
