"""A registry in memory, with faults on demand: for tests, notebooks and rehearsals."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from trtops.errors import Conflict, StorageError, Unavailable
from trtops.registry.follow import Follower
from trtops.registry.names import checked_body, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryRegistry:
    """Documents in a dictionary. Safe for threads; for one process.

    Attributes:
        away: every call raises Unavailable while this is True.
        delay: seconds that every call takes.
        writes: calls of :meth:`create`, :meth:`swap` and :meth:`remove` so far, as (operation, name), failed ones too.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Start empty; ``sleep`` is what :attr:`delay` is spent with."""
        self.away = False
        self.delay = 0.0
        self.writes: list[tuple[str, str]] = []
        self._sleep = sleep
        self._lock = threading.Lock()
        self._documents: dict[str, bytes] = {}
        self._faults: dict[int, tuple[Exception, bool]] = {}
        self._followers: dict[str, list[Follower]] = {}

    def __repr__(self) -> str:
        """Show how many documents there are, and the faults that are set."""
        state = "away" if self.away else "there"
        faults = sorted(self._faults)
        return f"MemoryRegistry({len(self._documents)} documents, {state}, writes={len(self.writes)}, faults={faults})"

    def fail_write(self, number: int, error: Exception | None = None, *, applied: bool = False) -> None:
        """Let a write fail.

        Args:
            number: which, counted from 1 over the life of this registry.
            error: what it raises; by default a StorageError (Unavailable, if applied).
            applied: whether the write takes place all the same, as when only its answer is lost.
        """
        fallback = Unavailable("the answer was lost") if applied else StorageError("no space left on device")
        self._faults[number] = (error or fallback, applied)

    def read(self, name: str) -> bytes | None:
        """See :meth:`trtops.registry.port.Registry.read`."""
        self._enter()
        return self._documents.get(checked_name(name))

    def create(self, name: str, body: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.create`."""
        self._enter()
        with self._lock:
            fault = self._count("create", name)
            there = self._documents.get(name)
            if there is not None and there != checked_body(name, body):
                raise Conflict("another document is there already", where=name)
            if there is None:
                self._documents[name] = bytes(checked_body(name, body))
            _raise(fault)
        self._notify(name)
        return there is None

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        """See :meth:`trtops.registry.port.Registry.swap`."""
        self._enter()
        with self._lock:
            fault = self._count("swap", name)
            if self._documents.get(name) != expected:
                raise Conflict("the document was changed by somebody else", where=name)
            self._documents[name] = bytes(checked_body(name, body))
            _raise(fault)
        self._notify(name)

    def remove(self, name: str, expected: bytes) -> bool:
        """See :meth:`trtops.registry.port.Registry.remove`."""
        self._enter()
        with self._lock:
            fault = self._count("remove", name)
            there = self._documents.get(checked_name(name))
            if there is not None and there != expected:
                raise Conflict("another document is there", where=name)
            self._documents.pop(name, None)
            _raise(fault)
        self._notify(name)
        return there is not None

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """See :meth:`trtops.registry.port.Registry.names`."""
        self._enter()
        with self._lock:
            return tuple(sorted(name for name in self._documents if name.startswith(prefix)))

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> Follower:
        """See :meth:`trtops.registry.port.Registry.watch`."""
        follower = Follower(checked_name(name), lambda: self.read(name), changed, None)
        with self._lock:
            self._followers.setdefault(name, []).append(follower)
        follower.wake()  # what was written between the first look and the line above
        return follower

    def put(self, name: str, body: bytes | None) -> None:
        """Write past every rule, as an attacker or a careless hand would; None deletes."""
        with self._lock:
            if body is None:
                self._documents.pop(name, None)
            else:
                self._documents[name] = body
        self._notify(name)

    def _enter(self) -> None:
        if self.delay:
            self._sleep(self.delay)
        if self.away:
            raise Unavailable("the registry is away", fix="wait, or start it")

    def _count(self, operation: str, name: str) -> Exception | None:
        self.writes.append((operation, name))
        error, applied = self._faults.pop(len(self.writes), (None, False))
        if error is not None and not applied:
            raise error
        return error

    def _notify(self, name: str) -> None:
        with self._lock:
            followers = list(self._followers.get(name, ()))
        for follower in followers:
            follower.wake()


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error
