"""Precision passes: what they write, what they leave in FP32 and why, and that ONNX Runtime computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.builds import linear, model_of, value
from trtops.build.half import BF16, FP16, half_bytes
from trtops.build.precision import convert, layer_errors
from trtops.errors import BuildFailed
from trtops.model.operators import selects
from trtops.spec.engine import Precision

RANDOM = np.random.default_rng(3)
FEEDS = [{"x": RANDOM.normal(size=(2, 4)).astype(np.float32)} for _ in range(6)]


def _precision(mode: str, **changes: Any) -> Precision:
    return Precision.model_validate({"mode": mode, **changes})


def _run(data: bytes, feed: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]


def _types(data: bytes) -> dict[str, set[str]]:
    """Element types that each node computes in, by its name, as shape inference sees them."""
    model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(data), strict_mode=True)
    graph = model.graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kinds |= {item.name: item.type.tensor_type.elem_type for item in (*graph.input, *graph.output, *graph.value_info)}
    return {
        node.name: {TensorProto.DataType.Name(kinds[name]) for name in (*node.input, *node.output) if name in kinds}
        for node in graph.node
    }


def _large() -> onnx.ModelProto:
    """A decomposed layer normalisation: the square of a value of 300 is 90000, over FP16's end."""
    nodes = [
        helper.make_node("Mul", ["x", "hundred"], ["big"], name="scale"),
        helper.make_node("Mul", ["big", "big"], ["square"], name="square"),
        helper.make_node("Sqrt", ["square"], ["root"], name="root"),
        helper.make_node("Mul", ["root", "hundredth"], ["y"], name="back"),
    ]
    weights = {"hundred": np.array([300.0], np.float32), "hundredth": np.array([0.01], np.float32)}
    return model_of(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])], weights)


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
def test_full_precision_changes_no_byte(mode: str) -> None:
    data = linear().SerializeToString()
    assert convert(data, _precision(mode), []).data == data


def test_fp16_computes_in_half_and_keeps_the_bindings() -> None:
    data = linear().SerializeToString()
    made = convert(data, _precision("fp16"), FEEDS)
    types = _types(made.data)
    assert [types[name] for name in ("matmul", "add", "relu")] == [{"FLOAT16"}] * 3
    model = onnx.load_model_from_string(made.data)
    assert [item.type.tensor_type.elem_type for item in (*model.graph.input, *model.graph.output)] == [1, 1]
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16}
    assert made.steps == ("fp16: 3 of 3 nodes that can compute in fp16",)
    np.testing.assert_allclose(_run(made.data, FEEDS[0]), _run(data, FEEDS[0]), atol=2e-3)
    assert convert(data, _precision("fp16"), FEEDS).data == made.data


@pytest.mark.parametrize(
    ("selector", "kept"),
    [("op:MatMul", {"matmul"}), ("node:add", {"add"}), ("*a*", {"matmul", "add"}), ("relu", {"relu"})],
)
def test_selected_nodes_stay_in_fp32(selector: str, kept: set[str]) -> None:
    made = convert(linear().SerializeToString(), _precision("fp16", keep_fp32=[selector]), FEEDS)
    types = _types(made.data)
    assert {name for name in ("matmul", "add", "relu") if types[name] == {"FLOAT"}} == kept
    assert "keep_fp32" in made.steps[0]


def test_names_with_brackets_are_selected_by_node() -> None:
    assert selects("node:/layers[0]/mul", "/layers[0]/mul", "Mul")
    assert not selects("/layers[0]/mul", "/layers[0]/mul", "Mul")
    assert selects("/layers*", "/layers[0]/mul", "Mul")


@pytest.mark.parametrize("mode", ["fp16", "bf16", "int8"])
def test_selector_that_selects_nothing_is_refused(mode: str) -> None:
    precision = _precision(mode, keep_fp32=["op:Softmaxx"], calibration={"source": "random"})
    with pytest.raises(BuildFailed, match="'op:Softmaxx', which no node"):
        convert(linear().SerializeToString(), precision, FEEDS)


def test_what_overflows_on_the_samples_stays_in_fp32() -> None:
    data = _large().SerializeToString()
    made = convert(data, _precision("fp16"), FEEDS)
    types = _types(made.data)
    assert types["square"] == {"FLOAT"}
    assert types["root"] == {"FLOAT"}
    assert types["scale"] == {"FLOAT16"}
    assert "values reach" in made.steps[0]
    np.testing.assert_allclose(_run(made.data, FEEDS[0]), _run(data, FEEDS[0]), rtol=5e-3, atol=1e-3)
    quiet = [{"x": feed["x"] / 100} for feed in FEEDS]
    blind = convert(data, _precision("fp16"), quiet)
    assert _types(blind.data)["square"] == {"FLOAT16"}


