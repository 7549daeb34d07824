"""What the parts of an execution mean: bound by launches, by copies, or by the host. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from trtops.backend.port import DeviceTimes
from trtops.build.voucher import Vouched

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAUNCHES = 0.9  # a graph saves a tenth: what it saves are launches
_COPIES = 0.5  # copies take half as long as the computation
_HOST = 0.3  # a third of the wall time is neither copy nor computation
_GAIN = 1.1


class DeviceTimeline(Vouched):
    """What a builder key signs of the parts of an execution, by batch size; ``key`` is the artifact's digest.

    No policy judges it and no evidence holds it. It is signed all the same: people set ``execution`` and ``memory`` by
    what :func:`advice` makes of it, and a store may be one that others write to.
    """

    times: tuple[DeviceTimes, ...]


def advice(times: Sequence[DeviceTimes]) -> list[str]:
    """What limits an engine and what would help, in words, for each batch size."""
    return [f"batch {one.batch}: {text}" for one in times for text in _advice(one)]


def _advice(one: DeviceTimes) -> list[str]:
    found = []
    copies = one.copy_in + one.copy_out
    rest = one.wall - copies - one.compute
    if one.graph is not None and one.graph < _LAUNCHES * one.plain:
        found.append(
            f"bound by launches: a CUDA graph takes {one.graph:.0f} µs where enqueueing takes {one.plain:.0f} µs; "
            "set execution.cuda_graphs: true"
        )
    if copies > _COPIES * one.compute:
        found.append(f"bound by copies: they take {copies:.0f} µs beside {one.compute:.0f} µs of computation")
    if one.mapped * _GAIN < one.pinned:
        found.append(
            f"mapped input takes {one.mapped:.0f} µs where pinned takes {one.pinned:.0f} µs: set memory.input: mapped"
        )
    if rest > _HOST * one.wall:
        found.append(f"bound by the host: {rest:.0f} of {one.wall:.0f} µs pass while the device does nothing")
    single = one.streams.get(1)
    best = max(one.streams, key=lambda count: one.streams[count], default=1)
    if single and best > 1 and one.streams[best] > _GAIN * single:
        found.append(
            f"{best} streams reach {one.streams[best] / single:.2f} times the rows a second of one: "
            f"set execution.streams: {best}"
        )
    return found


def knee(rates: Sequence[tuple[int, float]]) -> int | None:
    """The batch size beyond which throughput grows by less than a tenth for each doubling; None for fewer than two.

    Args:
        rates: batch size, each once, and rows a second.
    """
    ordered = sorted(rates)
    if len(ordered) < 2:  # noqa: PLR2004 - a pair
        return None
    for (batch, rate), (larger, more) in pairwise(ordered):
        if (more / rate) ** (1 / math.log2(larger / batch)) < _GAIN:
            return batch
    return ordered[-1][0]
