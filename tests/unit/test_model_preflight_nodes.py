"""Preflight of what a graph is made of: operators, precision, quantization, the ways in which it hangs together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import linear, model, value
from tests.support.preflights import TENSORRT, checker, codes, one
from tests.support.specs import profile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def check(tmp_path: Path) -> Any:
    return checker(tmp_path)


class TestBrokenGraphs:
    def chain(self, *nodes: tuple[str, list[str], list[str]]) -> Any:
        made = [helper.make_node("Sum", reads, makes, name=name) for name, reads, makes in nodes]
        return model(made, [value("x", ["n", 4])], [value("y", ["n", 4])])

    @pytest.mark.parametrize(
        ("nodes", "node", "words"),
        [
            (
                [("a", ["x", "c"], ["b"]), ("d", ["b"], ["c"]), ("e", ["c"], ["y"])],
                "a",
                "waits for its own output, by way of d",
            ),
            ([("a", ["x", "y"], ["y"])], "a", "reads its own output"),
            ([("a", ["x", "nowhere"], ["y"])], "a", "reads 'nowhere', which no input, weight or node is"),
            ([("a", ["x"], ["y"]), ("b", ["x"], ["y"])], "b", "makes the tensor 'y', which a is already"),
            ([("a", ["x"], ["x"]), ("b", ["x"], ["y"])], "a", "'x', which an input or a weight is already"),
            ([("a", ["x"], ["z"])], "y", "the output 'y' is made by no node"),
        ],
    )
    def test_the_node_is_named(self, check: Any, nodes: Any, node: str, words: str) -> None:
        fact = one(check(self.chain(*nodes)), "model.broken-graph")
        assert (fact.severity, fact.node) == ("error", node)
        assert words in fact.message

    def test_a_long_circle_is_shortened(self, check: Any) -> None:
        ring = [(f"n{i}", [f"t{i}", "x"], [f"t{(i + 1) % 9}"]) for i in range(9)]
        fact = one(check(self.chain(*ring, ("out", ["t3"], ["y"]))), "model.broken-graph")
        assert "node n0 (Sum) waits for its own output, by way of n1, n2, n3 and 5 more" in fact.message

    def test_nodes_in_another_order_are_no_circle(self, check: Any) -> None:
        assert check(self.chain(("b", ["a"], ["y"]), ("a", ["x"], ["a"]))).facts == ()

    def test_graphs_inside_nodes_see_what_is_around(self, check: Any) -> None:
        def branch(read: str) -> Any:
            nodes = [helper.make_node("Neg", [read], ["t"]), helper.make_node("Neg", ["t"], ["r"])]
            return helper.make_graph(nodes, "b", [], [value("r", ["n", 4])])

        def proto(read: str) -> Any:
            flag = numpy_helper.from_array(np.array(True), "flag")
            node = helper.make_node("If", ["flag"], ["y"], "if", then_branch=branch("x"), else_branch=branch(read))
            return model([node], [value("x", ["n", 4])], [value("y", ["n", 4])], [flag])

        assert "model.broken-graph" not in codes(check(proto("x")))
        assert "'nowhere'" in one(check(proto("nowhere")), "model.broken-graph").message
        assert "reads its own output" in one(check(proto("y")), "model.broken-graph").message


class TestOperators:
    def custom(self, domain: str = "my.ops") -> Any:
        nodes = [helper.make_node("Swish", ["x"], ["y"], name="act", domain=domain)]
        return model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], domains=[domain])

    def test_an_operator_that_no_target_takes(self, check: Any) -> None:
        fact = one(check(self.custom()), "model.custom-operator")
        assert (fact.severity, fact.node) == ("error", "act")
        assert "my.ops::Swish" in fact.message

    def test_onnx_runtime_brings_microsoft_s(self, check: Any) -> None:
        assert check(self.custom("com.microsoft")).facts == ()
        targets = [{"backend": "onnxruntime"}, TENSORRT]
        found = check(self.custom("com.microsoft"), targets=targets, memory={"workspace": "1GiB"})
        fact = one(found, "model.custom-operator")
        assert fact.severity == "warning"
        assert "no engine for tensorrt-8.6" in fact.message

    def test_a_plugin_takes_it(self, check: Any) -> None:
        found = check(
            self.custom(),
            targets=[TENSORRT],
            memory={"workspace": "1GiB"},
            builder={"plugins": [{"name": "Swish"}]},
        )
        assert found.facts == ()

    def nms(self, operator: str = "EfficientNMS_TRT") -> Any:
        """A plugin of TensorRT's own stands in the default domain: its exporters know no other."""
        outputs = [value("count", ["n", 1], TensorProto.INT32), value("kept", ["n", 10, 4])]
        nodes = [helper.make_node(operator, ["boxes", "scores"], ["count", "kept"], name="nms")]
        return model(nodes, [value("boxes", ["n", 9, 4]), value("scores", ["n", 9, 2])], outputs)

    def test_plugins_that_tensorrt_brings_are_known_to_it(self, check: Any) -> None:
        shapes = profile(boxes=([1, 9, 4], [4, 9, 4], [8, 9, 4]), scores=([1, 9, 2], [4, 9, 2], [8, 9, 2]))
        rest = {"profiles": [shapes], "memory": {"workspace": "1GiB"}}
        found = check(self.nms(), targets=[TENSORRT], **rest)
        assert found.facts == ()
        assert found.output_shapes["default"]["max"] == {"count": (-1, 1), "kept": (-1, 10, 4)}
        fact = one(check(self.nms(), targets=[{"backend": "onnxruntime"}, TENSORRT], **rest), "model.custom-operator")
        assert fact.severity == "warning"
        assert fact.message == ("the operator EfficientNMS_TRT (node nms) is not ONNX's own; no engine for onnxruntime")
        for target in ({"backend": "onnxruntime"}, {"backend": "tensorrt_rtx"}):
            fact = one(check(self.nms(), targets=[target], **rest), "model.unknown-operator")
            assert (fact.severity, fact.node) == ("error", "nms")
        assert one(check(self.nms("EfficientNMS"), targets=[TENSORRT], **rest), "model.unknown-operator")
        named = {"plugins": [{"name": "EfficientNMS"}]}
        assert check(self.nms("EfficientNMS"), targets=[TENSORRT], builder=named, **rest).facts == ()

    def test_an_operator_that_onnx_does_not_have(self, check: Any) -> None:
        proto = model([helper.make_node("Swisch", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", ["n", 4])])
        assert "opset 17 has no operator 'Swisch'" in one(check(proto), "model.unknown-operator").message

    def test_an_operator_of_a_later_opset(self, check: Any) -> None:
        proto = model(
            [helper.make_node("Gelu", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", ["n", 4])], opset=17
        )
        assert one(check(proto), "model.unknown-operator")

    def test_an_opset_that_is_not_known_yet(self, check: Any) -> None:
        proto = linear()
        proto.opset_import[0].version = 9999
        assert one(check(proto), "model.opset-unknown").severity == "warning"

    def test_data_in_other_files(self, check: Any) -> None:
        proto = linear()
        tensor = proto.graph.initializer[0]
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        assert one(check(proto), "model.external-data").severity == "error"


class TestPrecision:
    @pytest.mark.parametrize("classes", [3, 20_000])  # small: in the parsed file; big: read from the disk
    def test_a_weight_that_a_half_cannot_hold(self, check: Any, classes: int) -> None:
        proto = linear(classes=classes)
        weights = np.ones((4, classes), np.float32)
        weights[2, 1] = -65505
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
        fact = one(check(proto, precision={"mode": "fp16"}), "precision.fp16-overflow")
        assert fact.node == "w"
        assert "65505" in fact.message
        assert check(proto).facts == ()
        weights[2, 1] = -65504
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
        assert check(proto, precision={"mode": "fp16"}).facts == ()

    @pytest.mark.parametrize("kept", ["op:MatMul", "node:matmul", "mat*"])
    def test_a_node_that_stays_in_fp32_may_have_it(self, check: Any, kept: str) -> None:
        proto = linear(value_of=1e6)
        assert check(proto, precision={"mode": "fp16", "keep_fp32": [kept]}).facts == ()
        assert codes(check(proto, precision={"mode": "fp16"})) == ["precision.fp16-overflow"]

    @pytest.mark.parametrize("mode", ["fp16", "bf16", "int8"])
    def test_selector_that_no_node_fits(self, check: Any, mode: str) -> None:
        precision = {"mode": mode, "keep_fp32": ["op:MatMul", "op:Softmaxx"], "calibration": {"source": "random"}}
        fact = one(check(linear(), precision=precision), "precision.selector-unused")
        assert fact.severity == "error"
        assert fact.path == ("precision", "keep_fp32", 1)
        assert "'op:Softmaxx'" in fact.message
        assert check(linear(), precision={**precision, "mode": "fp32"}).facts == ()

    @pytest.mark.parametrize("square", ["Pow", "Mul"])
    def test_a_layer_normalisation_in_parts(self, check: Any, square: str) -> None:
        nodes = [
            helper.make_node(square, ["x", "two" if square == "Pow" else "x"], ["squared"], name="square"),
            helper.make_node("ReduceMean", ["squared"], ["mean"], axes=[1]),
            helper.make_node("Sqrt", ["mean"], ["root"]),
            helper.make_node("Div", ["x", "root"], ["y"]),
        ]
        proto = model(
            nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], [numpy_helper.from_array(np.float32(2), "two")]
        )
        fact = one(check(proto, precision={"mode": "fp16"}), "precision.fp16-square")
        assert (fact.severity, fact.node) == ("warning", "square")
        assert "beyond 256" in fact.message
        assert "'node:square'" in fact.fix
        for precision in ({"mode": "fp16", "keep_fp32": ["node:square"]}, {"mode": "bf16"}, {"mode": "fp32"}):
            assert check(proto, precision=precision).facts == ()
        proto.graph.node[1].op_type = "ReduceMax"
        assert check(proto, precision={"mode": "fp16"}).facts == ()

    def test_int8_without_ranges(self, check: Any) -> None:
        assert one(check(linear(), precision={"mode": "int8"}), "precision.int8-without-ranges").severity == "error"


class TestQuantization:
    def qdq(self, dtype: Any, zero: int, *, named: bool = True) -> Any:
        inputs = ["scale", "zero"] if named else ["scale"]
        nodes = [
            helper.make_node("QuantizeLinear", ["x", *inputs], ["q"], name="quantize"),
            helper.make_node("DequantizeLinear", ["q", *inputs], ["y"], name="dequantize"),
        ]
        constants = [
            numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
            numpy_helper.from_array(np.array(zero, dtype), "zero"),
        ]
        return model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], constants)

    def found(self, check: Any, proto: Any, target: dict[str, str] = TENSORRT) -> list[str]:
        return codes(check(proto, targets=[target], memory={"workspace": "1GiB"}))

    def test_symmetric_int8_is_what_tensorrt_takes(self, check: Any) -> None:
        assert self.found(check, self.qdq(np.int8, 0)) == []

    def test_uint8_is_read_as_int8_without_a_word(self, check: Any) -> None:
        assert self.found(check, self.qdq(np.uint8, 0)) == ["model.qdq-uint8"] * 2

    def test_no_zero_point_means_uint8(self, check: Any) -> None:
        assert self.found(check, self.qdq(np.int8, 0, named=False)) == ["model.qdq-uint8"]

    def test_a_zero_point_that_is_not_zero(self, check: Any) -> None:
        assert self.found(check, self.qdq(np.int8, 3)) == ["model.qdq-zero-point"] * 2

    def test_onnx_runtime_takes_all_of_it(self, check: Any) -> None:
        assert self.found(check, self.qdq(np.uint8, 3), {"backend": "onnxruntime"}) == []

    def test_a_quantized_bias(self, check: Any) -> None:
        nodes = [
            helper.make_node("DequantizeLinear", ["bias", "scale"], ["b"], name="dequantize"),
            helper.make_node("Add", ["x", "b"], ["y"]),
        ]
        constants = [
            numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
            numpy_helper.from_array(np.ones(4, np.int32), "bias"),
        ]
        proto = model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], constants)
        assert self.found(check, proto) == ["model.qdq-int32-bias"]
