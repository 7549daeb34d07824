"""Engines of regorus, each owned by the thread that made it.

The native class must be freed by its thread: freed by another, which the collector does where a traceback or a cycle
kept the last reference, it raises and leaks. Here the thread owns the engine; what callers hold is a number.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from typing import Any, Final

_NUMBERS: Final = itertools.count()


class _Owned(threading.local):
    """This thread's engines; Python drops them in the thread itself when it ends."""

    def __init__(self) -> None:
        self.engines: dict[int, Any] = {}
        self.given_up: deque[int] = deque()

    def sweep(self) -> None:
        """Free what nobody holds any more."""
        while self.given_up:
            self.engines.pop(self.given_up.popleft(), None)


_OWNED: Final = _Owned()


def _dropped(number: int, given_up: deque[int]) -> None:
    """Free it here if this is its thread, else leave that to it."""
    if given_up is _OWNED.given_up:
        _OWNED.engines.pop(number, None)
    else:
        given_up.append(number)


class NativeEngine:
    """An engine of regorus, with its own errors (``RuntimeError``, ``ValueError``, its panic).

    It works in the thread that made it only; it may be dropped in any.
    """

    def __init__(self) -> None:
        """Make one, owned by this thread."""
        import regorus

        _OWNED.sweep()
        self._number = next(_NUMBERS)
        _OWNED.engines[self._number] = regorus.Engine()
        weakref.finalize(self, _dropped, self._number, _OWNED.given_up).atexit = False

    def __repr__(self) -> str:
        """Show its number, and whether this thread may use it."""
        return f"NativeEngine({self._number}, usable={self._number in _OWNED.engines})"

    @property
    def usable(self) -> bool:
        """Whether this thread made it."""
        return self._number in _OWNED.engines

    # Each call keeps the engine on its own stack only: a frame that a traceback holds must not hold it.

    def add_policy(self, path: str, text: str) -> None:
        """Compile a file of Rego; ``path`` is named in errors."""
        _OWNED.engines[self._number].add_policy(path, text)

    def add_data_json(self, text: str) -> None:
        """Merge a JSON object into ``data``."""
        _OWNED.engines[self._number].add_data_json(text)

    def set_input_json(self, text: str) -> None:
        """Set ``input`` to a JSON text."""
        _OWNED.engines[self._number].set_input_json(text)

    def eval_rule_as_json(self, path: str) -> str:
        """Evaluate a rule; gives a JSON text."""
        return str(_OWNED.engines[self._number].eval_rule_as_json(path))

    def get_ast_as_json(self) -> str:
        """The syntax trees of all files, as a JSON text."""
        return str(_OWNED.engines[self._number].get_ast_as_json())

    def enable_coverage(self) -> None:
        """Note from now on which lines are reached."""
        _OWNED.engines[self._number].set_enable_coverage(True)

    def get_coverage_report_as_json(self) -> str:
        """The lines that were reached and those that were not, as a JSON text."""
        return str(_OWNED.engines[self._number].get_coverage_report_as_json())
