"""TensorRT on the GPU of this machine, through the build's child process: real engines, real refusals."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from tests.support.builds import engine_spec, files, linear, model_of, plan_for, ppocr, save, value
from tests.support.plugins import copy_plugin
from tests.support.sessions import assert_close
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.port import Probed, Progress
from trtops.backend.tensorrt import TensorRtBackend
from trtops.build.plan import BuildPlan, plan
from trtops.build.precision import read_samples
from trtops.build.protocol import SampleSource
from trtops.build.runner import Built, Limits, build
from trtops.build.timing import TIMINGS, Timed, timing_key
from trtops.digest import Digest
from trtops.errors import BuildFailed, InputError, IntegrityError, NotLoadable, Retryable
from trtops.release.keys import KeyRing
from trtops.spec.engine import EngineSpec, Precision, Target
from trtops.store import Store
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.service]

BACKEND = TensorRtBackend()
LEVEL_0 = {"optimization_level": 0}


@pytest.fixture(scope="module", autouse=True)
def _here() -> None:
    status = BACKEND.status(Target(backend="tensorrt"))
    if not status.can_load:
        pytest.skip(str(status.reason))


def _spec(ranges: dict[str, Any] | None = None, **changes: Any) -> EngineSpec:
    return engine_spec("tensorrt", ranges, **{"builder": LEVEL_0, "memory": {"workspace": "256MiB"}, **changes})


def _plan(path: Path, spec: EngineSpec) -> BuildPlan:
    version = str(BACKEND.status(spec.targets[0]).version)
    digest = Digest.of_file(path)
    return plan(spec, spec.targets[0], model=digest, backend_version=version, device=BACKEND.device())


def _build(model: onnx.ModelProto, folder: Path, spec: EngineSpec | None = None, **limits: Any) -> Built:
    path = save(model, folder / "model.onnx")
    store = Store(folder / "store")
    return build(_plan(path, spec or _spec()), model=path, store=store, limits=Limits(**limits))


def test_status_and_device() -> None:
    device = BACKEND.device()
    assert device.kind == "gpu"
    assert device.compute_capability
    assert device.sm_count
    assert device.driver
    assert BACKEND.status(Target(backend="tensorrt")).reason is None
    for target, words in (
        ({"version": "1.0"}, "asks for TensorRT 1.0, here is"),
        ({"compute_capability": "1.0"}, "compute capability 1.0, here is"),
        ({"gpu": {"name": "Voodoo", "compute_capability": device.compute_capability}}, "asks for Voodoo, here is"),
    ):
        status = BACKEND.status(Target.model_validate({"backend": "tensorrt", **target}))
        assert not status.can_build
        assert words in str(status.reason)


def test_engine_computes_what_the_model_says(tmp_path: Path) -> None:
    sidecar = _build(linear(), tmp_path).sidecar
    assert sidecar.device == BACKEND.device()
    session = BACKEND.load(Store(tmp_path / "store").path(sidecar.artifact), sidecar)
    assert session.inputs[0].shape == ("N", 4)
    reference = OnnxRuntimeBackend(threads=1).reference(tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    for rows in (1, 8, 3, 8, 1):
        x = random.normal(size=(rows, 4)).astype(np.float32)
        assert_close(session.run({"x": x})["y"], reference.run({"x": x})["y"], atol=1e-5)
    kept = session.run({"x": np.ones((2, 4), np.float32)})["y"]
    before = kept.copy()
    session.run({"x": np.zeros((2, 4), np.float32)})
    np.testing.assert_array_equal(kept, before)
    strided = np.ones((2, 8), np.float32)[:, ::2]
    np.testing.assert_array_equal(session.run({"x": strided})["y"], before)
    wrong: dict[str, dict[str, np.ndarray[Any, Any]]] = {
        "missing": {},
        "float64": {"x": np.ones((1, 4))},
        r"\[1, 5\]": {"x": np.ones((1, 5), np.float32)},
        "outside of profile": {"x": np.ones((9, 4), np.float32)},
    }
    for words, inputs in wrong.items():
        with pytest.raises(InputError, match=words):
            session.run(inputs)
    session.close()
    session.close()
    with pytest.raises(Retryable, match="closed"):
        session.run({"x": np.ones((1, 4), np.float32)})


def test_two_profiles_switch_with_the_shape(tmp_path: Path) -> None:
    profiles = [
        {"name": "wide", "inputs": {"x": {"min": [1, 4], "opt": [32, 4], "max": [64, 4]}}},
        {"name": "one", "inputs": {"x": {"min": [1, 4], "opt": [1, 4], "max": [1, 4]}}},
    ]
    sidecar = _build(linear(), tmp_path, _spec(profiles=profiles)).sidecar
    session = BACKEND.load(Store(tmp_path / "store").path(sidecar.artifact), sidecar)
    reference = OnnxRuntimeBackend(threads=1).reference(tmp_path / "model.onnx")
    for rows, profile in ((1, 1), (64, 0), (1, 1), (2, 0)):
        x = np.full((rows, 4), rows, np.float32)
        assert_close(session.run({"x": x})["y"], reference.run({"x": x})["y"], atol=1e-3)
        assert f"profile={profile}" in repr(session)


def test_many_sessions_give_their_memory_back(tmp_path: Path) -> None:
    from trtops.backend import cuda_device

    cudart = cuda_device.runtime()
    ranges = {"x": {"min": [1, 4], "opt": [2, 4], "max": [1 << 22, 4]}}  # 64 MiB in, 48 MiB out
    sidecar = _build(linear(), tmp_path, _spec(ranges)).sidecar
    path = Store(tmp_path / "store").path(sidecar.artifact)
    free = []
    for _ in range(12):
        session = BACKEND.load(path, sidecar)
        session.run({"x": np.ones((1, 4), np.float32)})
        session.close()
        free.append(int(cuda_device.checked(cudart, cudart.cudaMemGetInfo())[0]))
    # Others use the device meanwhile, and a first session loads kernels that stay: what each session keeps is a leak.
    lost = [before - after for before, after in pairwise(free)]
    assert statistics.median(lost) < 1 << 20, lost


def test_other_version_and_device_are_refused_by_name(tmp_path: Path) -> None:
    sidecar = _build(linear(), tmp_path).sidecar
    path = Store(tmp_path / "store").path(sidecar.artifact)
    with pytest.raises(NotLoadable, match=r"built by TensorRT 0\.1, here is"):
        BACKEND.load(path, sidecar.model_copy(update={"backend_version": "0.1"}))
    other = sidecar.device.model_copy(update={"name": "NVIDIA Voodoo"})
    with pytest.raises(NotLoadable, match=r"built for NVIDIA Voodoo.*, here is NVIDIA"):
        BACKEND.load(path, sidecar.model_copy(update={"device": other}))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(NotLoadable, match="cannot load the engine"):
        BACKEND.load(path, sidecar)


def test_bindings_that_the_sidecar_gets_wrong(tmp_path: Path) -> None:
    sidecar = _build(linear(), tmp_path).sidecar
    path = Store(tmp_path / "store").path(sidecar.artifact)
    wrong = sidecar.inputs[0].model_copy(update={"dtype": "int8"})
    with pytest.raises(NotLoadable, match="bindings"):
        BACKEND.load(path, sidecar.model_copy(update={"inputs": (wrong,)}))
    with pytest.raises(NotLoadable, match="profiles"):
        BACKEND.load(path, sidecar.model_copy(update={"profiles": sidecar.profiles * 2}))


def test_refusals_name_the_node_and_the_fix(tmp_path: Path) -> None:
    magic = helper.make_node("Magic", ["x"], ["y"], name="magic_1", domain="my.own")
    with pytest.raises(BuildFailed, match="no such operator") as caught:
        _build(model_of([magic], [value("x", ["N", 4])], [value("y", ["N", 4])]), tmp_path / "a")
    assert caught.value.where == "node 'magic_1' (Magic)"
    text = model_of(
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", ["N", 4], TensorProto.STRING)],
        [value("y", ["N", 4], TensorProto.STRING)],
    )
    with pytest.raises(BuildFailed, match="element type"):
        _build(text, tmp_path / "b")
    with pytest.raises(BuildFailed, match=r"workspace is not set"):
        _build(linear(), tmp_path / "c", _spec(memory={}))
    with pytest.raises(BuildFailed, match="no DLA"):
        _build(linear(), tmp_path / "d", _spec(memory={"workspace": "1MiB", "dla": "1MiB"}))
    with pytest.raises(BuildFailed, match="no plugin 'Nothing_TRT'"):
        _build(linear(), tmp_path / "e", _spec(builder={**LEVEL_0, "plugins": [{"name": "Nothing_TRT"}]}))
    for folder in "abcde":
        assert files(tmp_path / folder / "store") == []


def test_precision_is_never_ignored() -> None:
    target = Target(backend="tensorrt")
    assert BACKEND.refusal(target, Precision(mode="tf32")) is None
    for mode in ("fp16", "int8"):
        assert BACKEND.refusal(target, Precision(mode=mode)) is None
    assert "fp8" in str(BACKEND.refusal(target, Precision(mode="fp8")))


def test_memory_of_the_child_is_watched(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="bytes of memory, 200000000 are allowed"):
        _build(linear(), tmp_path, memory_bytes=200_000_000)
    assert files(tmp_path / "store") == []


@pytest.mark.network
def test_ppocr(tmp_path: Path) -> None:
    path = ppocr(tmp_path)
    ranges = {"x": {"min": [1, 3, 48, 192], "opt": [8, 3, 48, 192], "max": [32, 3, 48, 192]}}
    store = Store(tmp_path / "store")
    spec = _spec(ranges, memory={"workspace": "1GiB"})
    built = build(_plan(path, spec), model=path, store=store)
    assert build(_plan(path, spec), model=path, store=store).cached
    session = BACKEND.load(store.path(built.sidecar.artifact), built.sidecar)
    reference = OnnxRuntimeBackend().reference(path)
    random = np.random.default_rng(1)
    for rows in (1, 8, 32):
        x = random.normal(size=(rows, 3, 48, 192)).astype(np.float32)
        name = built.sidecar.outputs[0].name
        assert_close(session.run({"x": x})[name], reference.run({"x": x})[name], atol=1e-4)


def test_plan_of_the_cpu_differs(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    assert _plan(path, _spec()).key != plan_for(path).key


@pytest.mark.parametrize(("mode", "tolerance"), [("fp16", 5e-3), ("int8", 1e-1)])
def test_precision_of_the_file_is_kept(mode: str, tolerance: float, tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "model.onnx")
    spec = _spec(precision={"mode": mode, "calibration": {"source": "random"}, "keep_fp32": ["node:relu"]})
    source = SampleSource(uri="random", folder=str(tmp_path))
    wanted = _plan(path, spec).model_copy(update={"calibration": read_samples(source, path.read_bytes()).digest})
    store = Store(tmp_path / "store")
    sidecar = build(wanted, model=path, store=store, samples=source).sidecar
    assert any(step.startswith(f"{mode}: ") for step in sidecar.steps)
    session = BACKEND.load(store.path(sidecar.artifact), sidecar)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    want = OnnxRuntimeBackend(threads=1).reference(path).run({"x": x})["y"]
    assert_close(session.run({"x": x})["y"], want, atol=tolerance)
    assert BACKEND.inspect(store.path(sidecar.artifact), sidecar).layers


@pytest.mark.parametrize(("mode", "tolerance"), [("fp16", 2e-2), ("int8", 2e-1)])
def test_kernels_compute_in_the_precision_of_the_file(mode: str, tolerance: float, tmp_path: Path) -> None:
    path = save(_convolutions(), tmp_path / "model.onnx")
    image = {"x": {"min": [1, 16, 16, 16], "opt": [4, 16, 16, 16], "max": [8, 16, 16, 16]}}
    spec = _spec(image, precision={"mode": mode, "calibration": {"source": "random"}, "keep_fp32": ["node:last"]})
    source = SampleSource(uri="random", folder=str(tmp_path))
    wanted = _plan(path, spec).model_copy(update={"calibration": read_samples(source, path.read_bytes()).digest})
    store = Store(tmp_path / "store")
    sidecar = build(wanted, model=path, store=store, samples=source).sidecar
    layers = BACKEND.inspect(store.path(sidecar.artifact), sidecar).layers
    told = "; ".join(f"{layer.name} [{layer.kind}] {layer.precision}" for layer in layers)
    assert mode in told.lower(), told
    last = [layer for layer in layers if layer.name.startswith("last")]
    assert all("fp32" in layer.precision.lower() for layer in last), told
    session = BACKEND.load(store.path(sidecar.artifact), sidecar)
    x = np.random.default_rng(0).normal(size=(4, 16, 16, 16)).astype(np.float32)
    want = OnnxRuntimeBackend(threads=1).reference(path).run({"x": x})["y"]
    assert_close(session.run({"x": x})["y"], want, atol=tolerance, err_msg=told)


def _convolutions() -> onnx.ModelProto:
    """Three convolutions of 16 channels with a ReLU after each but the last."""
    random = np.random.default_rng(3)
    weights = {f"w{layer}": random.normal(0, 0.08, (16, 16, 3, 3)).astype(np.float32) for layer in range(3)}
    nodes = []
    for layer, name in enumerate(("first", "second", "last")):
        source = "x" if layer == 0 else f"r{layer - 1}"
        target = "y" if name == "last" else f"c{layer}"
        nodes.append(helper.make_node("Conv", [source, f"w{layer}"], [target], name=name, pads=[1, 1, 1, 1]))
        if name != "last":
            nodes.append(helper.make_node("Relu", [target], [f"r{layer}"], name=f"relu_{layer}"))
    shape: list[int | str | None] = ["N", 16, 16, 16]
    return model_of(nodes, [value("x", shape)], [value("y", shape)], weights)


def test_timings_are_kept_and_used(tmp_path: Path) -> None:
    path = save(_convolutions(), tmp_path / "model.onnx")
    store, voucher = Store(tmp_path / "store"), KeyVoucher(KeyRing())
    image = {"x": {"min": [1, 16, 16, 16], "opt": [4, 16, 16, 16], "max": [8, 16, 16, 16]}}
    wanted = _plan(path, _spec(image, builder={"optimization_level": 2}))
    first = build(wanted, model=path, store=store, voucher=voucher)
    body = store.record(TIMINGS, str(timing_key(wanted)))
    assert body is not None
    kept = store.read(voucher.opened(body, "here", Timed).cache, 64 << 20)
    try:
        merged, refused = BACKEND.merge_timings(kept, kept), ""
    except BuildFailed as error:  # 8.6 does not read back every cache that it wrote
        merged, refused = kept, error.what
    assert not refused or ("does not merge two timing caches: " in refused and "Myelin" in refused)
    assert len(merged) >= len(kept) // 2
    again = build(wanted, model=path, store=store, voucher=voucher, rebuild=True)
    assert list(again.phases) == list(first.phases)
    assert again.phases["build the engine"] < first.phases["build the engine"], (first.phases, again.phases)
    assert len(store.digests()) <= 3  # two engines, if the kernels differ, and one timing cache


def test_gpu_that_vanishes_and_builder_that_is_killed_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(_convolutions(), tmp_path / "model.onnx")
    image = {"x": {"min": [1, 16, 16, 16], "opt": [4, 16, 16, 16], "max": [8, 16, 16, 16]}}
    store, wanted = Store(tmp_path / "store"), _plan(path, _spec(image))
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(BuildFailed, match="no GPU can be used here"):
            build(wanted, model=path, store=store)

    def kill(step: Progress) -> None:
        if step.phase == "build the engine":
            for child in psutil.Process().children():
                child.kill()

    with pytest.raises(BuildFailed, match="died of signal SIGKILL"):
        build(wanted, model=path, store=store, on_progress=kill)
    assert files(tmp_path / "store") == []
    assert build(wanted, model=path, store=store).sidecar.size_bytes


def test_parts_of_an_execution_are_measured(tmp_path: Path) -> None:
    sidecar = _build(linear(), tmp_path).sidecar
    session = BACKEND.load(Store(tmp_path / "store").path(sidecar.artifact), sidecar)
    x = np.ones((8, 4), np.float32)
    before = session.run({"x": x})["y"]
    assert isinstance(session, Probed)
    times = session.probe({"x": x}, batch=8, seconds=0.5)
    assert 0 < times.compute < times.wall
    assert times.graph is not None
    assert sorted(times.streams) == [1, 2, 4]
    np.testing.assert_array_equal(session.run({"x": x})["y"], before)


def test_plugin_of_tensorrts_own(tmp_path: Path) -> None:
    node = helper.make_node(
        "EfficientNMS_TRT",
        ["boxes", "scores"],
        ["count", "kept", "best", "classes"],
        name="nms",
        plugin_version="1",
        background_class=-1,
        max_output_boxes=10,
        score_threshold=0.25,
        iou_threshold=0.5,
        score_activation=0,
        box_coding=0,
    )
    outputs = [
        value("count", [1, 1], TensorProto.INT32),
        value("kept", [1, 10, 4]),
        value("best", [1, 10]),
        value("classes", [1, 10], TensorProto.INT32),
    ]
    model = model_of([node], [value("boxes", [1, 3, 4]), value("scores", [1, 3, 2])], outputs)
    boxes = {"min": [1, 3, 4], "opt": [1, 3, 4], "max": [1, 3, 4]}
    spec = _spec({"boxes": boxes}, builder={**LEVEL_0, "plugins": [{"name": "EfficientNMS_TRT"}]})
    sidecar = _build(model, tmp_path, spec).sidecar
    session = BACKEND.load(Store(tmp_path / "store").path(sidecar.artifact), sidecar)
    found = session.run(
        {
            "boxes": np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]]], np.float32),
            "scores": np.array([[[0.9, 0], [0.8, 0], [0, 0.7]]], np.float32),
        }
    )
    assert found["count"].tolist() == [[2]]  # the second box lies in the first one
    assert found["classes"][0, :2].tolist() == [0, 1]


def test_plugin_of_a_library_is_loaded_by_its_digest(tmp_path: Path) -> None:
    library = copy_plugin(tmp_path)
    digest = Digest.of_file(library)
    nodes = [
        helper.make_node("CopyRows_Test", ["x"], ["copied"], name="copy", domain="test.ops"),
        helper.make_node("Relu", ["copied"], ["y"], name="relu"),
    ]
    model = model_of(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])])
    plugin = {"name": "CopyRows_Test", "library": str(library), "sha256": digest.value}
    sidecar = _build(model, tmp_path, _spec(builder={**LEVEL_0, "plugins": [plugin]})).sidecar
    store = Store(tmp_path / "store")
    kept = store.path(digest)
    whole = kept.read_bytes()
    kept.write_bytes(whole + b"evil")
    with pytest.raises(IntegrityError, match="not the one that was reviewed"):
        BACKEND.load(store.path(sidecar.artifact), sidecar)
    kept.unlink()
    with pytest.raises(NotLoadable, match="needs the plugin library"):
        BACKEND.load(store.path(sidecar.artifact), sidecar)
    kept.write_bytes(whole)
    session = BACKEND.load(store.path(sidecar.artifact), sidecar)
    for rows in (2, 8, 1):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
    layers = BACKEND.inspect(store.path(sidecar.artifact), sidecar).layers
    assert any("copy" in layer.name.lower() for layer in layers)
