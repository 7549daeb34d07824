"""Filling requests up to common sizes and cutting their outputs back: requests of different shapes run together."""

from __future__ import annotations

from bisect import bisect_left
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trtops.executor.interface import Bound
    from trtops.spec.engine import Padding
    from trtops.tensor import TensorInfo

    Arrays = Mapping[str, NDArray[np.generic]]
    Tails = tuple[tuple[int, ...], ...]

_COMBINATIONS: Final = 64
"""Combinations of sizes that are warmed up at most."""


class Pads:
    """The padding of an engine, looked up by its bindings. Sizes are those after the first axis (tails)."""

    def __init__(
        self, engine: str, padding: Padding, bounds: Sequence[Bound], outputs: Sequence[TensorInfo], *, batchable: bool
    ) -> None:
        """Find the dimensions.

        Raises:
            NotLoadable: no input has a dynamic dimension of that name, or no such input is there. Blame the spec.
        """
        self._sizes = padding.sizes
        self._bounds = tuple(bounds)
        self._names = tuple(bound.name for bound in bounds)
        known = {dim for bound in bounds for dim in bound.shape[1:] if isinstance(dim, str) and dim}
        unknown = sorted(padding.sizes.keys() - known)
        if unknown or not batchable:
            what = f"no input has a dynamic dimension {unknown[0]!r}" if unknown else "its requests run alone"
            raise NotLoadable(
                f"batching.padding cannot be kept: {what}",
                where=f"engine {engine}",
                fix=f"name one of {', '.join(map(repr, sorted(known)))}" if known and unknown else "take it out",
            )
        if wrong := sorted(padding.values.keys() - set(self._names)):
            raise NotLoadable(
                f"batching.padding.values names {wrong[0]!r}, which is no input",
                where=f"engine {engine}",
                fix=f"inputs are {', '.join(map(repr, self._names))}",
            )
        self._values = {name: padding.values.get(name, 0) for name in self._names}
        self._cuts = {
            info.name: tuple((axis, dim) for axis, dim in enumerate(info.shape) if axis and dim in padding.sizes)
            for info in outputs
        }

    def tails(self, inputs: Arrays) -> Tails:
        """Sizes that these inputs are filled up to; their own where a size is larger than all that are listed."""
        return tuple(
            tuple(
                self._up(dim, size) if isinstance(dim, str) else size
                for dim, size in zip(bound.shape[1:], inputs[bound.name].shape[1:], strict=True)
            )
            for bound in self._bounds
        )

    def _up(self, dim: str, size: int) -> int:
        sizes = self._sizes.get(dim, ())
        index = bisect_left(sizes, size)
        return sizes[index] if index < len(sizes) else size

    def fill(self, inputs: Arrays, tails: Tails) -> Arrays:
        """Inputs of these sizes: the same if they have them, else copies, filled up at the ends of their axes."""
        if all(inputs[name].shape[1:] == tail for name, tail in zip(self._names, tails, strict=True)):
            return inputs
        filled: dict[str, NDArray[np.generic]] = {}
        for name, tail in zip(self._names, tails, strict=True):
            array = inputs[name]
            if array.shape[1:] == tail:
                filled[name] = array
                continue
            whole = np.full((array.shape[0], *tail), self._values[name], array.dtype)
            whole[tuple(slice(size) for size in array.shape)] = array
            filled[name] = whole
        return filled

    def cut(self, outputs: Arrays, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Outputs of a request, cut back to its own sizes; views."""
        own = {
            dim: size
            for bound in self._bounds
            for dim, size in zip(bound.shape, inputs[bound.name].shape, strict=True)
            if isinstance(dim, str)
        }
        return {name: self._cut(name, array, own) for name, array in outputs.items()}

    def _cut(self, name: str, array: NDArray[np.generic], own: Mapping[str, int]) -> NDArray[np.generic]:
        places = [slice(None)] * array.ndim
        for axis, dim in self._cuts.get(name, ()):
            places[axis] = slice(own.get(str(dim)))
        return array[tuple(places)]

    def combinations(self) -> list[dict[str, int]]:
        """Sizes by dimension that requests are filled up to: what is warmed up."""
        names = sorted(self._sizes)
        every = [dict(zip(names, sizes, strict=True)) for sizes in product(*(self._sizes[name] for name in names))]
        return every[:_COMBINATIONS]
