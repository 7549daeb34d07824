"""Streams, graphs and kinds of memory of a TensorRT session, on a CUDA runtime in host memory."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from tests.support.cuda import Cudart, Engine, Library
from tests.support.executors import Box, batching
from tests.support.executors import rows as box_rows
from tests.support.releases import sidecar
from trtops.backend.pinned import PageLocked
from trtops.backend.port import Arranges, Gathers
from trtops.backend.trt_session import TensorRtSession
from trtops.errors import DeviceLost, NotLoadable, Retryable
from trtops.executor.executor import Executor
from trtops.spec.engine import Execution, Memory, Profile
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 4
X = TensorInfo(name="x", dtype="float32", shape=("n", WIDTH))
Y = TensorInfo(name="y", dtype="float32", shape=("n", WIDTH))
SPAN = {"min": [1, WIDTH], "opt": [1, WIDTH], "max": [8192, WIDTH]}
PROFILE = Profile.model_validate({"name": "default", "inputs": {"x": SPAN}})


class Bench:
    """A session with its device, and the table of page-locked memory that it looks at."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        failing: dict[str, int] | None = None,
        *,
        spins: bool = False,
    ) -> None:
        self.cudart = Cudart(failing, strict=True)
        self.locked = PageLocked()
        self.engine = Engine(1)
        self.engine.cudart = self.cudart
        monkeypatch.setattr("trtops.backend.cuda_device.runtime", lambda: self.cudart)
        monkeypatch.setattr("trtops.backend.trt_session.PAGE_LOCKED", self.locked)
        monkeypatch.setattr(Library, "engine", self.engine)
        monkeypatch.setattr("trtops.backend.trt_stream.CORES_TO_SPIN", 0 if spins else 1 << 20)
        (folder / "engine").write_bytes(b"engine")
        self.folder = folder
        self.session = self.open()

    def open(self) -> TensorRtSession:
        about = sidecar(inputs=(X,), outputs=(Y,), profiles=(PROFILE,))
        return TensorRtSession(Library(), self.folder / "engine", about)

    def arrange(self, sizes: tuple[int, ...] = (), **options: Any) -> tuple[TensorRtSession, ...]:
        memory = options.pop("memory", Memory())
        return self.session.arrange(Execution(**options), memory, sizes)

    def gone(self) -> bool:
        device = self.cudart
        return (device.blocks, device.streams, device.events, device.graphs) == ({}, 0, 0, 0)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


def rows(*values: float, each: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.repeat(np.array(values, np.float32), each)[:, None].repeat(WIDTH, 1)}


