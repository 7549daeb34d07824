"""Memory formats of inputs and outputs: in the spec, in preflight, in the plan, and in what is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto
from pydantic import ValidationError

from tests.support.builds import engine_spec
from tests.support.formats import RANGES, build, conv, images, load, lying
from tests.support.preflights import checker, one
from tests.support.releases import sidecar
from tests.support.specs import profile, spec
from trtops.backend.port import Sidecar
from trtops.backend.select import backend as by_name
from trtops.build.plan import BuildPlan, plan
from trtops.digest import Digest
from trtops.errors import BuildFailed
from trtops.release.contract import contract_of
from trtops.report.inspection import inspection
from trtops.spec.bindings import format_problem
from trtops.spec.engine import EngineSpec, Target
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from trtops.backend.port import BuildResult

IMAGE = ([1, 3, 8, 8], [2, 3, 8, 8], [8, 3, 8, 8])
HWC = {"x": {"format": "hwc"}}


# -- the spec ----------------------------------------------------------------------------------------------------------


def test_specs_of_before_have_the_digest_of_before() -> None:
    assert b"bindings" not in spec().canonical_bytes()
    assert spec(bindings={}).digest() == spec().digest()
    assert spec(bindings=HWC).digest() != spec().digest()
    again = EngineSpec.model_validate_json(spec(bindings=HWC).canonical_bytes())
    assert again.bindings["x"].format == "hwc"


def test_a_format_that_nobody_has_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"'linear', 'hwc' or 'hwc8'"):
        spec(bindings={"x": {"format": "chw32"}})


@pytest.mark.parametrize(
    ("info", "wanted", "backend", "version", "words"),
    [
        (("float32", 2), "hwc", "onnxruntime", None, ("'x' has 2 dimensions", "set `format: linear` for 'x'")),
        (("string", 4), "hwc", "fake", None, ("'x' is text", "linear")),
        (("float16", 4), "hwc", "tensorrt", "8.6", ("TensorRT 8.6 has the format hwc for float32 only", "hwc8")),
        (("float32", 4), "hwc8", "tensorrt", "8.6", ("has the format hwc8 for float16 only", "set `format: hwc` for")),
        (("bfloat16", 4), "hwc8", "tensorrt", "10.0", ("for float16 only", "set `format: linear`")),
        (("int32", 4), "hwc", "tensorrt", None, ("'x' is int32, and TensorRT has the format hwc for", "linear")),
        (("bfloat16", 4), "hwc", "tensorrt_rtx", "1.7", ("TensorRT for RTX 1.7 has", "set `format: hwc8` for 'x'")),
    ],
)
def test_what_no_builder_can_do_is_said_with_its_fix(
    info: tuple[str, int], wanted: Any, backend: str, version: str | None, words: tuple[str, str]
) -> None:
    tensor = TensorInfo(name="x", dtype=info[0], shape=("n", *[3] * (info[1] - 1)))
    problem = format_problem(tensor, wanted, backend, version)
    assert problem is not None
    assert words[0] in problem[0]
    assert words[1] in problem[1]
    assert format_problem(tensor, "linear", backend, version) is None


@pytest.mark.parametrize(
    ("dtype", "wanted", "backend", "version"),
    [
        ("float32", "hwc", "tensorrt", "8.6"),
        ("float16", "hwc8", "tensorrt", "8.6"),
        ("float16", "hwc", "tensorrt", "10.16.1.11"),
        ("float16", "hwc", "tensorrt", "11"),
        ("float16", "hwc", "tensorrt", None),
        ("uint8", "hwc", "tensorrt_rtx", None),
        ("uint8", "hwc8", "onnxruntime", None),
    ],
)
def test_what_a_builder_can_do(dtype: str, wanted: Any, backend: str, version: str | None) -> None:
    info = TensorInfo(name="x", dtype=dtype, shape=("n", 3, 8, 8))
    assert format_problem(info, wanted, backend, version) is None


# -- preflight ---------------------------------------------------------------------------------------------------------


def test_preflight_names_the_tensor_the_place_and_the_fix(tmp_path: Path) -> None:
    check = checker(tmp_path)
    profiles = [profile(x=IMAGE)]
    fine = check(conv(), profiles=profiles, bindings=HWC)
    assert [fact.code for fact in fine.facts if fact.code.startswith("bindings")] == []
    fact = one(check(conv(), profiles=profiles, bindings={"z": {"format": "hwc"}}), "bindings.unknown-name")
    assert (fact.path, fact.severity) == (("bindings", "z"), "error")
    assert "no input or output 'z'" in fact.message
    assert fact.fix == "name one of 'x', 'y'"
    flat = [profile(x=([1, 3], [2, 3], [4, 3]))]
    fact = one(check(conv(rank=2), profiles=flat, bindings={"y": {"format": "hwc"}}), "bindings.format")
    assert fact.path == ("bindings", "y", "format")
    assert "'y' has 2 dimensions" in fact.message


def test_each_target_is_asked(tmp_path: Path) -> None:
    targets = [{"backend": "onnxruntime"}, {"backend": "tensorrt", "version": "8.6"}]
    found = checker(tmp_path)(conv(), profiles=[profile(x=IMAGE)], targets=targets, bindings={"x": {"format": "hwc8"}})
    fact = one(found, "bindings.format")
    assert "TensorRT 8.6 has the format hwc8 for float16 only" in fact.message
    assert fact.fix == "set `format: hwc` for 'x', or `format: linear`"


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(**changes: Any) -> BuildPlan:
    of = engine_spec("onnxruntime", RANGES, **changes)
    return plan(of, of.targets[0], model=Digest.of_bytes(b"model"), backend_version="1")


def test_the_key_changes_only_where_a_format_is_set() -> None:
    plain = _plan()
    assert plain.key == _plan(bindings={"x": {"format": "linear"}}).key
    assert b"bindings" not in plain.canonical_bytes()
    keys = {plain.key, _plan(bindings=HWC).key, _plan(bindings={"y": {"format": "hwc"}}).key}
    keys.add(_plan(bindings={"x": {"format": "hwc8"}}).key)
    assert len(keys) == 4


# -- what is built -----------------------------------------------------------------------------------------------------


def _formats(result: BuildResult) -> list[tuple[str, str]]:
    return [(info.name, info.format) for info in (*result.inputs, *result.outputs)]


@pytest.mark.parametrize("backend", ["fake", "onnxruntime"])
def test_the_format_is_in_what_is_built_and_loaded(tmp_path: Path, backend: str) -> None:
    result = build(tmp_path, backend, bindings={**HWC, "y": {"format": "hwc8"}})
    assert _formats(result) == [("x", "hwc"), ("y", "hwc8")]
    session = load(tmp_path, backend, result)
    try:
        assert [info.format for info in (*session.inputs, *session.outputs)] == ["hwc", "hwc8"]
        x = images(2)
        y = session.run({"x": lying(x, "hwc")})["y"]
        np.testing.assert_array_equal(y, session.run({"x": x})["y"])
        assert y.strides == lying(y, "hwc8").strides
    finally:
        session.close()


@pytest.mark.parametrize("backend", ["fake", "onnxruntime"])
@pytest.mark.parametrize(
    ("bindings", "model", "words"),
    [
        ({"z": {"format": "hwc"}}, conv(), "no input or output 'z'"),
        ({"x": {"format": "hwc"}}, conv(rank=2), "'x' has 2 dimensions"),
        ({"y": {"format": "hwc8"}}, conv(rank=5), "'y' has 5 dimensions"),
    ],
)
def test_a_build_refuses_what_preflight_did_not_see(
    tmp_path: Path, backend: str, bindings: Any, model: onnx.ModelProto, words: str
) -> None:
    shape = [dim.dim_value or 1 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    ranges = {"x": {"min": shape, "opt": shape, "max": shape}}
    with pytest.raises(BuildFailed, match=words) as caught:
        build(tmp_path, backend, model, ranges=ranges, bindings=bindings)
    assert str(caught.value.where).startswith("bindings.")
    assert caught.value.fix


def test_clients_see_the_same_interface_whatever_the_format() -> None:
    x = TensorInfo(name="x", dtype="float32", shape=("n", 3, 8, 8))
    plain = sidecar(inputs=(x,), outputs=(x,))
    last = sidecar(inputs=(x.model_copy(update={"format": "hwc"}),), outputs=(x,))
    assert contract_of("1.0.0", {"a": plain}) == contract_of("1.0.0", {"a": last})
    assert Sidecar.model_validate_json(last.canonical_bytes()) == last
    assert b'"hwc"' not in contract_of("1.0.0", {"a": last}).canonical_bytes()


def test_inspect_shows_formats_where_there_are_some() -> None:
    x = TensorInfo(name="x", dtype="float32", shape=("n", 3, 8, 8))
    y = TensorInfo(name="y", dtype="float32", shape=("n", 2))
    plain = inspection(sidecar(inputs=(x,), outputs=(y,)), None, None)
    shown = inspection(sidecar(inputs=(x.model_copy(update={"format": "hwc"}),), outputs=(y,)), None, None)
    assert "linear" not in plain
    lines = [line.split() for line in shown.splitlines()]
    assert ["input", "x", "float32", "n×3×8×8", "hwc"] in lines  # noqa: RUF001
    assert ["output", "y", "float32", "n×2", "linear"] in lines  # noqa: RUF001


# -- TensorRT for RTX --------------------------------------------------------------------------------------------------

needs_rtx = pytest.mark.skipif(
    by_name("tensorrt_rtx").status(Target(backend="tensorrt_rtx", compute_capability="8.6")).version is None,
    reason="tensorrt_rtx is not installed",
)


@needs_rtx
def test_rtx_builds_other_engines_of_other_formats(tmp_path: Path) -> None:
    engines = {}
    for name, bindings in (("linear", {}), ("hwc", {**HWC, "y": {"format": "hwc"}})):
        folder = tmp_path / name
        result = build(folder, "tensorrt_rtx", bindings=bindings)
        assert _formats(result) == [("x", name), ("y", name)]
        engines[name] = (folder / "engine").read_bytes()
    assert engines["linear"] != engines["hwc"]


@needs_rtx
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (TensorProto.FLOAT, "hwc"),
        (TensorProto.FLOAT, "hwc8"),
        (TensorProto.FLOAT16, "hwc"),
        (TensorProto.FLOAT16, "hwc8"),
    ],
)
def test_what_is_refused_for_rtx_is_what_rtx_refuses(tmp_path: Path, kind: int, wanted: Any) -> None:
    """Our table against the library: what we let through builds, what we refuse it refuses, too."""
    import tensorrt_rtx as trt

    from trtops.backend.trt_log import logger

    log = logger(trt)
    log.errors = []
    model = conv(kind)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    assert parser.parse(model.SerializeToString())
    network.get_input(0).allowed_formats = 1 << int(getattr(trt.TensorFormat, wanted.upper()))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    shapes = builder.create_optimization_profile()
    shapes.set_shape("x", *IMAGE)
    config.add_optimization_profile(shapes)
    took = builder.build_serialized_network(network, config) is not None
    try:
        build(tmp_path, "tensorrt_rtx", model, bindings={"x": {"format": wanted}})
        ours = True
    except BuildFailed:
        ours = False
    assert ours == took
