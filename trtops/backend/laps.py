"""Where a build's time goes: seconds of phases that follow each other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Laps:
    """A stopwatch with named laps. ``repr()`` shows what was taken so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start.

        Args:
            clock: seconds that never go back.
        """
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def __repr__(self) -> str:
        """Show the laps."""
        return f"Laps({', '.join(f'{name}={taken:.3f}' for name, taken in self.seconds.items())})"

    def done(self, name: str) -> None:
        """End a lap: what passed since the last one is added to this name's."""
        now = self._clock()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
