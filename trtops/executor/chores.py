"""What takes its time and no lane may wait for: closing sessions, and opening one again in place of one that died."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.backend.port import Session
    from trtops.executor.engine import Engine

log = logging.getLogger(__name__)

_REOPEN_AFTER: Final = (0.0, 0.2, 1.0)
"""Seconds before each try to open a session again in place of one that died; then the engine is taken out."""


class Chores:
    """Threads of an executor, one for each thing that is to be done beside."""

    def __init__(self, changed: threading.Condition) -> None:
        """Begin with nothing to do; ``changed`` is notified, under its lock, when a thread has ended."""
        self._changed = changed
        self._threads: set[threading.Thread] = set()

    def __repr__(self) -> str:
        """Show how many there are."""
        return f"Chores({len(self._threads)} under way)"

    @property
    def done(self) -> bool:
        """Whether nothing is under way."""
        return not self._threads

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Do this in a thread of its own (under the lock)."""
        thread = threading.Thread(target=self._do, args=(work,), name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()


def reopened(engine: Engine, closing: threading.Event) -> tuple[Session | None, str]:
    """Open a session of an engine again, with a few tries; None and why not. Gives up when ``closing`` is set."""
    why = "it was closed"
    for pause in _REOPEN_AFTER:
        if closing.wait(pause):
            break
        try:
            return engine.reopen(), ""
        except NotLoadable as error:
            why = str(error)
            log.warning("engine %s: a session could not be opened again: %s", engine, why)
    return None, why
