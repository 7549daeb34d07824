"""What an execution of some shapes needs, and how tensors are put one after the other for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays
    from trtops.tensor import Shape


class Prepared(NamedTuple):
    """What an execution of some shapes needs, looked up once.

    Attributes:
        context: that has these shapes.
        graph: of the execution and of the copies of its outputs; None: it is enqueued.
        rows: size of the first axis of the inputs.
        wants: name, shape and NumPy type of each input.
        sources: host view, device address, host address and bytes of each input.
        results: name, host view, device address, host address and bytes of each output.
    """

    context: Any
    graph: Any
    rows: int
    wants: tuple[tuple[str, Shape, Any], ...]
    sources: tuple[tuple[NDArray[np.generic], int, int, int], ...]
    results: tuple[tuple[str, NDArray[np.generic], int, int, int], ...]

    def fits(self, inputs: Arrays) -> bool:
        """Whether inputs are of the same names, shapes and types as those of the last execution."""
        if len(inputs) != len(self.wants):
            return False
        for name, shape, dtype in self.wants:
            array = inputs.get(name)
            if getattr(array, "shape", None) != shape:
                return False
            have = getattr(array, "dtype", None)
            if have is not dtype and have != dtype:
                return False
        return True


def place(view: NDArray[np.generic], arrays: Sequence[NDArray[np.generic]]) -> None:
    """Copy arrays one after the other along the first axis; zeros behind them."""
    if view.ndim == 0 or (len(arrays) == 1 and view.shape == arrays[0].shape):
        view[...] = arrays[0]
        return
    row = 0
    for array in arrays:
        view[row : row + array.shape[0]] = array
        row += array.shape[0]
    view[row:] = 0
