from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.sessions import FunctionSession, OnnxSession, small_classifier, with_initializer
from trtops.accuracy import AccuracyReport, Tally, WorstElement, load_samples, points, verify
from trtops.errors import BuildFailed, InputError
from trtops.spec.engine import Accuracy, Profile, ShapeRange
from trtops.tensor import TensorInfo

X = TensorInfo(name="x", dtype="float32", shape=("N", 3))
Y = TensorInfo(name="y", dtype="float32", shape=("N", 3))
NAN, INF = math.nan, math.inf


def profile(name: str = "default", **inputs: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> Profile:
    return Profile(name=name, inputs={k: ShapeRange(min=v[0], opt=v[1], max=v[2]) for k, v in inputs.items()})


def tally(
    expected: Any, actual: Any, dtype: str = "float32", atol: float = 1e-3, rtol: float = 1e-2, **bounds: float
) -> Tally:
    info = TensorInfo(name="y", dtype=dtype, shape=("N", "M"))
    result = Tally(atol, rtol, bounds)
    as_type = {"bfloat16": "uint16", "float8_e4m3": "uint8"}.get(dtype, dtype)
    result.add(info, np.array(expected, as_type), np.array(actual, as_type), profile="p", point="opt")
    return result


def random_samples(count: int = 4, inputs: tuple[TensorInfo, ...] = (X,)) -> Any:
    from pathlib import Path

    return load_samples("random", base=Path(), inputs=inputs, count=count, seed=3)


def test_equal_outputs_have_no_difference() -> None:
    result = tally([[1.0, 2.0]], [[1.0, 2.0]])
    assert (result.elements, result.outside, result.max_abs, result.max_rel) == (2, 0, 0.0, 0.0)
    assert result.worst is not None
    assert result.worst.excess == 0


def test_the_worst_element_is_found_with_its_index_and_excess() -> None:
    result = tally([[1.0, 2.0], [4.0, 8.0]], [[1.0, 2.0], [4.5, 8.0]])
    worst = result.worst
    assert worst is not None
    assert (worst.output, worst.profile, worst.point, worst.index) == ("y", "p", "opt", (1, 0))
    assert (worst.expected, worst.actual) == (4.0, 4.5)
    assert worst.excess == pytest.approx(0.5 / (1e-3 + 1e-2 * 4.0))
    assert result.outside == 1
    assert result.max_abs == 0.5
    assert result.max_rel == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("expected", "actual", "outside"),
    [
        (NAN, NAN, 0),
        (NAN, 1.0, 1),
        (1.0, NAN, 1),
        (INF, INF, 0),
        (-INF, -INF, 0),
        (INF, -INF, 1),
        (INF, 1e30, 1),
        (1e30, INF, 1),
        (INF, NAN, 1),
        (0.0, -0.0, 0),
    ],
)
def test_values_that_are_not_finite_count_as_numpy_counts_them(expected: float, actual: float, outside: int) -> None:
    result = tally([[expected]], [[actual]], atol=1.0, rtol=1.0)
    assert result.outside == outside
    assert result.outside == int(not np.allclose(actual, expected, atol=1.0, rtol=1.0, equal_nan=True))
    assert result.worst is not None
    assert result.worst.excess == (INF if outside else 0.0)


def test_zero_tolerance_means_equal() -> None:
    assert tally([[1.0, 2.0]], [[1.0, 2.0]], atol=0, rtol=0).outside == 0
    off = tally([[1.0, 2.0]], [[1.0, 2.0000002]], atol=0, rtol=0)
    assert off.outside == 1
    assert off.worst is not None
    assert off.worst.excess == INF


def test_integers_are_exact_beyond_float64() -> None:
    big = 2**53
    result = tally([[big, 5]], [[big + 1, 5]], dtype="int64", atol=10.0, rtol=10.0)
    assert result.outside == 1
    assert result.worst is not None
    assert result.worst.index == (0, 0)


def test_truth_values_are_exact() -> None:
    assert tally([[True, False]], [[True, True]], dtype="bool", atol=2.0).outside == 1


def test_bfloat16_and_float8_are_compared_by_their_numbers() -> None:
    one, one_and_a_bit = 0x3F80, 0x3F81  # 1 and 1.0078125
    result = tally([[one]], [[one_and_a_bit]], dtype="bfloat16", atol=0.01, rtol=0)
    assert (result.outside, result.max_abs) == (0, 0.0078125)
    eight = tally([[0x38]], [[0x39]], dtype="float8_e4m3", atol=0.1, rtol=0)  # 1 and 1.125
    assert (eight.outside, eight.max_abs) == (1, 0.125)


