"""A supervisor with real worker processes: loads, swaps, and everything that can happen to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fleets import ONES, QUICK, Callers, generation_by_key, load, opening, pid, unit
from tests.support.waiting import LONG, gone, until
from trtops.errors import DeadlineExceeded, InputError, NotLoadable, Retryable, Unavailable
from trtops.executor.port import Outcome, Request
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace
from trtops.serve.fleet_metrics import fleet_metrics
from trtops.spec.engine import Batching, Memory
from trtops.transport.client import Client
from trtops.transport.limits import Limits

pytestmark = pytest.mark.service


def test_an_engine_serves_from_a_process_of_its_own(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1)
    until(lambda: [info.name for info in remote.engines()] == ["e"])
    assert remote.engines() is remote.engines()
    outcome = remote.infer("e", ONES, 2)
    assert (outcome.outputs["y"].tolist(), outcome.generation) == ([[4.0], [4.0]], 1)
    (worker,) = supervisor.workers()
    assert (worker.state, worker.engines) == ("serving", ("e@1",))
    assert worker.pid not in {0, os.getpid()}
    shown = f"Supervisor(Fleet(e@1[stable, ready, worker {worker.number}]; 1 workers); 0 slots in use; "
    assert repr(supervisor).startswith(shown)
    with pytest.raises(InputError, match="no engine 'f' is loaded \\(loaded engines: e\\)"):
        remote.infer("f", ONES, 2)
    with pytest.raises(InputError, match="'x'"):
        remote.infer("e", {"x": np.ones((1, 5), np.float32)}, 1)
    until(lambda: supervisor.workers()[0].granted == 64)  # at its next sign of life
    (worker,) = supervisor.workers()
    sizes = {
        (sample.name, sample.labels.get("pool")): sample.value
        for metric in fleet_metrics(supervisor)
        for sample in metric.samples
    }
    assert sizes["trtops_worker_slots", None] == 64
    assert sizes["trtops_worker_shared_memory_bytes", None] == worker.shared > 64 * (1 << 20)
    assert sizes["trtops_worker_pool_bytes", "host"] == worker.pools[0] > 0
    assert sizes["trtops_worker_pool_bytes", "device"] == 0
    with Client(supervisor.path, slots=1) as client:  # who knows of no routes gets the worker of the stable engines
        assert client.infer("e", ONES, 2).generation == 1
    supervisor.unload("e")
    until(lambda: supervisor.workers() == () and gone(worker.pid))
    assert remote.engines() == ()
    with pytest.raises(InputError, match="no engine 'e' is loaded"):
        supervisor.unload("e")


def test_a_swap_fails_no_request_and_ends_the_old_process(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1)
    old = pid(supervisor)
    with Callers(remote) as callers:
        for generation in (2, 3):
            callers.more()
            load(supervisor, tmp_path, generation, load_seconds=0.3)
            callers.more(generation=generation)
        until(lambda: len(supervisor.workers()) == 1)
    assert callers.errors == []
    assert callers.answers.keys() == {1, 2, 3}
    assert gone(old)
    assert next(iter(remote.engines())).generation == 3


def test_another_batching_reaches_a_worker_with_no_load(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1)
    before = pid(supervisor)
    answered = threading.Event()
    changed = Batching.model_validate({"max_batch": 8, "max_queue_delay": "60s", "queue": {"timeout": "1h"}})
    assert supervisor.adjust("e", generation=2, batching=changed)
    until(lambda: [info.generation for info in remote.engines()] == [2])
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        answered.set()

    remote.submit("e", Request(ONES, 2), done)
    until(lambda: any(engine.queued for engine in supervisor.units()))
    assert not supervisor.adjust("e", generation=3, batching=changed.model_copy(update={"max_batch": 4}))
    assert supervisor.adjust("e", generation=4, batching=changed.model_copy(update={"max_queue_delay": 0}))
    assert answered.wait(60)
    assert [(outcome.error, outcome.generation) for outcome in outcomes] == [(None, 4)]
    assert pid(supervisor) == before
    (held,) = supervisor.units()
    assert (held.generation, held.restarts) == (4, 0)
    load(supervisor, tmp_path, 5)  # what was adjusted is drained and freed like any other
    until(lambda: len(supervisor.workers()) == 1)
    assert not supervisor.adjust("f", generation=6, batching=changed)


@pytest.mark.parametrize(
    ("plays", "why"),
    [
        ({"load": True}, "told to fail"),
        ({"load_fault": "segfault"}, "its worker died while it was loaded: it was killed by SIGSEGV"),
        ({"load_fault": "memory"}, "it was killed by SIGKILL"),
        ({"load_fault": "exit"}, "it ended with exit code 3"),
        ({"fail_run": 1}, "told to fail at execution 1"),
        ({"fault_run": 2, "fault": "segfault"}, "SIGSEGV"),
    ],
)
def test_a_new_engine_that_is_broken_leaves_the_old_one_serving(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path, plays: dict[str, Any], why: str
) -> None:
    load(supervisor, tmp_path, 1)
    with Callers(remote) as callers:
        callers.more()
        with pytest.raises(NotLoadable) as caught:
            load(supervisor, tmp_path, 2, **plays)
        callers.more()
    assert why in str(caught.value)
    assert callers.errors == []
    assert callers.answers.keys() == {1}
    until(lambda: len(supervisor.workers()) == 1)


def test_a_load_that_never_ends_is_ended(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=Pace(load=1.0))
    try:
        with pytest.raises(NotLoadable, match="it did not load within 1 s"):
            load(supervisor, tmp_path, 1, load_seconds=100)
    finally:
        supervisor.close(drain=0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_worker_costs_its_own_requests_only_and_for_a_moment(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path, number: int
) -> None:
    load(supervisor, tmp_path, 1)
    load(supervisor, tmp_path, 1, name="other")
    with Callers(remote) as callers, Callers(remote, name="other") as others:
        callers.more()
        others.more()
        before = pid(supervisor)
        os.kill(before, number)
        until(lambda: unit(supervisor).restarts == 1 and unit(supervisor).state == "ready")
        callers.more()
        others.more()
        assert pid(supervisor) not in {before, pid(supervisor, "other")}
    assert others.errors == []
    assert callers.errors
    assert all(isinstance(error, (Retryable, Unavailable)) for error in callers.errors)
    assert signal.Signals(number).name in str(unit(supervisor).fault)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("segfault", "SIGSEGV"),
        ("memory", "SIGKILL"),
        ("exit", "exit code 3"),
        ("illegal-address", "CUDA error 700"),
    ],
)
def test_a_request_in_flight_gets_a_retryable_error_at_once(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path, fault: str, why: str
) -> None:
    load(supervisor, tmp_path, 1, fault_run=10, fault=fault)

    def ask() -> None:
        for _ in range(10):  # warming up ran it some times
            remote.infer("e", ONES, 2)

    with pytest.raises(Retryable):
        ask()
    until(lambda: unit(supervisor).restarts == 1)
    assert why in str(unit(supervisor).fault)
    until(lambda: unit(supervisor).state == "ready")
    assert remote.infer("e", ONES, 2).generation == 1


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=Pace(silence=5.0, run=1.0, settle=None))
    remote = RemoteEngines(supervisor.path)
    try:
        load(supervisor, tmp_path, 1, fault_run=8, fault="hang")  # one batch never ends
        assert 0 in [generation_by_key(remote, "k") for _ in range(10)]
        until(lambda: unit(supervisor).restarts >= 1 and unit(supervisor).state == "ready")
        assert "a batch of engine e has been running for" in str(unit(supervisor).fault)
        os.kill(pid(supervisor), signal.SIGSTOP)  # the whole process stands still
        until(lambda: unit(supervisor).restarts >= 2 and unit(supervisor).state == "ready")
        assert "no sign of life for" in str(unit(supervisor).fault)
    finally:
        remote.close()
        supervisor.close(drain=0)


def test_capacity_for_both_generations_is_checked_before_anything_starts(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=QUICK, host_memory=100 << 20, device_memory=1 << 30)
    try:
        memory = Memory.model_validate({"device_pool": "600MiB", "pinned_pool": "10MiB"})
        load(supervisor, tmp_path, 1, memory=memory)
        with pytest.raises(
            NotLoadable, match=r"engine e, generation 2.*600 MiB of memory of device 0, 424 MiB.*generation 1"
        ):
            load(supervisor, tmp_path, 2, memory=memory)
        with pytest.raises(NotLoadable, match="the host's memory"):
            load(supervisor, tmp_path, 2, memory=Memory.model_validate({"pinned_pool": "95MiB"}))
        assert len(supervisor.workers()) == 1
        load(supervisor, tmp_path, 2, memory=Memory.model_validate({"device_pool": "300MiB", "pinned_pool": "10MiB"}))
        until(lambda: [one.generation for one in supervisor.units()] == [2])
        load(supervisor, tmp_path, 3, memory=memory)  # what the first held is free again
    finally:
        supervisor.close(drain=0)


def test_two_devices_share_an_engine_and_one_goes_on_alone(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=QUICK, devices=("0", "1"))
    remote = RemoteEngines(supervisor.path)
    try:
        load(supervisor, tmp_path, 1, load_seconds=0.5)
        assert sorted(worker.device for worker in supervisor.workers()) == ["0", "1"]
        with Callers(remote) as callers:
            callers.more()
            for worker in supervisor.workers():
                environment = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
                assert f"CUDA_VISIBLE_DEVICES={worker.device}" in environment
            os.kill(supervisor.workers()[0].pid, signal.SIGKILL)
            until(lambda: any(one.state != "ready" for one in supervisor.units()))
            callers.forget()
            callers.more(100)
            assert len([e for e in callers.errors if isinstance(e, Unavailable)]) == 0
            until(lambda: all(one.state == "ready" for one in supervisor.units()))
    finally:
        remote.close()
        supervisor.close(drain=0)


def test_closing_lets_requests_in_flight_finish(supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path) -> None:
    load(supervisor, tmp_path, 1, cost_us=500_000)
    workers = [worker.pid for worker in supervisor.workers()]
    outcomes: list[Outcome] = []
    for _ in range(3):
        remote.submit("e", Request(ONES, 2), outcomes.append)
    until(lambda: outcomes)  # the others have been read, too, and run now
    supervisor.close(drain=20)
    until(lambda: len(outcomes) == 3)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert all(gone(number) for number in workers)
    assert not supervisor.path.exists()
    with pytest.raises(Unavailable):
        remote.infer("e", ONES, 2)
    with pytest.raises(Unavailable):
        supervisor.share("e", {"stable": 100})
    assert supervisor.workers() == ()


def test_a_supervisor_that_was_closed_holds_no_descriptor(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    made = Supervisor(tmp_path / "s.sock", pace=QUICK)
    load(made, tmp_path, 1)
    made.close(drain=1)
    made.close(drain=1)
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert (made.workers(), made.units()) == ((), ())
    with pytest.raises(Unavailable, match="the supervisor is closed"):
        made.share("e", {"stable": 100})


def test_a_client_finds_the_next_supervisor(tmp_path: Path) -> None:
    first = Supervisor(tmp_path / "s.sock", pace=QUICK)
    load(first, tmp_path, 1)
    remote = RemoteEngines(first.path)
    assert remote.infer("e", ONES, 2).generation == 1
    first.close(drain=1)
    second = Supervisor(tmp_path / "s.sock", pace=QUICK)
    try:
        load(second, tmp_path, 2)
        until(lambda: generation_by_key(remote, "k") == 2)
    finally:
        remote.close()
        second.close(drain=0)


def test_users_that_may_not_come_are_refused(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", limits=Limits(users=frozenset({12345})))
    try:
        with pytest.raises(Unavailable, match="may not use this executor"):
            RemoteEngines(supervisor.path)
        with pytest.raises(Unavailable, match="another server listens there"):
            Supervisor(tmp_path / "s.sock")
    finally:
        supervisor.close(drain=0)


def test_only_artifacts_can_be_loaded(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(NotLoadable, match="only an artifact"):
        supervisor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest="d",
            backend="fake",
            batching=Batching(),
            instances=1,
            open_session=opening(tmp_path).__call__,
        )


def test_a_request_larger_than_usual_gets_a_larger_slot(supervisor: Supervisor, tmp_path: Path) -> None:
    load(supervisor, tmp_path, 1)
    remote = RemoteEngines(supervisor.path, slots=4, input_bytes=256, output_bytes=64)
    try:
        assert remote.infer("e", ONES, 2).outputs["y"].shape == (2, 1)
        assert remote.infer("e", {"x": np.ones((8, 4), np.float32)}, 8).outputs["y"].shape == (8, 1)
        assert repr(remote).count("Client(") == 1
        many = np.ones((8, 4), np.float32)
        outcome = RemoteEngines(supervisor.path, slots=4, input_bytes=64, output_bytes=64)
        assert outcome.infer("e", {"x": many}, 8).outputs["y"].tolist() == [[4.0]] * 8
        assert repr(outcome).count("Client(") == 2
        outcome.close()
    finally:
        remote.close()


ALONE = """
import sys, time
from pathlib import Path
from tests.support.fleets import load
from trtops.executor.supervisor import Supervisor
folder = Path(sys.argv[1])
supervisor = Supervisor(folder / "s.sock")
load(supervisor, folder, 1)
print(supervisor.workers()[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_supervisor_that_is_killed_leaves_no_process_behind(tmp_path: Path, *, hangs: bool) -> None:
    command = [sys.executable, "-c", ALONE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            if hangs:
                os.kill(worker, signal.SIGSTOP)
            process.send_signal(signal.SIGKILL)
            process.wait(LONG)
            until(lambda: gone(worker))
        finally:
            process.kill()


def test_who_comes_to_a_worker_that_let_go_is_told_to_come_again(supervisor: Supervisor, tmp_path: Path) -> None:
    load(supervisor, tmp_path, 1)
    load(supervisor, tmp_path, 1, name="other", cost_us=3e6)  # keeps its worker while it drains
    number = unit(supervisor, "other").worker
    with Client(supervisor.path, slots=2, worker=number) as client:
        slow = client.submit("other", ONES, 2)
        supervisor.unload("other")
        until(lambda: "engine other is served by another worker now" in _told(client, "other"))
        with pytest.raises(InputError, match="no engine 'e' is loaded"):
            client.infer("e", ONES, 2)
        assert client.wait(slow).error is None
    until(lambda: number not in {worker.number for worker in supervisor.workers()})
    with pytest.raises(Unavailable, match=f"worker {number} does not serve any more"):
        Client(supervisor.path, slots=1, worker=number)


def _told(client: Client, name: str) -> str:
    """What a request is told that may be sent again; "" while it only takes too long."""
    try:
        client.infer(name, ONES, 2, deadline=time.monotonic() + 0.05)
    except DeadlineExceeded:
        return ""
    except Retryable as error:
        return str(error)
    return "it was served"
