"""Connections of a client to the workers of a supervisor, by worker and by the size of what is sent there.

A request that does not fit in the usual slots gets a connection with larger ones, in powers of two. Each connection has
a thread that takes its answers, or an event loop watches all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from trtops.errors import TrtopsError, Unavailable
from trtops.transport.client import Client
from trtops.transport.layout import MIN_OUTPUT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.transport.tensors import Formats

log = logging.getLogger(__name__)

_SEGMENT: Final = 128 << 20
"""Bytes of a connection's segment at most, unless one request alone needs more."""

_WELCOME: Final = 3.0
"""Seconds that a worker has to welcome a connection. An event loop that asks serves nobody meanwhile."""
_TELL: Final = 5.0
"""The same of an executor without workers, which also has to tell its engines in that time."""
_REST: Final = 5.0
"""Seconds for which one that did not is asked for no more connections: one request waits for it, not each."""

Key = tuple[int, int, int]
"""Worker, input bytes, output bytes."""


class Watcher(Protocol):
    """An event loop that takes answers in place of threads."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` in the loop's thread whenever ``fd`` is readable. Called from any thread."""

    def unwatch(self, fd: int) -> None:
        """Stop. Called from the loop's thread."""

    @property
    def soon(self) -> Callable[[Callable[[], None]], object]:
        """Calls something when the loop has done what it is at: one doorbell for all requests that it sends."""


class Links:
    """Connections by key. Any thread may use it; one that has ended is forgotten."""

    def __init__(
        self,
        path: Path | str,
        *,
        slots: int,
        input_bytes: int,
        output_bytes: int,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to nobody yet.

        Args:
            path: of the socket.
            slots: requests in flight of a connection of the usual size.
            input_bytes: bytes of all inputs of a request, as usual.
            output_bytes: the same of the outputs.
            watcher: calls when answers came; None: threads wait for them.
            clock: monotonic seconds.
        """
        self._watcher = watcher
        self._path = path
        self._slots = slots
        self.usual = input_bytes, max(output_bytes, MIN_OUTPUT_BYTES)
        self._links: dict[Key, Client] = {}
        self._formats: Formats = {}
        self._lock = threading.Lock()
        self._closed = False
        self._clock = clock
        self._silent: dict[int, float] = {}

    def __repr__(self) -> str:
        """Show the connections."""
        found = ", ".join(f"{worker or 'executor'}: {client!r}" for (worker, _, _), client in self._links.items())
        return f"Links({found or 'none'})"

    def learn(self, formats: Formats) -> None:
        """Write inputs in these memory formats from now on. Workers that still load an engine welcome without."""
        self._formats = formats
        for client in list(self._links.values()):
            client.learn(formats)

    def workers(self) -> set[int]:
        """Those that there is a connection to."""
        return {worker for worker, _, _ in list(self._links)}

    def get(self, worker: int, need: tuple[int, int]) -> Client:
        """A connection to a worker, whose slots take so many bytes of inputs and of outputs.

        Raises:
            Unavailable: the worker is not there any more, refuses, or does not answer.
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
            self._links[key] = client = self._connect(worker, slots, inputs, outputs)
        if self._formats:
            client.learn(self._formats)
        if self._watcher is not None:
            client.defer = self._watcher.soon
            self._watcher.watch(client.fileno(), partial(self._attend, key, client, client.fileno()))
        else:
            threading.Thread(target=self._listen, args=(key, client), name="trtops-answers", daemon=True).start()
        return client

    def _connect(self, worker: int, slots: int, inputs: int, outputs: int) -> Client:
        if self._clock() < self._silent.get(worker, 0.0):
            who = f"worker {worker}" if worker else "the executor"
            raise Unavailable(f"{who} did not answer just now", fix="send the request again in a few seconds")
        timeout = _WELCOME if worker else _TELL
        try:
            return Client(
                self._path,
                slots=slots,
                input_bytes=inputs,
                output_bytes=outputs,
                worker=worker or None,
                timeout=timeout,
            )
        except Unavailable as error:
            if isinstance(error.__cause__, TimeoutError):
                now = self._clock()
                others = {other: until for other, until in self._silent.items() if until > now}
                self._silent = {**others, worker: now + _REST}
            raise

    def _attend(self, key: Key, client: Client, fd: int) -> None:
        try:
            client.attend()
        except Exception as error:
            if not isinstance(error, TrtopsError):
                log.exception("worker %d: answers cannot be taken any more", key[0])
            if self._watcher is not None:
                self._watcher.unwatch(fd)
            self._forget(key, client)

    def _listen(self, key: Key, client: Client) -> None:
        try:
            while True:
                client.poll()
        except TrtopsError as error:
            log.debug("worker %d: no more answers: %s", key[0], error)
        except Exception:
            log.exception("worker %d: answers cannot be taken any more", key[0])
        self._forget(key, client)

    def _forget(self, key: Key, client: Client) -> None:
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
            if self._watcher is not None:
                self._watcher.unwatch(client.fileno())
            client.close()


def _size(need: int, usual: int) -> int:
    return usual if need <= usual else 1 << (need - 1).bit_length()


def room(arrays: int, size: int) -> int:
    """Bytes of a slot's area for so many arrays of so many bytes in all, each at a multiple of 64."""
    return size + 64 * arrays