def test_a_chunk_border_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.accuracy.compare._CHUNK", 7)
    expected = np.zeros((5, 10), np.float32)
    actual = expected.copy()
    actual[3, 4] = 0.5
    actual[4, 9] = 1.0
    result = tally(expected, actual)
    assert (result.elements, result.outside) == (50, 2)
    assert result.worst is not None
    assert result.worst.index == (4, 9)


def test_shapes_that_differ_are_never_broadcast() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        Tally(0, 0).add(Y, np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32))


def test_top1_counts_rows_whose_argmax_agrees() -> None:
    result = tally([[0.1, 0.9], [0.8, 0.2]], [[0.4, 0.6], [0.4, 0.6]], top1=0.9)
    assert result.metrics() == {"top1": 0.5}
    assert not result.report("r", random_samples()).passed


def test_constant_outputs_agree_only_by_chance() -> None:
    expected = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    assert tally(expected, [[0.5, 0.5]] * 3, top1=0.0).metrics() == {"top1": pytest.approx(1 / 3)}


def test_a_row_with_nan_never_agrees() -> None:
    assert tally([[NAN, 1.0]], [[NAN, 1.0]], top1=0.0).metrics() == {"top1": 0.0}


def test_top5_takes_the_five_largest() -> None:
    expected = [[9.0, 1, 2, 3, 4, 5, 6]]
    assert tally(expected, [[5.0, 9, 8, 7, 6, 1, 0]], top5=0.0).metrics() == {"top5": 1.0}
    assert tally(expected, [[4.0, 9, 8, 7, 6, 5, 0]], top5=0.0).metrics() == {"top5": 0.0}


@pytest.mark.parametrize(
    ("expected", "actual", "cosine"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [1.0, 1.0]], math.sqrt(0.5)),
        ([[0.0, 0.0]], [[0.0, 0.0]], 1.0),
        ([[0.0, 0.0]], [[0.0, 1.0]], 0.0),
        ([[1.0, NAN]], [[1.0, NAN]], 0.0),
        ([[1.0, 1.0]], [[-1.0, -1.0]], -1.0),
    ],
)
def test_cosine_is_the_lowest_over_rows(expected: list[list[float]], actual: list[list[float]], cosine: float) -> None:
    assert tally(expected, actual, cosine=0.0).metrics() == {"cosine": pytest.approx(cosine)}


def test_a_metric_that_no_output_can_have_is_the_specs_fault() -> None:
    with pytest.raises(InputError, match="metric top5 cannot be computed"):
        tally([[1.0, 2.0]], [[1.0, 2.0]], top5=0.5).report("r", random_samples())


def test_nothing_compared_is_not_a_pass() -> None:
    report = Tally(1.0, 1.0).report("r", random_samples())
    assert not report.passed
    assert report.worst is None


def test_worst_values_that_are_not_finite_survive_canonical_json() -> None:
    worst = WorstElement(output="y", profile="p", point="min", index=(0,), expected=NAN, actual=-INF, excess=INF)
    data = worst.canonical_bytes()
    assert b'"NaN"' in data
    assert b'"-Infinity"' in data
    assert WorstElement.model_validate_json(data) == worst


def test_points_skip_shapes_that_repeat_and_take_fixed_ones_from_the_model() -> None:
    fixed = TensorInfo(name="s", dtype="float32", shape=(2, 2))
    found = points([profile(x=((1, 3), (4, 3), (4, 3))), profile("other", x=((1, 3), (2, 3), (8, 3)))], [X, fixed])
    assert [(point.profile, point.name, point.shapes["x"]) for point in found] == [
        ("default", "min", (1, 3)),
        ("default", "opt", (4, 3)),
        ("other", "opt", (2, 3)),
        ("other", "max", (8, 3)),
    ]
    assert all(point.shapes["s"] == (2, 2) for point in found)


def test_points_name_a_dynamic_input_without_shapes() -> None:
    with pytest.raises(InputError, match="no shapes for the dynamic input 'z'"):
        points([profile(x=((1, 3),) * 3)], [X, TensorInfo(name="z", dtype="float32", shape=("N",))])


