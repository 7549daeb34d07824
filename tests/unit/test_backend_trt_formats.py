"""A TensorRT session whose bindings are not linear, on a CUDA runtime in host memory that computes in their formats."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.cuda import Cudart, Engine, Library
from tests.support.executors import Box, batching
from tests.support.releases import sidecar
from tests.support.waiting import until
from trtops.backend.pinned import PageLocked
from trtops.backend.trt_session import TensorRtSession
from trtops.errors import NotLoadable
from trtops.executor.executor import Executor
from trtops.executor.port import Request
from trtops.spec.engine import Execution, Memory, Profile
from trtops.tensor import TensorInfo, in_format, stored_elements

if TYPE_CHECKING:
    from pathlib import Path

    Array = np.ndarray[Any, Any]

TAIL = (3, 40, 50)
SPAN = {"min": [1, *TAIL], "opt": [2, *TAIL], "max": [8, *TAIL]}
PROFILE = Profile.model_validate({"name": "default", "inputs": {"x": SPAN}})


def info(name: str, lies: Any) -> TensorInfo:
    return TensorInfo(name=name, dtype="float32", shape=("n", *TAIL), format=lies)


class Bench:
    """Sessions of an engine whose input and output lie in these formats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, x: str, y: str) -> None:
        self.cudart = Cudart(strict=True)
        self.locked = PageLocked()
        self.locked.activate(lambda: self.cudart)
        self.engine = Engine(1, shape=(-1, *TAIL), formats={"x": x, "y": y})
        self.engine.cudart = self.cudart
        monkeypatch.setattr("trtops.backend.cuda_device.runtime", lambda: self.cudart)
        monkeypatch.setattr("trtops.backend.trt_session.PAGE_LOCKED", self.locked)
        monkeypatch.setattr(Library, "engine", self.engine)
        monkeypatch.setattr("trtops.backend.trt_stream.CORES_TO_SPIN", 1 << 20)
        (folder / "engine").write_bytes(b"engine")
        self.file = folder / "engine"
        self.about = sidecar(inputs=(info("x", x),), outputs=(info("y", y),), profiles=(PROFILE,))

    def open(self) -> TensorRtSession:
        return TensorRtSession(Library(), self.file, self.about)


FORMATS = [("hwc", "linear"), ("hwc", "hwc"), ("linear", "hwc"), ("hwc8", "hwc"), ("linear", "hwc8"), ("hwc8", "hwc8")]


@pytest.fixture(params=FORMATS, ids="-".join)
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(monkeypatch, tmp_path, *request.param)


def images(rows: int, first: int = 0) -> Array:
    return (np.arange(rows * np.prod(TAIL)) % 997 + first).astype(np.float32).reshape(rows, *TAIL)


def lying(array: Array, lies: Any) -> Array:
    """The same, as it lies in a format."""
    there: Array = in_format(np.zeros(stored_elements(array.shape, lies), array.dtype), array.shape, lies)
    there[...] = array
    return there


def locked(bench: Bench, array: Array, lies: Any, registered: set[int]) -> Array:
    """The same in page-locked memory, where it begins."""
    memory = np.empty(stored_elements(array.shape, lies) * 4, np.uint8)
    bench.locked.adopt(memory)
    address = memory.ctypes.data
    until(lambda: bench.locked.covers(address, memory.nbytes), "registered")
    registered.add(address)
    there: Array = in_format(memory.view(array.dtype), array.shape, lies)
    there[...] = array
    return there


def test_answers_are_those_of_a_linear_engine(bench: Bench) -> None:
    session = bench.open()
    x = images(3)
    for given in (x, lying(x, "hwc"), lying(x, "hwc8")):
        first = session.run({"x": given})["y"]
        np.testing.assert_array_equal(first, 2 * x)
        session.enqueue([{"x": given[:1]}, {"x": given[1:]}], 3)
        np.testing.assert_array_equal(session.collect()["y"], 2 * x)
    session.close()
    assert bench.cudart.blocks == {}


