from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import linear, model, save, value
from tests.support.specs import profile, spec
from trtops.model.dimensions import is_placeholder
from trtops.model.facts import Fact, Preflight
from trtops.model.preflight import preflight
from trtops.model.read import read_facts

TENSORRT = {"backend": "tensorrt", "version": "8.6"}
SEVERITIES = {"error", "warning", "repaired"}


@pytest.fixture
def check(tmp_path: Path) -> Any:
    """Save a model and hold a spec against it."""

    def run(proto: Any, **changes: Any) -> Preflight:
        path = save(proto, tmp_path / "m.onnx")
        found = preflight(spec(**changes), path, read_facts(path))
        assert Preflight.model_validate_json(found.canonical_bytes()) == found
        assert all(fact.fix and fact.severity in SEVERITIES for fact in found.facts)
        return found

    return run


def codes(found: Preflight) -> list[str]:
    return [fact.code for fact in found.facts]


def one(found: Preflight, code: str) -> Fact:
    facts = [fact for fact in found.facts if fact.code == code]
    assert len(facts) == 1, found.facts
    return facts[0]


class TestAGoodModel:
    def test_nothing_is_found_and_shapes_and_memory_are_known(self, check: Any) -> None:
        found = check(linear())
        assert found.facts == ()
        assert found.output_shapes == {
            "default": {"min": {"y": (1, 3)}, "opt": {"y": (4, 3)}, "max": {"y": (8, 3)}},
        }
        assert found.estimate_bytes == {
            "default": {"weights": 48, "activations": 8 * 3 * 4, "bindings": 8 * 4 * 4 + 8 * 3 * 4}
        }

    def test_half_precision_halves_the_estimate(self, check: Any) -> None:
        found = check(linear(), precision={"mode": "fp16"})
        assert found.estimate_bytes["default"]["weights"] == 24
        assert found.estimate_bytes["default"]["bindings"] == 8 * 4 * 4 + 8 * 3 * 4

    def test_checking_imports_no_onnxruntime(self, tmp_path: Path) -> None:
        path = save(linear(), tmp_path / "m.onnx")
        code = f"""
import sys
from pathlib import Path
from tests.support.specs import spec
from trtops.model.preflight import preflight
from trtops.model.read import read_facts
from trtops.model.fetch import fetch
path = Path({str(path)!r})
preflight(spec(), path, read_facts(path))
sys.exit(" ".join(name for name in ("onnxruntime", "tensorrt", "tensorrt_rtx", "cuda") if name in sys.modules) or 0)
"""
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


class TestNamesAndRanks:
    def test_an_unknown_input_names_the_closest(self, check: Any) -> None:
        found = check(linear(), profiles=[profile(X=([1, 4], [1, 4], [8, 4]))])
        fact = one(found, "profile.unknown-input")
        assert fact.path == ("profiles", 0, "inputs", "X")
        assert "did you mean 'x'?" in fact.fix
        assert one(found, "profile.missing-input").path == ("profiles", 0, "inputs")
        assert found.output_shapes == {}

    def test_an_input_of_fixed_shape_may_be_left_out(self, check: Any) -> None:
        proto = linear()
        proto.graph.input.append(value("z", [1, 2]))
        assert "profile.missing-input" not in codes(check(proto))

    def test_a_wrong_rank(self, check: Any) -> None:
        fact = one(check(linear(), profiles=[profile(x=([1, 4], [4, 4, 1], [8, 4]))]), "profile.rank")
        assert fact.path == ("profiles", 0, "inputs", "x", "opt")
        assert "[4,4,1] has 3 dimensions" in fact.message

    def test_a_fixed_dimension(self, check: Any) -> None:
        fact = one(check(linear(), profiles=[profile(x=([1, 4], [4, 4], [8, 5]))]), "profile.fixed-dimension")
        assert fact.path == ("profiles", 0, "inputs", "x", "max", 1)
        assert "has 5 in dimension 1, the model fixes it to 4" in fact.message

    def test_an_empty_shape(self, check: Any) -> None:
        fact = one(check(linear(), profiles=[profile(x=([0, 4], [4, 4], [8, 4]))]), "profile.empty-shape")
        assert fact.path == ("profiles", 0, "inputs", "x", "min", 0)

    def test_min_opt_and_max_have_an_order(self, check: Any) -> None:
        found = check(linear(), profiles=[profile(x=([5, 4], [4, 4], [3, 4]))], batching={"max_batch": 1})
        assert one(found, "profile.min-above-opt").path == ("profiles", 0, "inputs", "x", "min", 0)
        assert one(found, "profile.opt-above-max").path == ("profiles", 0, "inputs", "x", "opt", 0)

    def test_every_profile_is_held_against_the_model(self, check: Any) -> None:
        profiles = [profile(x=([1, 4], [4, 4], [8, 4])), profile("wide", x=([1, 4], [4, 9], [8, 4]))]
        found = check(linear(), profiles=profiles)
        assert one(found, "profile.fixed-dimension").path[:2] == ("profiles", 1)
        assert list(found.output_shapes) == ["default"]


