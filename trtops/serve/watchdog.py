"""Ends a server that runs its engines itself and hangs: nobody else would.

Workers are watched by their supervisor. Without them (``--isolation none``) a batch that never ends keeps its lane for
ever, and where the event loop runs it, because those before it were short, it keeps every connection waiting. The
process then ends, with a word on why, so that what started it can start it again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_LOOK: Final = 0.25
"""Seconds between two looks, and between two signs of life of the event loop."""
_SAME: Final = 0.01
"""Seconds within which two looks find a batch's beginning, if it is the same one."""


class Watchdog:
    """A thread that looks at the event loop and at the batch that has run for the longest time.

    Looks are counted, not seconds: where this process stood still itself (SIGSTOP, a machine that was paused), no time
    has passed for its batches. A native library that hangs and keeps Python's lock stops this thread, too.
    """

    def __init__(
        self,
        longest: Callable[[], tuple[str, float]],
        hang: float,
        end: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch the running event loop from :meth:`start` on.

        Args:
            longest: the engine whose batch has been running for the longest time, and seconds; 0: none runs.
            hang: seconds that a batch may run, and that the event loop may stand still.
            end: ends the process; called once, in the thread.
            clock: monotonic seconds.
        """
        self._longest = longest
        self._hang = hang
        self._end = end
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.TimerHandle | None = None
        self._alive = False
        self._still = 0
        self._began = 0.0
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trtops-watchdog", daemon=True)

    def __repr__(self) -> str:
        """Show for how long nothing moved."""
        return f"<Watchdog loop still for {self._still * _LOOK:g} s, a batch for {self._seen * _LOOK:g} s>"

    def start(self) -> None:
        """Begin."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Watch no more. Called by the event loop."""
        if self._beating is not None:
            self._beating.cancel()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        self._alive = True
        self._beating = self._loop.call_later(_LOOK, self._beat)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK):
            why = self.look()
            if why is not None:
                log.critical("%s; the server ends itself: %s", why, "workers (no --isolation none) bear such engines")
                self._end()
                return

    def look(self) -> str | None:
        """Look once. Returns why the process has to end; None: it need not."""
        name, seconds = self._longest()
        began = self._clock() - seconds
        same = seconds > 0 and abs(began - self._began) < _SAME
        self._seen, self._began = (self._seen + 1 if same else 0), began
        self._still, self._alive = (0 if self._alive else self._still + 1), False
        if self._seen * _LOOK > self._hang:
            return f"a batch of engine '{name}' hangs: it has been running for {seconds:.1f} s"
        if self._still * _LOOK > self._hang:
            return f"the server hangs: it has answered nobody for {self._still * _LOOK:.1f} s"
        return None
