"""Which worker holds which engine, decided without I/O: events in, what to do out.

A *unit* is one generation of an engine on one device. It is loaded in a worker of its own, so that whatever happens
there costs nobody else anything. When a stable engine has proved itself for a while, it moves in with the other stable
engines of its device: one process a device shares one context, and its kernels run side by side. A worker that dies
gives every unit that it held a worker of its own again, so it shows who is to blame.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError, NotLoadable, TrtopsError
from trtops.executor.memory import Budget
from trtops.executor.seats import seats
from trtops.executor.unit import (
    STABLE,
    Action,
    Charge,
    Finished,
    Kill,
    Load,
    Mirror,
    Pace,
    Publish,
    Spawn,
    Stop,
    Unit,
    UnitState,
    Unload,
    Worker,
)
from trtops.transport.routes import MAX_ENGINES, Seat

_BACK_OFF: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a unit is loaded again, by how often it died lately."""
_LATE: Final = 1.0
"""Seconds between two looks; more say nothing of workers: this process was stopped, or the machine stood still."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.executor.port import EngineInfo


class Fleet:
    """All workers and units. Not thread-safe; every method returns what has to be done, in order."""

    def __init__(
        self,
        *,
        devices: int = 1,
        pace: Pace | None = None,
        host_memory: int | None = None,
        device_memory: int | None = None,
    ) -> None:
        """Start with none.

        Args:
            devices: number of devices; every engine is loaded on each.
            pace: times.
            host_memory: bytes that the pools of all engines may take together; None: no bound.
            device_memory: the same of each device's memory.
        """
        self.pace = pace or Pace()
        self.devices = devices
        self.workers: dict[int, Worker] = {}
        self.units: dict[int, Unit] = {}
        self.current: dict[tuple[str, str], list[int]] = {}
        self.weights: dict[str, dict[str, int]] = {}
        self.shadows: dict[tuple[str, str], int] = {}
        self.budgets = [Budget(f"memory of device {device}", device_memory) for device in range(devices)]
        self.host_budget = Budget("the host's memory", host_memory)
        self._mirrors: dict[tuple[int, str], tuple[int, int]] = {}
        self._numbers = 0
        self._looked = float("inf")

    def __repr__(self) -> str:
        """Show units and workers."""
        units = ", ".join(map(repr, self.units.values())) or "no engine"
        return f"Fleet({units}; {len(self.workers)} workers)"

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- orders of the agent -------------------------------------------------------------------------------------------

    def load(self, charge: Charge, now: float) -> tuple[int, list[Action]]:
        """Load a generation on every device, each in a new worker; when all serve, the routes move there.

        Raises:
            NotLoadable: there is no memory for its pools beside what serves.
        """
        if (charge.name, charge.channel) not in self.current and len({name for name, _ in self.current}) >= MAX_ENGINES:
            raise NotLoadable(f"{MAX_ENGINES} engines are served, as many as may be", where=f"engine {charge.name}")
        self._bound(charge)
        load, actions = self._next(), []
        numbers: list[int] = []
        try:
            for device in range(self.devices):
                unit = Unit(self._next(), charge, device, 0, "starting", now, load=load)
                self._hold(unit)
                numbers.append(unit.number)
                self.units[unit.number] = unit
        except NotLoadable:
            for number in numbers:
                self._drop(self.units[number])
            raise
        for number in numbers:
            actions += self._spawn(self.units[number], now)
        return load, actions

    def unload(self, name: str, channel: str | None, now: float) -> list[Action]:
        """Serve an engine no more, or one channel of it. What waits is served.

        Raises:
            InputError: there is none.
        """
        keys = [key for key in self.current if key[0] == name and channel in {None, key[1]}]
        if not keys:
            raise InputError(f"no engine {name!r} is loaded" + (f" in channel {channel}" if channel else ""))
        actions: list[Action] = []
        for key in keys:
            self.shadows.pop(key, None)
            self.weights.get(name, {}).pop(key[1], None)
            for number in self.current.pop(key):
                actions += self._retire(self.units[number], now)
        return [*self._changed(), *actions]

    def share(self, name: str, weights: Mapping[str, int], shadows: Mapping[str, int]) -> list[Action]:
        """Set the percent of requests that each channel answers, and that are copied to each."""
        self.weights[name] = dict(weights)
        for key in [key for key in self.shadows if key[0] == name]:
            del self.shadows[key]
        self.shadows |= {(name, channel): percent for channel, percent in shadows.items() if percent}
        return self._changed()

    def promote(self, name: str, channel: str, now: float) -> list[Action]:
        """Let what serves in a channel be the stable one; what was stable drains. One change of the routes.

        Raises:
            InputError: nothing serves there.
        """
        numbers = self.current.get((name, channel))
        if not numbers or any(self.units[number].state != "ready" for number in numbers):
            raise InputError(f"engine {name} does not serve in channel {channel}")
        old = self.current.get((name, STABLE), [])
        del self.current[name, channel]
        for number in numbers:
            unit = self.units[number]
            unit.charge = replace(unit.charge, channel=STABLE)
        self.current[name, STABLE] = numbers
        actions: list[Action] = []
        for number in old:
            actions += self._retire(self.units[number], now)
        return [*self.share(name, {STABLE: 100}, {}), *actions]

    # -- news of workers -----------------------------------------------------------------------------------------------

    def up(self, worker: int, now: float) -> list[Action]:
        """A worker takes orders."""
        record = self.workers[worker]
        record.up, record.beat = True, now
        actions: list[Action] = []
        for number in sorted(record.units):
            unit = self.units[number]
            if unit.state == "starting":
                self._into(unit, "loading", now)
                actions.append(Load(worker, number))
        return actions

    def loaded(self, number: int, info: EngineInfo, held: tuple[int, int], now: float) -> list[Action]:
        """A worker has loaded a unit, whose pools hold so many bytes of the host and of the device."""
        unit = self.units.get(number)
        if unit is None or unit.state != "loading":
            return []  # it was given up meanwhile, and so was its worker
        try:
            self._hold(unit, held)
        except NotLoadable as error:
            return self.not_loaded(number, error, now)
        unit.info = info
        self._into(unit, "loaded", now)
        unit.at = now + self.pace.lead
        return self._changed()

    def _let_in(self, unit: Unit, now: float) -> list[Action]:
        """Clients had time to connect to a loaded unit: move the routes there."""
        if unit.load is not None:
            return self._let_all_in(unit.load, now)
        self._into(unit, "ready", now)
        if unit.replaces is None:
            return self._changed()
        old = self.units.get(unit.replaces)
        if old is None or old.state != "ready":
            return [*self._discard(unit), *self._changed()]
        key = unit.charge.name, unit.charge.channel
        self.current[key] = [unit.number if other == old.number else other for other in self.current[key]]
        unit.replaces = None
        unit.restarts = old.restarts
        return [*self._changed(), *self._retire(old, now)]

    def _let_all_in(self, load: int, now: float) -> list[Action]:
        units = [unit for unit in self.units.values() if unit.load == load]
        if any(unit.state != "loaded" or unit.at > now for unit in units):
            return []
        key = units[0].charge.name, units[0].charge.channel
        old = self.current.get(key, [])
        self.current[key] = [unit.number for unit in units]
        for unit in units:
            unit.load = None
            self._into(unit, "ready", now)
        actions: list[Action] = []
        for number in old:
            actions += self._retire(self.units[number], now)
        return [*self._changed(), *actions, Finished(load, None)]

    def not_loaded(self, number: int, error: TrtopsError, now: float) -> list[Action]:
        """A worker could not load a unit."""
        unit = self.units.get(number)
        if unit is None or unit.state not in {"starting", "loading"}:
            return []
        if unit.load is not None:
            return self._give_up(unit.load, error)
        if unit.replaces is not None:
            if (old := self.units.get(unit.replaces)) is not None:
                old.apart = True
            return self._discard(unit)
        worker = unit.worker
        self._leave(unit)
        self._wait(unit, str(error), now)
        return [*self._changed(), *self._empty(worker)]

    def _give_up(self, load: int, error: TrtopsError) -> list[Action]:
        actions: list[Action] = []
        for unit in [unit for unit in self.units.values() if unit.load == load]:
            actions += self._discard(unit)
        return [*actions, Finished(load, error)]

    def freed(self, worker: int, name: str, generation: int) -> list[Action]:
        """A worker's engine has drained and is closed."""
        record = self.workers.get(worker)
        for number in sorted(record.units) if record is not None else ():
            unit = self.units[number]
            if unit.told and (unit.charge.name, unit.charge.generation) == (name, generation):
                return self._discard(unit)
        return []

    def beat(self, worker: int, busy: float, busy_with: str, now: float) -> None:
        """A worker shows life."""
        if (record := self.workers.get(worker)) is not None:
            record.beat, record.busy, record.busy_with = now, busy, busy_with

    def died(self, worker: int, why: str, now: float) -> list[Action]:
        """A worker is dead. Its engines are loaded again, each in a worker of its own."""
        record = self.workers.pop(worker, None)
        if record is None:
            return []
        actions: list[Action] = []
        for number in sorted(record.units):
            unit = self.units.get(number)
            if unit is None:
                continue  # another unit of the same load took it along
            unit.worker = 0
            if unit.load is not None:
                what = f"its worker died while it was loaded: {why}"
                error = NotLoadable(what, where=f"engine {unit.charge.name}", fix="the server's log says more")
                actions += self._give_up(unit.load, error)
            elif unit.state == "draining" or unit.replaces is not None:
                if unit.replaces in self.units:
                    self.units[unit.replaces].apart = True
                self._drop(unit)
            else:
                self._wait(unit, why, now)
        self._mirrors = {key: to for key, to in self._mirrors.items() if key[0] != worker and to[0] in self.units}
        return [*self._changed(), *actions]

    def _wait(self, unit: Unit, why: str, now: float) -> None:
        """Load it again after a pause, or give it up."""
        lately = [at for at in unit.deaths if now - at < self.pace.memory_of_deaths]
        unit.deaths = (*lately, now)
        unit.restarts += 1
        unit.fault = why
        if unit.charge.channel != STABLE and len(unit.deaths) >= self.pace.deaths:
            self._into(unit, "failed", now)
        else:
            self._into(unit, "waiting", now)
            unit.at = now + _BACK_OFF[min(len(unit.deaths) - 1, len(_BACK_OFF) - 1)]

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """What time alone brings: retries, unloads, deadlines, moves."""
        missed, self._looked = now - self._looked, now
        for worker in self.workers.values() if missed > _LATE else ():
            worker.beat = min(now, worker.beat + missed)
        actions: list[Action] = []
        for unit in list(self.units.values()):
            if unit.state == "waiting" and unit.at <= now:
                self._into(unit, "starting", now)
                actions += self._spawn(unit, now)
            elif unit.state == "loaded" and unit.at <= now:
                actions += self._let_in(unit, now)
            elif unit.state == "draining" and not unit.told and unit.at <= now:
                unit.told = True
                actions.append(Unload(unit.worker, unit.charge.name))
        actions += [Kill(worker.number, why) for worker in self.workers.values() if (why := self._hung(worker, now))]
        return actions + self._move_in(now)

    def _hung(self, worker: Worker, now: float) -> str | None:
        pace = self.pace
        silent, held = now - worker.beat, [self.units[number] for number in worker.units]
        loading = [now - unit.since for unit in held if unit.state == "loading"]
        if not worker.up:
            return f"it did not start within {pace.start:g} s" if now - worker.started > pace.start else None
        if loading and max(loading) > pace.load:
            return f"it did not load within {pace.load:g} s"
        # A native library may hold the interpreter's lock while it loads; nobody else is in that worker then.
        if silent > (pace.load if loading and len(held) == 1 else pace.silence):
            return f"it hangs: no sign of life for {silent:.1f} s"
        if worker.busy > pace.run and not worker.stopping:
            return f"it hangs: a batch of engine {worker.busy_with} has been running for {worker.busy:.1f} s"
        return None

    def next_time(self) -> float | None:
        """When :meth:`tick` has something to do; None: that depends on news only, or on signs of life."""
        times = [
            unit.at
            for unit in self.units.values()
            if unit.state in {"waiting", "loaded"} or (unit.state == "draining" and not unit.told)
        ]
        return min(times, default=None)

    def _move_in(self, now: float) -> list[Action]:
        """Let one stable engine that has proved itself move in with others of its device."""
        settle = self.pace.settle
        if settle is None or any(unit.replaces is not None for unit in self.units.values()):
            return []
        for device in range(self.devices):
            homes = [worker for worker in self.workers.values() if self._is_home(worker, device, now - settle)]
            if len(homes) > 1:
                homes.sort(key=lambda worker: (-len(worker.units), worker.number))
                old = self.units[min(homes[-1].units)]
                unit = Unit(self._next(), old.charge, device, homes[0].number, "loading", now, replaces=old.number)
                try:
                    self._hold(unit)
                except NotLoadable:
                    old.apart = True  # no room for two; it serves well where it is
                    continue
                self.units[unit.number] = unit
                homes[0].units.add(unit.number)
                return [Load(unit.worker, unit.number)]
        return []

    def _is_home(self, worker: Worker, device: int, before: float) -> bool:
        """Whether all that a worker holds is stable, has served since then, and died of nothing lately."""
        held = [self.units[number] for number in worker.units]
        return bool(
            worker.device == device
            and worker.up
            and held
            and all(
                unit.state == "ready"
                and unit.since <= before
                and unit.charge.channel == STABLE
                and not unit.apart
                and all(before + (self.pace.settle or 0) - at > self.pace.memory_of_deaths for at in unit.deaths)
                for unit in held
            )
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _bound(self, charge: Charge) -> None:
        """Without a bound of its own, a device has what the engine's device has: an engine is for one kind only."""
        device = charge.sidecar.device
        if device.kind == "gpu" and device.memory_bytes:
            for budget in self.budgets:
                budget.size = budget.size if budget.size is not None else device.memory_bytes

    def _hold(self, unit: Unit, held: tuple[int, int] | None = None) -> None:
        """Hold the pools of the spec; when it is loaded, what they really are."""
        memory = unit.charge.memory
        pools = ((memory.pinned_pool or 0, memory.device_pool or 0) if memory else (0, 0)) if held is None else held
        self._release(unit)
        try:
            self.host_budget.hold(unit.holder, pools[0])
            self.budgets[unit.device].hold(unit.holder, pools[1])
        except NotLoadable:
            self._release(unit)
            raise

    def _release(self, unit: Unit) -> None:
        self.host_budget.release(unit.holder)
        self.budgets[unit.device].release(unit.holder)

    def _drop(self, unit: Unit) -> None:
        self._release(unit)
        self._leave(unit)
        self.units.pop(unit.number, None)

    def _leave(self, unit: Unit) -> None:
        if unit.worker in self.workers:
            self.workers[unit.worker].units.discard(unit.number)
        unit.worker = 0

    @staticmethod
    def _into(unit: Unit, state: UnitState, now: float) -> None:
        unit.state, unit.since = state, now

    def _spawn(self, unit: Unit, now: float) -> list[Action]:
        number = self._next()
        self.workers[number] = Worker(number, unit.device, now, now, units={unit.number})
        unit.worker = number
        return [Spawn(number, unit.device)]

    def _retire(self, unit: Unit, now: float) -> list[Action]:
        """Nothing new comes to it; after a moment its worker drains it."""
        if unit.state != "ready":
            return self._discard(unit)
        self._into(unit, "draining", now)
        unit.at = now + self.pace.linger
        return []

    def _discard(self, unit: Unit) -> list[Action]:
        """Forget a unit that serves nobody; its worker ends, if it holds no other."""
        worker = unit.worker
        loading = unit.state in {"starting", "loading"}
        self._drop(unit)
        if loading and worker in self.workers and not self.workers[worker].units:
            self.workers[worker].stopping = True
            return [Kill(worker, "what it loaded is not wanted any more")]
        return self._empty(worker)

    def _empty(self, worker: int) -> list[Action]:
        record = self.workers.get(worker)
        if record is None or record.units or record.stopping:
            return []
        record.stopping = True
        return [Stop(worker)]

    def _changed(self) -> list[Action]:
        """Routes may have changed, and with them who copies requests to whom."""
        wanted = self._wanted_mirrors()
        actions: list[Action] = [Publish()]
        for (worker, name), (to, _) in self._mirrors.items():
            if (worker, name) not in wanted and worker in self.workers:
                actions.append(Mirror(worker, name, 0, to))
        for key, (to, percent) in wanted.items():
            if self._mirrors.get(key) != (to, percent):
                actions.append(Mirror(*key, percent, to))
        self._mirrors = wanted
        return actions

    def _wanted_mirrors(self) -> dict[tuple[int, str], tuple[int, int]]:
        wanted: dict[tuple[int, str], tuple[int, int]] = {}
        for (name, channel), percent in self.shadows.items():
            copies = [unit for unit in self.serving(name, channel) if unit.charge.tolerance is not None]
            for unit in self.serving(name, STABLE):
                if copies and channel != STABLE:
                    to = next((copy for copy in copies if copy.device == unit.device), copies[0])
                    wanted[unit.worker, name] = to.number, percent
        return wanted

    # -- what others see -----------------------------------------------------------------------------------------------

    def serving(self, name: str, channel: str) -> list[Unit]:
        """Units that answer requests in a channel now."""
        found = [self.units[number] for number in self.current.get((name, channel), ())]
        return [unit for unit in found if unit.state == "ready"]

    def infos(self) -> tuple[EngineInfo, ...]:
        """The stable engines, by name; also those that are being loaded again."""
        found = [self.units[numbers[0]].info for (_, channel), numbers in self.current.items() if channel == STABLE]
        return tuple(sorted((info for info in found if info is not None), key=lambda info: info.name))

    def ailing(self) -> dict[tuple[str, str], str]:
        """Engine and channel -> why no unit of it serves."""
        found = {}
        for place, numbers in self.current.items():
            held = [self.units[number] for number in numbers]
            if all(unit.state != "ready" for unit in held):
                what = "and is given up" if held[0].state == "failed" else "and it is being loaded again"
                found[place] = f"its worker died ({held[0].fault}) {what}"
        return found

    def routes(self) -> dict[str, list[Seat]]:
        """Seats of every engine."""
        found: dict[str, dict[str, list[Unit]]] = {}
        for (name, channel), numbers in sorted(self.current.items()):
            found.setdefault(name, {})[channel] = [self.units[number] for number in numbers]
        coming = [unit for unit in self.units.values() if unit.state == "loaded"]
        return {
            name: seats(units, self.weights.get(name, {}), [unit for unit in coming if unit.charge.name == name])
            for name, units in found.items()
        }
