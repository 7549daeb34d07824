"""A client's answers, read out of their slots."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from trtops.errors import InputError, Retryable
from trtops.transport.call import Reply
from trtops.transport.layout import ANSWER, ANSWER_BYTES, ANSWER_OFFSET, MAX_DESCRIPTION, SLOT_HEADERS
from trtops.transport.tensors import Parser
from trtops.transport.wire import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trtops.transport.call import Call
    from trtops.transport.segment import Segment
    from trtops.transport.tensors import Description

_unpack = ANSWER.unpack_from


class Answers:
    """Reads answers of one segment, and gives their slots back."""

    def __init__(self, segment: Segment, free: Callable[[int], object], *, copy: bool, formats: bool = True) -> None:
        """Read from this segment.

        Args:
            segment: shared with the executor.
            free: gets the number of each slot that may be used again.
            copy: outputs are copies; else they are views of the slot, which is free when the last view is gone.
            formats: the executor tells memory formats.
        """
        self._segment = segment
        self._free = free
        self._copy = copy
        self._parser = Parser(segment.layout.output_bytes, formats=formats)

    def __repr__(self) -> str:
        """Show what outputs are."""
        return f"Answers({'copies' if self._copy else 'views'} of {self._segment.layout.slots} slots)"

    def read(self, call: Call) -> Reply:
        """Read the answer to a call out of its slot, and free the slot."""
        slot = call.slot
        segment = self._segment
        data = segment.bytes
        start = segment.starts[slot] + ANSWER_OFFSET
        sequence, status, size, generation, batch, credit, queue_us, compute_us, retry_after = _unpack(data, start)
        error: Exception | None = None
        outputs: dict[str, NDArray[np.generic]] = {}
        if sequence != call.sequence:
            error = Retryable(f"slot {slot} holds the answer to request {sequence}, not {call.sequence}")
        elif status:
            error = decode_error(status, segment.outputs[slot][:size].tobytes(), retry_after)
        else:
            start += ANSWER_BYTES
            try:
                described = self._parser.parse(data[start : start + (min(MAX_DESCRIPTION, size))])
            except InputError as problem:
                error = problem
            else:
                if not self._copy:
                    return Reply(self._lend(slot, described), None, generation, batch, queue_us, compute_us)
                for name, view in described.views(slot, segment.outputs).items():
                    outputs[name] = view.copy("K")
        self._free(slot)
        return Reply(outputs, error, generation, batch, queue_us, compute_us, None, credit)

    def _lend(self, slot: int, described: Description) -> dict[str, NDArray[np.generic]]:
        """Views of a slot's outputs; the slot is free when the last view is gone. All views have ``owner`` as base.

        NumPy makes the first array over a buffer the base of all views; over another array it would be skipped.
        """
        layout = self._segment.layout
        start = self._segment.starts[slot] + SLOT_HEADERS + layout.input_bytes
        owner = np.frombuffer(self._segment.memory[start : start + layout.output_bytes], np.uint8)
        weakref.finalize(owner, self._free, slot).atexit = False
        return {tensor.name: tensor.view(owner) for tensor in described.tensors}
