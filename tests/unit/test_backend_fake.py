"""The fake backend plays what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.builds import engine_spec, linear, plan_for, save
from trtops.backend.fake import ENVIRONMENT, FakeBackend, FakeOptions, FakeSession, row_sums
from trtops.backend.port import BuildRequest, Progress, Sidecar
from trtops.digest import Digest
from trtops.errors import BuildFailed, DeviceLost, InputError, NotLoadable, Retryable
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

X = TensorInfo(name="x", dtype="float32", shape=("n", 2))
Y = TensorInfo(name="y", dtype="int64", shape=("n", "k", 2))


def _build(backend: FakeBackend, folder: Path) -> Sidecar:
    model = save(linear(), folder / "model.onnx")
    spec = engine_spec()
    request = BuildRequest(
        target=spec.targets[0],
        model=str(model),
        output=str(folder / "engine"),
        precision=spec.precision,
        profiles=spec.profiles,
        memory=spec.memory,
        builder=spec.builder,
    )
    seen: list[Progress] = []
    result = backend.build(request, seen.append)
    assert [step.done for step in seen] == list(range(11))
    plan = plan_for(model)
    return Sidecar(
        backend="fake",
        backend_version=result.backend_version,
        target=plan.target,
        device=result.device,
        extra=result.extra,
        plan=plan.key,
        model=plan.model,
        artifact=Digest.of_file(folder / "engine"),
        size_bytes=1,
        inputs=result.inputs,
        outputs=result.outputs,
        profiles=plan.profiles,
        format=result.format,
    )


def test_sums_of_rows() -> None:
    x = np.array([[1, 2], [3, 4.5]], np.float32)
    result = row_sums({"x": x}, (X,), (Y,))
    assert result["y"].tolist() == [[[3, 3]], [[7, 7]]]
    assert result["y"].dtype == np.int64
    text = TensorInfo(name="t", dtype="string", shape=("n", "k"))
    both = row_sums({"x": x, "t": np.array([["ab", ""], ["", "c"]], object)}, (X, text), (Y,))
    assert both["y"].tolist() == [[[5, 5]] * 2, [[8, 8]] * 2]


def test_time_is_played() -> None:
    slept: list[float] = []
    session = FakeSession((X,), (Y,), FakeOptions(cost_us=1000, row_cost_us=10), sleep=slept.append)
    session.run({"x": np.zeros((5, 2), np.float32)})
    assert slept == [pytest.approx(0.00105)]
    assert session.runs == 1
    assert repr(session) == "FakeSession(runs=1, open)"


def test_failures_of_runs_are_played() -> None:
    slept: list[float] = []
    options = FakeOptions(fail_run=3, hang_run=2, hang_seconds=7)
    session = FakeSession((X,), (Y,), options, sleep=slept.append)
    x = {"x": np.zeros((1, 2), np.float32)}
    session.run(x)
    session.run(x)
    assert slept == [7]
    for _ in range(2):
        with pytest.raises(Retryable, match="at execution 3"):
            session.run(x)


def test_closed_session_runs_no_more() -> None:
    session = FakeSession((X,), (Y,))
    session.close()
    session.close()
    with pytest.raises(Retryable, match="closed"):
        session.run({"x": np.zeros((1, 2), np.float32)})


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert FakeBackend().options == FakeOptions()
    monkeypatch.setenv(ENVIRONMENT, '{"cost_us": 5}')
    assert FakeBackend().options.cost_us == 5
    for wrong, words in (('{"cost": 5}', "cost"), ("nonsense", "JSON"), ('{"build": "melt"}', "build")):
        monkeypatch.setenv(ENVIRONMENT, wrong)
        with pytest.raises(InputError, match=words):
            FakeBackend()


def test_refusals_to_build(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="told to refuse"):
        _build(FakeBackend(FakeOptions(build="refuse")), tmp_path)
    assert not (tmp_path / "engine").exists()


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"version": "2.0.0"}, {}, r"built by fake 1\.0\.0, here is 2\.0\.0"),
        ({"device_name": "Other"}, {}, r"built for Fake GPU \(sm 0\.0\), here is Other"),
        ({"load": True}, {}, "told to fail"),
        ({}, {"backend": "onnxruntime"}, "is for onnxruntime"),
        ({}, {"artifact": "cut"}, "no engine of the fake"),
    ],
)
def test_refusals_to_load(tmp_path: Path, options: dict[str, Any], change: dict[str, Any], words: str) -> None:
    sidecar = _build(FakeBackend(FakeOptions()), tmp_path)
    if change.pop("artifact", None):
        _shorten(tmp_path / "engine")
    with pytest.raises(NotLoadable, match=words):
        FakeBackend(FakeOptions(**options)).load(tmp_path / "engine", sidecar.model_copy(update=change))


def test_what_was_built_loads(tmp_path: Path) -> None:
    backend = FakeBackend(FakeOptions())
    session = backend.load(tmp_path / "engine", _build(backend, tmp_path))
    assert session.run({"x": np.ones((2, 4), np.float32)})["y"].tolist() == [[4, 4, 4], [4, 4, 4]]
    with pytest.raises(InputError, match="outside of profile"):
        session.run({"x": np.ones((9, 4), np.float32)})


def test_what_an_engine_plays_is_told_at_its_build_and_goes_with_it(tmp_path: Path) -> None:
    told = FakeOptions.model_validate_json('{"engine": {"wrong_by": 0.5, "fault_run": 3, "fault": "illegal-address"}}')
    sidecar = _build(FakeBackend(told), tmp_path)
    slept: list[float] = []
    here = FakeBackend(FakeOptions(load_seconds=2, cost_us=1e6), sleep=slept.append)
    session = here.load(tmp_path / "engine", sidecar)
    ones = {"x": np.ones((1, 4), np.float32)}
    for _ in range(2):
        assert session.run(ones)["y"].tolist() == [[4.5, 4.5, 4.5]]
    assert slept == [2, 1, 1]  # what is told here holds where the engine says nothing
    with pytest.raises(DeviceLost, match="illegal memory access"):
        session.run(ones)
    assert FakeOptions().played_by({}) == FakeOptions()