def run(session: TensorRtSession, *parts: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    session.enqueue(list(parts), sum(part["x"].shape[0] for part in parts))
    return session.collect()["y"]


def test_a_batch_is_put_together_on_the_device(bench: Bench) -> None:
    assert isinstance(bench.session, Gathers)
    first = run(bench.session, rows(1, 2), rows(3), rows(4, 5))
    assert first[:, 0].tolist() == [2, 4, 6, 8, 10]
    assert run(bench.session, rows(7))[:, 0].tolist() == [14]
    assert first[:, 0].tolist() == [2, 4, 6, 8, 10]  # the caller's own
    strided = {"x": np.ones((2, 2 * WIDTH), np.float32)[:, ::2]}
    assert run(bench.session, strided, rows(2))[:, 0].tolist() == [2, 2, 4]
    bench.session.close()
    assert bench.gone()


def test_page_locked_tensors_are_copied_from_where_they_are(bench: Bench) -> None:
    big = 1024  # rows of 16 bytes: from 16 KiB on, the device fetches them itself
    memory = np.zeros(3 * big * WIDTH * 4, np.uint8)
    bench.locked.adopt(memory)
    slots = memory.view(np.float32).reshape(3, big, WIDTH)
    slots[0], slots[1], slots[2] = 1, 2, 3
    end = time.monotonic() + 30
    while not bench.cudart.registered:  # registered beside
        assert time.monotonic() < end
        time.sleep(0.001)
    answer = run(bench.session, {"x": slots[0]}, rows(9), {"x": slots[2]}, {"x": slots[1][:2]}, rows(8))
    assert bench.cudart.direct == [big * WIDTH * 4] * 2  # the rest passed through the session's own buffer
    expected = [2.0] * big + [18.0] + [6.0] * big + [4.0, 4.0, 16.0]
    np.testing.assert_array_equal(answer, np.repeat(np.array(expected, np.float32)[:, None], WIDTH, 1))
    del slots, memory
    gc.collect()
    assert bench.cudart.registered == {}
    assert "0 areas, 0 bytes" in repr(bench.locked)
    bench.session.close()


def test_memory_that_came_before_the_device_is_registered_when_it_opens() -> None:
    locked = PageLocked()
    early, gone = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    locked.adopt(early)
    locked.adopt(gone)
    del gone
    cudart = Cudart()
    locked.activate(lambda: cudart)
    assert list(cudart.registered.values()) == [64]
    assert locked.covers(early.ctypes.data, 64)
    assert not locked.covers(early.ctypes.data, 65)
    assert not locked.covers(early.ctypes.data - 1, 1)


def test_memory_that_cannot_be_locked_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    locked, cudart = PageLocked(), Cudart({"cudaHostRegister": 1})
    memory = np.zeros(64, np.uint8)
    locked.adopt(memory)
    locked.activate(lambda: cudart)
    assert not locked.covers(memory.ctypes.data, 1)
    assert "cannot be page-locked" in caplog.text


def test_graphs_are_captured_at_load_and_smaller_batches_run_in_the_next(bench: Bench) -> None:
    bench.arrange((1, 4, 8), cuda_graphs=True)
    assert "3 graphs" in repr(bench.session)
    assert run(bench.session, rows(1), rows(2))[:, 0].tolist() == [2, 4]  # two rows in the graph of four
    assert run(bench.session, rows(5, 6, 7, 8))[:, 0].tolist() == [10, 12, 14, 16]
    assert run(bench.session, rows(3))[:, 0].tolist() == [6]
    assert bench.session.run(rows(*range(8)))["y"][:, 0].tolist() == [2 * value for value in range(8)]
    assert bench.cudart.calls["cudaGraphLaunch"] == 4
    assert run(bench.session, rows(*range(9)))[:, 0].tolist() == [2 * value for value in range(9)]  # larger than all
    assert bench.session.run(rows(1, 2))["y"][:, 0].tolist() == [2, 4]
    assert bench.cudart.calls["cudaGraphLaunch"] == 4
    bench.session.close()
    assert bench.gone()


def test_what_cannot_be_captured_is_enqueued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(monkeypatch, tmp_path, {"cudaStreamEndCapture": 1})
    bench.arrange((1, 4), cuda_graphs=True)
    assert "cannot be captured" in caplog.text
    assert "1 graphs" in repr(bench.session)
    assert run(bench.session, rows(3))[:, 0].tolist() == [6]
    bench.session.close()
    assert bench.gone()


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_inputs_that_the_engine_reads_from_the_host(bench: Bench, kind: str) -> None:
    before = bench.session.device_bytes
    bench.arrange((4,), cuda_graphs=True, memory=Memory(input=kind))  # type: ignore[arg-type]
    assert run(bench.session, rows(1), rows(2, 3))[:, 0].tolist() == [2, 4, 6]
    assert run(bench.session, rows(4, 5, 6, 7, 8))[:, 0].tolist() == [8, 10, 12, 14, 16]
    assert bench.session.device_bytes <= before + 512
    bench.session.close()
    assert bench.gone()


def test_managed_memory_is_never_asked_for_beyond_what_is_free(bench: Bench) -> None:
    bench.cudart.free = 1000
    with pytest.raises(NotLoadable, match="managed memory are needed, 1000 bytes of the device are free"):
        bench.arrange(memory=Memory(input="managed"))
    bench.session.close()
    assert bench.gone()


def test_streams_share_the_weights_and_overlap(bench: Bench) -> None:
    assert isinstance(bench.session, Arranges)
    lanes = bench.arrange((2,), streams=3, cuda_graphs=True)
    assert len(lanes) == 3
    assert lanes[0] is bench.session
    for index, lane in enumerate(lanes):
        lane.enqueue([rows(index, index + 10)], 2)
    for index, lane in reversed(list(enumerate(lanes))):
        assert lane.collect()["y"][:, 0].tolist() == [2 * index, 2 * index + 20]
    assert bench.cudart.streams == 3
    lanes[0].close()
    assert run(lanes[1], rows(1))[:, 0].tolist() == [2]  # each is closed by itself
    for lane in lanes:
        lane.close()
    assert bench.gone()


def test_pools_and_streams_are_those_of_the_spec_in_the_executor(bench: Bench) -> None:
    need = bench.session.device_bytes
    executor, box = Executor(), Box()
    lane = {"execution": Execution(streams=2, cuda_graphs=True), "profiles": (PROFILE,), "batching": batching()}

    def load(**memory: object) -> None:
        executor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="tensorrt",
            instances=1,
            open_session=lambda: bench.session,
            memory=Memory.model_validate(memory),
            **lane,  # type: ignore[arg-type]
        )

    try:
        with pytest.raises(NotLoadable, match=r"buffers and contexts need .*, memory\.device_pool is 1 KiB") as no:
            load(device_pool="1KiB")
        assert no.value.fix is not None
        assert f"set memory.device_pool to {2 * need + 1024}B" in no.value.fix  # scratch of the graphs of each stream
        assert bench.gone()
        bench.session = bench.open()
        with pytest.raises(NotLoadable, match=r"memory\.pinned_pool is 1 KiB"):
            load(pinned_pool="1KiB")
        assert bench.gone()
        bench.session = bench.open()
        load(device_pool="10MiB", pinned_pool="10MiB")
        assert "2 of 2 lanes free" in repr(executor)
        for index in range(20):
            executor.submit("e", box_rows(index, index + 0.5), box.of(index))
        box.wait(20)
        for index in range(20):
            outcome = box.outcomes[index]
            assert outcome.error is None
            np.testing.assert_array_equal(outcome.outputs["y"][:, 0], [2 * index, 2 * index + 1])
        assert bench.cudart.calls["cudaGraphLaunch"] >= 1
    finally:
        executor.close(drain=5)
    assert bench.gone()


