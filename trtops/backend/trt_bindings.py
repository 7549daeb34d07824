"""An engine's own bindings, held against what its sidecar says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.backend.trt_network import DATA_TYPES
from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trtops.backend.port import Sidecar
    from trtops.tensor import TensorInfo


def check_bindings(trt: Any, engine: Any, sidecar: Sidecar, artifact: Path) -> None:  # noqa: ANN401 - TensorRT has no types
    """Hold the engine's own bindings against the sidecar's: a mix-up would read past a buffer.

    Raises:
        NotLoadable: they differ.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    have = {name: (engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT, _dtype(engine, name)) for name in names}
    want = {info.name: (True, info.dtype) for info in sidecar.inputs}
    want |= {info.name: (False, info.dtype) for info in sidecar.outputs}
    if have != want:
        what = f"the engine's bindings are {sorted(have)}, its sidecar says {sorted(want)}"
        raise NotLoadable(what, where=str(artifact), fix="build it again")
    if reason := other_format(engine, (*sidecar.inputs, *sidecar.outputs)):
        raise NotLoadable(reason, where=str(artifact), fix="build it again")
    if engine.num_optimization_profiles != len(sidecar.profiles):
        what = f"the engine has {engine.num_optimization_profiles} profiles, its sidecar {len(sidecar.profiles)}"
        raise NotLoadable(what, where=str(artifact), fix="build it again")


def other_format(engine: Any, bindings: Iterable[TensorInfo]) -> str | None:  # noqa: ANN401 - TensorRT has no types
    """Which binding lies otherwise in memory than it should, in words; None: none.

    An engine of linear bindings only is not asked: that is what TensorRT builds where nothing else is set.
    """
    wanted = {info.name: info.format for info in bindings}
    if all(format == "linear" for format in wanted.values()):  # noqa: A001 - TensorRT's word
        return None
    for name, one in wanted.items():
        have = engine.get_tensor_format(name).name.lower()
        if have != one:
            return f"the engine has {name!r} in the format {have}, expected {one}"
    return None


def _dtype(engine: Any, name: str) -> str:  # noqa: ANN401 - TensorRT has no types
    kind = engine.get_tensor_dtype(name).name
    return DATA_TYPES.get(kind, kind)
