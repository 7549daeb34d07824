"""How a client connects: the hello, the welcome and the three descriptors beside it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError, Unavailable
from trtops.transport.catalogue import receive
from trtops.transport.segment import Segment, attach
from trtops.transport.wire import FORMATS, VERSIONS, Hello, Refused, Welcome, decode_error, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DESCRIPTORS: Final = 3


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to an executor's socket; every later call on it takes ``timeout`` seconds at most.

    Raises:
        Unavailable: nobody listens there, or this user may not.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.settimeout(timeout)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise Unavailable(
            f"no executor can be reached: {error}",
            where=str(path),
            fix="start one, or check the path and its permissions",
        ) from error
    return sock


def greet(
    sock: socket.socket, slots: int, input_bytes: int, output_bytes: int, worker: int | None = None
) -> tuple[Segment, int, int, Mapping[str, Mapping[str, str]] | None]:
    """Say hello, to this worker of a supervisor or to whoever listens, and be welcomed.

    Returns:
        The segment, the executor's bell (an eventfd) and this client's bell (to be watched edge-triggered, and neither
        read nor written), both the caller's to close; and the memory formats of inputs, None: the executor knows none.

    Raises:
        Unavailable: the executor refuses, hangs up or does not answer.
        InputError: it does not grant these slots, or speaks another version.
    """
    packet, fds = exchange(sock, encode(Hello(list(VERSIONS), slots, input_bytes, output_bytes, worker)))
    try:
        segment, welcome = _read_welcome(packet, fds, slots)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    os.close(fds[0])
    return segment, fds[1], fds[2], welcome.formats if welcome.version >= FORMATS else None


def exchange(sock: socket.socket, hello: bytes) -> tuple[bytes, list[int]]:
    """Send the first message and wait for its answer.

    Returns:
        The packet, and the descriptors beside it (the caller's to close).

    Raises:
        Unavailable: there is no answer.
    """
    try:
        with contextlib.suppress(BrokenPipeError):  # it refused already, and says why
            sock.send(hello)
        try:
            return receive(sock)
        except ConnectionResetError:  # reported once, before what the executor said last
            return receive(sock)
    except TimeoutError as error:
        raise Unavailable("the executor did not answer the hello in time") from error
    except OSError as error:
        raise Unavailable(f"the executor hung up: {error}") from error


def _read_welcome(packet: bytes, fds: list[int], slots: int) -> tuple[Segment, Welcome]:
    if not packet:
        raise Unavailable("the executor hung up before it answered")
    message = decode_from_executor(packet)
    if isinstance(message, Refused):
        raise decode_error(message.status, encode({"what": message.what, "fix": message.fix}), 1.0)
    if not isinstance(message, Welcome) or len(fds) != _DESCRIPTORS:
        raise InputError(f"an unexpected welcome: {message}")
    segment = attach(fds[0])
    if segment.layout.slots != slots:
        raise InputError(f"asked for {slots} slots, got {segment.layout.slots}")
    return segment, message
