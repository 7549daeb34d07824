"""Repairs of models: what they change, what they leave alone, and that they say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.builds import linear, model_of, value
from trtops.backend.bindings import onnx_bindings
from trtops.build.passes import REPAIRS, fixed_dimensions, output_shapes, prepare, unique_dimension_names
from trtops.errors import BuildFailed
from trtops.spec.engine import Profile

if TYPE_CHECKING:
    from pathlib import Path

ALL = tuple(REPAIRS)


def _profile(**inputs: tuple[list[int], list[int], list[int]]) -> Profile:
    ranges = {name: dict(zip(("min", "opt", "max"), shapes, strict=True)) for name, shapes in inputs.items()}
    return Profile.model_validate({"inputs": ranges})


def _image() -> onnx.ModelProto:
    """The names of PP-OCR: batch without one, height and width both ``?``."""
    node = helper.make_node("Relu", ["x"], ["y"])
    return model_of([node], [value("x", [-1, 3, "?", "?"])], [value("y", [-1, 3, "?", "?"])])


def _pair(left: list[Any], right: list[Any]) -> onnx.ModelProto:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    return model_of([node], [value("a", left), value("b", right)], [value("y", left)])


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    return {info.name: info.shape for side in onnx_bindings(model) for info in side}


def _prepared(model: onnx.ModelProto, tmp_path: Path, *profiles: Profile) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    steps = prepare(model.SerializeToString(), tmp_path / "out.onnx", repairs=ALL, profiles=profiles)
    made = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(made, full_check=True)
    return made, steps


def test_names_of_ppocr_are_repaired(tmp_path: Path) -> None:
    profile = _profile(x=([1, 3, 48, 192], [8, 3, 48, 192], [32, 3, 48, 192]))
    made, steps = _prepared(_image(), tmp_path, profile)
    assert _shapes(made) == {"x": ("x_0", 3, 48, 192), "y": ("x_0", 3, 48, 192)}
    assert steps == (
        (
            "unique-dimension-names: axis 0 of 'x' without a name is now 'x_0'; "
            "axis 2 of 'x' '?' is now 'x_2'; axis 3 of 'x' '?' is now 'x_3'"
        ),
        "fixed-dimensions: axis 2 of 'x' is fixed at 48; axis 3 of 'x' is fixed at 192",
        "output-shapes: 'y' is ['x_0', 3, 48, 192]",
    )


def test_dimensions_that_vary_stay_dynamic(tmp_path: Path) -> None:
    profile = _profile(x=([1, 3, 32, 32], [1, 3, 48, 192], [1, 3, 64, 640]))
    made, _ = _prepared(_image(), tmp_path, profile)
    assert _shapes(made)["x"] == (1, 3, "x_2", "x_3")
    two = [_profile(x=([1, 3, 48, 192],) * 3), _profile(x=([1, 3, 64, 192],) * 3)]
    made, _ = _prepared(_image(), tmp_path, *two)
    assert _shapes(made)["x"] == (1, 3, "x_2", 192)


def test_equal_names_that_mean_equal_sizes_stay() -> None:
    made = _pair(["N", "S"], ["N", "S"])
    profile = _profile(a=([1, 4], [2, 8], [4, 16]), b=([1, 4], [2, 8], [4, 16]))
    assert unique_dimension_names(made, [profile]) is None
    assert _shapes(made)["b"] == ("N", "S")


def test_equal_names_that_a_profile_contradicts_are_parted() -> None:
    made = _pair(["N", "S"], ["N", "S"])
    profile = _profile(a=([1, 4], [2, 8], [4, 16]), b=([1, 1], [2, 1], [4, 1]))
    assert "axis 1 of 'b' 'S' is now 'b_1'" in str(unique_dimension_names(made, [profile]))
    assert _shapes(made)["a"] == ("N", "a_1")
    assert _shapes(made)["b"] == ("N", "b_1")


def test_new_name_is_never_one_that_is_taken() -> None:
    made = _pair(["b_0", 4], [None, 4])
    unique_dimension_names(made, [])
    assert _shapes(made)["b"] == ("b_0_2", 4)


def test_name_shared_with_a_fixed_dimension_is_kept_by_the_other() -> None:
    made = _pair(["N", 4], ["N", 4])
    profiles = [_profile(a=([2, 4],) * 3)]
    assert fixed_dimensions(made, profiles) == "axis 0 of 'a' is fixed at 2"
    assert _shapes(made) == {"a": (2, 4), "b": ("N", 4), "y": ("N", 4)}


def test_sound_model_keeps_its_bytes(tmp_path: Path) -> None:
    data = linear().SerializeToString()
    assert prepare(data, tmp_path / "out.onnx", repairs=ALL, profiles=[_profile(x=([1, 4], [2, 4], [8, 4]))]) == ()
    assert (tmp_path / "out.onnx").read_bytes() == data


def test_preparing_twice_changes_nothing_more(tmp_path: Path) -> None:
    profile = _profile(x=([1, 3, 48, 192], [8, 3, 48, 192], [32, 3, 48, 192]))
    made, _ = _prepared(_image(), tmp_path, profile)
    again, steps = _prepared(made, tmp_path, profile)
    assert steps == ()
    assert again == made


def test_profile_of_another_rank_repairs_nothing() -> None:
    made = linear()
    assert fixed_dimensions(made, [_profile(x=([1], [1], [1]))]) is None


def test_inner_shapes_forget_old_names(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["inner"]), helper.make_node("Neg", ["inner"], ["y"])]
    made = model_of(nodes, [value("x", ["?", "?"])], [value("y", ["?", "?"])])
    made.graph.value_info.append(value("inner", ["?", "?"]))
    made, _ = _prepared(made, tmp_path, _profile(x=([1, 4], [2, 4], [8, 8])))
    assert _shapes(made)["y"] == ("x_0", "x_1")
    assert not any(dim.dim_param == "?" for dim in made.graph.value_info[0].type.tensor_type.shape.dim)


def test_output_without_a_rank_gets_one() -> None:
    made = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", ["N", 4])], [value("y", None)])
    output_shapes(made, [])
    assert _shapes(made)["y"] == ("N", 4)


def test_output_that_nobody_can_infer_keeps_what_it_has(tmp_path: Path) -> None:
    node = helper.make_node("Magic", ["x"], ["y"], domain="my")
    made = model_of([node], [value("x", [None, 4])], [value("y", ["?", 7])])
    steps = prepare(made.SerializeToString(), tmp_path / "o", repairs=ALL, profiles=[])
    assert _shapes(onnx.load(tmp_path / "o"))["y"] == ("?", 7)
    assert len(steps) == 1


def test_weights_that_are_inputs_too_are_left_alone() -> None:
    made = linear()
    made.graph.input.append(value("w", [4, None]))
    assert unique_dimension_names(made, []) is None


def test_files_that_are_no_model(tmp_path: Path) -> None:
    for data in (b"\xff" * 100, linear().SerializeToString()[:-40]):
        with pytest.raises(BuildFailed, match="no ONNX model"):
            prepare(data, tmp_path / "out.onnx", repairs=ALL, profiles=[])
    assert not (tmp_path / "out.onnx").exists()


def test_weights_in_other_files_are_refused(tmp_path: Path) -> None:
    made = linear()
    tensor = made.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    with pytest.raises(BuildFailed, match="weight 'w' is kept in another file"):
        prepare(made.SerializeToString(), tmp_path / "out.onnx", repairs=ALL, profiles=[])


def test_convolutions_say_the_shape_of_their_kernel(tmp_path: Path) -> None:
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": np.ones((2, 3, 5, 4), np.float32),
        "q": np.ones((2, 2, 3, 1), np.int8),
        "s": np.array([1], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="plain"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
        helper.make_node("Conv", ["a", "d"], ["b"], name="dequantized"),
        helper.make_node("Conv", ["b", "d"], ["c"], name="told", kernel_shape=[3, 1]),
        helper.make_node("Conv", ["c", "given"], ["y"], name="computed"),
    ]
    inputs = [value("x", ["n", 3, 16, 16]), value("given", [2, 2, 1, 1])]
    model = model_of(nodes, inputs, [value("y", ["n", 2, 8, 13])], weights)
    path = tmp_path / "out.onnx"
    steps = prepare(model.SerializeToString(), path, repairs=["kernel-shapes"], profiles=())
    assert steps == ("kernel-shapes: 2 convolutions say the shape of their kernel",)
    found = {
        node.name: list(attribute.ints)
        for node in onnx.load(path).graph.node
        for attribute in node.attribute
        if attribute.name == "kernel_shape"
    }
    assert found == {"plain": [5, 4], "dequantized": [3, 1], "told": [3, 1]}


def test_unknown_repair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="no repair 'polish'"):
        prepare(linear().SerializeToString(), tmp_path / "out.onnx", repairs=("polish",), profiles=[])


def test_repairs_do_not_change_what_the_model_computes(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(0).normal(size=(2, 3, 8, 4)).astype(np.float32)
    made, _ = _prepared(_image(), tmp_path, _profile(x=([1, 3, 8, 4], [2, 3, 8, 4], [4, 3, 8, 4])))
    before: Any = ReferenceEvaluator(_image()).run(None, {"x": x})
    after: Any = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_array_equal(before[0], after[0])
