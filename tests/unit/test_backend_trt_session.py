"""A TensorRT session when the device fails: nothing leaks, nothing is answered that was not computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.cuda import Cudart, Engine, Library
from tests.support.releases import sidecar
from trtops.backend.pinned import PageLocked
from trtops.backend.port import Probed
from trtops.backend.trt_session import TensorRtSession
from trtops.errors import DeviceLost, InputError, NotLoadable, Retryable
from trtops.spec.engine import Profile
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Sidecar

X = TensorInfo(name="x", dtype="float32", shape=("n", 4))
Y = TensorInfo(name="y", dtype="float32", shape=("n", 4))
ROWS = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


def _profile(name: str, high: int) -> Profile:
    return Profile.model_validate({"name": name, "inputs": {"x": {"min": [1, 4], "opt": [1, 4], "max": [high, 4]}}})


def _sidecar(*profiles: Profile) -> Sidecar:
    return sidecar(inputs=(X,), outputs=(Y,), profiles=profiles or (_profile("default", 8),))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "engine").write_bytes(b"engine")
    return tmp_path / "engine"


def _open(monkeypatch: pytest.MonkeyPatch, cudart: Cudart, engine: Engine, *rest: Any) -> TensorRtSession:
    monkeypatch.setattr("trtops.backend.cuda_device.runtime", lambda: cudart)
    monkeypatch.setattr("trtops.backend.trt_session.PAGE_LOCKED", PageLocked())
    monkeypatch.setattr(Library, "engine", engine)
    monkeypatch.setattr("trtops.backend.trt_stream.CORES_TO_SPIN", 1 << 20)
    engine.cudart = cudart
    return TensorRtSession(Library(), *rest)


def test_computes_and_frees(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    cudart = Cudart()
    session = _open(monkeypatch, cudart, Engine(1), artifact, _sidecar())
    first = session.run(ROWS)["y"]
    np.testing.assert_array_equal(first, 2 * ROWS["x"])
    session.run({"x": np.zeros((1, 4), np.float32)})
    np.testing.assert_array_equal(first, 2 * ROWS["x"])
    assert len(cudart.blocks) == 4
    session.close()
    session.close()
    assert (cudart.blocks, cudart.streams) == ({}, 0)
    assert "closed" in repr(session)
    with pytest.raises(Retryable, match="closed"):
        session.run(ROWS)


def test_profile_follows_the_shape(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    engine = Engine(2)
    session = _open(monkeypatch, Cudart(), engine, artifact, _sidecar(_profile("wide", 64), _profile("one", 1)))
    chosen = []
    for rows in (1, 2, 64, 1):
        session.run({"x": np.ones((rows, 4), np.float32)})
        assert engine.context is not None
        chosen.append(engine.context.profile)
    assert chosen == [1, 0, 0, 1]
    with pytest.raises(InputError, match="outside of profile"):
        session.run({"x": np.ones((65, 4), np.float32)})
    session.close()


def test_buffers_hold_the_largest_shape_of_any_profile(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    cudart = Cudart()
    session = _open(monkeypatch, cudart, Engine(2), artifact, _sidecar(_profile("one", 1), _profile("wide", 640)))
    assert [len(block) for block in cudart.blocks.values()] == [640 * 4 * 4] * 4
    session.close()


@pytest.mark.parametrize("failing", [{"cudaMalloc": 1}, {"cudaMalloc": 2}, {"cudaHostAlloc": 1}, {"cudaHostAlloc": 2}])
def test_memory_that_lacks_is_told_at_load(
    monkeypatch: pytest.MonkeyPatch, artifact: Path, failing: dict[str, int]
) -> None:
    cudart = Cudart(failing)
    with pytest.raises(NotLoadable, match="cannot hold the engine: 2: CUDA error 2"):
        _open(monkeypatch, cudart, Engine(1), artifact, _sidecar())
    assert (cudart.blocks, cudart.streams) == ({}, 0)


def test_a_device_without_room_for_a_context_is_told_before_tensorrt_is_called(
    monkeypatch: pytest.MonkeyPatch, artifact: Path
) -> None:
    called: list[object] = []
    monkeypatch.setattr(Library, "Runtime", called.append)  # version 8.6 ends the process then
    with pytest.raises(NotLoadable, match="cannot hold the engine: 2: CUDA error 2"):
        _open(monkeypatch, Cudart({"cudaMemGetInfo": 1}), Engine(1), artifact, _sidecar())
    assert called == []


@pytest.mark.parametrize("failing", [{"cudaMemcpyAsync": 1}, {"cudaMemcpyAsync": 2}, {"cudaEventSynchronize": 1}])
def test_device_that_fails_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, artifact: Path, failing: dict[str, int]
) -> None:
    cudart = Cudart(failing)
    session = _open(monkeypatch, cudart, Engine(1), artifact, _sidecar())
    with pytest.raises(DeviceLost, match="the device is lost to this process: 7"):
        session.run(ROWS)
    assert (cudart.blocks, cudart.streams, cudart.events) == ({}, 0, 0)
    with pytest.raises(Retryable, match="closed"):
        session.run(ROWS)


def test_enqueue_that_is_refused_is_no_answer(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    engine = Engine(1)
    session = _open(monkeypatch, Cudart(), engine, artifact, _sidecar())
    engine.refuses = True
    with pytest.raises(Retryable, match="did not enqueue"):
        session.run(ROWS)


@pytest.mark.parametrize(
    ("engine", "changes", "words"),
    [
        (Engine(1), {"outputs": (Y.model_copy(update={"dtype": "int64"}),)}, "bindings"),
        (Engine(1), {"outputs": ()}, "bindings"),
        (Engine(1), {"inputs": (Y,), "outputs": (X,)}, "bindings"),
        (Engine(2), {}, "has 2 profiles, its sidecar 1"),
        (Engine(1, data_dependent=True), {}, "shape of 'y' depends on values"),
    ],
)
def test_engine_that_its_sidecar_gets_wrong(
    monkeypatch: pytest.MonkeyPatch, artifact: Path, engine: Engine, changes: dict[str, Any], words: str
) -> None:
    cudart = Cudart()
    with pytest.raises(NotLoadable, match=words):
        _open(monkeypatch, cudart, engine, artifact, _sidecar().model_copy(update=changes))
    assert (cudart.blocks, cudart.streams) == ({}, 0)


def test_bytes_that_tensorrt_refuses(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    artifact.write_bytes(b"")
    with pytest.raises(NotLoadable, match="Serialization assertion failed") as caught:
        _open(monkeypatch, Cudart(), Engine(1), artifact, _sidecar())
    assert caught.value.fix


def test_shapes_that_stay_are_looked_up_once(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    engine = Engine(1)
    session = _open(monkeypatch, Cudart(), engine, artifact, _sidecar())
    x = np.ones((2, 4), np.float32)
    first = session.prepare({"x": x})
    assert session.prepare({"x": x + 1}) is first
    np.testing.assert_array_equal(session.run({"x": x + 1})["y"], 2 * (x + 1))
    assert session.prepare({"x": np.ones((3, 4), np.float32)}) is not first
    np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x)
    wrongs: tuple[Any, ...] = ({}, {"x": x.astype(np.float64)}, {"x": x, "z": x}, {"x": x.tolist()})
    for wrong in wrongs:
        with pytest.raises(InputError):
            session.run(wrong)
    session.close()
    with pytest.raises(Retryable, match="closed"):
        session.run({"x": x})


def test_probe_measures_every_part_and_leaves_the_session_as_it_was(
    monkeypatch: pytest.MonkeyPatch, artifact: Path
) -> None:
    cudart, engine = Cudart(), Engine(1)
    session = _open(monkeypatch, cudart, engine, artifact, _sidecar())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    blocks, streams = len(cudart.blocks), cudart.streams
    seen = session.probe({"x": x}, batch=2, seconds=0.01)
    assert isinstance(session, Probed)
    # the stand-in's events are 2, 3, 4, 5 (1 is the session's); the time between two is the first one's number
    assert (seen.copy_in, seen.compute, seen.copy_out) == (2.0, 3.0, 4.0)
    assert seen.graph is not None
    assert sorted(seen.streams) == [1, 2, 4]
    assert min(seen.wall, seen.enqueue, seen.plain, seen.pageable, seen.pinned, seen.mapped) > 0
    assert (len(cudart.blocks), cudart.streams, cudart.events, cudart.graphs) == (blocks, streams, 1, 0)
    np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x)
    with pytest.raises(InputError, match="float64"):
        session.probe({"x": x.astype(np.float64)}, batch=2, seconds=0.01)


def test_engine_that_no_graph_can_hold_is_measured_without(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    cudart = Cudart({"cudaStreamEndCapture": 1})
    session = _open(monkeypatch, cudart, Engine(1), artifact, _sidecar())
    assert session.probe({"x": np.ones((1, 4), np.float32)}, batch=1, seconds=0.01).graph is None


def test_device_that_fails_while_it_is_probed(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    cudart = Cudart({"cudaEventRecord": 9})
    session = _open(monkeypatch, cudart, Engine(1), artifact, _sidecar())
    with pytest.raises(DeviceLost, match="lost to this process"):
        session.probe({"x": np.ones((1, 4), np.float32)}, batch=1, seconds=0.01)
    assert (cudart.blocks, cudart.streams, cudart.events) == ({}, 0, 0)
