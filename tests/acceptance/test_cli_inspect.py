"""``trtops inspect``: what is inside an engine, and what differs between two."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.builds import model_of, save, value
from trtops.backend.inspect import Layer, inspect_onnx
from trtops.backend.trt_inspect import layers_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def _artifact(out: str) -> str:
    found = re.search(r"artifact ([0-9a-z:]+)", out)
    assert found is not None
    return found[1]


def test_engine_is_shown_and_two_are_compared(repo: Repository) -> None:
    single = repo.call("inspect", "tiny").says(0, "onnxruntime: artifact", "float32", "profile", "layers (", "weights")
    assert re.search(r"input +x +float32", single.out)
    assert re.search(r"default +x +1.4 +2.4 +8.4", single.out)
    repo.edit("  mode: fp32", "  mode: fp16")
    half = repo.call("inspect", "tiny").says(0, "step 1: fp16: 3 of 3 nodes", "Cast")
    one, other = _artifact(single.out), _artifact(half.out)
    assert one != other
    changed = repo.call("inspect", "--diff", one, other).says(0, "artifact: ", "+ step fp16", "+ layer")
    assert "device: " not in changed.out
    repo.call("inspect", "--diff", one, one).says(0, "the artifacts do not differ")


def test_a_build_shows_what_the_engine_will_need(repo: Repository) -> None:
    done = repo.call("build", "tiny").says(0, "memory at the maximum of each profile (estimated for fp32")
    lines = done.out.splitlines()
    (row,) = [line for line in lines if line.startswith("default ")]
    # weights 4 x 3 + 3 numbers; two tensors of 8 x 3 alive at once beside nothing else; 8 x 4 in, 8 x 3 out
    assert row.split() == ["default", "60", "B", "192", "B", "of", "64.0", "MiB", "224", "B", "of", "16.0", "MiB"]
    repo.edit("  workspace: 64MiB\n", "")
    repo.call("build", "tiny").says(0, "of no bound")


def test_types_are_known_behind_what_onnx_runtime_fused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("FusedConv", ["x", "w"], ["c"], name="conv", domain="com.microsoft"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("MatMulIntegerToFloat", ["q", "r"], ["m"], name="mixed", domain="com.microsoft"),
        helper.make_node("Relu", ["m"], ["y"], name="behind"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
    ]
    inputs = [value("x", ["N", 3, 8, 8]), value("q", [3], TensorProto.INT8)]
    made = model_of(
        nodes, inputs, [value("y", None), value("s", [4], TensorProto.INT64)], {"w": np.ones((3, 3, 1, 1), np.float32)}
    )
    found = inspect_onnx(save(made, tmp_path / "m.onnx"))
    assert {layer.name: layer.precision for layer in found.layers} == {
        "conv": "float32",
        "relu": "float32",
        "mixed": "?",
        "behind": "float32",  # an output of the model, which says so
        "shape": "int64",
    }


def test_wrong_arguments_are_told(repo: Repository) -> None:
    repo.call("inspect").says(2, "name an engine, or two artifacts with --diff")
    repo.call("inspect", "--diff", "0123456789", "0123456789").says(2, "no artifact was built that is '0123456789'")
    repo.call("inspect", "tiny").says(0)
    repo.call("inspect", "--diff", "", "").says(2, "no artifact was built that is ''", "6 digits or more")


def test_artifact_that_nobody_vouches_for_is_not_opened(repo: Repository) -> None:
    artifact = _artifact(repo.call("inspect", "tiny").says(0).out)
    for record in (repo.home / "store" / "records" / "provenance").iterdir():
        record.unlink()
    repo.call("inspect", "--diff", artifact, artifact).says(2, "nobody vouches for the artifact")


def test_what_tensorrt_tells_of_layers() -> None:
    detailed = """{"Layers": [{"Name": "conv + relu", "LayerType": "CaskConvolution", "Outputs": [
        {"Name": "y", "Format/Datatype": "Row major linear FP16 format"}]}, {"Name": "shape"}], "Bindings": ["x", "y"]}"""
    assert layers_of(detailed) == (
        Layer(name="conv + relu", kind="CaskConvolution", precision="Row major linear FP16 format"),
        Layer(name="shape", kind="?"),
    )
    dynamic = """{"Layers": [{"Name": "conv", "LayerType": "CaskConvolution", "Weights": {"Type": "Half", "Count": 9},
        "Outputs": [{"Name": "y", "Format/Datatype": "N/A due to dynamic shapes"}]}]}"""
    assert layers_of(dynamic) == (Layer(name="conv", kind="CaskConvolution", precision="fp16 weights"),)
    assert layers_of('{"Layers": [{"Name": "conv", "Metadata": "[ONNX Layer: conv]\x1e[ONNX Layer: relu]"}]}') == (
        Layer(name="conv", kind="?"),
    )
    assert layers_of('{"Layers": ["conv + relu", "softmax"]}')[1] == Layer(name="softmax", kind="?")
    assert layers_of("no JSON") == ()
