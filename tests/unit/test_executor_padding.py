"""Requests of different shapes that are filled up to common sizes, run together, and are cut back."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.executors import Box, Session, batching
from trtops.errors import NotLoadable
from trtops.executor.executor import Executor
from trtops.executor.interface import Interface
from trtops.executor.port import Request
from trtops.spec.engine import Batching, Padding, Profile, ShapeRange
from trtops.tensor import TensorInfo

X = (TensorInfo(name="x", dtype="float32", shape=("batch", "height", "width")),)
Y = (
    TensorInfo(name="y", dtype="float32", shape=("batch", "height", "width")),
    TensorInfo(name="total", dtype="float32", shape=("batch",)),
)
PADDING = {"sizes": {"width": [4, 8, 16], "height": [2, 3]}}


class Doubles(Session):
    """``y = 2 * x``, and the sum of a row: what it is filled up with must not count."""

    def __init__(self) -> None:
        super().__init__(inputs=X, outputs=Y)
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        doubled = super().run(inputs)
        self.shapes.append(inputs["x"].shape)
        return {**doubled, "total": inputs["x"].sum((1, 2))}


def load(executor: Executor, session: Session, padding: Any, **options: Any) -> None:
    section = batching(max_queue_delay="5ms", queue={"timeout": "20s"}, padding=padding)
    executor.load(
        "e",
        generation=1,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=section,
        instances=1,
        open_session=lambda: session,
        **options,
    )


def request(seed: int, rows: int, height: int, width: int) -> Request:
    x = np.random.default_rng(seed).integers(1, 9, (rows, height, width)).astype(np.float32)
    return Request({"x": x}, rows)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=12))
def test_each_gets_what_it_would_get_alone(shapes: list[tuple[int, int, int]]) -> None:
    executor, box = Executor(), Box()
    try:
        load(executor, Doubles(), PADDING)
        requests = [request(index, *shape) for index, shape in enumerate(shapes)]
        for index, one in enumerate(requests):
            executor.submit("e", one, box.of(index))
        box.wait(len(requests))
        for index, one in enumerate(requests):
            outcome = box.outcomes[index]
            assert outcome.error is None
            np.testing.assert_array_equal(outcome.outputs["y"], 2 * one.inputs["x"])
            np.testing.assert_array_equal(outcome.outputs["total"], np.asarray(one.inputs["x"]).sum((1, 2)))
    finally:
        executor.close(drain=5)


def test_shapes_of_one_bucket_run_together_and_larger_ones_as_they_are() -> None:
    executor, box, session = Executor(), Box(), Doubles()
    try:
        load(executor, session, {**PADDING, "values": {"x": 0}})
        for index, (height, width) in enumerate(((1, 5), (2, 6), (2, 8), (2, 7), (3, 5), (5, 30))):
            executor.offer("e", request(index, 2, height, width), box.of(index))
        executor.start()
        box.wait(6)
        assert sorted(session.shapes) == [(2, 3, 8), (2, 5, 30), (8, 2, 8)]
    finally:
        executor.close(drain=5)


def test_buckets_that_a_profile_covers_are_warmed_up_and_others_are_not_used() -> None:
    executor, box, session = Executor(), Box(), Doubles()
    span = ShapeRange(min=(1, 1, 1), opt=(2, 2, 4), max=(8, 3, 10))
    try:
        load(executor, session, PADDING, profiles=(Profile(inputs={"x": span}),))
        assert {shape[1:] for shape in session.shapes} == {(2, 4), (3, 4), (2, 8), (3, 8)}
        session.shapes.clear()
        executor.submit("e", request(0, 1, 2, 9), box.of(0))  # 16 is more than the profile allows: as it is
        assert box.wait_key(0).outputs["y"].shape == (1, 2, 9)
        assert session.shapes == [(1, 2, 9)]
    finally:
        executor.close(drain=5)


@pytest.mark.parametrize(
    ("padding", "said"),
    [
        ({"sizes": {"depth": [1]}}, "no input has a dynamic dimension 'depth' .*name one of 'height', 'width'"),
        ({"sizes": {"batch": [1]}}, "no input has a dynamic dimension 'batch'"),
        ({"sizes": {"width": [1]}, "values": {"z": 1}}, "names 'z', which is no input .*inputs are 'x'"),
    ],
)
def test_padding_that_cannot_be_kept_is_refused_at_load(padding: Any, said: str) -> None:
    executor = Executor()
    try:
        with pytest.raises(NotLoadable, match=said):
            load(executor, Doubles(), padding)
    finally:
        executor.close(drain=1)


def test_an_engine_that_runs_requests_alone_has_no_use_for_it() -> None:
    fixed = (TensorInfo(name="x", dtype="float32", shape=(1, "width")),)
    with pytest.raises(NotLoadable, match="its requests run alone"):
        Interface("e", fixed, fixed, max_batch=1, padding=Padding(sizes={"width": (4,)}))


def test_the_spec_reads_it_and_leaves_it_out_of_what_was_signed_before() -> None:
    assert "padding" not in Batching().model_dump(mode="json")
    assert "flush" not in Batching().model_dump(mode="json")
    section = Batching.model_validate({"padding": PADDING, "flush": "adaptive"})
    assert section.padding is not None
    assert section.padding.sizes["width"] == (4, 8, 16)
    assert Batching.model_validate(section.model_dump(mode="json")) == section
    with pytest.raises(ValueError, match="not ascending"):
        Batching.model_validate({"padding": {"sizes": {"width": [8, 4]}}})
