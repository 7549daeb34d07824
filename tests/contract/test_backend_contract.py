"""One suite over every backend that can build on a machine without a GPU, each through the build's child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.builds import RANGES, engine_spec, files, linear, model_of, plan_for, ppocr, save, value
from tests.support.sessions import assert_close
from trtops.backend.select import backend as by_name
from trtops.backend.select import known
from trtops.build.precision import read_samples
from trtops.build.protocol import SampleSource
from trtops.build.runner import Built, build
from trtops.digest import Digest
from trtops.errors import BuildFailed, InputError, IntegrityError, NotLoadable, Retryable, Unavailable
from trtops.spec.engine import EngineSpec, Precision, Target
from trtops.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Backend

pytestmark = pytest.mark.service


@pytest.fixture(params=["fake", "onnxruntime", "tensorrt_rtx"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made = by_name(request.param)
    if made.status(_target(made)).version is None:
        pytest.skip(f"{request.param} is not installed")
    return made


def _target(backend: Backend) -> Target:
    return engine_spec(backend.name).targets[0]


def _build(backend: Backend, model: onnx.ModelProto, folder: Path, spec: EngineSpec | None = None) -> Built:
    path = save(model, folder / "model.onnx")
    spec = spec or engine_spec(backend.name)
    version = str(backend.status(spec.targets[0]).version)
    return build(plan_for(path, version, spec), model=path, store=Store(folder / "store"))


def test_status_is_honest(backend: Backend) -> None:
    status = backend.status(_target(backend))
    assert status.backend == backend.name
    assert status.can_build
    assert status.can_load or status.reason
    if not status.can_load:
        with pytest.raises((Unavailable, NotLoadable)):
            backend.device()


def test_another_version_is_not_promised(backend: Backend) -> None:
    if backend.name == "fake":
        pytest.skip("plays every version")
    status = backend.status(_target(backend).model_copy(update={"version": "0.1"}))
    assert not status.can_build
    assert "0.1" in str(status.reason)


def test_sidecar_says_what_was_built(backend: Backend, tmp_path: Path) -> None:
    built = _build(backend, linear(), tmp_path)
    sidecar = built.sidecar
    assert sidecar.backend == backend.name
    assert sidecar.backend_version == backend.status(_target(backend)).version
    assert [(info.name, info.dtype, info.shape) for info in sidecar.inputs] == [("x", "float32", ("N", 4))]
    assert [(info.name, info.dtype, info.shape) for info in sidecar.outputs] == [("y", "float32", ("N", 3))]
    assert sidecar.format.startswith("application/vnd.")
    assert sidecar.artifact == Digest.of_file(Store(tmp_path / "store").path(sidecar.artifact))


def test_equal_plans_give_equal_bytes(backend: Backend, tmp_path: Path) -> None:
    first, second = (_build(backend, linear(), tmp_path / name) for name in ("a", "b"))
    assert first.sidecar == second.sidecar


def test_repairs_are_recorded(backend: Backend, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    image = model_of([node], [value("x", [-1, 3, "?", "?"])], [value("y", [-1, 3, "?", "?"])])
    ranges = {"x": {"min": [1, 3, 8, 16], "opt": [2, 3, 8, 16], "max": [4, 3, 8, 16]}}
    sidecar = _build(backend, image, tmp_path, engine_spec(backend.name, ranges)).sidecar
    assert sidecar.inputs[0].shape == ("x_0", 3, 8, 16)
    assert sidecar.outputs[0].shape == ("x_0", 3, 8, 16)
    assert [step.partition(":")[0] for step in sidecar.steps][:2] == ["unique-dimension-names", "fixed-dimensions"]


def test_model_that_is_none_is_refused(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear().SerializeToString()[:-30])
    spec = engine_spec(backend.name)
    version = str(backend.status(spec.targets[0]).version)
    with pytest.raises(BuildFailed, match="no ONNX model"):
        build(plan_for(path, version, spec), model=path, store=Store(tmp_path / "store"))
    assert files(tmp_path / "store") == []


def test_operator_that_nobody_knows(backend: Backend, tmp_path: Path) -> None:
    if backend.name == "fake":
        pytest.skip("plays every operator")
    node = helper.make_node("Magic", ["x"], ["y"], name="magic_1", domain="my.own")
    with pytest.raises(BuildFailed, match="Magic") as caught:
        _build(backend, model_of([node], [value("x", ["N", 4])], [value("y", ["N", 4])]), tmp_path)
    assert caught.value.fix
    assert files(tmp_path / "store") == []


def test_precision_is_never_ignored(backend: Backend) -> None:
    spec = engine_spec(backend.name)
    refused = {"fake": set(), "onnxruntime": {"bf16", "fp8"}, "tensorrt_rtx": {"fp8"}}[backend.name]
    for mode in ("fp32", "fp16", "bf16", "int8", "fp8"):
        refusal = backend.refusal(spec.targets[0], Precision(mode=mode))
        assert (mode in str(refusal)) is (mode in refused)


@pytest.mark.parametrize("mode", ["fp16", "bf16", "int8"])
def test_precision_is_built_and_told(backend: Backend, mode: str, tmp_path: Path) -> None:
    spec = engine_spec(backend.name, precision={"mode": mode, "calibration": {"source": "random", "samples": 8}})
    if backend.name == "fake" or backend.refusal(spec.targets[0], spec.precision):
        pytest.skip("plays every precision, or builds none of this kind")
    path = save(linear(), tmp_path / "model.onnx")
    version = str(backend.status(spec.targets[0]).version)
    source = SampleSource(uri="random", folder=str(tmp_path), count=8) if mode != "bf16" else None
    digest = read_samples(source, path.read_bytes()).digest if source else None
    wanted = plan_for(path, version, spec).model_copy(update={"calibration": digest})
    built = build(wanted, model=path, store=Store(tmp_path / "store"), samples=source)
    assert any(step.startswith(f"{mode}: ") for step in built.sidecar.steps)
    assert [info.dtype for info in (*built.sidecar.inputs, *built.sidecar.outputs)] == ["float32", "float32"]
    if not backend.status(_target(backend)).can_load:
        return
    session = backend.load(Store(tmp_path / "store").path(built.sidecar.artifact), built.sidecar)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    from trtops.backend.onnxruntime import OnnxRuntimeBackend

    wanted_y = OnnxRuntimeBackend(threads=1).reference(path).run({"x": x})["y"]
    got = session.run({"x": x})["y"]
    assert not np.array_equal(got, wanted_y)
    assert_close(got, wanted_y, atol={"fp16": 2e-3, "int8": 5e-2}[mode])


def test_samples_that_were_not_planned_are_refused(tmp_path: Path) -> None:
    spec = engine_spec("onnxruntime", precision={"mode": "fp16"})
    path = save(linear(), tmp_path / "model.onnx")
    version = str(by_name("onnxruntime").status(spec.targets[0]).version)
    source = SampleSource(uri="random", folder=str(tmp_path))
    with pytest.raises(IntegrityError, match="not those that were planned"):
        build(plan_for(path, version, spec), model=path, store=Store(tmp_path / "store"), samples=source)
    assert files(tmp_path / "store") == []


def test_session_obeys_the_port(backend: Backend, tmp_path: Path) -> None:
    sidecar = _build(backend, linear(), tmp_path).sidecar
    path = Store(tmp_path / "store").path(sidecar.artifact)
    if not backend.status(_target(backend)).can_load:
        with pytest.raises(NotLoadable):
            backend.load(path, sidecar)
        return
    session = backend.load(path, sidecar)
    assert session.inputs == sidecar.inputs
    assert session.outputs == sidecar.outputs
    for rows in (1, 2, 8):
        outputs = session.run({"x": np.ones((rows, 4), np.float32)})
        assert {name: (array.shape, array.dtype.name) for name, array in outputs.items()} == {
            "y": ((rows, 3), "float32")
        }
    bad: dict[str, dict[str, np.ndarray[Any, Any]]] = {
        "missing": {},
        "unknown": {"x": np.ones((1, 4), np.float32), "z": np.ones(1)},
        "float64": {"x": np.ones((1, 4))},
        r"\[1, 5\]": {"x": np.ones((1, 5), np.float32)},
        "outside of profile": {"x": np.ones((9, 4), np.float32)},
    }
    for words, inputs in bad.items():
        with pytest.raises(InputError, match=words):
            session.run(inputs)
    session.close()
    session.close()
    with pytest.raises(Retryable):
        session.run({"x": np.ones((1, 4), np.float32)})


def test_other_version_and_damaged_file_are_not_loaded(backend: Backend, tmp_path: Path) -> None:
    sidecar = _build(backend, linear(), tmp_path).sidecar
    path = Store(tmp_path / "store").path(sidecar.artifact)
    with pytest.raises(NotLoadable) as caught:
        backend.load(path, sidecar.model_copy(update={"backend_version": "0.1.0"}))
    if backend.status(_target(backend)).can_load:
        assert "0.1.0" in str(caught.value)
        assert sidecar.backend_version in str(caught.value)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(NotLoadable):
        backend.load(path, sidecar)


def test_every_known_backend_answers_for_its_status() -> None:
    for name in known():
        status = by_name(name).status(engine_spec(name).targets[0])
        assert status.can_load or status.reason
        assert (status.version is not None) or "install" in str(status.reason)


def test_unknown_backend() -> None:
    with pytest.raises(InputError, match="openvino") as caught:
        by_name("openvino")
    assert "onnxruntime" in str(caught.value.fix)


def test_onnxruntime_computes_what_the_model_says(tmp_path: Path) -> None:
    from trtops.backend.onnxruntime import OnnxRuntimeBackend

    backend = OnnxRuntimeBackend(threads=1)
    sidecar = _build(backend, linear(), tmp_path).sidecar
    session = backend.load(Store(tmp_path / "store").path(sidecar.artifact), sidecar)
    reference = backend.reference(tmp_path / "model.onnx")
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in linear().graph.initializer}
    expected = np.maximum(x @ weights["w"] + weights["b"], 0)
    assert_close(session.run({"x": x})["y"], expected, atol=1e-6)
    assert_close(reference.run({"x": x})["y"], expected, atol=1e-6)


def test_values_that_a_node_refuses_are_the_callers_error(tmp_path: Path) -> None:
    from onnx import TensorProto

    from trtops.backend.onnxruntime import OnnxRuntimeBackend

    node = helper.make_node("Gather", ["table", "x"], ["y"], name="pick")
    table = {"table": np.arange(4, dtype=np.float32)}
    picker = model_of([node], [value("x", ["N"], TensorProto.INT64)], [value("y", ["N"])], table)
    session = OnnxRuntimeBackend(threads=1).reference(save(picker, tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=r"(?s)pick.*out of.*bounds"):
        session.run({"x": np.array([7])})
    assert session.run({"x": np.array([3])})["y"].tolist() == [3]


def test_reference_refuses_what_is_no_model(tmp_path: Path) -> None:
    from trtops.backend.onnxruntime import OnnxRuntimeBackend

    (tmp_path / "m.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(NotLoadable, match="cannot load"):
        OnnxRuntimeBackend().reference(tmp_path / "m.onnx")


@pytest.mark.network
def test_ppocr_is_repaired_and_built(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    path = ppocr(tmp_path_factory.getbasetemp())
    ranges = {"x": {"min": [1, 3, 48, 192], "opt": [8, 3, 48, 192], "max": [32, 3, 48, 192]}}
    spec = engine_spec(backend.name, ranges, memory={"workspace": "1GiB"})
    version = str(backend.status(spec.targets[0]).version)
    store = Store(tmp_path / "store")
    sidecar = build(plan_for(path, version, spec), model=path, store=store).sidecar
    assert sidecar.inputs[0].shape == ("x_0", 3, 48, 192)
    assert sidecar.steps[0].startswith("unique-dimension-names")
    if backend.name != "onnxruntime":
        return
    from trtops.backend.onnxruntime import OnnxRuntimeBackend

    ours = OnnxRuntimeBackend()
    x = np.random.default_rng(1).normal(size=(3, 3, 48, 192)).astype(np.float32)
    got = ours.load(store.path(sidecar.artifact), sidecar).run({"x": x})
    want = ours.reference(path).run({"x": x})
    assert_close(got[sidecar.outputs[0].name], want[sidecar.outputs[0].name], atol=1e-5)


def test_dynamic_input_without_shapes(tmp_path: Path) -> None:
    rtx = by_name("tensorrt_rtx")
    if rtx.status(_target(rtx)).version is None:
        pytest.skip("tensorrt_rtx is not installed")
    with pytest.raises(BuildFailed, match="no shapes for the dynamic input 'x'") as caught:
        _build(rtx, linear(), tmp_path, engine_spec("tensorrt_rtx", {"other": RANGES}))
    assert caught.value.where == "profile 'default'"
