"""The supervisor: starts workers, watches them, writes the routes. No engine, no device, no request is in here.

One thread does everything (:class:`trtops.executor.fleet.Fleet` decides, this carries out): it starts processes, since
the kernel ends a child with the thread that started it; it hears signs of life; it lets clients in. Callers hand it
what they want and wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from trtops.errors import NotLoadable, TrtopsError, Unavailable
from trtops.executor import orders, unit
from trtops.executor.adjusting import adjusted
from trtops.executor.attach import plain_info
from trtops.executor.crew import Crew
from trtops.executor.fleet import Fleet
from trtops.executor.hearing import Hearing
from trtops.executor.observer import Observer, Silent
from trtops.executor.overview import Overview, UnitStatus, WorkerStatus, plain
from trtops.executor.port import Opening
from trtops.executor.unit import STABLE, Charge, Pace
from trtops.transport.reception import Reception
from trtops.transport.routes import Page, Route, assign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtops.backend.port import Session
    from trtops.executor.nursery import Nursery
    from trtops.executor.port import EngineInfo
    from trtops.executor.unit import Action, Worker
    from trtops.spec.engine import Batching, Execution, Memory, Profile
    from trtops.transport.limits import Limits

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds that killed workers have to be gone."""
T = TypeVar("T")

_TICK: Final = 0.25
"""Seconds between two looks at whether workers show life."""
_MODULE: Final = "trtops.executor"
_MIRROR_SLOTS: Final = 8
_MIRROR_BYTES: Final = 8 << 20


