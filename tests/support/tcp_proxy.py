"""A proxy between a client and a server on loopback that delays, or loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy:
    """Forwards connections to one port.

    Attributes:
        delay: seconds that each piece of data waits, in both directions.
        lose: how many of the next answers to a request that holds ``needle`` are thrown away, with the connection.
        lost: how many were.
    """

    def __init__(
        self,
        port: int,
        needle: bytes = b"POST /nacos/v3/admin/cs/config ",
        *,
        reached: Callable[[int, str], bool] = lambda _number, _moment: False,
    ) -> None:
        """Listen on a free port.

        Args:
            port: of the server.
            needle: what marks the requests that count.
            reached: called with the number of such a request, from 1, and ``before`` it is passed on or ``after`` it
                was answered; True ends the connection there.
        """
        self.delay = 0.0
        self.lose = 0
        self.lost = 0
        self._needle = needle
        self._reached = reached
        self._count = 0
        self._target = port
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            _end(one)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            marked = threading.Event()
            for source, sink, asking in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, sink, marked, asking), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, marked: threading.Event, asking: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if asking and self._needle in data:
                    self._count += 1
                    marked.set()
                    if self._reached(self._count, "before"):
                        break
                elif not asking and marked.is_set():
                    marked.clear()
                    if self.lose:
                        self.lose -= 1
                        self.lost += 1
                        break
                    if self._reached(self._count, "after"):
                        break
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        _end(source)
        _end(sink)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
