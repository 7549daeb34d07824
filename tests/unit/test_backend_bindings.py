"""Arrays against bindings: every refusal names the tensor, what was expected and what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.builds import linear, model_of, value
from trtops.backend.bindings import check_inputs, onnx_bindings, tightest
from trtops.errors import InputError
from trtops.spec.engine import Profile
from trtops.tensor import TensorInfo

X = TensorInfo(name="x", dtype="float32", shape=("n", 4))
M = TensorInfo(name="mask", dtype="bool", shape=("n",))
TEXT = TensorInfo(name="text", dtype="string", shape=("n",))
HALF = TensorInfo(name="h", dtype="bfloat16", shape=(2,))


def _profile(name: str, low: int, high: int) -> Profile:
    return Profile.model_validate({"name": name, "inputs": {"x": {"min": [low, 4], "opt": [low, 4], "max": [high, 4]}}})


def test_what_fits_is_taken() -> None:
    x = np.zeros((2, 4), np.float32)
    check_inputs({"x": x, "mask": np.ones(2, np.bool_)}, (X, M), [_profile("p", 1, 8)])
    check_inputs({"text": np.array(["a", "bc"], object)}, (TEXT,))
    check_inputs({"text": np.array(["a", "bc"])}, (TEXT,))
    check_inputs({"h": np.zeros(2, np.uint16)}, (HALF,))


@pytest.mark.parametrize(
    ("inputs", "where", "words"),
    [
        ({}, "x", "input 'x', 'mask' is missing"),
        ({"X": 1, "x": 1, "mask": 1}, "X", "unknown input 'X'.*takes 'x', 'mask'"),
        ({"x": [[1.0]], "mask": np.ones(1, np.bool_)}, "x", "is a list, expected a NumPy array of float32"),
        ({"x": np.zeros((2, 4)), "mask": np.ones(2, np.bool_)}, "x", "float64, expected float32"),
        ({"x": np.zeros((2, 4), ">f4"), "mask": np.ones((2, 1), np.bool_)}, "mask", r"\[2, 1\], expected \[n\]"),
        ({"x": np.zeros((2, 5), "f4"), "mask": np.ones(2, np.bool_)}, "x", r"\[2, 5\], expected \[n, 4\]"),
        ({"x": np.zeros((2, 4), "f4"), "mask": np.ones(3, np.bool_)}, "mask", "'n' is 2 in 'x' and 3 in 'mask'"),
        ({"x": np.zeros((9, 4), "f4"), "mask": np.ones(9, np.bool_)}, "x", r"outside of profile 'p': \[1, 4\] to \[8"),
    ],
)
def test_what_does_not_fit_is_named(inputs: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_inputs(inputs, (X, M), [_profile("p", 1, 8)])
    assert caught.value.where == where


def test_misnamed_dimensions_of_an_original_model_pass() -> None:
    square = TensorInfo(name="x", dtype="float32", shape=("?", "?"))
    with pytest.raises(InputError, match="is 1 in 'x' and 2 in 'x'"):
        check_inputs({"x": np.zeros((1, 2), np.float32)}, (square,))
    check_inputs({"x": np.zeros((1, 2), np.float32)}, (square,), equal_names=False)


def test_tightest_profile_counts() -> None:
    profiles = [_profile("wide", 1, 32), _profile("one", 1, 1), _profile("few", 1, 8)]
    assert [tightest({"x": (rows, 4)}, profiles) for rows in (1, 2, 8, 9, 33)] == [1, 2, 2, 0, None]


def test_message_counts_the_other_profiles() -> None:
    with pytest.raises(InputError, match="none of the 1 other"):
        check_inputs({"x": np.zeros((99, 4), np.float32)}, (X,), [_profile("a", 1, 2), _profile("b", 2, 3)])


def test_bindings_of_a_model() -> None:
    inputs, outputs = onnx_bindings(linear())
    assert inputs == (TensorInfo(name="x", dtype="float32", shape=("N", 4)),)
    assert outputs == (TensorInfo(name="y", dtype="float32", shape=("N", 3)),)
    assert onnx_bindings(linear(None))[0][0].shape == ("", 4)
    assert onnx_bindings(linear(-1))[0][0].shape == ("", 4)


def test_binding_that_is_no_tensor() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["N"])
    made = model_of([helper.make_node("SequenceConstruct", ["x"], ["s"])], [value("x", ["N"])], [sequence])
    with pytest.raises(InputError, match="'s' is no tensor"):
        onnx_bindings(made)
    ranks = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", ["N"])], [value("y", None)])
    with pytest.raises(InputError, match="'y' has no rank"):
        onnx_bindings(ranks)
