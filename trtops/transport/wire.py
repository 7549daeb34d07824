"""Messages on a client's socket: one a packet (SOCK_SEQPACKET), JSON but for the descriptors beside the welcome.

The socket is off the data path: it opens the connection, answers questions, carries cancellations, and tells of death
by its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trtops.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    Overloaded,
    Retryable,
    TrtopsError,
    Unavailable,
)

MAX_PACKET: Final = 1 << 17
"""Bytes of a packet at most."""

VERSIONS: Final = (1, 2, 3, 4)
"""Of the messages that both ends speak; the segment's own version is in its header. See :data:`BESIDE` (2),
:data:`WATCHED` (3) and :data:`FORMATS` (4)."""

BESIDE: Final = 2
"""The version from which on a catalogue that is too long for a packet comes in memory beside it."""

WATCHED: Final = 3
"""The version from which on a client's bell is to be watched only, not read; see :mod:`trtops.transport.bells`."""

PROBLEMS: Final = 3
"""The version from which on a question that cannot be answered now is answered with the reason."""

FORMATS: Final = 4
"""The version from which on descriptions and catalogues tell memory formats. An older end writes and reads linear
tensors."""

NO_ROUTES: Final = 8
"""Status of a refusal of a lookup: whoever listens there has no workers, and serves clients itself."""


class Hello(msgspec.Struct, tag="hello", frozen=True, omit_defaults=True):
    """Client: what it speaks and what it would like. Sizes in bytes, of one slot.

    ``worker``: the number of the worker that it wants to talk to (see :mod:`trtops.transport.routes`); None: any.
    """

    versions: list[int]
    slots: int
    input_bytes: int
    output_bytes: int
    worker: int | None = None


class Lookup(msgspec.Struct, tag="lookup", frozen=True):
    """Client of a supervisor: where is what served? It gets the page of routes, and each new catalogue."""

    versions: list[int]


class Directory(msgspec.Struct, tag="directory", frozen=True):
    """Supervisor: the answer to a lookup. Beside it: the page of routes (memfd, not writable)."""

    version: int


class Welcome(msgspec.Struct, tag="welcome", frozen=True, omit_defaults=True):
    """Executor: agreed. Beside it: segment (memfd), bell of the executor (eventfd), bell of the client (epoll).

    ``formats``: engine -> input -> memory format, of those that are served now and not linear.
    """

    version: int
    formats: Mapping[str, Mapping[str, str]] = {}


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Executor: no, and why; then it hangs up. Also said before it hangs up on a client that broke the protocol."""

    status: int
    what: str
    fix: str | None = None


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """Client: which engines are served? ``number`` comes back with the answer."""

    number: int


class Problem(msgspec.Struct, frozen=True):
    """An error: in a slot's output area, or in place of an answer off the data path."""

    what: str
    where: str | None = None
    fix: str | None = None


class Catalogue(msgspec.Struct, tag="catalogue", frozen=True, omit_defaults=True):
    """Executor: these engines, as the handler describes them.

    ``size``: their bytes in memory beside the message (a sealed memfd), where they are too many for a packet.
    ``problem``: why they cannot be told now.
    """

    number: int
    engines: msgspec.Raw
    size: int = 0
    problem: Problem | None = None


class Withdraw(msgspec.Struct, tag="withdraw", frozen=True):
    """Client: cancel the request of this sequence number in this slot. An answer still comes."""

    slot: int
    sequence: int


FromClient = Hello | Ask | Withdraw | Lookup
FromExecutor = Welcome | Refused | Catalogue | Directory

_from_client: msgspec.json.Decoder[FromClient] = msgspec.json.Decoder(FromClient)
_from_executor: msgspec.json.Decoder[FromExecutor] = msgspec.json.Decoder(FromExecutor)
_problem = msgspec.json.Decoder(Problem)
encode = msgspec.json.encode


def decode_from_client(packet: bytes) -> FromClient:
    """Read what a client said.

    Raises:
        InputError: it is no such message. Blame the client.
    """
    try:
        return _from_client.decode(packet)
    except msgspec.MsgspecError as error:
        raise InputError(f"not a message of a client: {error}") from error


def decode_from_executor(packet: bytes) -> FromExecutor:
    """Read what an executor said.

    Raises:
        InputError: it is no such message. Blame the executor.
    """
    try:
        return _from_executor.decode(packet)
    except msgspec.MsgspecError as error:
        raise InputError(f"not a message of an executor: {error}") from error


# The status of an answer; 0 stands for outputs. The first class that fits names an error.
_STATUSES: Final[tuple[tuple[int, type[TrtopsError]], ...]] = (
    (1, InputError),
    (2, Overloaded),
    (3, DeadlineExceeded),
    (4, Cancelled),
    (5, Retryable),
    (6, Unavailable),
    (7, TrtopsError),
)


def agreed(versions: list[int]) -> int:
    """The version that both ends speak, the newest of them.

    Raises:
        InputError: there is none. Blame the client.
    """
    both = [version for version in VERSIONS if version in versions]
    if not both:
        ours = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"
        what = f"the client speaks version {versions}, this executor {ours}"
        raise InputError(what, fix="update the older of both")
    return both[-1]


def status_of(error: Exception) -> int:
    """The status that stands for an error; 7 for one without a class of its own."""
    return next((status for status, kind in _STATUSES if isinstance(error, kind)), 7)


def encode_error(error: Exception, room: int) -> bytes:
    """An error's text, cut so that it fits in ``room`` bytes (4096 or more)."""
    if not isinstance(error, TrtopsError):
        error = TrtopsError(f"{type(error).__name__}: {error}")
    where = None if error.where is None else str(error.where)
    text = encode(Problem(error.what, where, error.fix))
    # A character is six bytes of JSON at most (\u0000).
    return text if len(text) <= room else encode(Problem(error.what[: room // 6 - 32]))


def decode_error(status: int, text: bytes, retry_after: float) -> TrtopsError:
    """The error that an answer carries."""
    try:
        problem = _problem.decode(text)
    except msgspec.MsgspecError:
        problem = Problem("the executor's error could not be read")
    kind = dict(_STATUSES).get(status, TrtopsError)
    if kind is Overloaded:
        return Overloaded(problem.what, where=problem.where, fix=problem.fix, retry_after=retry_after)
    return kind(problem.what, where=problem.where, fix=problem.fix)
