"""A supervisor's channels: candidates and shadows beside the stable engine, in processes of their own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.fleets import ONES, STRICT, Callers, generation_by_key, load, pid, share, unit
from tests.support.waiting import until
from trtops.errors import InputError
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.service


def test_a_candidate_gets_its_share_by_key_and_moves_up_in_one_write(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1)
    load(supervisor, tmp_path, 2, channel="canary")
    with Callers(remote, keys=100) as callers:
        callers.more()
        assert callers.answers.keys() == {1}  # loaded, and it answers nobody yet
        supervisor.share("e", {"stable": 80, "canary": 20})
        until(lambda: unit(supervisor, channel="canary").state == "ready")
        callers.more(5, generation=2)
        callers.forget()
        callers.more(1000)
        assert 0.1 < share(callers.answers, 2) < 0.3
        assert all(len(seen) == 1 for seen in callers.by_key.values())  # sticky
        canary = {key for key, seen in callers.by_key.items() if seen == {2}}
        supervisor.share("e", {"stable": 40, "canary": 60})
        callers.more(20, generation=2)
        callers.forget()
        callers.more(1000)
        assert 0.45 < share(callers.answers, 2) < 0.75
        assert all(callers.by_key[key] == {2} for key in canary & callers.by_key.keys())
        was = pid(supervisor, channel="canary")
        supervisor.promote("e", "canary")
        until(lambda: [one.state for one in supervisor.units()] == ["ready"])
        callers.forget()
        callers.more(100)
        assert callers.answers.keys() == {2}
        assert pid(supervisor) == was  # it stayed where it was: nothing was loaded
    assert callers.errors == []
    with pytest.raises(InputError, match="does not serve in channel canary"):
        supervisor.promote("e", "canary")


def test_a_candidate_that_dies_leaves_its_share_to_the_stable_engine_and_is_given_up(
    tmp_path: Path,
) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=Pace(linger=0.1, deaths=2, settle=None))
    remote = RemoteEngines(supervisor.path)
    try:
        load(supervisor, tmp_path, 1)
        load(supervisor, tmp_path, 2, channel="canary", fault_run=40, fault="segfault")
        supervisor.share("e", {"stable": 50, "canary": 50})
        with Callers(remote) as callers:
            until(lambda: unit(supervisor, channel="canary").state == "failed")
            callers.settle()  # what the last worker took with it is told a moment after
            callers.forget()
            callers.more(200)
            assert callers.errors == []
            assert callers.answers.keys() == {1}
        failed = unit(supervisor, channel="canary")
        assert (failed.restarts, failed.worker) == (2, 0)
        assert "SIGSEGV" in str(failed.fault)
        assert unit(supervisor).restarts == 0
        supervisor.unload("e", "canary")
        assert [one.channel for one in supervisor.units()] == ["stable"]
    finally:
        remote.close()
        supervisor.close(drain=0)


def test_a_stable_engine_that_dies_leaves_nothing_to_a_candidate_but_its_share(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1, load_seconds=0.5)
    load(supervisor, tmp_path, 2, channel="canary")
    supervisor.share("e", {"stable": 90, "canary": 10})
    keys = [f"key-{number}" for number in range(200)]
    canary = {key for key in keys if remote.infer("e", ONES, 2, key=key).generation == 2}
    os.kill(pid(supervisor), signal.SIGKILL)
    until(lambda: unit(supervisor).state != "ready")
    until(lambda: generation_by_key(remote, next(iter(canary))) == 2)
    lost = [key for key in keys if key not in canary][:20]
    assert {generation_by_key(remote, key) for key in lost} <= {0, 1}
    until(lambda: unit(supervisor).state == "ready")
    until(lambda: {generation_by_key(remote, key) for key in lost} == {1})


def test_a_shadow_gets_copies_and_differences_are_counted(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path
) -> None:
    load(supervisor, tmp_path, 1)
    load(supervisor, tmp_path, 2, channel="same", shadowing=STRICT)
    supervisor.share("e", {"stable": 100}, {"same": 100})
    with Callers(remote) as callers:
        until(lambda: _compared(supervisor, "same") >= 50)
        counts = unit(supervisor, channel="same").shadow
        assert counts is not None
        assert (counts.differing, counts.failed) == (0, 0)
        supervisor.unload("e", "same")
        load(supervisor, tmp_path, 3, channel="other", shadowing=STRICT, wrong_by=0.5)
        supervisor.share("e", {"stable": 100}, {"other": 50})
        until(lambda: _compared(supervisor, "other") >= 50)
        counts = unit(supervisor, channel="other").shadow
        assert counts is not None
        assert counts.compared <= counts.differing <= counts.compared + 1  # counted one after the other
        assert counts.worst > 1000
        os.kill(pid(supervisor, channel="other"), signal.SIGKILL)  # nobody notices
        until(lambda: unit(supervisor, channel="other").restarts == 1)
        until(lambda: unit(supervisor, channel="other").state == "ready")
        was = _compared(supervisor, "other")
        until(lambda: _compared(supervisor, "other") > was)
        callers.more()
    assert callers.errors == []
    assert callers.answers.keys() == {1}


def _compared(supervisor: Supervisor, channel: str) -> int:
    counts = unit(supervisor, channel=channel).shadow
    return counts.compared if counts is not None else 0


def test_without_descriptors_for_a_shadow_the_engines_serve_on(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(supervisor, tmp_path, 1)
    load(supervisor, tmp_path, 2, channel="beside", shadowing=STRICT)

    def none(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("trtops.executor.supervisor.socket.socketpair", none)
        supervisor.share("e", {"stable": 100}, {"beside": 100})
    assert remote.infer("e", ONES, 2).generation == 1
    assert unit(supervisor, channel="beside").state == "ready"


def test_engines_that_proved_themselves_share_a_process_and_are_parted_when_it_dies(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "s.sock", pace=Pace(linger=0.1, settle=0.2))
    remote = RemoteEngines(supervisor.path)
    try:
        for name in "abc":
            load(supervisor, tmp_path, 1, name=name)
        with Callers(remote, name="a") as one, Callers(remote, name="c") as other:
            until(lambda: [worker.engines for worker in supervisor.workers()] == [("a@1", "b@1", "c@1")])
            one.more()
            other.more()
        assert one.errors == other.errors == []
        os.kill(pid(supervisor, "a"), signal.SIGKILL)
        until(lambda: all(info.state == "ready" and info.restarts == 1 for info in supervisor.units()))
        assert len({info.worker for info in supervisor.units()}) == 3
    finally:
        remote.close()
        supervisor.close(drain=0)
