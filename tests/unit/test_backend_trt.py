"""TensorRT's words put plainly, against the real library (TensorRT for RTX) where it is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.builds import engine_spec, linear, model_of, save, value
from trtops.backend.port import BuildRequest, BuildResult, Progress
from trtops.backend.select import backend as by_name
from trtops.backend.tensorrt import TensorRtBackend, imported
from trtops.backend.trt_log import meaning, trimmed
from trtops.backend.trt_network import network_flags
from trtops.device import Device
from trtops.errors import BuildFailed, NotLoadable, Unavailable
from trtops.spec.engine import Target

if TYPE_CHECKING:
    from pathlib import Path

RTX = by_name("tensorrt_rtx")
H200 = Device(kind="gpu", name="NVIDIA H200", compute_capability="9.0", sm_count=132)

needs_rtx = pytest.mark.skipif(
    RTX.status(Target(backend="tensorrt_rtx", compute_capability="8.6")).version is None,
    reason="tensorrt_rtx is not installed",
)


def _build(model: onnx.ModelProto, folder: Path, seen: list[Progress] | None = None, **changes: Any) -> BuildResult:
    spec = engine_spec("tensorrt_rtx", **changes)
    request = BuildRequest(
        target=spec.targets[0],
        model=str(save(model, folder / "model.onnx")),
        output=str(folder / "engine"),
        precision=spec.precision,
        profiles=spec.profiles,
        memory=spec.memory,
        builder=spec.builder,
    )
    return RTX.build(request, (seen if seen is not None else []).append)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            (
                "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([tactic.cpp:1676: enumerate_tactics] Tactic "
                "Selection: no tactics to implement the operation within workspace limit. Consider increase ...)"
            ),
            "no kernel for a node fits into the workspace",
        ),
        (
            "10: Could not find any implementation for node conv1 + relu.",
            r"no kernel .* \(node conv1\)",
        ),
        ("4: [network.cpp::validate] Dynamic input tensor x is missing dimensions in profile 0.", "profile 0 has no"),
        ("6: The engine plan file is not compatible with this version of TensorRT, expecting 8.6", "another version"),
        ("Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient ...)", "no GPU"),
        ("2: [virtualMemoryBuffer.cpp::resizePhysical] Error Code 2: OutOfMemory", "not enough free memory"),
        (
            "1: [defaultAllocator.cpp::deallocate::42] Error Code 1: Cuda Runtime (unspecified launch failure)",
            "GPU failed: un",
        ),
    ],
)
def test_known_errors_are_put_plainly(said: str, what: str) -> None:
    plain, fix = meaning(["something else first", said, "and more after it"])
    assert re.search(what, plain)
    assert fix


def test_unknown_errors_are_passed_on_without_their_places() -> None:
    said = "IBuilder::build: Error Code 9: Odd Thing (it broke. In getBounds at /_src/optimizer/shape.cpp:4433)"
    assert meaning([said]) == ("Odd Thing (it broke.", None)
    assert meaning([]) == ("TensorRT gave no reason", None)
    assert trimmed("two\n lines") == "two lines"


def test_flags_are_looked_up_by_name() -> None:
    class Old:
        class NetworkDefinitionCreationFlag:
            EXPLICIT_BATCH = 0

    class Ten:
        class NetworkDefinitionCreationFlag:
            EXPLICIT_BATCH = 0
            STRONGLY_TYPED = 1

    class Eleven:
        class NetworkDefinitionCreationFlag:
            STRONGLY_TYPED = 0

    assert [network_flags(version) for version in (Old, Ten, Eleven)] == [0b1, 0b11, 0b1]


def test_tensorrt_that_is_not_here_says_what_to_install() -> None:
    try:
        imported("tensorrt")
    except Unavailable:
        status = TensorRtBackend().status(Target(backend="tensorrt"))
        assert not status.can_build
        assert not status.can_load
        assert "pip install 'trtops[tensorrt]'" in str(status.reason)
    else:
        pytest.skip("TensorRT is installed here")


def test_library_that_breaks_on_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_trt.py").write_text("raise OSError('libnvinfer.so.10: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Unavailable, match=r"installed but cannot be imported: libnvinfer\.so\.10"):
        imported("broken_trt")


class _Library:
    """A stand-in for the module ``tensorrt``: all that is read before it sees an engine's bytes."""

    __version__ = "8.6.0"


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch) -> TensorRtBackend:
    monkeypatch.setattr("trtops.backend.tensorrt.imported", lambda _: _Library)
    monkeypatch.setattr("trtops.backend.cuda_device.detect", lambda: H200)
    return TensorRtBackend()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, None),
        ({"version": "8.6", "gpu": {"name": "H200", "compute_capability": "9.0"}}, None),
        ({"version": "10.3"}, "asks for TensorRT 10.3, here is 8.6.0"),
        ({"gpu": {"name": "L4", "compute_capability": "8.9"}}, "compute capability 8.9, here is NVIDIA H200"),
        ({"gpu": {"name": "H100", "compute_capability": "9.0"}}, "asks for H100, here is NVIDIA H200"),
        ({"gpu": {"name": "H200", "compute_capability": "9.0", "mig": "1g.18gb"}}, "asks for H200, 1g.18gb, here"),
    ],
)
def test_target_is_held_against_this_machine(
    on_h200: TensorRtBackend, target: dict[str, Any], words: str | None
) -> None:
    status = on_h200.status(Target.model_validate({"backend": "tensorrt", **target}))
    assert status.can_build is (words is None)
    assert status.reason is None if words is None else words in str(status.reason)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "tensorrt_rtx"}, "is for tensorrt_rtx"),
        ({"backend_version": "8.6.1"}, r"built by TensorRT 8\.6\.1, here is 8\.6\.0"),
        ({"backend_version": "10.3.0", "extra": {"version_compatible": "true"}}, r"TensorRT 10\.3\.0, here is 8\.6\.0"),
        ({"device": H200.model_copy(update={"sm_count": 16, "mig": "1g.18gb"})}, r"1g\.18gb\), here is NVIDIA H200"),
        (
            {"device": H200.model_copy(update={"name": "NVIDIA L4", "compute_capability": "8.9"})},
            r"built for NVIDIA L4 \(sm 8\.9\), here is NVIDIA H200 \(sm 9\.0\)",
        ),
    ],
)
def test_engine_of_another_machine_never_reaches_tensorrt(
    on_h200: TensorRtBackend, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    from tests.support.releases import sidecar

    made = sidecar(backend="tensorrt", backend_version="8.6.0", device=H200).model_copy(update=changes)
    with pytest.raises(NotLoadable, match=words):
        on_h200.load(tmp_path / "engine", made)


@needs_rtx
@pytest.mark.parametrize(
    ("capability", "words"),
    [("9.0", "nothing for compute capability 9.0: it knows 7.5, 8.0, 8.6"), (None, "names no compute capability")],
)
def test_compute_capability_that_rtx_lacks(capability: str | None, words: str) -> None:
    status = RTX.status(Target(backend="tensorrt_rtx", compute_capability=capability))
    assert not status.can_build
    assert words in str(status.reason)


@needs_rtx
def test_engine_is_written_and_progress_told(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = _build(linear(), tmp_path, seen)
    assert (tmp_path / "engine").stat().st_size > 10_000
    assert result.device == Device(kind="gpu", name="any GPU", compute_capability="8.6")
    phases = [progress.phase for progress in seen]
    assert phases[0] == "parse the model"
    assert phases[-1] == "write the engine"
    assert any(progress.total for progress in seen)


@needs_rtx
def test_types_are_the_librarys(tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)
    made = model_of([node], [value("x", ["N", 4], TensorProto.INT64)], [value("y", ["N", 4], TensorProto.FLOAT16)])
    result = _build(made, tmp_path)
    assert [(info.dtype, info.shape) for info in (*result.inputs, *result.outputs)] == [
        ("int64", ("N", 4)),
        ("float16", ("N", 4)),
    ]


def _one(operator: str, kind: int = TensorProto.FLOAT, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x"], ["y"], name="node_1", **attributes)
    return model_of([node], [value("x", ["N", 4], kind)], [value("y", ["N", 4], kind)])


@needs_rtx
@pytest.mark.parametrize(
    ("model", "changes", "where", "words"),
    [
        (_one("Magic", domain="my.own"), {}, "node 'node_1' (Magic)", "no such operator and no plugin"),
        (_one("Unique"), {}, "node 'node_1' (Unique)", "does not implement Unique"),
        (_one("Identity", TensorProto.STRING), {}, "input 'x'", "no such element type"),
        (linear(), {"memory": {}}, "memory.workspace", "workspace is not set"),
        (linear(), {"memory": {"workspace": "1MiB", "dla": "1MiB"}}, "memory.dla", "no DLA"),
        (
            linear(),
            {"builder": {"plugins": [{"name": "Nothing_TRT"}]}},
            "builder.plugins",
            "brings no plugin 'Nothing_TRT'",
        ),
        (
            linear(),
            {"builder": {"plugins": [{"library": "x.so"}]}},
            "builder.plugins",
            "x.so has no digest in the spec",
        ),
        (linear(), {"builder": {"hardware_compatible": True}}, "builder.hardware_compatible", "no hardware"),
        (linear(), {"precision": {"mode": "fp8"}}, None, "no pass converts a model to fp8"),
        (linear(), {"ranges": {"z": {"min": [1], "opt": [1], "max": [1]}}}, "profile 'default'", "dynamic input 'x'"),
        (linear(), {"ranges": {"x": {"min": [1], "opt": [1], "max": [1]}}}, "profile 'default'", r"min \[1\] does not"),
        (
            linear(),
            {"ranges": {"x": {"min": [1, 4], "opt": [1, 4], "max": [1, 5]}}},
            "profile 'default'",
            r"max \[1, 5\] does not fit the input 'x' of shape \[-1, 4\]",
        ),
        (
            linear(),
            {"ranges": {"x": {"min": [3, 4], "opt": [2, 4], "max": [4, 4]}}},
            "profile 'default'",
            "min ≤ opt ≤ max does not hold for 'x'",
        ),
    ],
)
def test_refusals_name_the_place_and_the_fix(
    tmp_path: Path, model: onnx.ModelProto, changes: dict[str, Any], where: str | None, words: str
) -> None:
    with pytest.raises(BuildFailed, match=words) as caught:
        _build(model, tmp_path, **changes)
    assert caught.value.where == where
    assert caught.value.fix
    assert not (tmp_path / "engine").exists()


@needs_rtx
def test_workspace_that_is_too_small_is_told(tmp_path: Path) -> None:
    weights = {"w": np.ones((64, 3, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    made = model_of([node], [value("x", ["N", 3, 64, 64])], [value("y", ["N", 64, 62, 62])], weights)
    shape = {"min": [1, 3, 64, 64], "opt": [8, 3, 64, 64], "max": [32, 3, 64, 64]}
    with pytest.raises(BuildFailed, match="fits into the workspace") as caught:
        _build(made, tmp_path, ranges={"x": shape}, memory={"workspace": "1KiB"})
    assert "raise memory.workspace" in str(caught.value.fix)
    assert "workspace limit" in caught.value.log
