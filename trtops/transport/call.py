"""A request of a client and its answer. Structs of msgspec: these are made once a request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


class Reply(msgspec.Struct, eq=False):
    """The answer to a request.

    Attributes:
        outputs: name -> array. error: why there are none.
        generation: of the engine. batch: rows that ran together.
        queue_us, compute_us: microseconds in the queue, microseconds that the batch ran.
        document: the answer to a question off the data path.
        credit: of a refusal by a full queue: requests of this engine that the client may have in flight; 0: any.
    """

    outputs: dict[str, NDArray[np.generic]] = {}
    error: Exception | None = None
    generation: int = 0
    batch: int = 0
    queue_us: float = 0.0
    compute_us: float = 0.0
    document: Any = None
    credit: int = 0


class Call(msgspec.Struct, eq=False):
    """A request that was sent, or is about to be.

    Attributes:
        slot: that it is in; -1 for a question off the data path.
        sequence: its number. done: is called with the answer. engine: that it is for.
        size: bytes of its description.
        reply: the answer; None until it came.
        event: set when the thread that waits for it has to look again; the client's.
    """

    slot: int
    sequence: int
    done: Callable[[Reply], None] | None
    engine: str = ""
    size: int = 0
    reply: Reply | None = None
    event: threading.Event | None = None
