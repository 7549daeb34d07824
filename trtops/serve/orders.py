"""What an operator asks of an agent from another thread, and how it ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Order:
    """To load or unload an engine.

    Attributes:
        verb: ``load`` or ``unload``.
        name: of the engine.
        done: set once it was obeyed, or refused.
        error: why it was refused.
    """

    verb: str
    name: str
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def wait(self, alive: Callable[[], bool]) -> None:
        """Wait for its end.

        Args:
            alive: whether there is still somebody who obeys.

        Raises:
            Unavailable: nobody does any more.
            BaseException: whatever it was refused by.
        """
        while not self.done.wait(0.5):
            if not alive():
                raise Unavailable("the server is stopping")
        if self.error is not None:
            raise self.error