class TestEqualNames:
    def two(self, first: list[Any], second: list[Any]) -> Any:
        nodes = [helper.make_node("Identity", ["a"], ["y"]), helper.make_node("Identity", ["b"], ["z"])]
        outputs = [value("y", first), value("z", second)]
        return model(nodes, [value("a", first), value("b", second)], outputs)

    def test_one_name_is_one_size(self, check: Any) -> None:
        profiles = [profile(a=([1, 4], [2, 4], [8, 9]), b=([1, 4], [2, 4], [8, 5]))]
        found = check(self.two(["n", "length"], ["n", "length"]), profiles=profiles)
        fact = one(found, "profile.unequal-dimension")
        assert fact.path == ("profiles", 0, "inputs", "b", "max", 1)
        assert "'length'" in fact.message
        assert "5 and 9" in fact.message

    def test_a_placeholder_is_no_name(self, check: Any) -> None:
        profiles = [profile(a=([1, 4], [2, 4], [8, 9]), b=([1, 4], [2, 4], [8, 5]))]
        found = check(self.two(["n", "?"], ["n", "?"]), profiles=profiles)
        assert codes(found) == ["model.duplicate-dimension-name"]
        assert found.facts[0].severity == "repaired"
        assert found.facts[0].node == "b"

    @pytest.mark.parametrize("name", ["?", "", "None", "unk__12", "dynamic"])
    def test_one_placeholder_for_two_axes_is_repaired(self, check: Any, name: str) -> None:
        proto = self.two(["n", name, name], ["n"])
        for dim in (
            *proto.graph.input[0].type.tensor_type.shape.dim,
            *proto.graph.output[0].type.tensor_type.shape.dim,
        ):
            if not dim.dim_param or dim.dim_param == name:
                dim.Clear()
                if name:
                    dim.dim_param = name
        found = check(proto, profiles=[profile(a=([1, 4, 6], [2, 4, 6], [8, 4, 6]), b=([1], [2], [8]))])
        fact = one(found, "model.duplicate-dimension-name")
        assert (fact.severity, fact.node) == ("repaired", "a")
        assert "dimensions 1, 2" in fact.message
        assert codes(found) == ["model.duplicate-dimension-name"]

    def test_a_size_that_means_any_is_repaired(self, check: Any) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
        assert one(check(proto), "model.unnamed-dimension").severity == "repaired"

    @pytest.mark.parametrize("name", ["batch", "N", "height", "unknown_height", "dim_0", "p2o.DynamicDimension.1"])
    def test_a_name_is_a_name(self, name: str) -> None:
        assert not is_placeholder(name)