@pytest.mark.parametrize("how", ["infinite", "empty"])
def test_what_overflows_is_found_beside_tensors_that_have_no_largest_number(how: str) -> None:
    model = _large()
    if how == "infinite":  # of both infinities and numbers, only the numbers count
        model.graph.node.append(helper.make_node("Div", ["square", "zeros"], ["odd"], name="odd"))
        zeros = np.array([0.0, 1.0, 1.0, 1.0], np.float32)
        model.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    else:
        model.graph.node.append(helper.make_node("Slice", ["x", "none", "none"], ["odd"], name="odd"))
        model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "none"))
    model.graph.output.append(value("odd", ["N", None]))
    made = convert(model.SerializeToString(), _precision("fp16"), FEEDS)
    types = _types(made.data)
    assert types["square"] == {"FLOAT"}
    assert types["scale"] == {"FLOAT16"}
    assert ("FLOAT" in types["odd"]) == (how == "infinite")


def test_weight_beyond_half_keeps_its_node_in_fp32() -> None:
    node = helper.make_node("Add", ["x", "mask"], ["y"], name="mask")
    data = model_of(
        [
            node,
        ],
        [value("x", ["N", 4])],
        [value("y", ["N", 4])],
        {"mask": np.array([-3e38, 0, 0, 0], np.float32)},
    )
    with pytest.raises(BuildFailed, match="no node of the model can compute in fp16"):
        convert(data.SerializeToString(), _precision("fp16"), FEEDS)


def test_shapes_are_never_computed_in_half() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], name="shape"),
        helper.make_node("Cast", ["size"], ["sizef"], name="tofloat", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sizef", "two"], ["doublef"], name="double"),
        helper.make_node("Cast", ["doublef"], ["doubled"], name="toint", to=TensorProto.INT64),
        helper.make_node("Relu", ["x"], ["positive"], name="relu"),
        helper.make_node("Expand", ["positive", "wanted"], ["y"], name="expand"),
        helper.make_node("Div", ["doubled", "one"], ["wanted0"], name="unused"),
    ]
    weights: dict[str, np.ndarray[Any, Any]] = {
        "two": np.array([2, 2], np.float32),
        "wanted": np.array([1, 4], np.int64),
        "one": np.array([1, 1], np.int64),
    }
    model = model_of(
        nodes, [value("x", [1, 4])], [value("y", [1, 4]), value("wanted0", [2], TensorProto.INT64)], weights
    )
    made = convert(model.SerializeToString(), _precision("fp16"), [{"x": np.ones((1, 4), np.float32)}])
    types = _types(made.data)
    assert types["double"] == {"FLOAT"}
    assert types["relu"] == {"FLOAT16"}


def test_graphs_inside_nodes_read_fp32() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["half"], ["out"])], "branch", [], [value("out", ["N", 4])]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["half"], name="relu"),
        helper.make_node("If", ["yes"], ["y"], name="if", then_branch=branch, else_branch=branch),
    ]
    model = model_of(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])], {"yes": np.array(True)})
    made = convert(model.SerializeToString(), _precision("fp16"), FEEDS)
    np.testing.assert_allclose(_run(made.data, FEEDS[0]), np.maximum(FEEDS[0]["x"], 0), atol=1e-3)


def test_bf16_is_written_for_old_opsets_too() -> None:
    model = linear()
    model.opset_import[0].version = 11
    made = onnx.load_model_from_string(convert(model.SerializeToString(), _precision("bf16"), []).data)
    assert made.opset_import[0].version == 13
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    assert weights["w__bf16"].data_type == TensorProto.BFLOAT16
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in linear().graph.initializer}
    np.testing.assert_allclose(numpy_helper.to_array(weights["w__bf16"]).astype(np.float32), original["w"], rtol=2**-8)


def test_rounding_is_to_the_nearest() -> None:
    numbers = np.array([1, 1 + 2**-9, 1 + 2**-7 + 2**-9, -3.0, np.inf, 1e30], np.float32)
    bits = half_bytes(numbers, BF16)
    assert [hex(int(bit)) for bit in bits] == ["0x3f80", "0x3f80", "0x3f81", "0xc040", "0x7f80", "0x714a"]
    assert half_bytes(np.float32(2.5), FP16).dtype == np.float16


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_int8_is_what_tensorrt_takes(method: str) -> None:
    data = linear().SerializeToString()
    calibration = {"source": "random", "method": method, "percentile": 99.0 if method == "percentile" else None}
    made = convert(data, _precision("int8", calibration=calibration), FEEDS)
    model = onnx.load_model_from_string(made.data)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    assert {node.op_type for node in model.graph.node} >= {"QuantizeLinear", "DequantizeLinear"}
    for node in model.graph.node:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            zero = held[node.input[2]]
            assert zero.data_type == TensorProto.INT8
            assert not numpy_helper.to_array(zero).any()
    weight = next(node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in held)
    assert numpy_helper.to_array(held[weight.input[1]]).shape == (3,)
    assert f"ranges by {method}" in made.steps[0]
    assert "zero points all 0" in made.steps[0]
    np.testing.assert_allclose(_run(made.data, FEEDS[0]), _run(data, FEEDS[0]), atol=0.2)
    assert convert(data, _precision("int8", calibration=calibration), FEEDS).data == made.data


