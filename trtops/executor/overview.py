"""What an operator sees of a supervisor: which worker holds what, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trtops.executor.shadow import added
from trtops.executor.unit import STABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.executor.fleet import Fleet
    from trtops.executor.orders import Beat, Compared
    from trtops.executor.unit import Charge, Unit, Worker

_TOLD: Final = ("name", "channel", "generation", "state", "restarts", "fault", "queued", "running")
_COUNTED: Final = ("mirrored", "dropped", "compared", "differing", "failed")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker, for the operator.

    Attributes:
        number: in the routes. ``pid``: of its process. ``device``: as it was given to the supervisor.
        state: ``starting``, ``serving``, ``loading`` or ``stopping``.
        engines: ``NAME@GENERATION`` of what it holds, with the channel where that is not the stable one.
        seconds: since it was started. ``silent``: since its last sign of life.
        clients, slots: connected clients, and their slots in use. ``granted``: all slots that they have. ``shared``:
            bytes of their segments.
        memory: resident bytes. ``pools``: bytes that the pools of its engines hold, of host and of device memory.
    """

    number: int
    pid: int
    device: str
    state: str
    engines: tuple[str, ...]
    seconds: float
    silent: float
    clients: int
    slots: int
    granted: int
    shared: int
    memory: int
    pools: tuple[int, int]


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """An engine in a channel on a device, for the operator.

    Attributes:
        state: ``ready``, ``starting``, ``loading``, ``waiting`` (for its next try), ``draining`` or ``failed``.
        restarts: how often its worker died. ``fault``: the last death, in words.
        queued, running: requests that wait, batches on the device.
        shadow: counts of the comparison with the stable engine, if it shadows.
    """

    name: str
    channel: str
    generation: int
    device: str
    worker: int
    state: str
    restarts: int
    fault: str | None
    queued: int
    running: int
    shadow: Compared | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What is put together for the operator.

    Attributes:
        fleet: workers and units.
        devices: names, by number.
        pids: worker -> process. ``beats``: worker -> its last sign of life.
        past: counts of workers that have ended.
        now: monotonic seconds.
    """

    fleet: Fleet
    devices: Sequence[str]
    pids: Mapping[int, int]
    beats: Mapping[int, Beat]
    past: Mapping[tuple[str, int], Compared]
    now: float

    @property
    def slots(self) -> int:
        """Slots of clients in use, of all workers."""
        return sum(beat.slots for beat in tuple(self.beats.values()))

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Every worker."""
        return tuple(self._worker(worker) for worker in self.fleet.workers.values())

    def units(self) -> tuple[UnitStatus, ...]:
        """Every engine in every channel and on every device; not those that are loaded for the first time."""
        return tuple(self._unit(one) for one in self.fleet.units.values() if one.load is None)

    def _worker(self, worker: Worker) -> WorkerStatus:
        beat = self.beats.get(worker.number)
        held = [self.fleet.units[number] for number in sorted(worker.units)]
        loading = any(one.state in {"starting", "loading"} for one in held)
        state = "stopping" if worker.stopping else "starting" if not worker.up else "loading" if loading else "serving"
        return WorkerStatus(
            number=worker.number,
            pid=self.pids.get(worker.number, 0),
            device=self.devices[worker.device],
            state=state,
            engines=tuple(map(_short, held)),
            seconds=self.now - worker.started,
            silent=self.now - worker.beat,
            clients=beat.clients if beat else 0,
            slots=beat.slots if beat else 0,
            granted=beat.granted if beat else 0,
            shared=beat.shared if beat else 0,
            memory=beat.memory if beat else 0,
            pools=beat.pools if beat else (0, 0),
        )

    def _unit(self, one: Unit) -> UnitStatus:
        charge, beat = one.charge, self.beats.get(one.worker)
        key = charge.name, charge.generation
        held = next((held for held in beat.engines if (held.name, held.generation) == key), None) if beat else None
        return UnitStatus(
            name=charge.name,
            channel=charge.channel,
            generation=charge.generation,
            device=self.devices[one.device],
            worker=one.worker,
            state=one.state,
            restarts=one.restarts,
            fault=one.fault,
            queued=held.queued if held else 0,
            running=held.running if held else 0,
            shadow=self._compared(charge) if charge.channel != STABLE else None,
        )

    def _compared(self, charge: Charge) -> Compared | None:
        """Counts of a candidate: what stable workers copied to it, and what came of that."""
        key = charge.name, charge.generation
        total = self.past.get(key)
        for beat in self.beats.values():
            for counts in beat.compared:
                if (counts.name, counts.generation) == key:
                    total = added(total, counts)
        return total


def plain(workers: Sequence[WorkerStatus], units: Sequence[UnitStatus]) -> list[dict[str, Any]]:
    """Workers with what each holds, then what no worker holds now, in JSON's types."""
    held: dict[int, list[dict[str, Any]]] = {}
    for unit in units:
        told = {name: getattr(unit, name) for name in _TOLD}
        if unit.shadow is not None:
            told["shadow"] = {name: getattr(unit.shadow, name) for name in _COUNTED}
        held.setdefault(unit.worker, []).append(told)
    found = [
        {
            "worker": worker.number,
            "pid": worker.pid,
            "device": worker.device or None,
            "state": worker.state,
            "seconds": round(worker.seconds, 3),
            "silent_seconds": round(worker.silent, 3),
            "clients": worker.clients,
            "slots_in_use": worker.slots,
            "slots": worker.granted,
            "shared_bytes": worker.shared,
            "memory_bytes": worker.memory,
            "host_pool_bytes": worker.pools[0],
            "device_pool_bytes": worker.pools[1],
            "engines": held.pop(worker.number, []),
        }
        for worker in workers
    ]
    lost = [unit for units in held.values() for unit in units]
    return [*found, {"worker": None, "state": "none", "engines": lost}] if lost else found


def _short(one: Unit) -> str:
    channel = "" if one.charge.channel == STABLE else f" ({one.charge.channel})"
    return f"{one.charge.name}@{one.charge.generation}{channel}"
