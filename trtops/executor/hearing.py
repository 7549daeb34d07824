"""What workers say to their supervisor: told to the fleet, which decides, and to who observes; kept for operators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trtops.executor import orders
from trtops.executor.shadow import added

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.executor.crew import Crew
    from trtops.executor.fleet import Fleet
    from trtops.executor.observer import Observer
    from trtops.executor.unit import Action

log = logging.getLogger(__name__)


class Hearing:
    """For the supervisor's thread.

    Attributes:
        beats: worker -> its last sign of life.
        past: name and generation -> what workers that have ended had compared.
    """

    def __init__(
        self,
        fleet: Fleet,
        crew: Crew,
        observer: Observer,
        do: Callable[[Sequence[Action]], None],
        clock: Callable[[], float],
    ) -> None:
        """Take who decides, whose words are heard, who observes, and who carries out what follows.

        Args:
            fleet: decides.
            crew: the workers' processes.
            observer: is told of every batch, refusal and swap.
            do: carries out what the fleet decides.
            clock: monotonic seconds.
        """
        self._fleet = fleet
        self._crew = crew
        self._observer = observer
        self._do = do
        self._clock = clock
        self.beats: dict[int, orders.Beat] = {}
        self.past: dict[tuple[str, int], orders.Compared] = {}

    def __repr__(self) -> str:
        """Show who was heard of."""
        return f"Hearing(workers {sorted(self.beats)})"

    def listen(self, worker: int, fd: int, *, closing: bool) -> None:
        """Take what a worker has said, or that it has ended.

        Args:
            worker: its number.
            fd: the descriptor that has something to be read.
            closing: the end of all was ordered: that of a worker is no misfortune.
        """
        ended = self._crew.ended(worker, fd)
        try:
            for news in self._crew.listen(worker):
                self._heard(worker, news)
        except Exception:
            log.exception("what worker %d says cannot be heard", worker)
            self._crew.kill(worker, "what it says cannot be heard")
        if ended:
            self._buried(worker, closing=closing)

    def _heard(self, worker: int, news: orders.FromWorker) -> None:
        now = self._clock()
        if isinstance(news, orders.Beat):
            self.beats[worker] = news
            self._fleet.beat(worker, news.busy, news.busy_with, now)
        elif isinstance(news, orders.Reports):
            self._report(news)
        elif isinstance(news, orders.Up):
            self._do(self._fleet.up(worker, now))
        elif isinstance(news, orders.Loaded):
            self._loaded(news, now)
        elif isinstance(news, orders.NotLoaded):
            self._do(self._fleet.not_loaded(news.number, orders.refusal(news), now))
        elif isinstance(news, orders.Freed):
            self._observer.freed(news.name, news.generation)
            self._do(self._fleet.freed(worker, news.name, news.generation))
        else:
            self._crew.note(worker, news.why)

    def _loaded(self, news: orders.Loaded, now: float) -> None:
        held = self._fleet.units.get(news.number)
        if held is None:
            return
        charge, seconds = held.charge, now - held.since
        held_bytes = news.host_bytes, news.device_bytes
        self._do(self._fleet.loaded(news.number, orders.info_of(charge, news), held_bytes, now))
        self._observer.loaded(charge.name, charge.generation, seconds)

    def _report(self, news: orders.Reports) -> None:
        for report in news.batches:
            self._observer.batch(report)
        for engine, reason, requests in news.refused:
            self._observer.refused(engine, reason, requests)
        for engine, generation, why in news.failed:
            self._observer.failed(engine, generation, why)

    def _buried(self, worker: int, *, closing: bool) -> None:
        """A process has ended: wanted, or not."""
        pid = self._crew.pids()[worker]
        why = self._crew.bury(worker)
        beat = self.beats.pop(worker, None)
        for counts in beat.compared if beat is not None else ():
            key = counts.name, counts.generation
            self.past[key] = added(self.past.get(key), counts)
        record = self._fleet.workers.get(worker)
        if record is not None and not record.stopping and not closing:
            held = [self._fleet.units[number] for number in record.units]
            log.error("worker %d (pid %d) is dead: %s; it held %s", worker, pid, why, held)
            for charge in [one.charge for one in held]:
                self._observer.failed(charge.name, charge.generation, why)
        self._do(self._fleet.died(worker, why, self._clock()))
