"""The executor on the GPU of this machine: streams, graphs, page-locked slots, and a device that is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.builds import engine_spec, linear, save
from tests.support.executors import Box, batching
from tests.support.sessions import assert_close
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.pinned import PAGE_LOCKED
from trtops.backend.tensorrt import TensorRtBackend
from trtops.build.plan import plan
from trtops.build.runner import build
from trtops.digest import Digest
from trtops.errors import NotLoadable
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.executor.port import Request
from trtops.spec.engine import Execution, Memory, Target
from trtops.store import Store
from trtops.transport.client import Client
from trtops.transport.server import Server

if TYPE_CHECKING:
    from trtops.backend.port import Session, Sidecar

pytestmark = [pytest.mark.gpu, pytest.mark.service]

BACKEND = TensorRtBackend()
MOST = 4096
RANGES = {"x": {"min": [1, 4], "opt": [64, 4], "max": [MOST, 4]}}


class Built:
    """An engine that was built once for all tests of this file."""

    def __init__(self, folder: Path) -> None:
        self.model = save(linear(), folder / "model.onnx")
        spec = engine_spec("tensorrt", RANGES, builder={"optimization_level": 0}, memory={"workspace": "256MiB"})
        version = str(BACKEND.status(spec.targets[0]).version)
        self.folder = folder / "store"
        self.store = Store(self.folder)
        digest, target = Digest.of_file(self.model), spec.targets[0]
        wanted = plan(spec, target, model=digest, backend_version=version, device=BACKEND.device())
        self.sidecar: Sidecar = build(wanted, model=self.model, store=self.store).sidecar

    def open(self) -> Session:
        return BACKEND.load(self.store.path(self.sidecar.artifact), self.sidecar)

    def load(self, executor: Executor, **options: Any) -> None:
        executor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest=str(self.sidecar.artifact),
            backend="tensorrt",
            instances=1,
            open_session=self.open,
            profiles=self.sidecar.profiles,
            batching=options.pop("batching", batching(max_batch=64)),
            **options,
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    status = BACKEND.status(Target(backend="tensorrt"))
    if not status.can_load:
        pytest.skip(str(status.reason))
    return Built(tmp_path_factory.mktemp("engine"))


@pytest.mark.parametrize("kind", ["pinned", "mapped", "managed"])
@pytest.mark.parametrize("graphs", [False, True])
def test_batches_are_put_together_right_on_every_path(built: Built, kind: Any, graphs: bool) -> None:
    reference = OnnxRuntimeBackend(threads=1).reference(built.model)
    session: Any = built.open()
    lanes = session.arrange(Execution(streams=2, cuda_graphs=graphs), Memory(input=kind), (1, 4, 16, 2048))
    assert len(lanes) == 2
    assert ("4 graphs" in repr(lanes[1])) == graphs
    random = np.random.default_rng(0)
    locked = np.zeros(MOST * 16, np.uint8)
    PAGE_LOCKED.adopt(locked)
    end = time.monotonic() + 20
    while not PAGE_LOCKED.covers(locked.ctypes.data, locked.nbytes):
        assert time.monotonic() < end, "the slots were not page-locked"
        time.sleep(0.01)
    slot = locked.view(np.float32).reshape(MOST, 4)
    for sizes in ((1,), (1, 2), (3, 3, 3), (1024, 5), (1,), (16,)):
        parts = []
        for number, lane in enumerate(lanes):
            rows = [random.normal(size=(size, 4)).astype(np.float32) for size in sizes]
            if sizes[0] == 1024:  # large enough to be fetched by the device
                view = slot[number * 1024 : (number + 1) * 1024]
                view[:] = rows[0]
                rows[0] = view
            parts.append(rows)
            lane.enqueue([{"x": array} for array in rows], sum(sizes))
        for lane, rows in zip(lanes, parts, strict=True):
            whole = np.concatenate(rows)
            assert_close(lane.collect()["y"], reference.run({"x": whole})["y"], atol=1e-5)
    for lane in lanes:
        lane.close()


def test_clients_in_other_processes_are_answered_right(built: Built, tmp_path: Path) -> None:
    executor = Executor()
    built.load(executor, execution=Execution(streams=2, cuda_graphs=True))
    reference = OnnxRuntimeBackend(threads=1).reference(built.model)
    server = Server(tmp_path / "s", Attachment(executor))
    try:
        with Client(tmp_path / "s", slots=8, input_bytes=1 << 16, output_bytes=1 << 16) as client:
            random = np.random.default_rng(1)
            inputs = [random.normal(size=(1 + index % 50, 4)).astype(np.float32) for index in range(200)]
            for begin in range(0, len(inputs), 8):
                group = inputs[begin : begin + 8]
                calls = [client.submit("e", {"x": x}, x.shape[0]) for x in group]
                for x, call in zip(group, calls, strict=True):
                    reply = client.wait(call)
                    assert reply.error is None
                    assert_close(reply.outputs["y"], reference.run({"x": x})["y"], atol=1e-5)
    finally:
        server.close()
        executor.close(drain=5)
    assert "0 requests" in repr(executor)


def test_pools_that_are_too_small_are_refused_by_name(built: Built) -> None:
    executor = Executor()
    try:
        with pytest.raises(NotLoadable, match=r"memory\.device_pool is 1 KiB"):
            built.load(executor, memory=Memory.model_validate({"device_pool": "1KiB"}))
        built.load(executor, memory=Memory.model_validate({"device_pool": "64MiB", "pinned_pool": "16MiB"}))
    finally:
        executor.close(drain=1)


VICTIM = """
import sys, threading
from pathlib import Path
import numpy as np
from cuda.bindings import driver, runtime
from tests.support.executors import Box
from tests.gpu.test_gpu_executor import BACKEND, Built, Executor, Request
from trtops.backend.port import Sidecar
from trtops.store import Store

