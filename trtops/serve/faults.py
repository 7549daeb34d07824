"""Which HTTP status an error is, in one table: 4xx when the client is wrong, 5xx when we are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    NotLoadable,
    Overloaded,
    Retryable,
    TrtopsError,
    Unavailable,
)
from trtops.serve.desk import Forbidden, Unsupported
from trtops.serve.oip import NotAcceptable
from trtops.serve.regions import UnknownRegion

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY_AFTER = 1.0


class UnknownModel(InputError):
    """A request for an engine, or a version of one, that is not served here."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as a client sees it.

    Attributes:
        status: HTTP status code.
        reason: label of the metric that counts it.
        message: what the client is told.
        retry_after: seconds after which to try again; None: it would not help.
    """

    status: int
    reason: str
    message: str
    retry_after: float | None = None

    @property
    def extra(self) -> bytes:
        """Header lines of the answer."""
        return b"" if self.retry_after is None else b"Retry-After: %d\r\n" % max(1, math.ceil(self.retry_after))


_TABLE: Mapping[type[TrtopsError], tuple[int, str]] = {
    UnknownModel: (404, "unknown_model"),
    UnknownRegion: (404, "unknown_region"),
    InputError: (400, "bad_request"),
    Unsupported: (501, "unsupported"),
    Forbidden: (403, "forbidden"),
    NotAcceptable: (406, "not_acceptable"),
    Overloaded: (429, "overloaded"),
    DeadlineExceeded: (504, "deadline"),
    Cancelled: (503, "cancelled"),
    Retryable: (503, "retryable"),
    Unavailable: (503, "unavailable"),
    NotLoadable: (503, "unavailable"),
}


def fault_of(error: Exception) -> Fault:
    """Find an error's status. An error that nobody raised on purpose is 500 and keeps its text to itself."""
    for kind in type(error).__mro__:
        if kind in _TABLE:
            status, reason = _TABLE[kind]
            after = getattr(error, "retry_after", RETRY_AFTER) if status in {429, 503} else None
            return Fault(status, reason, str(error), after)
    return Fault(500, "internal", "internal error; the server's log says more")