class Supervisor:
    """Engines in worker processes. Every method may be called from any thread.

    It has the calls of :class:`trtops.executor.port.Engines` but ``submit``: requests go from a client to a worker
    (:class:`trtops.executor.remote.RemoteEngines`), never through here.
    """

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        path: Path | str,
        *,
        observer: Observer | None = None,
        devices: Sequence[str] = ("",),
        pace: Pace | None = None,
        limits: Limits | None = None,
        host_memory: int | None = None,
        device_memory: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        nursery: Nursery | None = None,
    ) -> None:
        """Listen for clients, and start the thread. Workers come with the engines.

        Args:
            path: of the socket that clients connect to; a stale one is replaced.
            observer: is told of every batch, refusal and swap in any worker.
            devices: what ``CUDA_VISIBLE_DEVICES`` is for the worker of each device (an index, a UUID, a MIG slice); ""
                leaves it as it is. Every engine is loaded on each.
            pace: times.
            limits: which clients may come.
            host_memory: bytes that the pools of all engines may take together; None: no bound.
            device_memory: the same of each device's memory.
            clock: monotonic seconds.
            nursery: where workers are forked; None: each gets an interpreter of its own.

        Raises:
            Unavailable: another server listens there.
            StorageError: the socket or the page of routes cannot be made.
        """
        self.path = Path(path)
        self._devices = tuple(devices)
        self._clock = clock
        self._fleet = Fleet(devices=len(self._devices), pace=pace, host_memory=host_memory, device_memory=device_memory)
        self._page = Page()
        self._routes: dict[str, Route] = {}
        self._infos: tuple[EngineInfo, ...] = ()
        self._ailing: dict[tuple[str, str], str] = {}
        self._waiting: dict[int, Future[None]] = {}
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._crew = Crew(_MODULE, self._epoll, nursery)
        self._hearing = Hearing(self._fleet, self._crew, observer or Silent(), self._do, clock)
        try:
            self._reception = Reception(self.path, self._page.fd, self._hand_on, self._epoll, clock, limits=limits)
        except TrtopsError:
            self._page.close()
            self._epoll.close()
            os.close(self._wake)
            raise
        self._closed = threading.Event()
        self._ringing = threading.Lock()
        self._closing = self._refusing = False
        self._thread = threading.Thread(target=self._loop, name="trtops-supervisor", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Show engines, workers, clients and what they hold."""
        closing = ", closing" if self._closing else ""
        return f"Supervisor({self._fleet!r}; {self._view().slots} slots in use; {self._reception!r}{closing})"

    # -- engines -----------------------------------------------------------------------------------------------------

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now, by name. The same tuple until that changes."""
        return self._infos

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
        channel: str = STABLE,
    ) -> None:
        """Load in a worker of its own, warm up, then flip the route; what served in the channel drains and is freed.

        Arguments are those of :meth:`trtops.executor.port.Engines.load`; ``open_session`` has to be an
        :class:`trtops.executor.port.Opening`, which another process can do. ``channel`` is ``stable`` or a candidate's,
        which answers nobody until :meth:`share` says so.

        Raises:
            NotLoadable: it could not be loaded or warmed up, its worker died, or memory for both lacks; says why. What
                served before still does.
        """
        if not isinstance(open_session, Opening):
            raise NotLoadable("only an artifact can be loaded in another process", where=f"engine {name}")
        charge = Charge(
            name,
            channel,
            generation,
            version,
            digest,
            backend,
            instances,
            open_session.path,
            open_session.sidecar,
            batching,
            profiles,
            memory,
            execution,
            open_session.shadowing,
        )
        done: Future[None] = Future()
        self._ask(lambda: self._begin(charge, done))
        done.result()

    def adjust(self, name: str, *, generation: int, batching: Batching) -> bool:
        """Serve another batching without a load, in every worker (:meth:`trtops.executor.port.Loader.adjust`)."""
        return self._ask(lambda: self._adjust(name, generation, batching))

    def unload(self, name: str, channel: str | None = None) -> None:
        """Take an engine out, or one channel of it. Returns at once; what waits is served.

        Raises:
            InputError: nothing of this name is loaded there.
        """
        self._ask(lambda: self._do(self._fleet.unload(name, channel, self._clock())))

    def share(self, name: str, weights: Mapping[str, int], shadows: Mapping[str, int] | None = None) -> None:
        """Say how much each channel of an engine gets, by one write of the routes.

        Args:
            name: of the engine.
            weights: channel -> percent of the requests that it answers, by their keys.
            shadows: channel -> percent of the stable channel's requests that are copied to it.
        """
        self._ask(lambda: self._do(self._fleet.share(name, weights, shadows or {})))

    def promote(self, name: str, channel: str) -> None:
        """Let a channel's engine be the stable one, where it is, by one write of the routes.

        Raises:
            InputError: nothing serves in that channel.
        """
        self._ask(lambda: self._do(self._fleet.promote(name, channel, self._clock())))

    def ailing(self) -> Mapping[tuple[str, str], str]:
        """Engine and channel -> why it does not serve just now: its worker died, and there is no other yet."""
        return self._ailing

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Every worker, for the operator. Empty when this is closed."""
        return self._ask(lambda: self._view().workers()) if not self._closing else ()

    def units(self) -> tuple[UnitStatus, ...]:
        """Every engine in every channel and on every device, for the operator. Empty when this is closed."""
        return self._ask(lambda: self._view().units()) if not self._closing else ()

    def overview(self) -> list[dict[str, Any]]:
        """Workers and engines together, in JSON's types."""
        return plain(self.workers(), self.units())

    def _view(self) -> Overview:
        heard = self._hearing
        return Overview(self._fleet, self._devices, self._crew.pids(), heard.beats, heard.past, self._clock())

    def abandon_loads(self) -> None:
        """Load nothing more; whoever waits for a load is told. What serves keeps serving."""
        with contextlib.suppress(Unavailable):
            self._ask(self._fail_loads)

    def _fail_loads(self) -> None:
        self._refusing = True
        for load, future in list(self._waiting.items()):
            del self._waiting[load]
            future.set_exception(NotLoadable("the supervisor is closing"))

    def close(self, *, drain: float) -> None:
        """Stop: workers get ``drain`` seconds to finish what they have, then are killed. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(Unavailable):
                self._ask(lambda: self._shut(drain))
            if not self._closed.wait(drain + 5.0):
                log.warning("workers did not end within %g s", drain)
                with contextlib.suppress(Unavailable):
                    self._ask(self._crew.kill_all)
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():  # a process in a driver's uninterruptible sleep dies with this one, or never
                log.error("a worker cannot be ended: it is left behind")
                return
        with self._ringing:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
                self._epoll.close()

    def _ask(self, call: Callable[[], T]) -> T:
        """Let the thread do something, and wait for it."""
        if threading.current_thread() is self._thread:
            return call()
        future: Future[T] = Future()
        self._calls.put((call, future))
        with self._ringing:  # else the number could be another file's by now
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        while not wait([future], 0.5).done:
            if not self._thread.is_alive() and not future.done():
                raise Unavailable("the supervisor is closed")
        return future.result()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not (self._closing and not self._crew):
                for fd, _ in self._epoll.poll(self._pause()):
                    self._event(fd)
                now = self._clock()
                self._reception.tick(now)
                if not self._closing:
                    self._do(self._fleet.tick(now))
        except Exception:
            log.exception("the supervisor's thread failed")
        finally:
            self._end()

    def _pause(self) -> float:
        at = self._fleet.next_time()
        return _TICK if at is None or self._closing else min(_TICK, max(0.0, at - self._clock()))

    def _event(self, fd: int) -> None:
        if fd == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while not self._calls.empty():
                call, future = self._calls.get()
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it belongs to who called
                    future.set_exception(error)
        elif (worker := self._crew.of(fd)) is not None:
            self._hearing.listen(worker, fd, closing=self._closing)
        else:
            self._reception.serve(fd)

    def _end(self) -> None:
        self._crew.close()
        self._fail_loads()
        while not self._calls.empty():
            self._calls.get()[1].set_exception(Unavailable("the supervisor is closed"))
        self._reception.close()
        self._page.close()
        self._closed.set()

    # -- what the fleet says -------------------------------------------------------------------------------------------

    def _begin(self, charge: Charge, done: Future[None]) -> None:
        if self._closing or self._refusing:
            raise NotLoadable("the supervisor is closing", where=f"engine {charge.name}")
        now = self._clock()
        load, actions = self._fleet.load(charge, now)
        self._waiting[load] = done
        self._do(actions)

    def _adjust(self, name: str, generation: int, batching: Batching) -> bool:
        actions = adjusted(self._fleet, name, generation, batching)
        self._do(actions or ())
        return actions is not None

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, unit.Publish):
                self._publish()
            elif isinstance(action, unit.Spawn):
                self._spawn(action)
            elif isinstance(action, unit.Load):
                self._crew.send(action.worker, orders.load_order(action.unit, self._fleet.units[action.unit].charge))
                self._compare(action)
            elif isinstance(action, unit.Adjust):
                self._crew.send(action.worker, orders.adjust_order(self._fleet.units[action.unit].charge))
            elif isinstance(action, unit.Unload):
                self._crew.send(action.worker, orders.Unload(action.name))
            elif isinstance(action, unit.Stop):
                self._crew.send(action.worker, orders.Stop(1.0))
            elif isinstance(action, unit.Kill):
                self._crew.kill(action.worker, action.why)
            elif isinstance(action, unit.Mirror):
                self._mirror(action)
            elif isinstance(action, unit.Finished):
                self._finished(action)

    def _publish(self) -> None:
        """Write the routes, if they changed; tell the clients, with what is served."""
        routes = {name: assign(self._routes.get(name), seats) for name, seats in self._fleet.routes().items()}
        infos = self._fleet.infos()
        self._ailing = self._fleet.ailing()
        if routes == self._routes and infos == self._infos:
            return
        if routes != self._routes:
            self._routes = routes
            self._page.write(routes)
        self._infos = self._infos if infos == self._infos else infos
        self._reception.announce(msgspec.json.encode([plain_info(info) for info in infos]))

    def _spawn(self, action: unit.Spawn) -> None:
        try:
            self._crew.start(action.worker, self._devices[action.device])
        except OSError as error:
            self._do(self._fleet.died(action.worker, f"it could not be started: {error}", self._clock()))

    def _compare(self, action: unit.Load) -> None:
        charge = self._fleet.units[action.unit].charge
        if charge.tolerance is not None and charge.channel != STABLE:
            self._crew.send(action.worker, orders.compare_order(charge, charge.tolerance))

    def _mirror(self, action: unit.Mirror) -> None:
        if not action.percent:
            self._crew.send(action.worker, orders.Mirror(action.name, 0))
            return
        shadow = self._fleet.units[action.to]
        order = orders.Mirror(action.name, action.percent, shadow.charge.generation, _MIRROR_SLOTS, _MIRROR_BYTES)
        try:
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # no descriptors: it costs the comparison, not the engines that serve
            log.error("engine %s: requests cannot be copied to its shadow: %s", action.name, error)  # noqa: TRY400
            return
        with one, other:
            if self._crew.send(shadow.worker, orders.Adopt(), other.fileno()):
                self._crew.send(action.worker, order, one.fileno())

    def _finished(self, action: unit.Finished) -> None:
        done = self._waiting.pop(action.load, None)
        if done is None:
            return
        if action.error is not None:
            done.set_exception(action.error)
        else:
            done.set_result(None)

    # -- its end -------------------------------------------------------------------------------------------------------

    def _shut(self, drain: float) -> None:
        if not self._closing:
            self._closing = True
            self._infos = ()
            for worker in self._crew.pids():
                self._crew.send(worker, orders.Stop(drain))

    # -- clients -----------------------------------------------------------------------------------------------------

    def _hand_on(self, sock: socket.socket, wanted: int | None) -> None:
        """Give a client that said hello to a worker."""
        if self._closing:
            raise Unavailable("the executor is closing", fix="connect to another one")
        serving = [worker for worker in self._fleet.workers.values() if worker.up and not worker.stopping]
        if wanted is None:
            serving = [worker for worker in serving if self._stable(worker)]
            serving.sort(key=lambda worker: (-self._stable(worker), worker.number))
        else:
            serving = [worker for worker in serving if worker.number == wanted]
        if not serving or not self._crew.send(serving[0].number, orders.Adopt(), sock.fileno()):
            what = "no engine serves yet" if wanted is None else f"worker {wanted} does not serve any more"
            raise Unavailable(what, fix="connect again in a moment" if wanted is None else "look at the routes again")

    def _stable(self, worker: Worker) -> int:
        held = [self._fleet.units[number] for number in worker.units]
        return sum(one.state == "ready" and one.charge.channel == STABLE for one in held)
