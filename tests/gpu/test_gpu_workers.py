"""Workers of a supervisor on the GPU of this machine: faults of a device and of a library, for real."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper

from tests.support.builds import engine_spec, linear, model_of, save, value
from tests.support.plugins import copy_plugin
from tests.support.sessions import assert_close
from tests.support.waiting import LONG, until
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.tensorrt import TensorRtBackend
from trtops.build.plan import plan
from trtops.build.runner import build
from trtops.digest import Digest
from trtops.errors import NotLoadable, Retryable, TrtopsError, Unavailable
from trtops.executor.port import Opening
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace
from trtops.spec.engine import Batching, Execution, Memory, Target
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtops.backend.port import Sidecar
    from trtops.executor.overview import UnitStatus

pytestmark = [pytest.mark.gpu, pytest.mark.service]

BACKEND = TensorRtBackend()
RANGES = {"x": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}}
LEVEL_0: dict[str, Any] = {"optimization_level": 0}
ONES = np.ones((2, 4), np.float32)
FAULTS = {"illegal address": -9001.0, "segfault": -9002.0, "hang": -9003.0, "exit": -9004.0}
"""What ``copy_plugin.cpp`` takes for a fault."""


@dataclass(frozen=True)
class Engine:
    """An engine in a store."""

    path: Path
    sidecar: Sidecar

    def load(self, supervisor: Supervisor, name: str, generation: int = 1, memory: Memory | None = None) -> None:
        supervisor.load(
            name,
            generation=generation,
            version="1.0.0",
            digest=str(self.sidecar.artifact),
            backend="tensorrt",
            batching=Batching.model_validate({"max_batch": 8, "queue": {"timeout": "60s"}}),
            instances=1,
            open_session=Opening(self.path, self.sidecar, BACKEND.load, None),
            profiles=self.sidecar.profiles,
            execution=Execution(),
            memory=memory,
        )


def _built(model: Path, folder: Path, builder: dict[str, Any]) -> Engine:
    spec = engine_spec("tensorrt", RANGES, builder=builder, memory={"workspace": "256MiB"})
    target, store = spec.targets[0], Store(folder)
    version = str(BACKEND.status(target).version)
    wanted = plan(spec, target, model=Digest.of_file(model), backend_version=version, device=BACKEND.device())
    sidecar = build(wanted, model=model, store=store).sidecar
    return Engine(store.path(sidecar.artifact), sidecar)


@dataclass(frozen=True)
class Engines:
    """``plain`` is linear; ``faulty`` hands its input through a plugin that can be told to do harm."""

    model: Path
    plain: Engine
    faulty: Engine


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    status = BACKEND.status(Target(backend="tensorrt"))
    if not status.can_load:
        pytest.skip(str(status.reason))
    folder = tmp_path_factory.mktemp("engines")
    library = copy_plugin(folder)
    plugin = {"name": "CopyRows_Test", "library": str(library), "sha256": Digest.of_file(library).value}
    nodes = [
        helper.make_node("CopyRows_Test", ["x"], ["copied"], name="copy", domain="test.ops"),
        helper.make_node("Relu", ["copied"], ["y"], name="relu"),
    ]
    model = save(linear(), folder / "linear.onnx")
    harmful = save(model_of(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])]), folder / "faulty.onnx")
    plain = _built(model, folder / "store", LEVEL_0)
    return Engines(model, plain, _built(harmful, folder / "store", {**LEVEL_0, "plugins": [plugin]}))


@pytest.fixture
def supervisor(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setenv("TRTOPS_TEST_FAULTS", "1")
    made = Supervisor(tmp_path / "s.sock", pace=Pace(linger=0.1, settle=None, silence=20.0, run=2.0))
    try:
        engines.plain.load(made, "plain")
        engines.faulty.load(made, "faulty")
        yield made
    finally:
        made.close(drain=0)


@contextmanager
def traffic(remote: RemoteEngines, model: Path) -> Iterator[list[TrtopsError]]:
    """Somebody asks the plain engine all the time; yields the errors that came of it, of which there are to be none."""
    wanted = OnnxRuntimeBackend(threads=1).reference(model).run({"x": ONES})["y"]
    errors: list[TrtopsError] = []
    answered, stop = [0], Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                assert_close(remote.infer("plain", {"x": ONES}, 2).outputs["y"], wanted, atol=1e-5)
            except TrtopsError as error:
                errors.append(error)
            answered[0] += 1

    thread = Thread(target=ask)
    thread.start()
    try:
        until(lambda: answered[0] > 10)
        yield errors
        before = answered[0]
        until(lambda: answered[0] > before + 10)
    finally:
        stop.set()
        thread.join(LONG)


def _unit(supervisor: Supervisor, name: str) -> UnitStatus:
    return next(unit for unit in supervisor.units() if unit.name == name)


def _pid(supervisor: Supervisor, name: str) -> int:
    number = _unit(supervisor, name).worker
    return next(worker.pid for worker in supervisor.workers() if worker.number == number)


def _serves_again(supervisor: Supervisor, remote: RemoteEngines) -> None:
    until(lambda: _unit(supervisor, "faulty").restarts == 1 and _unit(supervisor, "faulty").state == "ready")
    np.testing.assert_array_equal(remote.infer("faulty", {"x": ONES}, 2).outputs["y"], ONES)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("illegal address", "illegal memory access"),
        ("segfault", "SIGSEGV"),
        ("exit", "exit code 3"),
        ("hang", "a batch of engine faulty has been running for"),
    ],
)
def test_a_fault_costs_its_own_worker_only(
    supervisor: Supervisor,
    engines: Engines,
    fault: str,
    why: str,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    remote = RemoteEngines(supervisor.path)
    try:
        with traffic(remote, engines.model) as errors:
            np.testing.assert_array_equal(remote.infer("faulty", {"x": ONES}, 2).outputs["y"], ONES)
            harm = ONES.copy()
            harm[0, 0] = FAULTS[fault]
            begin = time.monotonic()
            with pytest.raises((Retryable, Unavailable)):
                remote.infer("faulty", {"x": harm}, 2)
            told = time.monotonic() - begin
            _serves_again(supervisor, remote)
            again = time.monotonic() - begin
        assert errors == []
        assert why in str(_unit(supervisor, "faulty").fault)
    finally:
        remote.close()
    record_testsuite_property(f"{fault}: told after, s", round(told, 3))  # in the report of --junitxml
    record_testsuite_property(f"{fault}: served again after, s", round(again, 3))


def test_a_killed_worker_costs_its_own_requests_only(supervisor: Supervisor, engines: Engines) -> None:
    remote = RemoteEngines(supervisor.path)
    try:
        with traffic(remote, engines.model) as errors:
            os.kill(_pid(supervisor, "faulty"), signal.SIGKILL)
            _serves_again(supervisor, remote)
        assert errors == []
    finally:
        remote.close()


def test_a_device_without_memory_refuses_a_generation_and_serves_on(supervisor: Supervisor, engines: Engines) -> None:
    from cuda.bindings import runtime

    remote = RemoteEngines(supervisor.path)
    held = []
    try:
        with traffic(remote, engines.model) as errors:
            size = 64 << 30
            while size >= 1 << 20:  # all that there is, to a MiB
                status, address = runtime.cudaMalloc(size)
                if int(status):
                    runtime.cudaGetLastError()
                    size >>= 1
                else:
                    held.append(address)
            with pytest.raises(NotLoadable) as caught:
                engines.plain.load(supervisor, "plain", 2)
        assert "memory" in str(caught.value)
        assert errors == []
    finally:
        for address in held:
            runtime.cudaFree(address)
        remote.close()
    engines.plain.load(supervisor, "plain", 3)