def test_a_lone_request_takes_three_calls_and_nobody_is_woken_before_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Copy in, graph, wait: as many as a bare loop makes. Of several requests somebody else is told before."""
    bench, box = Bench(monkeypatch, tmp_path, spins=True), Box()
    calls = bench.cudart.calls

    def count() -> list[int]:
        return [calls.get(name, 0) for name in ("cudaMemcpyAsync", "cudaGraphLaunch", "cudaStreamSynchronize")]

    class Told:
        at: ClassVar[list[list[int]]] = []

        def __call__(self, expected: float) -> bool:
            return expected >= 0

        def begun(self) -> None:
            self.at.append([now - then for now, then in zip(count(), before, strict=True)])

    executor = Executor()
    try:
        executor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="tensorrt",
            instances=1,
            open_session=lambda: bench.session,
            batching=batching(max_batch=2),
            execution=Execution(cuda_graphs=True),
            profiles=(PROFILE,),
        )
        before = count()
        executor.offer("e", box_rows(3), box.of(0))
        executor.start(relief=Told())
        assert box.outcomes[0].outputs["y"][:, 0].tolist() == [6]
        assert Told.at == [[1, 1, 0]]
        assert [now - then for now, then in zip(count(), before, strict=True)] == [1, 1, 1]
        before = count()
        executor.offer("e", box_rows(1), box.of(1))
        executor.offer("e", box_rows(2), box.of(2))
        executor.start(relief=Told())
        assert box.outcomes[2].outputs["y"][:, 0].tolist() == [4]
        assert Told.at[1] == [0, 0, 0]
    finally:
        executor.close(drain=5)
    assert bench.gone()


def test_a_lost_device_is_told_to_the_worker_and_requests_are_retryable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, box = Bench(monkeypatch, tmp_path, {"cudaEventSynchronize": 5}), Box()
    told: list[str] = []
    executor = Executor(lost=told.append)
    try:
        executor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="tensorrt",
            instances=1,
            open_session=lambda: bench.session,
            batching=batching(max_batch=2),
            profiles=(PROFILE,),
        )  # warms up with two runs of two sizes
        executor.submit("e", box_rows(1), box.of(0))
        assert isinstance(box.error(0), Retryable)
        assert "700" in told[0]
    finally:
        executor.close(drain=1)


@pytest.mark.parametrize("failing", [{"cudaMalloc": 4}, {"cudaHostAlloc": 3}, {"cudaMalloc": 5}])
def test_a_device_that_is_too_small_is_told_at_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: dict[str, int]
) -> None:
    bench = Bench(monkeypatch, tmp_path, failing)
    with pytest.raises(NotLoadable, match="the device cannot hold the engine") as no:
        bench.arrange((1, 2), streams=2, cuda_graphs=True)
    assert no.value.fix is not None
    bench.session.close()
    assert bench.gone()


@pytest.mark.parametrize(
    ("failing", "spins"),
    [
        ({"cudaEventSynchronize": 1}, False),
        ({"cudaEventRecord": 1}, False),
        ({"cudaStreamSynchronize": 3}, True),  # the first two are of loading
        ({"cudaMemcpyAsync": 1}, True),
        ({"cudaMemcpyAsync": 2}, False),
    ],
)
def test_a_lost_device_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: dict[str, int], spins: bool
) -> None:
    bench = Bench(monkeypatch, tmp_path, failing, spins=spins)
    with pytest.raises(DeviceLost, match="lost to this process"):
        run(bench.session, rows(1))
    assert bench.gone()
    with pytest.raises(Retryable, match="closed"):
        run(bench.session, rows(1))


def test_a_thread_that_spins_needs_no_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch, tmp_path, spins=True)
    assert "spins" in repr(bench.session._stream)
    assert bench.session.run(rows(1, 2))["y"][:, 0].tolist() == [2, 4]
    assert run(bench.session, rows(3), rows(4))[:, 0].tolist() == [6, 8]
    assert bench.cudart.events == 0
    assert "cudaEventRecord" not in bench.cudart.calls
    bench.session.close()
    assert bench.gone()


def test_requests_alone_and_batches_take_turns(bench: Bench) -> None:
    """What the last request ran in counts no more once a batch gave the context another shape."""
    (session,) = bench.arrange((4,), cuda_graphs=True)
    for count in (2, 4, 2, 3, 4):
        numbers = [float(number + 1) for number in range(count)]
        assert session.run(rows(*numbers))["y"][:, 0].tolist() == [2 * number for number in numbers]
        assert run(session, rows(*numbers), rows(9))[:, 0].tolist() == [*(2 * number for number in numbers), 18]
    assert bench.cudart.calls["cudaGraphLaunch"] == 5  # requests of 4 rows, twice; batches of 3 rows, twice, and of 4
    session.close()


def test_an_enqueue_that_is_refused_is_no_loss_of_the_device(bench: Bench) -> None:
    bench.engine.refuses = True
    with pytest.raises(Retryable, match="did not enqueue") as caught:
        run(bench.session, rows(1))
    assert not isinstance(caught.value, DeviceLost)
    with pytest.raises(Retryable, match="nothing was started"):
        bench.session.collect()
