"""A lane: puts a batch together, runs it, hands it back, and gets the next one.

A session is not thread-safe: once an engine serves, it is run on its lane only, one batch after the other. A lane has a
thread of its own, which sleeps in a queue and never polls. A thread that would only wait may run a batch instead, see
:meth:`Lane.run_here`: that saves waking the lane's, and the planner gives a lane one batch at a time.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, cast

from trtops.errors import Retryable, TrtopsError
from trtops.executor.ranges import nothing, ranges
from trtops.executor.staging import check_rows, inputs_of, own

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Gathers
    from trtops.executor.completion import Work
    from trtops.executor.engine import Engine
    from trtops.executor.port import Relief
    from trtops.executor.ranges import Named
    from trtops.executor.state import Launch, Ticket

log = logging.getLogger(__name__)

_IN_A_ROW: Final = 16
"""Batches that another thread runs one after the other: it has something else to do."""


@dataclass(slots=True)
class Ran:
    """What came of a batch.

    Attributes:
        outputs: of the whole batch, if it ran.
        error: why it did not.
        dead: the session cannot be used any more.
        alone: what came of each request that was run again by itself, since the batch failed together.
        whole: the outputs are one request's, not to be split.
        gather_s, compute_s, copy_out_s: seconds of putting the inputs together, of the run, of keeping its outputs.
    """

    outputs: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    error: Exception | None = None
    dead: bool = False
    alone: dict[int, Ran] = field(default_factory=dict)
    whole: bool = False
    gather_s: float = 0.0
    compute_s: float = 0.0
    copy_out_s: float = 0.0

    @property
    def clean(self) -> bool:
        """It ran once, without an error: its time tells of the engine's cost."""
        return self.error is None and not self.alone


def _nobody() -> None:
    """Nobody wants to know."""


def run_batch(
    engine: Engine,
    lane: int,
    tickets: tuple[Ticket, ...],
    rows: int,
    clock: Callable[[], float],
    named: Named = nothing,
    begun: Callable[[], None] = _nobody,
) -> Ran:
    """Run a batch on the session of a lane. Never raises. ``named`` opens a range for a profiler.

    A batch that fails together is run again request by request, so that a bad one fails alone; not if the session died.
    ``begun`` is called when this thread begins to wait for the device: of a lone request, which wants to be answered
    soon, not before the device has it; of several at once, since putting them together takes its time, too.
    """
    if len(tickets) > 1:
        begun()
    ran = _run_once(engine, lane, tickets, rows, clock, named, begun)
    if ran.error is None or ran.dead or len(tickets) == 1:
        return ran
    log.warning(
        "engine %s: a batch of %d requests failed, each runs again alone", engine, len(tickets), exc_info=ran.error
    )
    for ticket in tickets:
        ticket.offset = 0
        ran.alone[id(ticket)] = single = _run_once(engine, lane, (ticket,), ticket.rows, clock, named, _nobody)
        ran.compute_s += single.compute_s
        if single.dead:
            ran.dead, ran.error = True, single.error
            break
    return ran


def _run_once(
    engine: Engine,
    lane: int,
    tickets: tuple[Ticket, ...],
    rows: int,
    clock: Callable[[], float],
    named: Named,
    begun: Callable[[], None],
) -> Ran:
    ran = Ran(whole=len(tickets) == 1 and (rows >= engine.interface.min_rows or not engine.interface.batchable))
    start = clock()
    try:
        session = engine.sessions[lane]
        if engine.gathers and engine.interface.batchable:
            with named("copy in"):
                cast("Gathers", session).enqueue(inputs_of(engine.interface, tickets), rows)
            began = clock()
            ran.gather_s = began - start
            begun()
            with named("compute"):
                outputs = cast("Gathers", session).collect()
            whole = rows
        else:
            with named("copy in"):
                inputs = engine.stagings[lane].gather(tickets, rows)
            begun()
            began = clock()
            ran.gather_s = began - start
            with named("compute"):
                outputs = session.run(inputs)
            whole = max(rows, engine.interface.min_rows)
        ended = clock()
        ran.compute_s = ended - began
        if not ran.whole:
            check_rows(engine.interface, outputs, whole)
        with named("copy out"):
            ran.outputs = own(outputs)
        ran.copy_out_s = clock() - ended
    except Retryable as error:
        ran.error, ran.dead = error, True
    except TrtopsError as error:
        ran.error = error
    except Exception as error:  # noqa: BLE001 - whatever a native library raises fails this batch only
        ran.error = TrtopsError(f"{type(error).__name__}: {error}", where=f"engine {engine.info.name}")
        ran.error.__cause__ = error
    return ran


class Finished(Protocol):
    """Is told of each batch that ended."""

    def __call__(self, launch: Launch, ran: Ran, *, here: bool) -> tuple[Launch | None, Work | None]:
        """Returns the next batch of this lane, if there is one already, and what this thread has to tell, if anything.

        ``here``: the thread is not the lane's own.
        """


class Lane:
    """Runs the batches of one lane, by a thread of its own or by one that offers itself."""

    def __init__(
        self,
        number: int,
        clock: Callable[[], float],
        finished: Finished,
        tell: Callable[[Work], None],
    ) -> None:
        """Start the thread.

        Args:
            number: of the lane.
            clock: monotonic seconds.
            finished: is told of each batch; returns the next one of this lane, if there is one already, and what this
                thread has to tell, if it has nothing else to do.
            tell: tells it.
        """
        self.number = number
        self._clock = clock
        self._finished = finished
        self._tell = tell
        self._named = ranges(os.environ)
        self._inbox: SimpleQueue[Launch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"trtops-device-{number}", daemon=True)
        self._thread.start()

    def put(self, launch: Launch) -> None:
        """Hand over a batch. The planner hands one to a free lane only."""
        self._inbox.put(launch)

    def run_here(self, launch: Launch, relief: Relief | None, spare: float) -> None:
        """Run a batch in the caller's thread. What follows on this lane is its own thread's, unless it is short.

        Args:
            launch: the batch.
            relief: is told when the thread begins to wait for the device; None: nobody is.
            spare: seconds within which the next one has to be for it to be run here, too.
        """
        following = self._run(launch, _nobody if relief is None else relief.begun, here=True)
        left = _IN_A_ROW
        while following is not None and left and following.within(spare):
            following = self._run(following, here=True)
            left -= 1
        if following is not None:
            self.put(following)

    def stop(self) -> None:
        """End the thread after the batch that it runs."""
        self._inbox.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; False if it still runs (a run that hangs)."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (launch := self._inbox.get()) is not None:
            following: Launch | None = launch
            del launch
            while following is not None:
                following = self._run(following)

    def _run(self, launch: Launch, begun: Callable[[], None] = _nobody, *, here: bool = False) -> Launch | None:
        tickets, rows = launch.tickets, launch.rows
        with self._named(launch.engine.name):
            ran = run_batch(launch.engine.owner, self.number, tickets, rows, self._clock, self._named, begun)
        following, work = self._finished(launch, ran, here=here)
        if work is not None:
            self._tell(work)
        return following
