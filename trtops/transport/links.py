"""Connections of a client to the workers of a supervisor, by worker and by the size of what is sent there.

A request that does not fit in the usual slots gets a connection with larger ones, in powers of two. Each connection has
a thread that takes its answers.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from trtops.errors import TrtopsError, Unavailable
from trtops.transport.client import Client
from trtops.transport.layout import MIN_OUTPUT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_SEGMENT: Final = 128 << 20
"""Bytes of a connection's segment at most, unless one request alone needs more."""

Key = tuple[int, int, int]
"""Worker, input bytes, output bytes."""


class Links:
    """Connections by key. Any thread may use it; one that has ended is forgotten."""

    def __init__(self, path: Path | str, *, slots: int, input_bytes: int, output_bytes: int) -> None:
        """Connect to nobody yet.

        Args:
            path: of the socket.
            slots: requests in flight of a connection of the usual size.
            input_bytes: bytes of all inputs of a request, as usual.
            output_bytes: the same of the outputs.
        """
        self._path = path
        self._slots = slots
        self.usual = input_bytes, max(output_bytes, MIN_OUTPUT_BYTES)
        self._links: dict[Key, Client] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        """Show the connections."""
        found = ", ".join(f"{worker or 'executor'}: {client!r}" for (worker, _, _), client in self._links.items())
        return f"Links({found or 'none'})"

    def workers(self) -> set[int]:
        """Those that there is a connection to."""
        return {worker for worker, _, _ in list(self._links)}

    def get(self, worker: int, need: tuple[int, int]) -> Client:
        """A connection to a worker, whose slots take so many bytes of inputs and of outputs.

        Raises:
            Unavailable: the worker is not there any more, or refuses.
            InputError: no worker grants slots of this size.
        """
        usual = self.usual
        if need[0] <= usual[0] and need[1] <= usual[1]:
            key = worker, usual[0], usual[1]
        else:
            key = worker, _size(need[0], usual[0]), _size(need[1], usual[1])
        return self._links.get(key) or self._open(key)

    def _open(self, key: Key) -> Client:
        with self._lock:
            if self._closed:
                raise Unavailable("the client was closed")
            if (there := self._links.get(key)) is not None:
                return there
            worker, inputs, outputs = key
            slots = max(1, min(self._slots, _SEGMENT // (inputs + outputs)))
            client = Client(self._path, slots=slots, input_bytes=inputs, output_bytes=outputs, worker=worker or None)
            self._links[key] = client
        threading.Thread(target=self._listen, args=(key, client), name="trtops-answers", daemon=True).start()
        return client

    def _listen(self, key: Key, client: Client) -> None:
        try:
            while True:
                client.poll()
        except TrtopsError as error:
            log.debug("worker %d: no more answers: %s", key[0], error)
        except Exception:
            log.exception("worker %d: answers cannot be taken any more", key[0])
        with self._lock:
            if self._links.get(key) is client:
                del self._links[key]
        client.close()

    def close(self) -> None:
        """Hang up; requests in flight get an error."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for client in links:
            client.close()


def _size(need: int, usual: int) -> int:
    return usual if need <= usual else 1 << (need - 1).bit_length()


def room(arrays: int, size: int) -> int:
    """Bytes of a slot's area for so many arrays of so many bytes in all, each at a multiple of 64."""
    return size + 64 * arrays
