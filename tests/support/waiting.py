"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 60.0
"""Seconds after which a test gives up: only a failure takes so long."""


def until(condition: Callable[[], Any], what: str = "what was waited for", seconds: float = LONG) -> None:
    """Look until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it never came: {what}"
        time.sleep(0.005)