def test_verify_runs_every_sample_at_every_point() -> None:
    session = FunctionSession((X,), (Y,), lambda inputs: {"y": np.asarray(inputs["x"])})
    told: list[str] = []
    report = verify(
        session,
        session,
        [profile(x=((1, 3), (2, 3), (4, 3)))],
        random_samples(4),
        Accuracy(),
        reference_name="onnxruntime 1.23, optimisations off",
        progress=lambda step: told.append(f"{step.phase} {step.done}/{step.total}"),
    )
    assert report.passed
    assert report.reference == "onnxruntime 1.23, optimisations off"
    assert [shapes["x"][0] for shapes in session.runs[::2]] == [1, 1, 1, 1, 2, 2, 4]
    assert report.elements == 3 * 12
    assert told == ["default/min 0/3", "default/opt 1/3", "default/max 2/3", "compared 3/3"]


def test_verify_sees_a_fault_that_shows_at_one_batch_size_only() -> None:
    def faulty(inputs: Any) -> dict[str, Any]:
        y = inputs["x"].copy()
        if len(y) == 4:
            y[3, 1] += 1
        return {"y": y}

    good = FunctionSession((X,), (Y,), lambda inputs: {"y": np.asarray(inputs["x"])})
    report = verify(
        good, FunctionSession((X,), (Y,), faulty), [profile(x=((1, 3), (2, 3), (4, 3)))], random_samples(4), Accuracy()
    )
    assert not report.passed
    assert report.worst is not None
    assert (report.worst.point, report.worst.index) == ("max", (3, 1))


def test_verify_converts_to_the_engines_element_types() -> None:
    half_x, half_y = X.model_copy(update={"dtype": "float16"}), Y.model_copy(update={"dtype": "float16"})
    seen: list[np.dtype[Any]] = []

    def half(inputs: Any) -> dict[str, Any]:
        seen.append(inputs["x"].dtype)
        return {"y": inputs["x"] * np.float16(2)}

    good = FunctionSession((X,), (Y,), lambda inputs: {"y": inputs["x"] * np.float32(2)})
    candidate = FunctionSession((half_x,), (half_y,), half)
    report = verify(good, candidate, [profile(x=((2, 3),) * 3)], random_samples(4), Accuracy(atol=1e-2, rtol=1e-2))
    assert report.passed
    assert set(seen) == {np.dtype(np.float16)}
    assert report.max_abs > 0


def test_an_engine_with_other_bindings_is_refused() -> None:
    other = TensorInfo(name="z", dtype="float32", shape=("N", 3))
    good = FunctionSession((X,), (Y,), lambda inputs: {"y": np.asarray(inputs["x"])})
    bad = FunctionSession((X,), (other,), lambda inputs: {"z": np.asarray(inputs["x"])})
    with pytest.raises(BuildFailed, match="the engine's outputs are z; the model's are y"):
        verify(good, bad, [profile(x=((1, 3),) * 3)], random_samples(), Accuracy())


def test_an_engine_with_other_output_shapes_is_refused() -> None:
    good = FunctionSession((X,), (Y,), lambda inputs: {"y": np.asarray(inputs["x"])})
    bad = FunctionSession((X,), (Y,), lambda inputs: {"y": np.asarray(inputs["x"])[:, :1]})
    with pytest.raises(BuildFailed, match=r"output 'y' has shape \(1, 1\) where the reference gives \(1, 3\)"):
        verify(good, bad, [profile(x=((1, 3),) * 3)], random_samples(), Accuracy())


def _compare_with(name: str, change: Any, accuracy: Accuracy) -> AccuracyReport:
    model = small_classifier()
    reference, candidate = OnnxSession(model), OnnxSession(with_initializer(model, name, change))
    samples = random_samples(8, reference.inputs)
    shapes = profile(x=((1, 3, 4, 4), (4, 3, 4, 4), (8, 3, 4, 4)))
    return verify(reference, candidate, [shapes], samples, accuracy)


def _flip_one(weights: Any) -> Any:
    weights.reshape(-1)[5] += 0.25
    return weights


def test_one_corrupted_weight_of_an_initialiser_fails() -> None:
    accuracy = Accuracy(atol=1e-5, rtol=1e-4, metric={"top1": 0.5, "cosine": 0.9})
    assert _compare_with("kernel", lambda weights: weights, accuracy).passed
    report = _compare_with("kernel", _flip_one, accuracy)
    assert not report.passed
    assert report.outside > 0
    assert report.worst is not None
    assert report.worst.excess > 1


def test_a_zeroed_initialiser_fails_by_its_metric_alone() -> None:
    report = _compare_with("dense", np.zeros_like, Accuracy(atol=1e9, rtol=0, metric={"top1": 0.999}))
    assert report.outside == 0
    assert report.metrics["top1"] < 0.999
    assert not report.passed
