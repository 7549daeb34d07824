"""A client's look at a supervisor: its page of routes, and what it says of the engines."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.transport.catalogue import engines_of, receive
from trtops.transport.greeting import connect, exchange
from trtops.transport.routes import PageView
from trtops.transport.wire import (
    NO_ROUTES,
    VERSIONS,
    Catalogue,
    Directory,
    Lookup,
    Refused,
    decode_error,
    decode_from_executor,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.transport.routes import Route


class NoRoutes(TrtopsError):
    """Who listens there is an executor of its own, without workers: say hello to it."""


class Guide:
    """Routes and catalogue of a supervisor, as they are now. One thread calls :meth:`wait`.

    Attributes:
        catalogue: the engines, as the supervisor describes them.
        find: engine -> its route; None: it has none. Called for every request.
    """

    def __init__(self, path: Path | str, *, timeout: float = 5.0) -> None:
        """Look up.

        Args:
            path: of the supervisor's socket.
            timeout: seconds to wait for its answer.

        Raises:
            NoRoutes: an executor without workers listens there.
            Unavailable: nobody listens there, it refuses this user, or does not answer.
            InputError: its page is of another version.
        """
        self._socket = connect(Path(path), timeout)
        self.catalogue: list[dict[str, Any]] = []
        try:
            self._view = self._look_up()
            self.find = self._view.find
            self._read()
            self._socket.settimeout(None)
        except TrtopsError:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            raise Unavailable(f"the supervisor hung up: {error}") from error

    def __repr__(self) -> str:
        """Show the routes."""
        return f"Guide({self._view!r})"

    def _look_up(self) -> PageView:
        packet, fds = exchange(self._socket, encode(Lookup(list(VERSIONS))))
        try:
            if not packet:
                raise Unavailable("the supervisor hung up before it answered", fix="try again; its log says why")
            message = decode_from_executor(packet)
            if isinstance(message, Refused):
                if message.status == NO_ROUTES:
                    raise NoRoutes(message.what)
                raise decode_error(message.status, encode({"what": message.what, "fix": message.fix}), 1.0)
            if not isinstance(message, Directory) or len(fds) != 1:
                raise Unavailable(f"an unexpected answer to a lookup: {message}")
            return PageView(fds[0])
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def routes(self) -> Mapping[str, Route]:
        """Engine -> its route. The same object until the supervisor changes them."""
        return self._view.routes

    def wait(self) -> bool:
        """Sleep until routes or catalogue change. False: the supervisor is gone."""
        try:
            return self._read()
        except (OSError, InputError, Unavailable, msgspec.MsgspecError):
            return False

    def _read(self) -> bool:
        """Take in what comes next. False: the end."""
        packet, fds = receive(self._socket)
        try:
            message = decode_from_executor(packet) if packet else None
            if isinstance(message, Refused):
                raise Unavailable(message.what, fix=message.fix)
            if isinstance(message, Catalogue):
                self.catalogue = engines_of(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return message is not None

    def close(self) -> None:
        """Look no more; wakes the thread that waits. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
