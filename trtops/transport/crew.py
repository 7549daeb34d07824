"""Two threads of a server: one leads, which means that it waits for clients, the other one stands by.

The leader may work for a client instead of waking somebody for it. If the work is expected to take long, the other one
takes the lead as soon as the device has what it needs: a thread that wakes up earlier takes the interpreter from the
one that feeds it. If it is not, waking it would cost more than the work: it only looks every now and then, while there
is such work, whether one takes longer than was expected, and takes the lead then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT: Final = 3e-4
"""Seconds of work up to which nobody takes the lead."""

LOOK: Final = 2e-3
"""Seconds after which it is looked at again."""


class Turn:
    """A thread's turn: called before it works, with the seconds that are expected.

    Attributes:
        lost: it leads no more.
        long: it is about to work for long, and the other one was not told yet; the crew's.
    """

    __slots__ = ("_crew", "long", "lost")

    def __init__(self, crew: Crew) -> None:
        """Begin with the lead to come."""
        self._crew = crew
        self.lost = self.long = False

    def __call__(self, expected: float) -> bool:
        """Whether it may work: somebody waits for clients meanwhile, or will if it takes long."""
        return self._crew.work(self, expected)

    def begun(self) -> None:
        """From now on it only waits."""
        if self.long:
            self._crew.hand_over(self)

    def end(self) -> None:
        """It works no more. Afterwards ``lost`` tells whether it still leads."""
        self._crew.end(self)


class Crew:
    """Who leads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nobody leads: the first that stands by does.

        Args:
            clock: monotonic seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._call = threading.Semaphore(0)
        self._vacant = True
        self._waiting = 0
        self._watching = False
        self._at_work: Turn | None = None
        self._since = 0.0
        self._works = 0

    def __repr__(self) -> str:
        """Show who does what."""
        state = "vacant" if self._vacant else "working" if self._at_work is not None else "led"
        return f"Crew({state}, {self._waiting} standing by)"

    def stand_by(self) -> None:
        """Wait until the lead is the caller's."""
        with self._lock:
            self._waiting += 1
            if self._take():
                return
        seen, timeout = 0, None
        while True:
            self._call.acquire(timeout=timeout)
            with self._lock:
                if self._take():
                    return
                watch = self._at_work is not None or self._works != seen
                seen, self._watching = self._works, watch
                timeout = LOOK if watch else None

    def _take(self) -> bool:
        """Lead, if nobody does or who does works for too long (under the lock)."""
        turn = self._at_work
        if not self._vacant and (turn is None or self._clock() - self._since < LOOK):
            return False
        if not self._vacant and turn is not None:
            turn.lost = True
        self._at_work = None
        self._vacant = self._watching = False
        self._waiting -= 1
        return True

    def work(self, turn: Turn, expected: float) -> bool:
        """A thread is about to work; False: it must not, since it leads and nobody stands by."""
        with self._lock:
            if turn.lost:
                return True
            if not self._waiting:
                return False
            self._works += 1
            if expected > SHORT:
                turn.long = True
                return True
            self._at_work, self._since = turn, self._clock()
            if self._watching:
                return True
            self._watching = True
        self._call.release()
        return True

    def hand_over(self, turn: Turn) -> None:
        """The leader begins to wait: the other one leads."""
        with self._lock:
            turn.long = False
            turn.lost = self._vacant = True
        self._call.release()

    def end(self, turn: Turn) -> None:
        """It worked, or did not."""
        turn.long = False
        with self._lock:
            if self._at_work is turn:
                self._at_work = None

    def leave(self) -> None:
        """A thread ends: the other one leads, if it does not yet."""
        with self._lock:
            self._vacant = True
        self._call.release()
