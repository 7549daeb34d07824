"""Who answers, batch by batch: the completion thread, which also keeps the time while the device is busy.

A lane that has nothing else to run answers its batch itself: nobody has to be woken for it, and the device waits for
nothing. :meth:`Clerk.claim` sees to it that answers come in the order in which their batches ended all the same.
"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from trtops.executor.observer import BatchReport
from trtops.executor.port import Outcome
from trtops.executor.staging import scatter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.errors import TrtopsError
    from trtops.executor.engine import Engine
    from trtops.executor.observer import Observer
    from trtops.executor.padding import Pads
    from trtops.executor.port import EngineInfo
    from trtops.executor.state import Launch, Ticket
    from trtops.executor.worker import Ran

log = logging.getLogger(__name__)

_LONGEST: Final = 3600.0
"""Seconds that the thread sleeps at most: a lock's timeout is bounded."""


class Work(Protocol):
    """Something to tell."""

    def deliver(self) -> None:
        """Call the callbacks."""


def answer_one(ticket: Ticket, outcome: Outcome) -> None:
    """Call a request's callback. What it raises is logged: it must not cost others their answers."""
    try:
        ticket.payload[1](outcome)
    except Exception:
        log.exception("the callback of a request raised")


@dataclass(slots=True)
class BatchAnswer:
    """Answers of a batch that ran, or failed.

    Attributes:
        tickets: those that this batch answers; others of it have their answer.
    """

    engine: Engine
    launch: Launch
    ran: Ran
    tickets: Sequence[Ticket]
    depth: int
    observer: Observer

    def deliver(self) -> None:
        """Answer each request with its part."""
        launch, ran, pads = self.launch, self.ran, self.engine.interface.pads
        generation, rows, at, compute_us = self.engine.info.generation, launch.rows, launch.at, ran.compute_s * 1e6
        apart = bool(ran.alone) or ran.whole or ran.error is not None or pads is not None
        outputs = list(ran.outputs.items())
        for ticket in self.tickets:
            waited = (at - ticket.enqueued) * 1e6
            if apart:
                outcome = self._outcome(ticket, pads, waited)
            else:
                start = ticket.offset
                stop = start + ticket.rows
                part = {name: array[start:stop] for name, array in outputs}
                outcome = Outcome(part, None, generation, rows, waited, compute_us)
            try:
                ticket.payload[1](outcome)
            except Exception:
                log.exception("the callback of a request raised")
            ticket.payload = None  # the planner's queues may hold the ticket a while; the arrays need not live on
        self._report()

    def _outcome(self, ticket: Ticket, pads: Pads | None, waited: float) -> Outcome:
        """Of a request that failed, ran alone, or whose sizes were filled up."""
        ran = self.ran.alone.get(id(ticket), self.ran)
        outputs = scatter(ran.outputs, ticket, pads, whole=ran.whole) if ran.error is None else {}
        return Outcome(outputs, ran.error, self.engine.info.generation, self.launch.rows, waited, ran.compute_s * 1e6)

    def _report(self) -> None:
        launch, info = self.launch, self.engine.info
        tell(
            lambda: self.observer.batch(
                BatchReport(
                    engine=info.name,
                    generation=info.generation,
                    requests=len(launch.tickets),
                    rows=launch.rows,
                    reason=launch.reason,
                    ok=self.ran.clean,
                    queue_s=tuple([launch.at - ticket.enqueued for ticket in launch.tickets]),
                    gather_s=self.ran.gather_s,
                    compute_s=self.ran.compute_s,
                    depth=self.depth,
                    copy_out_s=self.ran.copy_out_s,
                )
            )
        )


@dataclass(slots=True)
class Failure:
    """Errors for requests that got no result.

    Attributes:
        running: a batch still reads their inputs.
    """

    tickets: Sequence[Ticket]
    error: Callable[[Ticket], TrtopsError]
    info: EngineInfo
    reason: str
    observer: Observer
    running: bool

    def deliver(self) -> None:
        """Answer each with an error of its own."""
        for ticket in self.tickets:
            answer_one(ticket, Outcome(error=self.error(ticket), generation=self.info.generation))
            if not self.running:
                ticket.payload = None
        tell(lambda: self.observer.refused(self.info.name, self.reason, len(self.tickets)))


@dataclass(slots=True)
class Note:
    """Something for the observer, told from the completion thread since the executor's lock was held."""

    call: Callable[[], None]

    def deliver(self) -> None:
        """Tell it."""
        tell(self.call)


def tell(call: Callable[[], None]) -> None:
    """Tell an observer; what it raises is logged."""
    try:
        call()
    except Exception:
        log.exception("the executor's observer raised")


class Clerk:
    """The thread. It sleeps until there is something to tell, or until the time that it was armed for."""

    def __init__(self, clock: Callable[[], float], tick: Callable[[], None]) -> None:
        """Start it; ``tick`` is called when the armed time came, and has to :meth:`arm` again."""
        self._clock = clock
        self._tick = tick
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._armed = self._rings = math.inf
        self._stopping = False
        self._telling = threading.Lock()
        self._put = self._told = 0
        self._thread = threading.Thread(target=self._loop, name="trtops-completion", daemon=True)
        self._thread.start()

    @property
    def armed(self) -> float:
        """When it rings."""
        return self._armed

    def put(self, work: Work) -> None:
        """Tell this, after what was put before (under the executor's lock)."""
        self._put += 1
        self._inbox.put(work)

    def claim(self) -> bool:
        """Let the caller tell something itself (under the executor's lock). False: others have something to tell first.

        Afterwards it calls :meth:`tell`.
        """
        return self._put == self._told and self._telling.acquire(blocking=False)

    def tell(self, work: Work) -> None:
        """Tell this in the caller's thread, which has claimed it."""
        try:
            work.deliver()
        finally:
            self._telling.release()

    def arm(self, until: float) -> None:
        """Ring at ``until`` (under the executor's lock). Wakes the thread only if it would oversleep."""
        self._armed = until
        if until < self._rings:
            self._inbox.put(None)

    def stop(self, timeout: float) -> bool:
        """Tell what is left, then end. False: a callback did not return in time."""
        self._stopping = True
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        if self._thread.is_alive() or not self._telling.acquire(timeout=timeout):
            return False
        self._telling.release()  # nor does anybody who claimed it
        return True

    def _loop(self) -> None:
        while True:
            self._rings = armed = self._armed
            if self._armed < armed:
                continue  # armed meanwhile, by who saw it sleep for less
            wait = armed - self._clock()
            if wait <= 0:
                self._tick()
            try:
                work = self._inbox.get(timeout=min(max(wait, 0.0), _LONGEST))
            except Empty:
                continue
            if work is not None:
                with self._telling:
                    work.deliver()
                self._told += 1
            elif self._stopping and self._inbox.empty():
                return
            work = None  # a thread that sleeps keeps no answer alive
