from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trtops.accuracy import Tally, load_samples
from trtops.accuracy.elements import decode, encode
from trtops.tensor import TensorInfo

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, 1.001])


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=5))
    expected = draw(hnp.arrays(np.float32, shape, elements=FLOATS))
    actual = draw(hnp.arrays(np.float32, shape, elements=FLOATS) | st.just(expected.copy()))
    return expected, actual


@given(pairs(), st.floats(0, 10), st.floats(0, 1))
def test_counts_are_those_of_numpy_isclose(pair: tuple[Any, Any], atol: float, rtol: float) -> None:
    expected, actual = pair
    tally = Tally(atol, rtol)
    tally.add(TensorInfo(name="y", dtype="float32", shape=expected.shape), expected, actual)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.isclose(actual.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True)
    assert tally.outside == int((~close).sum())
    worst = tally.worst
    assert worst is not None
    if tally.outside:
        assert worst.excess >= 1.0
        assert worst.excess > 1.0 or worst.excess == pytest.approx(1.0)
    assert type(worst).model_validate_json(worst.canonical_bytes()) == worst
    assert decode("float32", expected[worst.index][None]).item() == worst.expected or np.isnan(worst.expected)


@given(pairs(), st.integers(1, 40))
def test_chunks_and_order_change_no_total(pair: tuple[Any, Any], chunk: int) -> None:
    info = TensorInfo(name="y", dtype="float32", shape=pair[0].shape)
    whole = Tally(0.1, 0.1, {"cosine": 0.0})
    whole.add(info, *pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trtops.accuracy.compare._CHUNK", chunk)
        parts = Tally(0.1, 0.1, {"cosine": 0.0})
        parts.add(info, *pair)
    assert (parts.outside, parts.elements, parts.max_abs, parts.max_rel) == (
        whole.outside,
        whole.elements,
        whole.max_abs,
        whole.max_rel,
    )
    assert parts.metrics() == pytest.approx(whole.metrics())


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=2), elements=st.floats(width=32)))
def test_bfloat16_is_the_nearest(values: Any) -> None:
    decoded = decode("bfloat16", encode("bfloat16", values))
    finite = np.isfinite(decoded)
    given_values, nearest = values[finite].astype(np.float64), decoded[finite]
    assert (np.abs(nearest - given_values) <= np.maximum(np.abs(given_values) * 2.0**-8, 1e-40)).all()


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 7), st.integers(1, 7))
def test_every_sample_is_seen_in_batches_of_the_shape(count: int, rows: int, width: int, have: int) -> None:
    info = TensorInfo(name="x", dtype="float32", shape=("N", "W"))
    samples = load_samples("random", base=Path(), inputs=[info], count=count)
    stored = np.arange(count * have, dtype=np.float32).reshape(count, have)
    fixed = type(samples)("file:x", samples.digest, count, (info,), {"x": stored})
    for source in (samples, fixed):
        batches = [batch["x"] for batch in source.batches({"x": (rows, width)})]
        assert all(batch.shape == (rows, width) for batch in batches)
        assert len(batches) == -(-count // rows)
    seen = np.concatenate([batch["x"] for batch in fixed.batches({"x": (rows, width)})])
    expected = stored[np.arange(len(seen)) % count][:, np.arange(width) % have]
    assert np.array_equal(seen, expected)
