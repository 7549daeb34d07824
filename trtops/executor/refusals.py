"""What a request is told that gets no result from the executor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from trtops.errors import Cancelled, DeadlineExceeded, InputError, Overloaded, TrtopsError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtops.executor.state import EngineQueue, Ticket

_RETRY: Final = (0.01, 30.0)
"""Bounds in seconds of the hint that a refused client gets."""

CLOSED = "the executor closed before this request was served"


def absent(name: str, known: Iterable[str], *, closing: bool) -> TrtopsError:
    """No engine of this name serves; ``known`` do."""
    if closing:
        return Unavailable("the executor is closing", fix="send the request to another server")
    return InputError(f"no engine {name!r} is loaded", fix=f"loaded engines: {', '.join(sorted(known)) or 'none'}")


def cancelled(ticket: Ticket) -> TrtopsError:
    """A client took its request back."""
    del ticket
    return Cancelled("the request was cancelled")


def unavailable(why: str, ticket: Ticket) -> TrtopsError:
    """It cannot be served, and why."""
    del ticket
    return Unavailable(why, fix="send the request to another server, or again later")


def late(engine: str, ticket: Ticket, *, running: bool, timeout: float) -> TrtopsError:
    """Its time is over: its own deadline's, or the queue's (``timeout`` seconds)."""
    where = f"engine {engine}"
    if ticket.deadline is None:
        return DeadlineExceeded(f"the request waited {timeout * 1e3:g} ms, as long as the queue allows", where=where)
    state = "its batch was running" if running else "it was waiting for a batch"
    return DeadlineExceeded(f"the request's deadline passed while {state}", where=where)


def full(queue: EngineQueue, engine: str, depth: int) -> Overloaded:
    """The queue is full."""
    return Overloaded(
        f"the queue of engine {engine} is full: {depth} requests wait",
        fix="send the request again later",
        retry_after=retry_after(queue, depth),
    )


def displaced(why: Overloaded, ticket: Ticket) -> TrtopsError:
    """It had to leave a full queue."""
    del ticket
    what = f"{why.what}, most of them of this client, and others come"
    return Overloaded(what, fix=why.fix, retry_after=why.retry_after)


def retry_after(queue: EngineQueue, depth: int) -> float:
    """Seconds until what waits has run, by the measured cost of full batches: the hint that a refused client gets."""
    policy = queue.policy
    batches = math.ceil(depth / policy.max_batch) / max(1, len(queue.lanes))
    return min(max(queue.cost.estimate(policy.max_batch) * batches, _RETRY[0]), _RETRY[1])
