"""What a benchmark runs: arrays for each batch size, cut from samples to the shapes of a profile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.accuracy.elements import numpy_name
from trtops.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.accuracy.samples import Samples
    from trtops.spec.engine import Profile
    from trtops.tensor import Shape, TensorInfo

    Arrays = Mapping[str, NDArray[np.generic]]

_MOST_VARIANTS = 8
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """Inputs of one batch size. ``variants`` are taken in turn, so that no run repeats the data of the last one.

    Attributes:
        batch: rows in one execution.
        profile: name of the profile whose optimum is nearest.
        shapes: input name -> shape.
        variants: inputs, one to eight of them, 64 MiB together at most (one variant always).
    """

    batch: int
    profile: str
    shapes: Mapping[str, Shape]
    variants: tuple[Arrays, ...]


def plan_workload(
    batch_sizes: Sequence[int], profiles: Sequence[Profile], inputs: Sequence[TensorInfo], samples: Samples
) -> tuple[Work, ...]:
    """Arrays for each batch size, ascending.

    Shapes are the profile's optimum with the batch size as first dimension; of several profiles that take the size, the
    one whose optimum is nearest.

    Raises:
        InputError: a batch size is in no profile (the spec's author).
    """
    return tuple(_work(size, profiles, inputs, samples) for size in sorted(set(batch_sizes)))


def _work(batch: int, profiles: Sequence[Profile], inputs: Sequence[TensorInfo], samples: Samples) -> Work:
    fitting = [(profile, shapes) for profile in profiles if (shapes := _shapes(batch, profile, inputs))]
    if not fitting:
        ranges = ", ".join(f"{profile.name} takes {_batch_range(profile)}" for profile in profiles)
        raise InputError(
            f"batch size {batch} is in no profile: {ranges}",
            where="benchmark.batch_sizes",
            fix="leave the size out, or widen a profile",
        )
    profile, shapes = min(fitting, key=lambda pair: _distance(batch, pair[0], inputs))
    names = {info.name: info for info in inputs}
    size = sum(math.prod(shape) * _item_bytes(names[name]) for name, shape in shapes.items())
    count = max(1, min(_MOST_VARIANTS, -(-samples.count // batch), _MOST_BYTES // max(1, size)))
    variants = tuple(samples.batch(shapes, start=number * batch) for number in range(count))
    return Work(batch, profile.name, shapes, variants)


def _item_bytes(info: TensorInfo) -> int:
    import numpy as np

    return np.dtype(numpy_name(info)).itemsize


def _shapes(batch: int, profile: Profile, inputs: Sequence[TensorInfo]) -> dict[str, Shape] | None:
    """Shapes of this batch size; None where the profile does not take it."""
    shapes: dict[str, Shape] = {}
    for info in inputs:
        if info.name not in profile.inputs:
            fixed = tuple(dim for dim in info.shape if isinstance(dim, int))
            if len(fixed) != len(info.shape):
                return None
            shapes[info.name] = fixed
            continue
        span = profile.inputs[info.name]
        if not info.shape or isinstance(info.shape[0], int):  # its rows do not follow the batch
            shapes[info.name] = span.opt
            continue
        if not span.min[0] <= batch <= span.max[0]:
            return None
        shapes[info.name] = (batch, *span.opt[1:])
    leading = {shapes[info.name][0] for info in inputs if info.shape and isinstance(info.shape[0], str)}
    fixed_rows = {shapes[info.name][0] for info in inputs if info.shape}
    return shapes if batch in (leading or fixed_rows or {1}) else None


def _distance(batch: int, profile: Profile, inputs: Sequence[TensorInfo]) -> float:
    batched = {info.name for info in inputs if info.shape and isinstance(info.shape[0], str)}
    optima = [span.opt[0] for name, span in profile.inputs.items() if name in batched]
    return min((abs(math.log(max(1, rows) / batch)) for rows in optima), default=0.0)


def _batch_range(profile: Profile) -> str:
    spans = [span for span in profile.inputs.values() if span.min and span.max]
    if not spans:
        return "1"
    low, high = max(span.min[0] for span in spans), min(span.max[0] for span in spans)
    return str(low) if low == high else f"{low} to {high}"
