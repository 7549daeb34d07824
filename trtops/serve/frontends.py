"""The server's front-end processes: started, watched, started again, asked for their numbers, told what is so.

Each has a listening socket of its own on the same port (``SO_REUSEPORT``), which the server keeps open: connections
that wait at it while a front end is being started again are served by the next one, and new ones go to the others
(:mod:`.steering`). One that ends is started again at once, and ever later if it keeps ending; one that does not answer
is ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trtops.errors import Unavailable
from trtops.executor.nursery import Nursery, Offspring
from trtops.serve import frontend
from trtops.serve.backstage import (
    Ask,
    Begin,
    Channel,
    Counted,
    Drain,
    Failed,
    FromFrontEnd,
    Leaving,
    Listening,
    State,
    Sums,
    Taken,
    Want,
    check_unused,
    from_front_end,
    listening,
)
from trtops.serve.measure import Meters
from trtops.serve.steering import steer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trtops.serve.desk import Desk

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_LOOK: Final = 0.1
"""Seconds between two looks at what front ends have to be told."""
_PATIENCE: Final = 5.0
"""Seconds that a front end has to answer a question; then what it said last counts."""
_START: Final = 60.0
_ASK: Final = 2.0
"""Seconds between two questions, where one that hangs is found in time by that."""
_SETTLE: Final = 30.0
_LONGEST_PAUSE: Final = 5.0
_STEADY: Final = 10.0
"""Seconds after which a front end that ends is started again at once."""


def pause_before(failures: int) -> float:
    """Seconds before a front end is started again that ended this many times soon after its start."""
    return 0.0 if failures < 2 else min(_LONGEST_PAUSE, 0.1 * 2 ** (failures - 2))  # noqa: PLR2004 - the second


@dataclass
class Member:
    """One place for a front end.

    Attributes:
        number: of the place.
        sockets: that it listens on: HTTP's, gRPC's.
        channel: to the process that fills it now; None between two.
        process: that fills it now.
        ready: set while it serves.
        meters: what it counted, as it said last.
        told: number of the state that it goes by.
        restarts: how often it was started again.
        reaches: engine -> generation, as it said last.
        silent: looks at it since it said something.
        patience: seconds that it may be silent.
    """

    number: int
    sockets: tuple[socket.socket, ...]
    channel: Channel | None = None
    process: asyncio.subprocess.Process | Offspring | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    meters: Meters = field(default_factory=Meters)
    told: int = 0
    restarts: int = 0
    reaches: dict[str, int] = field(default_factory=dict)
    silent: int = 0
    patience: float = _START


class FrontEnds:
    """All of a server's front ends, on its event loop."""

    def __init__(
        self, count: int, begin: Begin, desk: Desk, nursery: Nursery | None = None, *, hang: float = 10.0
    ) -> None:
        """Start none yet.

        Args:
            count: how many.
            begin: what each is told first.
            desk: whose health and regions they go by.
            nursery: where they are forked; None: each gets an interpreter of its own.
            hang: seconds without a word, after which one that serves is given up.
        """
        self._nursery = nursery
        self._hang = hang
        self._ask_every = max(1, int(min(_ASK, hang / 8) / _LOOK))
        self._ports: list[list[socket.socket]] = []
        self._steered: tuple[int, ...] | None = None
        self._count = count
        self._begin = begin
        self._desk = desk
        self._members: list[Member] = []
        self._gone = Meters()
        self._own: Callable[[], Meters] = Meters
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[Member, asyncio.Future[None]]] = {}
        self._state = State(0, "starting", {}, ())
        self._failure: Failed | None = None
        self._failed = asyncio.Event()

    def __repr__(self) -> str:
        """Show how many serve."""
        return f"<FrontEnds {self.serving} of {self._count} serve, {self.restarts} restarts>"

    @property
    def serving(self) -> int:
        """Front ends that serve now, and answer."""
        return len(self._answering())

    @property
    def restarts(self) -> int:
        """How often one was started again."""
        return sum(member.restarts for member in self._members)

    def open(self, host: str, port: int) -> int:
        """Open a port, before they start: the first one is HTTP's, the second one gRPC's.

        Args:
            host: address.
            port: number; 0 takes a free one.

        Returns:
            the port's number.

        Raises:
            OSError: it cannot be opened.
        """
        check_unused(host, port)
        group: list[socket.socket] = []
        self._ports.append(group)
        for _ in range(self._count):
            group.append(listening(host, port, _BACKLOG))
            port = int(group[0].getsockname()[1])
        return port

    async def start(self, own: Callable[[], Meters]) -> None:
        """Start all; returns when every one serves.

        Args:
            own: numbers of the server's own front end (its control port).

        Raises:
            Unavailable: a front end could not start.
        """
        self._own = own
        self._members = [Member(number, sockets) for number, sockets in enumerate(zip(*self._ports, strict=True))]
        self._look()
        for member in self._members:
            self._spawn(self._keep(member))
        self._spawn(self._watch())
        ready = asyncio.gather(*(member.ready.wait() for member in self._members))
        failed = asyncio.ensure_future(self._failed.wait())
        await asyncio.wait((ready, failed), timeout=_START, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if not ready.done():
            self._stopping = True
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            failure = self._failure or Failed("a front end did not start in time", "look into the server's log")
            raise Unavailable(failure.what, fix=failure.fix)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_stopping(self) -> bool:
        return self._stopping

    # One place, from process to process.

    async def _keep(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            started = loop.time()
            try:
                code = await self._run(member)
            except OSError as error:
                log.error("front end %d cannot be started: %s", member.number, error)  # noqa: TRY400 - no fault of ours
                code = -1
            member.meters.ended()
            self._gone.add(member.meters)
            member.meters = Meters()
            if self._is_stopping():
                return
            failures = 0 if loop.time() - started > _STEADY else failures + 1
            pause = pause_before(failures)
            log.error("front end %d ended with code %d; it is started again in %g s", member.number, code, pause)
            member.restarts += 1
            await asyncio.sleep(pause)

    async def _run(self, member: Member) -> int:
        """Start a process and listen to it until it ends.

        Returns:
            its exit code.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await self._begin_process((theirs.fileno(), *(sock.fileno() for sock in member.sockets)))
        except BaseException:
            ours.close()
            raise
        member.process, member.channel = process, await Channel.of(ours)
        member.silent, member.patience = 0, _START
        member.channel.send(self._begin)
        member.channel.send(self._state)
        try:
            while line := await member.channel.line():
                self._hear(member, from_front_end.decode(line))
        except msgspec.MsgspecError as error:
            log.error("front end %d speaks no sense, and is ended: %s", member.number, error)  # noqa: TRY400 - its fault
            process.kill()
        finally:
            member.ready.clear()
            for number in [number for number, (asked, _) in self._asked.items() if asked is member]:
                self._answered(number)  # nobody has to wait for one that is gone
            channel, member.channel = member.channel, None
            await channel.close()
        try:
            return await asyncio.wait_for(process.wait(), _PATIENCE + self._hang)
        except asyncio.TimeoutError:
            log.error("front end %d hung up and does not end: it is ended", member.number)  # noqa: TRY400 - its fault
            process.kill()
            return await process.wait()

    async def _begin_process(self, fds: tuple[int, ...]) -> asyncio.subprocess.Process | Offspring:
        """Fork it off the nursery; without one, or if that is gone, start an interpreter."""
        if self._nursery is not None:
            try:
                return Offspring(self._nursery, self._nursery.fork(frontend.__name__, "trtops-front", fds))
            except OSError as error:
                log.warning("a front end gets an interpreter of its own: %s", error)
        return await asyncio.create_subprocess_exec(*frontend.command(*fds), pass_fds=fds)

    def _hear(self, member: Member, message: FromFrontEnd) -> None:
        member.silent = 0
        if isinstance(message, Listening):
            log.info("front end %d serves", member.number)
            member.patience = self._hang
            member.ready.set()
        elif isinstance(message, Leaving):
            member.patience = message.seconds + self._hang
            member.ready.clear()
        elif isinstance(message, Failed):
            self._failure = message
            self._failed.set()
            if member.restarts:  # at the start it is the server's own error
                log.error("front end %d: %s", member.number, message.what)
        elif isinstance(message, Taken):
            member.told = max(member.told, message.number)
        elif isinstance(message, Counted):
            member.meters, member.reaches = message.meters, message.reaches
            self._answered(message.number)
        elif isinstance(message, Want):
            self.numbers(partial(self._tell_sums, member, message.number))

    def _tell_sums(self, member: Member, number: int, meters: Meters) -> None:
        if member.channel is not None:
            meters.fold()
            member.channel.send(Sums(number, meters))

    def _answered(self, number: int) -> None:
        _, future = self._asked.pop(number, (None, None))
        if future is not None and not future.done():
            future.set_result(None)

    # All together.

    def numbers(self, done: Callable[[Meters], None]) -> None:
        """Hand over the numbers of all front ends together (see :class:`trtops.serve.desk.Desk`)."""
        self._spawn(self._sum_up(done))

    async def _sum_up(self, done: Callable[[Meters], None]) -> None:
        await self._ask_all()
        total = Meters()
        for meters in (self._own(), self._gone, *(member.meters for member in self._members)):
            total.add(meters)
        done(total)

    async def _ask_all(self) -> None:
        waiting: dict[int, asyncio.Future[None]] = {}
        numbers: list[int] = []
        for member in self._members:
            if member.channel is not None and member.ready.is_set():
                numbers.append(number := next(self._numbers))
                answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._asked[number] = member, answer
                if not self._doubted(member):  # what such a one said last counts: nobody has to wait for it
                    waiting[number] = answer
                member.channel.send(Ask(number))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=_PATIENCE)
        for number in numbers:
            self._asked.pop(number, None)

    async def _watch(self) -> None:
        """Tell front ends what changed, and hear their numbers now and then: little is lost with one that dies."""
        looks = 0
        while not self._stopping:
            self._look()
            looks += 1
            if looks % self._ask_every == 0:
                self._spawn(self._ask_all())  # one that hangs keeps no news from the others
            for member in self._members:
                self._look_at(member)
            self._steer()
            await asyncio.sleep(_LOOK)

    def _look_at(self, member: Member) -> None:
        """Count in looks: where this process stood still itself, no time has passed for its front ends."""
        if member.channel is None or member.process is None:
            return
        member.silent += 1
        if member.silent * _LOOK > member.patience:
            member.silent = 0
            log.error("front end %d hangs: no sign of life for %g s, and it is ended", member.number, member.patience)
            member.process.kill()

    def _doubted(self, member: Member) -> bool:
        """Whether it has been silent for so long that nobody should wait for it."""
        return member.silent * _LOOK > self._hang / 4

    def _answering(self) -> tuple[int, ...]:
        return tuple(one.number for one in self._members if one.ready.is_set() and not self._doubted(one))

    def _steer(self) -> None:
        """Let new connections come to front ends that serve and answer only; with none of these, they wait."""
        places = self._answering()
        if places != self._steered:
            self._steered = places
            for group in self._ports:
                steer(group, places)

    def _look(self) -> None:
        health = self._desk.health
        state = State(self._state.number, health.not_ready(), health.absences(), self._desk.regions.registered())
        if state != self._state:
            self._state = State(state.number + 1, state.not_ready, state.absent, state.regions)
            for member in self._members:
                if member.channel is not None:
                    member.channel.send(self._state)

    async def settled(self) -> None:
        """Wait, half a minute at most, until every front end reaches what the server serves, and knows how it is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SETTLE
        while loop.time() < end:
            self._look()
            await self._ask_all()
            served = {info.name: info.generation for info in self._desk.infos()}
            serving = [member for member in self._members if member.ready.is_set()]
            if all(member.reaches == served and member.told >= self._state.number for member in serving):
                return
            await asyncio.sleep(_LOOK)

    def regions_changed(self, then: Callable[[], None]) -> None:
        """Tell every front end of the regions; ``then`` is called when all go by them."""
        self._look()
        self._spawn(self._all_told(self._state.number, then))

    async def _all_told(self, number: int, then: Callable[[], None]) -> None:
        end = asyncio.get_running_loop().time() + _PATIENCE
        while any(member.ready.is_set() and member.told < number for member in self._members):
            if asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.002)
        then()

    async def close(self, drain: float) -> None:
        """End all in order: no new connections, ``drain`` seconds for what is in flight."""
        self._stopping = True
        self._look()
        for member in self._members:
            if member.channel is not None:
                member.channel.send(Drain(drain))
        alive = [member.process for member in self._members if member.process and member.process.returncode is None]
        waits = [asyncio.ensure_future(process.wait()) for process in alive]
        if waits:
            _, late = await asyncio.wait(waits, timeout=drain + 5.0)
            for process in alive:
                if process.returncode is None:
                    process.kill()
            if late:
                await asyncio.wait(late)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in (sock for group in self._ports for sock in group):
            sock.close()
