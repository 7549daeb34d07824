"""A request of a client and its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


class Reply:
    """The answer to a request.

    Attributes:
        outputs: name -> array. error: why there are none.
        generation: of the engine. batch: rows that ran together.
        queue_us, compute_us: microseconds in the queue, microseconds that the batch ran.
        document: the answer to a question off the data path.
    """

    __slots__ = ("batch", "compute_us", "document", "error", "generation", "outputs", "queue_us")

    def __init__(self, error: Exception | None = None) -> None:
        """Make an answer with no numbers."""
        self.outputs: dict[str, NDArray[np.generic]] = {}
        self.error = error
        self.generation = 0
        self.batch = 0
        self.queue_us = 0.0
        self.compute_us = 0.0
        self.document: Any = None


class Call:
    """A request that was sent, or is about to be.

    Attributes:
        slot: that it is in; -1 for a question off the data path.
        size: bytes of its description.
        reply: the answer; None until it came.
        event: set when the thread that waits for it has to look again; the client's.
    """

    __slots__ = ("done", "event", "reply", "sequence", "size", "slot")

    def __init__(self, slot: int, sequence: int, done: Callable[[Reply], None] | None) -> None:
        """Make a call that waits for its answer."""
        self.slot = slot
        self.sequence = sequence
        self.size = 0
        self.done = done
        self.reply: Reply | None = None
        self.event: threading.Event | None = None
