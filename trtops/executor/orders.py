"""What a supervisor and its workers say to each other: one message a packet, over a pair of sockets.

The worker's end of the pair is the only thing that it inherits; when the supervisor's end closes, the worker ends.
Values of the spec travel as their JSON, so that a message is a plain structure in both processes.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trtops.backend.port import Sidecar
from trtops.errors import NotLoadable
from trtops.executor.observer import BatchReport
from trtops.executor.port import EngineInfo
from trtops.spec.engine import Batching, Execution, Memory, Profile
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from trtops.executor.port import Tolerance
    from trtops.executor.unit import Charge

PACKET: Final = 1 << 20
"""Bytes of a packet at most."""
BEAT: Final = 0.25
"""Seconds between two signs of life of a worker."""


class Load(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Supervisor: load this generation beside what serves, and serve it. ``number`` comes back with the answer."""

    number: int
    name: str
    generation: int
    version: str
    digest: str
    backend: str
    instances: int
    path: str
    sidecar: bytes
    batching: bytes
    profiles: tuple[bytes, ...]
    memory: bytes | None
    execution: bytes | None


class Adjust(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: what serves under this name is this generation from now on, with this batching."""

    name: str
    generation: int
    batching: bytes


class Unload(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: serve this engine no more; what waits is served. The answer is :class:`Freed`."""

    name: str


class Adopt(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: serve this client. Its socket is beside the message; its hello is still to be read."""


class Mirror(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: copy so many percent of an engine's requests to the worker behind the socket beside this message.

    ``percent`` 0: no more, and there is no socket. ``generation``: of the engine there. ``slots`` requests are in
    flight at most, of so many bytes.
    """

    name: str
    percent: int
    generation: int = 0
    slots: int = 0
    input_bytes: int = 0


class Compare(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: compare what a mirror sends with the engine's own outputs, by this tolerance."""

    name: str
    generation: int
    atol: float
    rtol: float
    bounds: dict[str, float]


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Supervisor: finish what is there, within so many seconds, and end."""

    drain: float


class Up(msgspec.Struct, tag=True, frozen=True):
    """Worker: it takes orders."""


class Loaded(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Worker: the load of this number serves. Bytes are what its pools hold."""

    number: int
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    max_batch: int
    host_bytes: int
    device_bytes: int


class NotLoaded(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Worker: the load of this number failed; what served before still does."""

    number: int
    what: str
    where: str | None
    fix: str | None


class Freed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a generation drained, and its memory is free."""

    name: str
    generation: int


class Lost(msgspec.Struct, tag=True, frozen=True):
    """Worker: its device is lost, so it ends now."""

    why: str


class Held(msgspec.Struct, frozen=True):
    """An engine in a worker: ``state`` as in ``EngineStatus``, requests that wait, batches on devices."""

    name: str
    generation: int
    state: str
    reason: str | None
    queued: int
    running: int


class Compared(msgspec.Struct, frozen=True):
    """Counts of a shadow since the worker started.

    ``mirrored``: requests copied; ``dropped``: not copied, since the shadow was behind; ``compared``: both answered;
    ``differing``: some output was not the same; ``failed``: the shadow answered with an error. ``worst``: the largest
    excess over the tolerance so far (1: just within).
    """

    name: str
    generation: int
    mirrored: int = 0
    dropped: int = 0
    compared: int = 0
    differing: int = 0
    failed: int = 0
    worst: float = 0.0


class Beat(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Worker: it lives.

    ``busy``: seconds that the oldest batch has been on a device, and ``busy_with`` of which engine. ``slots``: of
    clients, in use; ``granted``: all that they have; ``shared``: bytes of their segments. ``memory``: resident bytes.
    ``pools``: bytes that the pools of all engines hold, of host and of device memory.
    """

    engines: tuple[Held, ...]
    busy: float
    busy_with: str
    clients: int
    slots: int
    granted: int
    shared: int
    memory: int
    pools: tuple[int, int]
    compared: tuple[Compared, ...] = ()


class Reports(msgspec.Struct, tag=True, frozen=True):
    """Worker: what its executor told its observer since the last of these.

    ``refused``: engine, reason, requests. ``failed``: engine, generation, why. ``dropped``: reports that were too many.
    """

    batches: tuple[BatchReport, ...] = ()
    refused: tuple[tuple[str, str, int], ...] = ()
    failed: tuple[tuple[str, int, str], ...] = ()
    dropped: int = 0


FromSupervisor = Load | Adjust | Unload | Adopt | Mirror | Compare | Stop
FromWorker = Up | Loaded | NotLoaded | Freed | Lost | Beat | Reports

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[FromSupervisor] = msgspec.msgpack.Decoder(FromSupervisor)
_news: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends for messages: the supervisor's and the worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET)
    return ours, theirs


def send(end: socket.socket, message: FromSupervisor | FromWorker, fd: int | None = None) -> None:
    """Send a message, with a descriptor beside it.

    Raises:
        OSError: the other end is gone, or takes nothing.
    """
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    end.sendmsg([_encoder.encode(message)], rights, socket.MSG_NOSIGNAL)


def next_order(end: socket.socket) -> tuple[FromSupervisor, socket.socket | None] | None:
    """Wait for an order, with the socket beside it. None: the supervisor is gone."""
    packet, fd = _receive(end)
    if not packet:
        return None
    beside = None if fd is None else socket.socket(fileno=fd)
    return _orders.decode(packet), beside


def next_news(end: socket.socket) -> FromWorker | None:
    """What a worker says; None: it is gone.

    Raises:
        BlockingIOError: nothing is there, and the socket does not wait.
        msgspec.MsgspecError: it is no message: the worker's memory is damaged.
    """
    packet, fd = _receive(end)
    if fd is not None:
        os.close(fd)
    return _news.decode(packet) if packet else None


def _receive(end: socket.socket) -> tuple[bytes, int | None]:
    size = array.array("i").itemsize
    try:
        packet, ancillary, flags, _ = end.recvmsg(PACKET, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    except (ConnectionResetError, BrokenPipeError):
        return b"", None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % size])
    if flags & socket.MSG_TRUNC:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        return b"", None
    return packet, fds[0] if fds else None


# -- values of the spec and back ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """The values of a :class:`Load`, as they are in the worker."""

    path: Path
    sidecar: Sidecar
    batching: Batching
    profiles: tuple[Profile, ...]
    memory: Memory | None
    execution: Execution | None


def load_order(number: int, charge: Charge) -> Load:
    """The order to load a charge; ``number`` comes back with the answer."""
    return Load(
        number=number,
        name=charge.name,
        generation=charge.generation,
        version=charge.version,
        digest=charge.digest,
        backend=charge.backend,
        instances=charge.instances,
        path=str(charge.path),
        sidecar=charge.sidecar.model_dump_json().encode(),
        batching=charge.batching.model_dump_json().encode(),
        profiles=tuple(profile.model_dump_json().encode() for profile in charge.profiles),
        memory=None if charge.memory is None else charge.memory.model_dump_json().encode(),
        execution=None if charge.execution is None else charge.execution.model_dump_json().encode(),
    )


def adjust_order(charge: Charge) -> Adjust:
    """The order to serve a charge by its batching, as its generation."""
    return Adjust(charge.name, charge.generation, charge.batching.model_dump_json().encode())


def compare_order(charge: Charge, rules: Tolerance) -> Compare:
    """The order to compare what a mirror sends with the outputs of a charge."""
    return Compare(charge.name, charge.generation, rules.atol, rules.rtol, dict(rules.bounds))


def info_of(charge: Charge, news: Loaded) -> EngineInfo:
    """What serves, once a worker has loaded a charge."""
    return EngineInfo(
        charge.name,
        charge.generation,
        charge.version,
        charge.digest,
        charge.backend,
        tensors(news.inputs),
        tensors(news.outputs),
        news.max_batch,
    )


def parts_of(order: Load) -> Parts:
    """Read the values that travelled as JSON."""
    return Parts(
        Path(order.path),
        Sidecar.model_validate_json(order.sidecar),
        Batching.model_validate_json(order.batching),
        tuple(Profile.model_validate_json(profile) for profile in order.profiles),
        None if order.memory is None else Memory.model_validate_json(order.memory),
        None if order.execution is None else Execution.model_validate_json(order.execution),
    )


def plain(tensors: tuple[TensorInfo, ...]) -> tuple[bytes, ...]:
    """Tensors as JSON."""
    return tuple(tensor.model_dump_json().encode() for tensor in tensors)


def tensors(texts: tuple[bytes, ...]) -> tuple[TensorInfo, ...]:
    """Tensors from JSON."""
    return tuple(TensorInfo.model_validate_json(text) for text in texts)


def refusal(message: NotLoaded) -> NotLoadable:
    """The error that a worker met."""
    return NotLoadable(message.what, where=message.where, fix=message.fix)