def test_int8_without_data_is_refused() -> None:
    with pytest.raises(BuildFailed, match="needs calibration data"):
        convert(linear().SerializeToString(), _precision("int8"), [])


def test_model_that_comes_quantized_is_kept() -> None:
    calibration = {"source": "random"}
    once = convert(linear().SerializeToString(), _precision("int8", calibration=calibration), FEEDS)
    again = convert(once.data, _precision("int8"), [])
    assert again.data == once.data
    assert "comes quantized" in again.steps[0]
    assert "1 QuantizeLinear" in again.steps[0]


@pytest.mark.parametrize("constants", ["initializers", "nodes"])
def test_scale_and_zero_point_of_a_model_that_comes_quantized_are_reported(constants: str) -> None:
    """As exporters write them: of the weights a scale for each channel, as initializers or as Constant nodes."""
    weights: dict[str, Any] = {
        "s": np.float32(0.0125),
        "z": np.int8(3),
        "ws": np.array([0.01, 0.02, 0.03], np.float32),
        "wz": np.zeros(3, np.int8),
        "w": np.ones((4, 3), np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], axis=1),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    if constants == "nodes":
        made = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array), name))
            for name, array in weights.items()
        ]
        nodes, weights = [*made, *nodes], {}
    model = model_of(nodes, [value("x", ["N", 4])], [value("y", ["N", 3])], weights).SerializeToString()
    (step,) = convert(model, _precision("int8"), []).steps
    assert "2 QuantizeLinear (scales 0.01 to 0.03)" in step
    assert "zero points not all 0" in step
    assert "x: scale 0.0125, zero point 3; w: scale 0.01 to 0.03, zero point 0" in step


def test_node_that_is_kept_is_not_quantized() -> None:
    precision = _precision("int8", calibration={"source": "random"}, keep_fp32=["op:MatMul"])
    made = onnx.load_model_from_string(convert(linear().SerializeToString(), precision, FEEDS).data)
    assert not [node for node in made.graph.node if node.op_type == "QuantizeLinear"]


def test_fp8_has_no_pass() -> None:
    with pytest.raises(BuildFailed, match="no pass makes fp8"):
        convert(linear().SerializeToString(), _precision("fp8"), FEEDS)


def test_layer_that_errs_is_named_first() -> None:
    data = _large().SerializeToString()
    quiet = [{"x": feed["x"] / 100} for feed in FEEDS]
    broken = convert(data, _precision("fp16"), quiet)
    errors = layer_errors(data, broken.data, FEEDS)
    assert errors[0].node == "square"
    assert errors[0].relative == float("inf")
    fine = layer_errors(data, convert(data, _precision("fp16"), FEEDS).data, FEEDS)
    assert {error.node for error in fine} == {"scale", "square", "root", "back"}
    assert max(error.relative for error in fine) < 0.01


def test_what_came_in_through_a_tensor_that_was_merged_away_is_not_added_here() -> None:
    random = np.random.default_rng(5)
    nodes, weights, source = [], {}, "x"
    for layer in range(3):
        weights[f"w{layer}"] = random.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32)
        kinds = {"scale": np.ones, "bias": np.zeros, "mean": np.zeros, "var": np.ones}
        weights |= {f"{kind}{layer}": make(8, np.float32) for kind, make in kinds.items()}
        target = "y" if layer == 2 else f"n{layer}"
        conv = helper.make_node("Conv", [source, f"w{layer}"], [f"c{layer}"], name=f"conv{layer}", pads=[1, 1, 1, 1])
        rest = [f"{kind}{layer}" for kind in kinds]
        nodes += [conv, helper.make_node("BatchNormalization", [f"c{layer}", *rest], [target], name=f"norm{layer}")]
        source = target
    data = model_of(nodes, [value("x", ["N", 8, 6, 6])], [value("y", ["N", 8, 6, 6])], weights).SerializeToString()
    feeds = [{"x": random.normal(size=(2, 8, 6, 6)).astype(np.float32)} for _ in range(3)]
    made = convert(data, _precision("int8", calibration={"source": "random"}), feeds)
    errors = {error.node: error for error in layer_errors(data, made.data, feeds)}
    assert errors.keys() == {"norm0", "norm1", "norm2"}  # convolutions are merged with what follows
    assert errors["norm0"].added == errors["norm0"].relative > 0
    for before, after in (("norm0", "norm1"), ("norm1", "norm2")):
        assert errors[after].added == errors[after].relative - errors[before].relative
