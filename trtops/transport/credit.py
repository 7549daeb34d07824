"""How many requests of an engine a client may have in flight while that engine's queue is full.

A refusal tells the number: what the client had in flight then. Until the time has passed after which the refusal says
that a retry makes sense, further requests are refused by the client itself, which costs the executor nothing. Each
answer with outputs raises the number by one: a queue that has room again is found within a few answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trtops.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtops.transport.call import Call, Reply


class Credit:
    """What a client was told. Any thread may use it.

    Attributes:
        told: engine -> requests in flight, until when. Empty, as is usual: nothing has to be looked at.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with no bound.

        Args:
            clock: monotonic seconds.
        """
        self._clock = clock
        self.told: dict[str, list[float]] = {}

    def __repr__(self) -> str:
        """Show what is bounded."""
        return f"Credit({', '.join(f'{engine}: {most:g}' for engine, (most, _) in list(self.told.items())) or 'all'})"

    def check(self, engine: str, calls: Iterable[Call]) -> None:
        """Look whether one more request may be sent.

        Args:
            engine: its name.
            calls: what is in flight, of any engine.

        Raises:
            Overloaded: no. Says when to come again.
        """
        told = self.told.get(engine)
        if told is None:
            return
        most, until = told
        left = until - self._clock()
        if left <= 0:
            self.told.pop(engine, None)
        elif sum(call.engine == engine for call in calls) >= most:
            what = f"the queue of engine {engine} is full, and takes {most:g} requests of this client at a time"
            raise Overloaded(what, fix="send the request again later", retry_after=left)

    def note(self, call: Call, reply: Reply) -> None:
        """Take in what an answer tells."""
        if isinstance(reply.error, Overloaded):
            if reply.credit:
                self.told[call.engine] = [reply.credit, self._clock() + reply.error.retry_after]
        elif reply.error is None and (told := self.told.get(call.engine)) is not None:
            told[0] += 1
