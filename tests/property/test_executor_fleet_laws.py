"""Laws of the fleet, whatever happens to its workers: routes lead to workers that serve, nothing is left behind."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.fleets import X, Y
from trtops.backend.port import Sidecar
from trtops.device import Device
from trtops.digest import Digest
from trtops.errors import InputError, NotLoadable
from trtops.executor import unit
from trtops.executor.fleet import Fleet
from trtops.executor.port import EngineInfo, Tolerance
from trtops.executor.seats import identity
from trtops.executor.unit import STABLE, Charge, Pace
from trtops.spec.engine import Batching, Memory, Target
from trtops.transport.routes import MAX_SEATS, assign

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("a", "b", "c")
CHANNELS = (STABLE, "canary")
POOL = 10 << 20
DIGEST = Digest.of_bytes(b"engine")
SIDECAR = Sidecar(
    backend="fake",
    backend_version="1",
    target=Target(backend="fake"),
    device=Device(kind="gpu", name="Fake", compute_capability="0.0"),
    plan=DIGEST,
    model=DIGEST,
    artifact=DIGEST,
    size_bytes=1,
    inputs=(X,),
    outputs=(Y,),
    profiles=(),
    format="f",
)


def charge(name: str, generation: int, channel: str = STABLE, pool: int = POOL) -> Charge:
    memory = Memory.model_validate({"device_pool": f"{pool}B", "pinned_pool": "0B"})
    tolerance = Tolerance(1e-5, 1e-5)
    path = Path("engine")
    parts = (path, SIDECAR, Batching(), (), memory, None, tolerance)
    return Charge(name, channel, generation, "1.0.0", "digest", "fake", 1, *parts)


def info(of: Charge) -> EngineInfo:
    return EngineInfo(of.name, of.generation, of.version, of.digest, of.backend, (X,), (Y,), 8)


class Machine(RuleBasedStateMachine):
    """Plays supervisor and workers: carries out what the fleet says, in any order that the world may take."""

    @initialize(devices=st.integers(1, 2), settle=st.sampled_from([None, 5.0]))
    def begin(self, devices: int, settle: float | None) -> None:
        self.pace = Pace(settle=settle, silence=50.0, run=50.0)
        self.fleet = Fleet(devices=devices, pace=self.pace, device_memory=12 * POOL)
        self.now = 0.0
        self.generation = 0
        self.processes: set[int] = set()  # that run
        self.ending: set[int] = set()  # told to stop, or killed
        self.loads: dict[int, set[int]] = {}  # worker -> units that it was told to load
        self.unloads: list[tuple[int, str, int]] = []
        self.open: set[int] = set()  # loads that somebody waits for

    def do(self, actions: Sequence[unit.Action]) -> None:
        for action in actions:
            if isinstance(action, unit.Spawn):
                assert action.worker not in self.processes
                self.processes.add(action.worker)
            elif isinstance(action, unit.Load):
                assert self.fleet.workers[action.worker].up
                self.loads.setdefault(action.worker, set()).add(action.unit)
            elif isinstance(action, unit.Unload):
                held = [self.fleet.units[n].charge for n in self.fleet.workers[action.worker].units]
                (generation,) = [one.generation for one in held if one.name == action.name]
                self.unloads.append((action.worker, action.name, generation))
            elif isinstance(action, (unit.Stop, unit.Kill)):
                assert action.worker in self.processes
                self.ending.add(action.worker)
            elif isinstance(action, unit.Finished):
                self.open.remove(action.load)
            elif isinstance(action, unit.Mirror) and action.percent:
                assert action.worker in self.processes
                assert self.fleet.units[action.to].worker in self.processes

    @rule(name=st.sampled_from(NAMES), channel=st.sampled_from(CHANNELS), pool=st.sampled_from([POOL, 2 * POOL]))
    def load(self, name: str, channel: str, pool: int) -> None:
        self.generation += 1
        before = dict(self.fleet.current)
        with contextlib.suppress(NotLoadable):  # no memory for both
            load, actions = self.fleet.load(charge(name, self.generation, channel, pool), self.now)
            self.open.add(load)
            self.do(actions)
        assert self.fleet.current == before  # what serves goes on until the new one does

    @rule(name=st.sampled_from(NAMES), channel=st.sampled_from(CHANNELS))
    def load_to_the_end(self, name: str, channel: str) -> None:
        """What happens most of the time: nothing goes wrong."""
        self.load(name, channel, POOL)
        self.work()
        self.time_passes(0.1)

    def work(self) -> None:
        """Workers do what they were told."""
        for worker in sorted(n for n, one in self.fleet.workers.items() if not one.up and n not in self.ending):
            self.do(self.fleet.up(worker, self.now))
        for worker, number in sorted((w, u) for w, units in self.loads.items() for u in units):
            self.loads[worker].remove(number)
            if (one := self.fleet.units.get(number)) is not None:
                pool = one.charge.memory.device_pool if one.charge.memory else 0
                self.do(self.fleet.loaded(number, info(one.charge), (0, pool or 0), self.now))
        for gone in list(self.unloads):
            self.unloads.remove(gone)
            self.do(self.fleet.freed(*gone))

    @rule(name=st.sampled_from(NAMES), channel=st.sampled_from([None, *CHANNELS]))
    def unload(self, name: str, channel: str | None) -> None:
        try:
            self.do(self.fleet.unload(name, channel, self.now))
        except InputError:
            assert not [key for key in self.fleet.current if key[0] == name and channel in {None, key[1]}]

    @rule(name=st.sampled_from(NAMES), weight=st.integers(0, 100), shadow=st.sampled_from([0, 10]))
    def share(self, name: str, weight: int, shadow: int) -> None:
        self.do(self.fleet.share(name, {STABLE: 100 - weight, "canary": weight}, {"canary": shadow}))

    @rule(name=st.sampled_from(NAMES))
    def promote(self, name: str) -> None:
        serving = self.fleet.serving(name, "canary")
        whole = len(serving) == len(self.fleet.current.get((name, "canary"), ())) > 0
        try:
            self.do(self.fleet.promote(name, "canary", self.now))
        except InputError:
            assert not whole
        else:
            assert whole
            assert self.fleet.serving(name, STABLE) == serving

    @rule(data=st.data())
    def worker_is_up(self, data: st.DataObject) -> None:
        waiting = sorted(n for n, worker in self.fleet.workers.items() if not worker.up and n not in self.ending)
        if waiting:
            self.do(self.fleet.up(data.draw(st.sampled_from(waiting)), self.now))

    @rule(data=st.data(), well=st.sampled_from([True, True, True, False]))
    def load_ends(self, data: st.DataObject, *, well: bool) -> None:
        open_loads = sorted((w, u) for w, units in self.loads.items() if w in self.processes for u in units)
        if not open_loads:
            return
        worker, number = data.draw(st.sampled_from(open_loads))
        self.loads[worker].remove(number)
        if number not in self.fleet.units:
            self.do(self.fleet.not_loaded(number, NotLoadable("late"), self.now))
            return
        one = self.fleet.units[number]
        if well:
            self.do(self.fleet.loaded(number, info(one.charge), (0, one.charge.memory.device_pool or 0), self.now))  # type: ignore[union-attr]
        else:
            self.do(self.fleet.not_loaded(number, NotLoadable("told to fail"), self.now))

    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        if self.processes:
            self.bury(data.draw(st.sampled_from(sorted(self.processes))))

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def worker_ends(self, data: st.DataObject) -> None:
        self.bury(data.draw(st.sampled_from(sorted(self.ending))))

    def bury(self, worker: int) -> None:
        self.processes.discard(worker)
        self.ending.discard(worker)
        self.loads.pop(worker, None)
        self.unloads = [one for one in self.unloads if one[0] != worker]
        self.do(self.fleet.died(worker, "it was killed", self.now))

    @rule(data=st.data())
    def engine_is_freed(self, data: st.DataObject) -> None:
        if self.unloads:
            one = data.draw(st.sampled_from(self.unloads))
            self.unloads.remove(one)
            self.do(self.fleet.freed(*one))

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for worker in self.processes:
            self.fleet.beat(worker, 0.0, "", self.now)
        self.do(self.fleet.tick(self.now))

    # -- laws --------------------------------------------------------------------------------------------------------

    @invariant()
    def routes_lead_to_workers_that_serve(self) -> None:
        for name, seats in self.fleet.routes().items():
            assert len(seats) <= MAX_SEATS
            route = assign(None, seats)
            for seat in route.seats:
                if seat.worker and seat.weight:
                    held = [self.fleet.units[n] for n in self.fleet.workers[seat.worker].units]
                    assert any(
                        (u.charge.name, u.charge.channel, u.state) == (name, seat.channel, "ready") for u in held
                    )

    @invariant()
    def a_process_is_known_until_it_ends_and_holds_something_or_is_ending(self) -> None:
        assert set(self.fleet.workers) == self.processes
        for worker in self.fleet.workers.values():
            assert worker.units or worker.number in self.ending

    @invariant()
    def units_and_workers_agree(self) -> None:
        for number, one in self.fleet.units.items():
            if one.worker:
                assert number in self.fleet.workers[one.worker].units
            else:
                assert one.state in {"waiting", "failed"}
        for worker in self.fleet.workers.values():
            assert worker.units <= self.fleet.units.keys()
            names = [self.fleet.units[n].charge.name for n in worker.units]
            assert len(names) == len(set(names))  # an engine's generations never share a process

    @invariant()
    def a_stable_engine_is_never_given_up(self) -> None:
        for (_, channel), numbers in self.fleet.current.items():
            assert numbers
            assert channel != STABLE or all(self.fleet.units[n].state != "failed" for n in numbers)

    @invariant()
    def memory_is_held_for_what_is_there_and_for_nothing_else(self) -> None:
        for device, budget in enumerate(self.fleet.budgets):
            held = [one for one in self.fleet.units.values() if one.device == device]
            assert budget.used == sum(one.charge.memory.device_pool or 0 for one in held if one.charge.memory)

    @invariant()
    def what_is_waited_for_is_under_way(self) -> None:
        assert {one.load for one in self.fleet.units.values() if one.load is not None} == self.open

    def teardown(self) -> None:
        """Left alone, everything that is wanted serves, every load has ended, and nothing else is there."""
        if not hasattr(self, "fleet"):
            return
        for turn in range(80):
            self.now += 40.0
            for worker in sorted(self.processes):
                self.fleet.beat(worker, 0.0, "", self.now)
            self.do(self.fleet.tick(self.now))
            for worker in sorted(self.ending):
                self.bury(worker)
            self.work()
            wanted = {number for numbers in self.fleet.current.values() for number in numbers}
            if turn > 30 and set(self.fleet.units) == wanted:  # deaths are forgotten, and no move is under way
                break
        assert not self.open
        assert set(self.fleet.units) == wanted
        assert all(one.state in {"ready", "failed"} for one in self.fleet.units.values())
        assert all(worker.units for worker in self.fleet.workers.values())
        if self.pace.settle is not None:
            lately = [one for one in self.fleet.units.values() if one.apart or one.charge.channel != STABLE]
            homes = {one.worker for one in self.fleet.units.values() if one not in lately}
            assert len(homes) <= self.fleet.devices * (1 + len(lately))


TestFleet = Machine.TestCase
TestFleet.settings = settings(max_examples=120, stateful_step_count=40)


@given(st.text(min_size=1, max_size=63), st.integers(0, MAX_SEATS - 1))
def test_a_place_has_the_same_identity_for_ever_and_none_that_is_only_announced(channel: str, device: int) -> None:
    found = identity(channel, device)
    assert found == identity(channel, device)
    assert 0 <= found < 1 << 31
    assert identity(STABLE, 0) == 0


def loaded(fleet: Fleet, name: str, generation: int, channel: str = STABLE, now: float = 0.0) -> int:
    """Load a generation to the end. Returns its worker."""
    _, actions = fleet.load(charge(name, generation, channel), now)
    (spawn,) = [action for action in actions if isinstance(action, unit.Spawn)]
    (load,) = fleet.up(spawn.worker, now)
    assert isinstance(load, unit.Load)
    fleet.loaded(load.unit, info(charge(name, generation, channel)), (0, POOL), now)
    fleet.tick(now + fleet.pace.lead)
    return spawn.worker


@pytest.mark.parametrize(("deaths", "pause"), [(1, 0.0), (2, 0.5), (4, 2.0), (9, 30.0)])
def test_who_dies_again_and_again_waits_longer(deaths: int, pause: float) -> None:
    fleet = Fleet()
    loaded(fleet, "a", 1)
    now = 1.0
    for _ in range(deaths):
        (one,) = fleet.units.values()
        if one.state == "waiting":
            now = one.at
            fleet.tick(now)
        fleet.died(one.worker, "it was killed", now)
    assert one.state == "waiting"
    assert one.at - now == pause
    assert fleet.next_time() == one.at
    assert fleet.ailing() == {("a", STABLE): "its worker died (it was killed) and it is being loaded again"}


def test_signs_of_a_hang() -> None:
    fleet = Fleet(pace=Pace(silence=5.0, run=10.0, start=30.0, load=100.0))
    worker = loaded(fleet, "a", 1)

    looked = 0.0

    def kills(now: float) -> list[str]:
        nonlocal looked
        while looked < now - 0.5:  # as a supervisor looks, which forgives silence while it does not
            looked += 0.5
            fleet.tick(looked)
        return [action.why for action in fleet.tick(now) if isinstance(action, unit.Kill)]

    fleet.beat(worker, 0.0, "", 10.0)
    assert kills(14.9) == []
    assert kills(15.1) == ["it hangs: no sign of life for 5.1 s"]
    fleet.beat(worker, 10.5, "a", 15.1)
    assert kills(15.2) == ["it hangs: a batch of engine a has been running for 10.5 s"]
    fleet.beat(worker, 0.0, "", 15.3)
    fleet.load(charge("b", 1), 16.0)
    fleet.beat(worker, 0.0, "", 46.0)
    assert kills(46.1) == ["it did not start within 30 s"]


def test_time_in_which_the_supervisor_stood_still_is_no_silence_of_workers() -> None:
    fleet = Fleet(pace=Pace(silence=5.0))
    worker = loaded(fleet, "a", 1)
    fleet.tick(10.0)
    fleet.beat(worker, 0.0, "", 10.0)
    for now in (10.5, 60.0, 61.0, 62.0, 63.0, 64.0):  # stopped from 10.5 to 60 s, with half a second of silence before
        assert not any(isinstance(action, unit.Kill) for action in fleet.tick(now))
    (kill,) = [action for action in fleet.tick(65.0) if isinstance(action, unit.Kill)]
    assert kill == unit.Kill(worker, "it hangs: no sign of life for 5.5 s")


def test_a_loading_worker_may_be_silent_for_as_long_as_a_load_may_take() -> None:
    fleet = Fleet(pace=Pace(silence=5.0, load=100.0))
    _, (spawn,) = fleet.load(charge("a", 1), 0.0)
    assert isinstance(spawn, unit.Spawn)
    fleet.up(spawn.worker, 0.0)
    assert fleet.tick(99.0) == []  # a native library holds the interpreter's lock
    (kill,) = fleet.tick(101.0)
    assert kill == unit.Kill(spawn.worker, "it did not load within 100 s")


def test_a_device_has_the_memory_of_the_engines_device() -> None:
    fleet = Fleet()
    of = charge("a", 1)
    device = SIDECAR.device.model_copy(update={"memory_bytes": POOL + 1})
    changes: dict[str, Any] = {"sidecar": SIDECAR.model_copy(update={"device": device})}
    fleet.load(replace(of, **changes), 0.0)
    with pytest.raises(NotLoadable, match="memory of device 0"):
        fleet.load(replace(of, **changes), 0.0)
