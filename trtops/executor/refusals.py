"""What a request is told that gets no result from the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.errors import Cancelled, DeadlineExceeded, TrtopsError, Unavailable

if TYPE_CHECKING:
    from trtops.executor.state import Ticket

CLOSED = "the executor closed before this request was served"


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
