"""Engines of an executor: sessions that die, swaps, pools, profiles, instances."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.support.executors import LONG, Box, Session, X, Y, batching, load, rows
from trtops.backend.fake import FakeOptions, FakeSession
from trtops.errors import (
    DeadlineExceeded,
    InputError,
    NotLoadable,
    Retryable,
    TrtopsError,
    Unavailable,
)
from trtops.executor.executor import Executor
from trtops.spec.engine import Memory, Profile, ShapeRange
from trtops.tensor import TensorInfo


def test_a_bad_item_fails_alone(executor: Executor) -> None:
    def refuse_minus_one(inputs: Any) -> None:
        if (inputs["x"] == -1).any():
            raise InputError("input 'x' holds -1")

    session, box = Session(before=refuse_minus_one), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", rows(0), box.of("first"))
    session.wait_entered()
    for value in (1, -1, 3):
        executor.submit("e", rows(value), box.of(value))
    session.gate.set()
    box.wait(4)
    assert "holds -1" in str(box.error(-1))
    assert float(box.outcomes[1].outputs["y"][0, 0]) == 2
    assert float(box.outcomes[3].outputs["y"][0, 0]) == 6


def test_an_unknown_exception_is_an_error_of_the_engine(executor: Executor) -> None:
    def fail(inputs: Any) -> None:
        if (inputs["x"] == 5).all():
            raise RuntimeError("boom")

    box = Box()
    load(executor, Session(before=fail))
    executor.submit("e", rows(5), box.of(0))
    error = box.error(0)
    assert isinstance(error, TrtopsError)
    assert "RuntimeError: boom" in str(error)
    executor.submit("e", rows(6), box.of(1))
    assert box.wait_key(1).error is None


def test_a_dead_session_is_replaced(executor: Executor) -> None:
    box = Box()
    dying = FakeSession(X, Y, FakeOptions(fail_run=5))  # two sizes are warmed up, twice each
    second = Session()
    load(executor, dying, second)
    executor.submit("e", rows(1), box.of(0))
    assert isinstance(box.error(0), Retryable)
    executor.submit("e", rows(2), box.of(1))
    assert box.wait_key(1).error is None
    assert "closed" in repr(dying)


def test_an_engine_that_cannot_be_reopened_fails_with_a_clear_state(executor: Executor) -> None:
    box = Box()
    load(executor, FakeSession(X, Y, FakeOptions(fail_run=5)))
    executor.submit("e", rows(1), box.of(0))
    assert isinstance(box.error(0), Retryable)
    submitted = 0
    with pytest.raises(Unavailable, match="could not be reloaded"):  # noqa: PT012 - until it gave up, requests wait
        for index in range(1, 200):
            executor.submit("e", rows(1), box.of(index))
            submitted = index
            assert isinstance(box.error(index), Unavailable | DeadlineExceeded)
    box.wait(submitted + 1)
    assert executor.status()[0].state == "failed"
    load(executor, Session(), generation=2)  # a new load heals it
    executor.submit("e", rows(1), box.of("healed"))
    assert box.wait_key("healed").error is None


def test_swap_serves_what_waits_and_frees_the_old(executor: Executor) -> None:
    old, new, box = Session(), Session(plus=100), Box()
    load(executor, old)
    old.hold()
    executor.submit("e", rows(0), box.of("old, running"))
    old.wait_entered()
    executor.submit("e", rows(1), box.of("old, waiting"))
    infos = executor.engines()
    assert executor.engines() is infos
    load(executor, new, generation=2)  # returns while the old one still runs
    executor.submit("e", rows(2), box.of("new"))
    assert executor.engines()[0].generation == 2
    old.gate.set()
    box.wait(3)
    assert [box.outcomes[key].generation for key in ("old, running", "old, waiting", "new")] == [1, 1, 2]
    assert float(box.outcomes["new"].outputs["y"][0, 0]) == 104
    assert old.closed.wait(LONG)
    assert not new.closed.is_set()


def test_a_new_engine_that_fails_leaves_the_old_serving(executor: Executor) -> None:
    old, box = Session(), Box()
    load(executor, old)

    def refuse() -> Any:
        raise NotLoadable("built for another GPU")

    with pytest.raises(NotLoadable, match="another GPU"):
        load(executor, generation=2, open_session=refuse)
    with pytest.raises(NotLoadable, match="cannot be opened: no driver"):
        load(executor, generation=2, open_session=lambda: (_ for _ in ()).throw(OSError("no driver")))
    broken = FakeSession(X, Y, FakeOptions(fail_run=1))
    with pytest.raises(NotLoadable, match=r"does not run at 'x' \[1, 4\]: told to fail"):
        load(executor, broken, generation=2)
    assert "closed" in repr(broken)
    executor.submit("e", rows(0), box.of(0))
    assert box.wait_key(0).generation == 1


def test_pools_refuse_at_load_by_name() -> None:
    executor = Executor(host_memory=1000)
    try:
        profile = Profile(inputs={"x": ShapeRange(min=(1, 4), opt=(2, 4), max=(8, 4))})
        with pytest.raises(
            NotLoadable, match=r"input 'x' .* at 8 rows needs 128 B, the pinned pool of engine e has 64 B"
        ):
            load(executor, Session(), profiles=(profile,), memory=Memory.model_validate({"pinned_pool": "64B"}))
        load(executor, Session(), name="a", memory=Memory.model_validate({"pinned_pool": "600B"}))
        with pytest.raises(NotLoadable, match=r"engine e.* needs 600 B .*held by: engine a.* 600 B"):
            load(executor, Session(), memory=Memory.model_validate({"pinned_pool": "600B"}))
        with pytest.raises(NotLoadable, match="needs 600 B"):  # both generations count while one replaces the other
            load(executor, Session(), name="a", generation=2, memory=Memory.model_validate({"pinned_pool": "600B"}))
        assert [info.generation for info in executor.engines()] == [1]
    finally:
        executor.close(drain=1)


def test_profiles_bound_shapes_and_fill_small_batches_up(executor: Executor) -> None:
    inputs = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
    outputs = (TensorInfo(name="y", dtype="float32", shape=("batch", "width")),)
    session, box = Session(inputs=inputs, outputs=outputs), Box()
    profile = Profile(inputs={"x": ShapeRange(min=(4, 2), opt=(4, 4), max=(6, 8))})
    load(executor, session, profiles=(profile,))
    assert executor.engines()[0].max_batch == 6
    assert session.batches == [4, 4, 6, 6]
    executor.submit("e", rows(3, width=2), box.of(0))
    outcome = box.wait_key(0)
    assert session.batches[-1] == 4  # one row and three of zeros
    np.testing.assert_array_equal(outcome.outputs["y"], [[6, 6]])
    with pytest.raises(InputError, match=r"no profile takes 'x' \[1, 9\] \(they take 'x' \[4, 2\] to \[6, 8\]\)"):
        executor.submit("e", rows(3, width=9), box.of(1))


def test_profiles_above_max_batch_are_refused(executor: Executor) -> None:
    profile = Profile(inputs={"x": ShapeRange(min=(16, 4), opt=(16, 4), max=(16, 4))})
    with pytest.raises(NotLoadable, match=r"begin at 16 rows, batching.max_batch allows 8"):
        load(executor, Session(), profiles=(profile,))


def test_a_fixed_first_axis_runs_one_by_one(executor: Executor) -> None:
    inputs = (TensorInfo(name="x", dtype="float32", shape=(2, 4)),)
    session, box = Session(inputs=inputs, outputs=(TensorInfo(name="y", dtype="float32", shape=(2, 4)),)), Box()
    load(executor, session)
    session.hold()
    for index in range(3):
        executor.submit("e", rows(index, index), box.of(index))
    session.gate.set()
    box.wait(3)
    assert session.batches[-3:] == [2, 2, 2]
    assert executor.engines()[0].max_batch == 2
    with pytest.raises(InputError, match=r"shape \[1, 4\], expected FP32 \[2, 4\]"):
        executor.submit("e", rows(1), box.of(9))


def test_outputs_that_do_not_follow_the_rows_make_requests_run_alone(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    class Total(Session):
        def run(self, inputs: Any) -> Any:
            return {"y": super().run(inputs)["y"].sum(axis=0, keepdims=True)}

    session, box = Total(), Box()
    with caplog.at_level(logging.WARNING):
        load(executor, session)
    assert "each request runs alone" in caplog.text
    session.hold()
    for index in range(3):
        executor.submit("e", rows(index, 1), box.of(index))
    session.gate.set()
    box.wait(3)
    assert [float(box.outcomes[index].outputs["y"][0, 0]) for index in range(3)] == [2, 4, 6]


def test_instances_run_side_by_side(executor: Executor) -> None:
    first, second, box = Session(), Session(), Box()
    load(executor, first, second, instances=2, batching=batching(max_batch=1))
    first.hold()
    second.hold()
    executor.submit("e", rows(1), box.of(1))
    executor.submit("e", rows(2), box.of(2))
    first.wait_entered()
    second.wait_entered()  # both run at the same time
    first.gate.set()
    second.gate.set()
    box.wait(2)


def test_unload_serves_what_waits(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_queue_delay="5s", queue={"timeout": "20s"}))
    executor.submit("e", rows(1), box.of(1))
    executor.unload("e")
    assert box.wait_key(1).error is None  # at once: a queue that drains waits for no company
    assert session.closed.wait(LONG)
    assert executor.engines() == ()
    with pytest.raises(InputError, match="no engine 'e' is loaded"):
        executor.submit("e", rows(1), box.of(2))
