"""What a server answered: arrays as people and programs read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtops.report.escape import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

_SHOWN = 16


def plain(outputs: Mapping[str, NDArray[np.generic]]) -> str:
    """One line a tensor: name, type, shape and its numbers, the first and last ones where there are many."""
    import numpy as np

    lines = []
    for name, array in outputs.items():
        with np.printoptions(precision=6, suppress=True, threshold=_SHOWN, edgeitems=3, linewidth=10_000):
            numbers = " ".join(str(array.tolist() if array.size <= _SHOWN else array).split())
        lines.append(f"{visible(name)} {array.dtype}{list(array.shape)}: {visible(numbers)}\n")
    return "".join(lines)


def as_json(outputs: Mapping[str, NDArray[np.generic]], *, seconds: float) -> str:
    """Every number of every tensor, and the seconds that it took. Text of BYTES tensors is decoded as UTF-8."""
    tensors = [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "data": _flat(array)}
        for name, array in outputs.items()
    ]
    return json.dumps({"kind": "Answer", "outputs": tensors, "seconds": round(seconds, 6)}, indent=2) + "\n"


def _flat(array: NDArray[np.generic]) -> list[object]:
    values = array.reshape(-1).tolist()
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