def test_outputs_are_copied_once_and_lie_as_the_engine_has_them(bench: Bench) -> None:
    session = bench.open()
    y = session.run({"x": images(2)})["y"]
    assert y.flags.owndata
    if bench.engine.formats["y"] == "linear":
        assert y.flags.c_contiguous
    else:
        assert y.strides[1] == 4
        assert not y.flags.c_contiguous
    session.close()


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_memory_that_the_engine_reads_itself(bench: Bench, kind: Any) -> None:
    session = bench.open()
    session.set_up(kind, ())
    session.enqueue([{"x": images(1)}, {"x": images(2, 5)}], 3)
    np.testing.assert_array_equal(session.collect()["y"], 2 * np.concatenate([images(1), images(2, 5)]))
    session.close()


def test_graphs_take_the_formats_too(bench: Bench) -> None:
    (session,) = bench.open().arrange(Execution(cuda_graphs=True), Memory(), (1, 4))
    session.enqueue([{"x": images(1)}, {"x": images(2, 7)}], 3)  # filled up to 4
    np.testing.assert_array_equal(session.collect()["y"], 2 * np.concatenate([images(1), images(2, 7)]))
    assert bench.cudart.calls["cudaGraphLaunch"] == 1
    session.close()


def test_probe_measures_what_lies_in_the_format(bench: Bench) -> None:
    session = bench.open()
    bench.cudart.strict = False  # it measures copies from pageable memory, too
    times = session.probe({"x": images(2)}, batch=2, seconds=0.01)
    assert times.batch == 2
    session.close()


@pytest.mark.parametrize("lies", ["hwc", "hwc8"])
def test_the_device_copies_a_request_from_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lies: Any
) -> None:
    bench = Bench(monkeypatch, tmp_path, lies, "linear")
    session = bench.open()
    held: set[int] = set()
    one, two = (locked(bench, images(2, first), lies, held) for first in (0, 9))
    np.testing.assert_array_equal(session.run({"x": one})["y"], 2 * images(2))
    size = stored_elements((2, *TAIL), lies) * 4
    assert bench.cudart.direct == [size]
    assert bench.cudart.direct_from == [one.__array_interface__["data"][0]]
    session.enqueue([{"x": one}, {"x": images(1, 3)}, {"x": two}], 5)
    y = session.collect()["y"]
    np.testing.assert_array_equal(y, 2 * np.concatenate([images(2), images(1, 3), images(2, 9)]))
    assert bench.cudart.direct == [size] * 3
    assert set(bench.cudart.direct_from) == held
    session.close()
    del one, two
    gc.collect()
    assert bench.cudart.registered == {}


def test_what_lies_otherwise_is_transposed_into_the_buffer_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, tmp_path, "hwc", "linear")
    session = bench.open()
    held: set[int] = set()
    linear = locked(bench, images(2), "linear", held)
    np.testing.assert_array_equal(session.run({"x": linear})["y"], 2 * images(2))
    assert bench.cudart.direct == []
    session.close()


def test_what_fills_rows_up_is_zero_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch, tmp_path, "hwc8", "linear")
    session = bench.open()
    host = session._buffers["x"].view((8, *TAIL), "float32", "hwc8")
    whole = np.lib.stride_tricks.as_strided(host, (8, 40, 50, 8), (host.strides[0], *host.strides[2:], 4))
    whole[...] = np.nan
    session.enqueue([{"x": images(1)}, {"x": images(2)}], 3)
    session.collect()
    assert not np.isnan(whole[:3]).any()
    whole[...] = np.nan
    session.run({"x": images(2)})
    assert not np.isnan(whole[:2]).any()
    session.close()


def test_an_engine_of_another_format_than_its_sidecar_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, tmp_path, "hwc", "linear")
    bench.engine.formats["x"] = "hwc8"
    with pytest.raises(NotLoadable, match=r"has 'x' in the format hwc8, expected hwc \(build it again\)"):
        bench.open()
    assert bench.cudart.blocks == {}


def test_the_executor_batches_and_answers(bench: Bench) -> None:
    executor = Executor()
    try:
        executor.load(
            "e",
            generation=1,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="tensorrt",
            batching=batching(max_batch=8, preferred=[4], max_queue_delay="50ms"),
            instances=1,
            open_session=bench.open,
            profiles=(PROFILE,),
        )
        box = Box()
        for index in range(4):
            given = lying(images(1, index), "hwc") if index % 2 else images(1, index)
            executor.submit("e", Request({"x": given}, 1), box.of(index))
        for index in range(4):
            outcome = box.wait_key(index)
            assert outcome.error is None
            np.testing.assert_array_equal(outcome.outputs["y"], 2 * images(1, index))
    finally:
        executor.close(drain=5)
