"""Waiting for what another thread or process does, and for its end."""

from __future__ import annotations

import time
from pathlib import Path
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


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return True