class TestBatches:
    def test_every_size_has_to_be_inside_a_profile(self, check: Any) -> None:
        found = check(
            linear(),
            profiles=[profile(x=([2, 4], [4, 4], [8, 4]))],
            batching={"max_batch": 16, "preferred": [4, 12, 32]},
            benchmark={"batch_sizes": [1, 8]},
        )
        paths = {fact.path: fact.code for fact in found.facts}
        assert paths == {
            ("batching", "max_batch"): "batching.outside-profile",
            ("batching", "preferred", 1): "batching.outside-profile",
            ("batching", "preferred", 2): "batching.preferred-above-max",
            ("benchmark", "batch_sizes", 0): "benchmark.outside-profile",
        }

    def test_any_profile_will_do(self, check: Any) -> None:
        profiles = [profile(x=([1, 4], [1, 4], [2, 4])), profile("big", x=([4, 4], [4, 4], [8, 4]))]
        found = check(linear(), profiles=profiles, benchmark={"batch_sizes": [1, 8]})
        assert found.facts == ()
        found = check(linear(), profiles=profiles, benchmark={"batch_sizes": [3]})
        assert "(rows: 1..2, 4..8)" in one(found, "benchmark.outside-profile").message

    def test_a_model_with_a_fixed_batch(self, check: Any) -> None:
        found = check(linear(rows=2), profiles=[profile(x=([2, 4], [2, 4], [2, 4]))], batching={"max_batch": 4})
        assert "batching.outside-profile" in codes(found)

    def test_inputs_that_share_no_rows(self, check: Any) -> None:
        nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
        proto = model(nodes, [value("a", ["n", 4]), value("b", [1, 4])], [value("y", ["n", 4])])
        profiles = [profile(a=([2, 4], [4, 4], [8, 4]))]
        fact = one(check(proto, profiles=profiles), "batching.no-batch-dimension")
        assert "a: 8, b: 1" in fact.message
        assert check(proto, profiles=profiles, batching={"max_batch": 1}).facts == ()

    def test_an_output_that_is_not_batched(self, check: Any) -> None:
        proto = model(
            [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], [value("x", ["n", 4])], [value("y", [])]
        )
        fact = one(check(proto), "model.output-not-batched")
        assert fact.severity == "error"
        assert "[] for a batch of 8 rows" in fact.message
        assert check(proto, batching={"max_batch": 1}).facts == ()


