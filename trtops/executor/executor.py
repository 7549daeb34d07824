"""The executor in one process: engines by name, a device thread a lane, one completion thread.

Every decision is the planner's; this module calls it under one lock and does outside what it returns. Threads:

- callers submit: their thread offers the request to the planner and, if a lane is free, plans;
- a caller that offers several requests first and then starts them may run a batch itself instead of waiting for more;
- so may one that has a moment to spare, such as an event loop's, where batches take no longer of late;
- a lane that ends a batch plans the next one itself, so the device waits for nobody; with none to run, it answers;
- the completion thread answers else, and plans when time alone brings something (a delay, a deadline).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from trtops.errors import DeviceLost, InputError, NotLoadable, Retryable, TrtopsError, Unavailable
from trtops.executor import planner
from trtops.executor.chores import Chores, reopened
from trtops.executor.completion import BatchAnswer, Clerk, Failure, Note, tell
from trtops.executor.engine import EngineStatus, Order, close_session, open_engine
from trtops.executor.memory import Budget
from trtops.executor.observer import Silent
from trtops.executor.refusals import CLOSED, absent, cancelled, displaced, full, late, unavailable
from trtops.executor.state import RUNNING, Expire, Launch, State, Ticket, Wait
from trtops.executor.worker import Lane
from trtops.spec.engine import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.backend.port import Session
    from trtops.executor.completion import Work
    from trtops.executor.engine import Engine
    from trtops.executor.observer import Observer
    from trtops.executor.port import EngineInfo, Outcome, Relief, Request
    from trtops.executor.state import Action, EngineQueue, Reject
    from trtops.executor.worker import Ran
    from trtops.spec.engine import Batching, Memory, Profile

    _Why = Callable[[Ticket], TrtopsError]

log = logging.getLogger(__name__)


class Executor:
    """Runs engines. Implements :class:`trtops.executor.port.Engines`; every method may be called from any thread.

    Arrays of a request must not change until ``done`` came. ``budgets`` are what the pools hold: of host, of device.
    """

    def __init__(
        self,
        *,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        host_memory: int | None = None,
        device_memory: int | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        """Start with no engine.

        Args:
            observer: is told of every batch, refusal and swap.
            clock: monotonic seconds; deadlines of requests count from it.
            host_memory: bytes of host memory that the pools of all engines may take together; None: no bound.
            device_memory: the same of device memory.
            lost: is told when the device itself is lost to this process, which then has to end; None: sessions are
                opened again, as after any other death.
        """
        self._lost = lost
        self._observer: Observer = observer or Silent()
        self._clock = clock
        self.budgets = Budget("the executor's host memory", host_memory), Budget("device memory", device_memory)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._state = State(0)
        self._lanes: list[Lane] = []
        self._on_lane: dict[int, Launch] = {}
        self._routes: dict[str, Engine] = {}
        self._infos: tuple[EngineInfo, ...] = ()
        self._draining: list[Engine] = []
        self._chores = Chores(self._changed)
        self._loading: dict[str, threading.Lock] = {}
        self._loads = 0
        self._closing = threading.Event()
        self._clerk = Clerk(clock, self._tick)

    def __repr__(self) -> str:
        """Show engines, lanes and memory."""
        with self._lock:
            engines = ", ".join(map(repr, [*self._routes.values(), *self._draining])) or "no engine"
            lanes = f"{self._state.free} of {len(self._lanes)} lanes free"
            live = self._state.live
        closing = ", closing" if self._closing.is_set() else ""
        return f"Executor({engines}; {live} requests, {lanes}; {self.budgets[0]!r}{closing})"

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Queue a request, and start it if a lane is free (see :meth:`trtops.executor.port.Engines.submit`).

        Raises:
            InputError: unknown engine, tensor, dtype or shape.
            Overloaded: the queue is full.
            Unavailable: the engine failed and could not be reloaded, or the executor is closing.
        """
        return self.offer(engine, request, done, spare=-1.0)

    def offer(
        self, engine: str, request: Request, done: Callable[[Outcome], None], *, spare: float = math.inf
    ) -> Callable[[], None]:
        """Queue a request and leave it there until :meth:`start` is called, which has to follow.

        Where a batch of the engine took longer than ``spare`` seconds of late, it is started at once if a lane is free.
        A priority above the engine's lowest level counts as that. A request that is being run when it is cancelled, or
        when its deadline passes, is answered at once; what comes of it is dropped.

        Raises:
            InputError: unknown engine, tensor, dtype or shape.
            Overloaded: the queue is full.
            Unavailable: the engine failed and could not be reloaded, or the executor is closing.
        """
        priority = request.priority
        if priority < 0:
            raise InputError(f"priority {priority} is below 0, the most urgent", where=f"engine {engine}")
        while True:
            loaded = self._routes.get(engine)
            if loaded is None:
                raise absent(engine, self._routes, closing=self._closing.is_set())
            interface, queue = loaded.interface, loaded.queue
            shape = interface.check(request)
            rows = request.rows if interface.batchable else 1
            ticket = Ticket(rows, priority, request.deadline, (request, done), request.client)
            with self._lock:
                ticket.priority = min(priority, queue.policy.priorities - 1) if priority else 0
                if queue.draining:
                    continue  # it was swapped out or unloaded meanwhile: look again
                if loaded.failed:
                    raise Unavailable(loaded.failed, where=f"engine {engine}", fix="load it again")
                now = self._clock()
                rejected = planner.offer(self._state, queue, shape, ticket, now)
                if rejected is None or rejected.ticket is not ticket:
                    if rejected is not None:
                        self._displace(loaded, rejected)
                    if queue.cost.lately > spare:
                        self._after_offer(queue, now)
                    break
                depth = queue.queued
            tell(partial(self._observer.refused, engine, rejected.reason, 1))
            raise full(queue, engine, depth)
        return partial(self._cancel, loaded, ticket)

    def start(self, *, relief: Relief | None = None, spare: float = 0.0) -> None:
        """Start what was offered.

        Args:
            relief: this thread would only wait for more requests, so it may run one batch: that saves waking the
                lane's thread, and with an idle lane the completion thread's. This is asked before, and told when the
                device has the batch, so that another thread waits meanwhile. Where it says no, and where it is None,
                the lane's thread runs the batch.
            spare: seconds: this thread runs batches that take no longer, by those of their shape and rows that ran and
                by what the engine took of late; with relief, those that follow the first one.
        """
        with self._lock:
            actions = planner.plan(self._state, self._clock())
            first, mine = (actions[0] if actions else None), None
            if isinstance(first, Launch) and (
                first.within(spare) if relief is None else relief(first.engine.cost.expected(first.rows))
            ):
                mine = first
                del actions[0]
                self._on_lane[mine.lane] = mine
            self._do(actions)
        if mine is not None:
            self._lanes[mine.lane].run_here(mine, relief, spare)

    def _displace(self, engine: Engine, rejected: Reject) -> None:
        """Tell a request that it had to leave a full queue, for a client that has less in it."""
        queue = engine.queue
        why = partial(displaced, full(queue, engine.info.name, queue.queued))
        self._clerk.put(self._failure(engine, [rejected.ticket], why, rejected.reason))

    def _after_offer(self, queue: EngineQueue, now: float) -> None:
        if planner.can_launch(self._state, queue):
            self._do(planner.plan(self._state, now))
        else:
            until = planner.next_time(self._state)
            if until < self._clerk.armed:
                self._clerk.arm(until)

    def _cancel(self, engine: Engine, ticket: Ticket) -> None:
        with self._lock:
            running = ticket.phase == RUNNING
            if not planner.cancel(self._state, ticket):
                return
            self._clerk.put(self._failure(engine, [ticket], cancelled, "cancelled", running=running))
            self._settle()

    # -- doing what the planner says (all under the lock) --------------------------------------------------------------

    def _do(self, actions: Sequence[Action]) -> None:
        until = math.inf
        for action in actions:
            if isinstance(action, Launch):
                self._on_lane[action.lane] = action
                self._lanes[action.lane].put(action)
            elif isinstance(action, Expire):
                self._expire(action)
            elif isinstance(action, Wait):
                until = action.until
        self._clerk.arm(until)
        self._settle()

    def _expire(self, action: Expire) -> None:
        bucket = action.ticket.bucket
        if bucket is not None:
            engine: Engine = bucket.engine.owner
            how = partial(late, engine.info.name, running=action.running, timeout=bucket.engine.policy.timeout)
            self._clerk.put(self._failure(engine, [action.ticket], how, action.reason, running=action.running))

    def _failure(
        self, engine: Engine, tickets: Sequence[Ticket], error: _Why, reason: str, *, running: bool = False
    ) -> Work:
        return Failure(tickets, error, engine.info, reason, self._observer, running)

    def _settle(self) -> None:
        """Free generations that have drained."""
        if not self._draining:
            return
        for engine in [engine for engine in self._draining if planner.drained(engine.queue)]:
            self._draining.remove(engine)
            planner.remove_engine(self._state, engine.queue)
            self._free(engine)
        self._changed.notify_all()

    def _free(self, engine: Engine) -> None:
        """Close sessions in a thread of its own: freeing device memory takes its time, and no lane must wait for it."""
        self._chores.start("trtops-free", partial(self._free_now, engine))

    def _free_now(self, engine: Engine) -> None:
        engine.close()
        for budget in self.budgets:
            budget.release(engine.holder)
        tell(partial(self._observer.freed, engine.info.name, engine.info.generation))

    def _tick(self) -> None:
        with self._lock:
            self._do(planner.plan(self._state, self._clock()))

    # -- batches -------------------------------------------------------------------------------------------------------

    def _finished(self, launch: Launch, ran: Ran, *, here: bool) -> tuple[Launch | None, Work | None]:
        """A lane ended a batch: decide who is answered, what this lane runs next, and whether it answers itself.

        ``here``: a thread runs it that has the time to answer even if more is to be run.
        """
        engine: Engine = launch.engine.owner
        with self._lock:
            self._on_lane.pop(launch.lane, None)
            now = self._clock()
            if ran.dead:
                self._bury(engine, launch.lane, ran)
            answer, overdue = planner.finish(
                self._state, launch, now, ran.compute_s if ran.clean else None, ran.gather_s + ran.copy_out_s
            )
            work = BatchAnswer(engine, launch, ran, answer, launch.engine.queued, self._observer)
            for action in overdue:
                self._expire(action)
            mine = self._following(launch.lane, now)
            claimed = (here or mine is None) and self._clerk.claim()
            if not claimed:
                self._clerk.put(work)
            if self._draining:
                self._settle()
        return mine, (work if claimed else None)

    def _following(self, lane: int, now: float) -> Launch | None:
        """Plan after a batch has ended: what runs on its lane next."""
        state = self._state
        if not state.ready:
            until = planner.next_time(state)
            if until > now:  # nothing waits, as is usual under a light load
                if until < self._clerk.armed:
                    self._clerk.arm(until)
                return None
        actions = planner.plan(state, now)
        mine = next((act for act in actions if isinstance(act, Launch) and act.lane == lane), None)
        if mine is not None:
            actions.remove(mine)
            self._on_lane[lane] = mine
        self._do(actions)
        return mine

    def _bury(self, engine: Engine, lane: int, ran: Ran) -> None:
        """Take a dead session off its lane and open another one beside."""
        if self._lost is not None and isinstance(ran.error, DeviceLost):
            self._lost(str(ran.error))
        ran.error = Retryable(
            f"engine {engine.info.name} lost its device session: {ran.error}",
            where=f"engine {engine.info.name}",
            fix="send the request again",
        )
        if lane not in engine.queue.lanes:
            return
        engine.queue.lanes.remove(lane)
        log.error("engine %s: session on lane %d died: %s", engine, lane, ran.error)
        self._clerk.put(Note(partial(self._observer.failed, engine.info.name, engine.info.generation, str(ran.error))))
        self._chores.start("trtops-reopen", partial(self._revive, engine, lane))

    def _revive(self, engine: Engine, lane: int) -> None:
        dead = engine.sessions.pop(lane, None)
        if dead is not None:
            close_session(dead)
        session, why = reopened(engine, self._closing)
        if session is not None:
            self._reborn(engine, lane, session)
        else:
            self._give_up(engine, why)

    def _reborn(self, engine: Engine, lane: int, session: Session) -> None:
        with self._lock:
            if id(engine.queue) in self._state.engines:
                engine.sessions[lane] = session
                engine.queue.lanes.append(lane)
                engine.queue.lanes.sort()
                self._do(planner.plan(self._state, self._clock()))
                return
        close_session(session)

    def _give_up(self, engine: Engine, why: str) -> None:
        """No session can be opened: with none left, the engine fails, and what waits in it is told."""
        with self._lock:
            if engine.queue.lanes or id(engine.queue) not in self._state.engines:
                return
            engine.failed = f"engine {engine.info.name} failed and could not be reloaded: {why}"
            self._evict(engine, engine.failed, "failed")
            self._settle()

    def _evict(self, engine: Engine, why: str, reason: str) -> None:
        left = planner.evict(self._state, engine.queue)
        if left:
            self._clerk.put(self._failure(engine, left, partial(unavailable, why), reason))

    # -- engines -------------------------------------------------------------------------------------------------------

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now, by name. The same tuple until that changes."""
        return self._infos

    def status(self) -> tuple[EngineStatus, ...]:
        """How every engine is, those that drain included."""
        with self._lock:
            return tuple(
                EngineStatus(engine.info, engine.state, engine.failed, engine.queue.queued, engine.queue.running)
                for engine in [*self._routes.values(), *self._draining]
            )

    def longest_run(self) -> tuple[str, float]:
        """The engine whose batch has been on a device for the longest time, and seconds; "" and 0 with none there."""
        with self._lock:
            oldest = min(self._on_lane.values(), key=lambda launch: launch.at, default=None)
            if oldest is None:
                return "", 0.0
            engine: Engine = oldest.engine.owner
            return engine.info.name, self._clock() - oldest.at

    def load(  # noqa: PLR0913 - the port's
        self,
        name: str,
        *,
        generation: int,
        version: str,
        digest: str,
        backend: str,
        batching: Batching,
        instances: int,
        open_session: Callable[[], Session],
        profiles: tuple[Profile, ...] = (),
        memory: Memory | None = None,
        execution: Execution | None = None,
    ) -> None:
        """Load beside what serves, warm up, then flip the route (see :meth:`trtops.executor.port.Engines.load`).

        Loads of one name come one after the other. The pools of both generations count until the old one has drained.

        Raises:
            NotLoadable: it could not be opened, sized or warmed up; what served before still does.
        """
        with self._lock:
            turn = self._loading.setdefault(name, threading.Lock())
            self._loads += 1
            number = self._loads
        with turn:
            self._refuse_when_closing(name)
            start = self._clock()
            holder = f"engine {name}, generation {generation} (load {number})"
            order = Order(
                name=name,
                generation=generation,
                version=version,
                digest=digest,
                backend=backend,
                batching=batching,
                instances=instances,
                open_session=open_session,
                profiles=profiles,
                memory=memory,
                execution=execution or Execution(),
                holder=holder,
            )
            engine = open_engine(order, self.budgets, self._clock)
            with self._lock:
                closing = self._closing.is_set()
                if closing:
                    self._free(engine)
                else:
                    self._flip(name, engine)
            if closing:
                self._refuse_when_closing(name)
            tell(partial(self._observer.loaded, name, generation, self._clock() - start))

    def _refuse_when_closing(self, name: str) -> None:
        if self._closing.is_set():
            raise NotLoadable("the executor is closing", where=f"engine {name}")

    def _flip(self, name: str, engine: Engine) -> None:
        while len(self._lanes) < len(engine.sessions):
            self._lanes.append(Lane(len(self._lanes), self._clock, self._finished, self._clerk.tell))
        planner.add_engine(self._state, engine.queue, list(range(len(engine.sessions))))
        old = self._routes.get(name)
        self._routes[name] = engine
        self._publish()
        if old is not None:
            self._retire(old)

    def adjust(self, name: str, *, generation: int, batching: Batching) -> bool:
        """Put requests together by other rules, without a load (:meth:`trtops.executor.port.Loader.adjust`)."""
        with self._lock:
            engine = self._routes.get(name)
            if engine is None or engine.failed or not engine.adjust(self._state, generation, batching):
                return False
            self._publish()
            self._do(planner.plan(self._state, self._clock()))
            return True

    def _publish(self) -> None:
        self._infos = tuple(self._routes[name].info for name in sorted(self._routes))

    def _retire(self, engine: Engine) -> None:
        planner.drain_engine(self._state, engine.queue)
        self._draining.append(engine)
        self._do(planner.plan(self._state, self._clock()))

    def unload(self, name: str) -> None:
        """Take an engine out. Returns at once; what waits is served, then its sessions are closed.

        Raises:
            InputError: no engine of this name is loaded.
        """
        with self._lock:
            engine = self._routes.pop(name, None)
            if engine is not None:
                self._publish()
                self._retire(engine)
        if engine is None:
            raise absent(name, self._routes, closing=self._closing.is_set())

    def close(self, *, drain: float) -> None:
        """Stop: new requests are refused; those that came get ``drain`` seconds to finish, then an error. Idempotent.

        Must not be called from a callback: the completion thread would wait for itself.
        """
        end = self._clock() + drain
        with self._lock:
            self._closing.set()
            for name in list(self._routes):
                self._retire(self._routes.pop(name))
            self._publish()
            self._changed.wait_for(lambda: not self._draining, max(0.0, drain))
            for launch in list(self._on_lane.values()):
                engine: Engine = launch.engine.owner
                left = planner.abandon(self._state, launch)
                self._clerk.put(self._failure(engine, left, partial(unavailable, CLOSED), "closed", running=True))
            for engine in self._draining:
                self._evict(engine, CLOSED, "closed")
            stuck = {launch.engine.owner for launch in self._on_lane.values()}
            for engine in [engine for engine in self._draining if engine not in stuck]:
                self._draining.remove(engine)
                self._free(engine)
            self._changed.wait_for(lambda: self._chores.done, max(0.0, end - self._clock()) + 1.0)
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            lane.join(max(0.1, end - self._clock()))
        self._clerk.stop(max(1.0, end - self._clock()))
