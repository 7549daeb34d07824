from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.support.onnx_models import linear, model, save, value
from tests.support.preflights import TENSORRT, checker, codes, one
from tests.support.specs import profile
from trtops.model.dimensions import is_placeholder


@pytest.fixture
def check(tmp_path: Path) -> Any:
    return checker(tmp_path)


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