built = Built.__new__(Built)
built.store, built.sidecar = Store(Path(sys.argv[1])), Sidecar.model_validate_json(Path(sys.argv[2]).read_bytes())
lost = threading.Event()
executor, box = Executor(lost=lambda why: (print("lost:", why, flush=True), lost.set())), Box()
built.load(executor)
ptx = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry bad() { trap; ret; }\\n\\0"
_, module = driver.cuModuleLoadData(ptx)
_, function = driver.cuModuleGetFunction(module, b"bad")
driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
executor.submit("e", Request({"x": np.ones((1, 4), np.float32)}, 1), box.of(0))
print(type(box.error(0)).__name__, box.error(0), flush=True)
print("told" if lost.wait(10) else "not told", flush=True)
import os
os._exit(0)
"""


def test_a_lost_device_ends_the_process_s_engines_and_says_so(built: Built, tmp_path: Path) -> None:
    (tmp_path / "sidecar.json").write_bytes(built.sidecar.canonical_bytes())
    arguments = [sys.executable, "-c", VICTIM, str(built.folder), str(tmp_path / "sidecar.json")]
    root = Path(__file__).parents[2]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100, cwd=root)
    assert "Retryable" in done.stdout, done.stdout + done.stderr
    assert "lost to this process" in done.stdout
    assert "told" in done.stdout.split("\n")[-2]


def test_requests_of_one_process_are_answered(built: Built) -> None:
    executor, box = Executor(), Box()
    built.load(executor, execution=Execution(streams=2, cuda_graphs=True))
    reference = OnnxRuntimeBackend(threads=1).reference(built.model)
    try:
        requests = [np.full((2, 4), index, np.float32) for index in range(100)]
        for index, x in enumerate(requests):
            executor.submit("e", Request({"x": x}, 2), box.of(index))
        box.wait(100)
        for index, x in enumerate(requests):
            outcome = box.outcomes[index]
            assert outcome.error is None
            assert_close(outcome.outputs["y"], reference.run({"x": x})["y"], rtol=1e-5, atol=1e-5)
    finally:
        executor.close(drain=5)