class TestShapes:
    def test_a_shape_that_a_node_cannot_take_names_node_and_point(self, check: Any) -> None:
        nodes = [helper.make_node("Add", ["x", "bias"], ["y"], name="add_bias")]
        bias = numpy_helper.from_array(np.ones((1, 6), np.float32), "bias")
        proto = model(nodes, [value("x", ["n", "m"])], [value("y", ["n", "m"])], [bias])
        found = check(proto, profiles=[profile(x=([1, 6], [4, 6], [8, 7]))])
        fact = one(found, "profile.infeasible-shape")
        assert fact.node == "add_bias"
        assert fact.path == ("profiles", 0, "inputs", "x", "max")
        assert "max (x [8, 7])" in fact.message

    def test_a_reshape_whose_elements_do_not_fit(self, check: Any) -> None:
        shape = numpy_helper.from_array(np.array([-1, 2, 3], np.int64), "s")
        proto = model(
            [helper.make_node("Reshape", ["x", "s"], ["y"], name="r")],
            [value("x", ["n", 5])],
            [value("y", ["m", 2, 3])],
            [shape],
        )
        found = check(proto, profiles=[profile(x=([6, 5], [12, 5], [18, 5]))], batching={"max_batch": 1})
        assert "profile.infeasible-shape" not in codes(found)
        found = check(proto, profiles=[profile(x=([6, 5], [7, 5], [18, 5]))], batching={"max_batch": 1})
        assert one(found, "profile.infeasible-shape").path[-1] == "opt"

    def test_a_reshape_to_constants_that_onnx_lets_pass(self, check: Any) -> None:
        shape = numpy_helper.from_array(np.array([4, 5], np.int64), "s")
        proto = model(
            [helper.make_node("Reshape", ["x", "s"], ["y"], name="r")],
            [value("x", ["n", 5])],
            [value("y", [4, 5])],
            [shape],
        )
        found = check(proto, profiles=[profile(x=([1, 5], [4, 5], [8, 5]))], batching={"max_batch": 1})
        assert [fact.path[-1] for fact in found.facts if fact.code == "profile.infeasible-shape"] == ["min", "max"]

    def conv(self, channels: int | str, size: int | str) -> Any:
        weights = numpy_helper.from_array(np.ones((2, 3, 5, 5), np.float32), "w")
        return model(
            [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
            [value("x", ["n", channels, size, size])],
            [value("y", ["n", 2, None, None])],
            [weights],
        )

    def test_a_window_that_is_larger_than_the_image(self, check: Any) -> None:
        found = check(self.conv(3, "s"), profiles=[profile(x=([1, 3, 4, 4], [4, 3, 5, 5], [8, 3, 9, 9]))])
        fact = one(found, "profile.infeasible-shape")
        assert fact.path[-1] == "min"
        assert found.output_shapes["default"]["max"] == {"y": (8, 2, 5, 5)}

    def test_channels_that_the_weights_do_not_take(self, check: Any) -> None:
        found = check(self.conv("c", 9), profiles=[profile(x=([1, 3, 9, 9], [4, 3, 9, 9], [8, 4, 9, 9]))])
        assert "4 channels come in, the weights take 3" in one(found, "profile.infeasible-shape").message

    def test_shapes_that_are_computed_in_the_graph_are_followed(self, check: Any) -> None:
        index = numpy_helper.from_array(np.array([0], np.int64), "i")
        rest = numpy_helper.from_array(np.array([-1], np.int64), "rest")
        nodes = [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "i"], ["rows"]),
            helper.make_node("Concat", ["rows", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ]
        proto = model(nodes, [value("x", ["n", 2, 3])], [value("y", ["n", "m"])], [index, rest])
        found = check(proto, profiles=[profile(x=([1, 2, 3], [4, 2, 3], [8, 2, 3]))])
        assert found.facts == ()
        assert found.output_shapes["default"]["max"] == {"y": (8, 6)}

    def test_a_node_that_is_wrong_for_every_shape_is_told_once(self, check: Any) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
        found = check(proto, profiles=[profile(x=([1, 5], [4, 5], [8, 5]))])
        assert codes(found) == ["model.invalid-node"]
        assert found.facts[0].node == "matmul"

    def test_an_output_that_is_declared_otherwise(self, check: Any) -> None:
        proto = linear()
        proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
        assert one(check(proto), "model.output-shape-differs").severity == "warning"

    def test_what_depends_on_the_data_is_minus_one(self, check: Any) -> None:
        proto = model([helper.make_node("NonZero", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", [2, "k"], 7)])
        found = check(proto, batching={"max_batch": 1})
        assert found.output_shapes["default"]["opt"] == {"y": (2, -1)}

    def test_local_functions_are_followed(self, check: Any) -> None:
        body = [helper.make_node("Relu", ["a"], ["b"])]
        function = helper.make_function("local", "Act", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
        nodes = [helper.make_node("Act", ["x"], ["y"], domain="local")]
        proto = model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], domains=["local"])
        proto.functions.append(function)
        found = check(proto)
        assert found.facts == ()
        assert found.output_shapes["default"]["max"] == {"y": (8, 4)}


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


class TestTargets:
    def test_an_engine_is_of_one_version(self, check: Any) -> None:
        rest = {"memory": {"workspace": "1GiB"}}
        fact = one(check(linear(), targets=[{"backend": "tensorrt"}], **rest), "target.version-open")
        assert (fact.severity, fact.path) == ("warning", ("targets", 0))
        assert check(linear(), targets=[TENSORRT], **rest).facts == ()
        builder = {"version_compatible": True}
        assert check(linear(), targets=[{"backend": "tensorrt"}], builder=builder, **rest).facts == ()


class TestMemory:
    def test_a_workspace_is_always_set_for_tensorrt(self, check: Any) -> None:
        fact = one(check(linear(), targets=[TENSORRT]), "memory.workspace-absent")
        assert fact.path == ("memory", "workspace")
        assert check(linear()).facts == ()

    def test_a_workspace_below_the_activations(self, check: Any) -> None:
        found = check(linear(), targets=[TENSORRT], memory={"workspace": "95B"})
        assert "95 B is below the 96 B" in one(found, "memory.workspace-below-activations").message
        assert check(linear(), targets=[TENSORRT], memory={"workspace": "96B"}).facts == ()

    @pytest.mark.parametrize("pool", ["device_pool", "pinned_pool"])
    def test_a_pool_below_inputs_and_outputs_of_all_instances(self, check: Any, pool: str) -> None:
        assert check(linear(), memory={pool: "224B"}).facts == ()
        found = check(linear(), memory={pool: "224B"}, execution={"instances": 2})
        assert one(found, "memory.pool-below-bindings").path == ("memory", pool)

    def test_the_peak_counts_what_is_alive_at_once(self, check: Any) -> None:
        nodes = [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Abs", ["b"], ["c"]),
            helper.make_node("Add", ["a", "c"], ["y"]),
        ]
        proto = model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])])
        # a and b and c while Abs runs; a, c and y at the end
        assert check(proto).estimate_bytes["default"]["activations"] == 3 * 8 * 4 * 4
