"""Putting a batch together and taking it apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from trtops.errors import TrtopsError
from trtops.executor.memory import Pool, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trtops.executor.interface import Bound, Interface
    from trtops.executor.padding import Pads, Tails
    from trtops.executor.state import Ticket

    Arrays = Mapping[str, NDArray[np.generic]]

_VIEWS: Final = 64
"""Shapes whose views are kept; clients choose shapes, so their number must be bounded."""


def staging_bytes(interface: Interface) -> int:
    """Bytes that one :class:`Staging` of this interface takes of a pool."""
    if not interface.batchable:
        return 0
    rows = interface.max_rows
    return sum(aligned(bound.row_bytes * rows) for bound in interface.bounds if bound.row_bytes is not None)


class Staging:
    """Input buffers of one session: allocated once, at the largest batch, and reshaped for each shape bucket.

    One batch is in them at a time, so all buckets share the same bytes. Inputs whose sizes have no bound (dynamic
    sizes without a profile, text) are put together in memory of their own.
    """

    def __init__(self, interface: Interface, pool: Pool | None) -> None:
        """Take the buffers of a pool; None: there are none, since the session puts batches together itself.

        Raises:
            NotLoadable: the pool is too small.
        """
        self._interface = interface
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self._views: dict[tuple[str, tuple[int, ...]], NDArray[np.generic]] = {}
        if interface.batchable and pool is not None:
            for bound in interface.bounds:
                if bound.row_bytes is not None:
                    what = f"input {bound.name!r} of engine {interface.engine} at {interface.max_rows} rows"
                    self._buffers[bound.name] = pool.take(bound.row_bytes * interface.max_rows, what)

    def gather(self, tickets: Sequence[Ticket], rows: int) -> dict[str, NDArray[np.generic]]:
        """Inputs of a batch, C-contiguous, ``rows`` rows; filled up with zeros to the smallest batch of the profiles.

        A request that runs alone is passed on as it is, without a copy; inputs that have a format in whatever way they
        lie in memory.
        """
        interface = self._interface
        requests = inputs_of(interface, tickets)
        if len(tickets) == 1 and (rows >= interface.min_rows or not interface.batchable):
            inputs = requests[0]
            return {bound.name: np.asarray(inputs[bound.name], order=bound.order)[...] for bound in interface.bounds}
        whole = max(rows, interface.min_rows)
        return {
            bound.name: self._gather_input(bound, [request[bound.name] for request in requests], rows, whole)
            for bound in interface.bounds
        }

    def _gather_input(
        self, bound: Bound, parts: list[NDArray[np.generic]], rows: int, whole: int
    ) -> NDArray[np.generic]:
        buffer = self._view(bound, parts[0].shape[1:])
        if buffer is None:
            if whole > rows:
                parts.append(np.zeros((whole - rows, *parts[0].shape[1:]), bound.dtype))
            return np.concatenate(parts, dtype=bound.dtype)[...]
        np.concatenate(parts, out=buffer[:rows])  # in the order of the batch, row after row
        if whole > rows:
            buffer[rows:whole] = 0
        return buffer[:whole]

    def _view(self, bound: Bound, tail: tuple[int, ...]) -> NDArray[np.generic] | None:
        key = (bound.name, tail)
        view = self._views.get(key)
        if view is None:
            buffer = self._buffers.get(bound.name)
            if buffer is None:
                return None
            rows = self._interface.max_rows
            size = int(np.prod(tail, dtype=np.int64)) * rows * bound.dtype.itemsize
            view = buffer[:size].view(bound.dtype).reshape(rows, *tail)
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[key] = view
        return view


def inputs_of(interface: Interface, tickets: Sequence[Ticket]) -> list[Arrays]:
    """The inputs of each request of a batch, filled up to the sizes of its bucket."""
    pads = interface.pads
    if pads is None:
        return [ticket.payload[0].inputs for ticket in tickets]
    return [pads.fill(ticket.payload[0].inputs, cast("Tails", ticket.bucket.shape)) for ticket in tickets]


def own(outputs: Arrays) -> dict[str, NDArray[np.generic]]:
    """Make outputs independent of the session, which may write to its buffers again: copy what is a view."""
    return {name: array if array.flags.owndata else array.copy("K") for name, array in outputs.items()}


def check_rows(interface: Interface, outputs: Arrays, rows: int) -> None:
    """Tell whether outputs can be split by the rows of a batch.

    Raises:
        TrtopsError: one cannot. Blame the engine.
    """
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise TrtopsError(
                f"output {name!r} has shape {list(array.shape)} for a batch of {rows} rows",
                where=f"engine {interface.engine}",
                fix="set batching.max_batch to 1: this engine's outputs are not split by rows",
            )


def scatter(outputs: Arrays, ticket: Ticket, pads: Pads | None, *, whole: bool) -> dict[str, NDArray[np.generic]]:
    """The outputs of one request: views of the batch's. ``whole``: nothing else is in them."""
    part = dict(outputs)
    if not whole:
        start, stop = ticket.offset, ticket.offset + ticket.rows
        part = {name: array[start:stop] for name, array in outputs.items()}
    return part if pads is None else pads.cut(part, ticket.payload[0].inputs)
