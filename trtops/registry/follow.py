"""A thread that follows one document and delivers its newest bytes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from trtops.errors import TrtopsError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("trtops.registry")
_JOIN_SECONDS = 5.0
_NOTHING_YET = object()


class Follower:
    """Reads a document whenever it is woken or an interval is over, and hands on what changed.

    Comparing bytes, not times or inodes, misses no change: both can repeat within a tick of the file system's clock.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], bytes | None],
        changed: Callable[[bytes | None], None],
        interval: float | None,
    ) -> None:
        """Start following.

        Args:
            name: of the document, for messages.
            read: gives its newest bytes.
            changed: gets them; called from this thread only. What it raises is logged.
            interval: seconds between two looks; None: only when woken.
        """
        self._name = name
        self._read = read
        self._changed = changed
        self._interval = interval
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._delivered: object = _NOTHING_YET
        self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"trtops-watch-{name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Show what is followed and whether the last look succeeded."""
        state = "closed" if self._closed else "failing" if self._failing else "following"
        return f"Follower({self._name!r}, {state})"

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def close(self) -> None:
        """Stop. No callback starts after this returns; one that is running is waited for, 5 s at most. Idempotent."""
        with self._lock:
            self._closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._look()
            self._wake.wait(self._interval)

    def _look(self) -> None:
        try:
            body = self._read()
        except TrtopsError as error:
            if not self._failing:  # once, not at every look
                _LOG.warning("cannot read %s: %s; the watch goes on", self._name, error)
            self._failing = True
            return
        self._failing = False
        if body == self._delivered:
            return
        with self._lock:
            if self._closed:
                return
            self._delivered = body
        try:
            self._changed(body)
        except Exception:  # noqa: BLE001 - a handler's mistake must not end the watch: no release would ever arrive
            _LOG.exception("the handler of %s failed; the watch goes on", self._name)
