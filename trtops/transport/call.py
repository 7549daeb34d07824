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

    # Of the class: one is made for every request, and most have no error and no document.
    error: Exception | None = None
    generation: int = 0
    batch: int = 0
    queue_us: float = 0.0
    compute_us: float = 0.0
    document: Any = None

    def __init__(self) -> None:
        """Make an answer with no outputs."""
        self.outputs: dict[str, NDArray[np.generic]] = {}

    @classmethod
    def failed(cls, error: Exception) -> Reply:
        """An answer that is an error."""
        reply = cls()
        reply.error = error
        return reply


class Call:
    """A request that was sent, or is about to be.

    Attributes:
        slot: that it is in; -1 for a question off the data path.
        size: bytes of its description.
        reply: the answer; None until it came.
        event: set when the thread that waits for it has to look again; the client's.
    """

    # Of the class: as above.
    size: int = 0
    reply: Reply | None = None
    event: threading.Event | None = None

    def __init__(self, slot: int, sequence: int, done: Callable[[Reply], None] | None) -> None:
        """Make a call that waits for its answer."""
        self.slot = slot
        self.sequence = sequence
        self.done = done
