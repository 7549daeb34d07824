"""The executor with sessions that the test holds in its hand."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.executors import LONG, Box, Session, X, Y, batching, rows
from trtops.backend.fake import FakeOptions, FakeSession
from trtops.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    NotLoadable,
    Overloaded,
    Retryable,
    TrtopsError,
    Unavailable,
)
from trtops.executor.executor import Executor
from trtops.executor.port import Request
from trtops.spec.engine import Memory, Profile, ShapeRange
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.executor.observer import BatchReport


@pytest.fixture
def executor() -> Iterator[Executor]:
    made = Executor()
    yield made
    made.close(drain=5)


def load(executor: Executor, *sessions: Any, name: str = "e", generation: int = 1, **options: Any) -> None:
    queue = list(sessions)
    fields: dict[str, Any] = {
        "version": "1.0.0",
        "digest": "sha256:" + "0" * 64,
        "backend": "fake",
        "batching": options.pop("batching", batching()),
        "instances": options.pop("instances", 1),
        "open_session": lambda: queue.pop(0),
        **options,
    }
    executor.load(name, generation=generation, **fields)


def test_answers_each_request_with_its_rows(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_queue_delay="50ms", queue={"timeout": "10s"}))
    for index in range(4):
        executor.submit("e", rows(index, index + 0.5), box.of(index))
    box.wait(4)
    assert session.batches[-1] == 8  # full: released before the delay
    for index in range(4):
        outcome = box.outcomes[index]
        assert outcome.error is None
        np.testing.assert_array_equal(outcome.outputs["y"][:, 0], [2 * index, 2 * index + 1])
        assert (outcome.generation, outcome.batch) == (1, 8)
        assert outcome.queue_us >= 0
        assert outcome.compute_us >= 0


def test_one_thread_runs_a_session_once_it_serves(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.threads.clear()
    for index in range(20):
        executor.submit("e", rows(index), box.of(index))
        box.wait(index + 1)
    assert len(session.threads) == 1
    assert threading.get_ident() not in session.threads


def test_what_comes_while_a_batch_runs_goes_together(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    for index in range(1, 6):
        executor.submit("e", rows(index), box.of(index))
    session.gate.set()
    box.wait(6)
    assert session.batches[-2:] == [1, 5]


def test_outputs_stay_valid_when_the_session_reuses_its_buffer(executor: Executor) -> None:
    kept = np.empty((8, 4), np.float32)

    class Reusing(Session):
        def run(self, inputs: Any) -> Any:
            answer = super().run(inputs)["y"]
            kept[: len(answer)] = answer
            return {"y": kept[: len(answer)]}

    box = Box()
    load(executor, Reusing())
    for index in range(3):
        executor.submit("e", rows(index), box.of(index))
        box.wait(index + 1)
    assert [float(box.outcomes[index].outputs["y"][0, 0]) for index in range(3)] == [0, 2, 4]


def test_an_output_that_is_the_input_is_a_copy(executor: Executor) -> None:
    class Echo(Session):
        def run(self, inputs: Any) -> Any:
            return {"y": inputs["x"]}

    box = Box()
    load(executor, Echo())
    request = rows(7)
    executor.submit("e", request, box.of(0))
    outcome = box.wait_key(0)
    assert not np.shares_memory(outcome.outputs["y"], request.inputs["x"])


@pytest.mark.parametrize(
    ("inputs", "count", "said"),
    [
        ({}, 1, r"input 'x' is missing"),
        ({"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)}, 1, r"input 'z' is unknown"),
        ({"x": np.zeros((1, 4), np.float64)}, 1, r"input 'x' has type float64, expected FP32 \[-1, 4\]"),
        ({"x": np.zeros((1, 5), np.float32)}, 1, r"input 'x' has shape \[1, 5\], expected FP32 \[-1, 4\]"),
        ({"x": np.zeros(4, np.float32)}, 4, r"input 'x' has shape \[4\], expected FP32 \[-1, 4\]"),
        ({"x": np.zeros((2, 4), np.float32)}, 1, r"input 'x' has 2 rows where the request has 1"),
        ({"x": np.zeros((9, 4), np.float32)}, 9, r"9 rows, engine e takes 1 to 8"),
        ({"x": np.zeros((0, 4), np.float32)}, 0, r"0 rows, engine e takes 1 to 8"),
        ({"x": np.zeros((), np.float32)}, 1, r"input 'x' has shape \[\]"),
    ],
)
def test_refuses_at_the_door_and_names_the_tensor(executor: Executor, inputs: Any, count: int, said: str) -> None:
    load(executor, Session())
    with pytest.raises(InputError, match=said):
        executor.submit("e", Request(inputs, count), Box().of(0))


def test_refuses_unknown_engines_and_priorities(executor: Executor) -> None:
    load(executor, Session())
    with pytest.raises(InputError, match=r"no engine 'f' is loaded \(loaded engines: e\)"):
        executor.submit("f", rows(1), Box().of(0))
    with pytest.raises(InputError, match="priority -1 is below 0"):
        executor.submit("e", Request(rows(1).inputs, 1, priority=-1), Box().of(0))
    with pytest.raises(InputError, match="no engine 'f' is loaded"):
        executor.unload("f")


def test_a_full_queue_refuses_with_a_hint(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(queue={"max_size": 2, "timeout": "10s"}))
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    executor.submit("e", rows(1), box.of(1))
    executor.submit("e", rows(2), box.of(2))
    with pytest.raises(Overloaded, match="queue of engine e is full: 2 requests wait") as caught:
        executor.submit("e", rows(3), box.of(3))
    assert 0 < caught.value.retry_after <= 30
    session.gate.set()
    box.wait(3)
    assert 3 not in box.outcomes


def test_a_deadline_is_kept_while_a_batch_runs(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", Request(rows(0).inputs, 1, deadline=time.monotonic() + 0.05), box.of("running"))
    session.wait_entered()
    executor.submit("e", Request(rows(1).inputs, 1, deadline=time.monotonic() + 0.05), box.of("waiting"))
    executor.submit("e", rows(2), box.of("by the queue's timeout"))  # 100 ms, the default of the spec
    for key in ("running", "waiting", "by the queue's timeout"):
        assert isinstance(box.error(key), DeadlineExceeded)
    assert not session.gate.is_set()  # all were answered behind a batch that still runs
    assert "its batch was running" in str(box.error("running"))
    assert "waiting for a batch" in str(box.error("waiting"))
    assert "waited 100 ms" in str(box.error("by the queue's timeout"))
    session.gate.set()
    executor.submit("e", rows(3), box.of("next"))
    assert box.wait_key("next").error is None


def test_a_deadline_that_has_passed_is_an_answer_not_a_launch(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    before = list(session.batches)
    executor.submit("e", Request(rows(0).inputs, 1, deadline=time.monotonic() - 1), box.of(0))
    assert isinstance(box.error(0), DeadlineExceeded)
    assert session.batches == before


def test_cancel_answers_at_once_and_once(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    running = executor.submit("e", rows(0), box.of("running"))
    session.wait_entered()
    waiting = executor.submit("e", rows(1), box.of("waiting"))
    for cancel in (waiting, running, waiting, running):
        cancel()
    assert isinstance(box.error("running"), Cancelled)
    assert isinstance(box.error("waiting"), Cancelled)
    executor.submit("e", rows(2), box.of("next"))
    session.gate.set()
    assert box.wait_key("next").error is None
    assert session.batches[-1] == 1  # the cancelled one took no room
    late = executor.submit("e", rows(3), box.of("served"))
    box.wait_key("served")
    late()
    assert box.outcomes["served"].error is None


def test_urgent_requests_overtake(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_batch=1, priorities=2, queue={"timeout": "100s"}))
    session.hold()
    executor.submit("e", rows(0), box.of("first"))
    session.wait_entered()
    executor.submit("e", Request(rows(1).inputs, 1, priority=1), box.of("low"))
    executor.submit("e", Request(rows(2).inputs, 1, priority=9), box.of("lowest there is"))
    executor.submit("e", Request(rows(3).inputs, 1, priority=0), box.of("urgent"))
    session.gate.set()
    box.wait(4)
    assert box.order == ["first", "urgent", "low", "lowest there is"]


def test_shapes_that_alternate_fill_their_own_batches(executor: Executor) -> None:
    inputs = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
    session, box = (
        Session(inputs=inputs, outputs=(TensorInfo(name="y", dtype="float32", shape=("batch", "width")),)),
        Box(),
    )
    load(executor, session, batching=batching(max_batch=4, max_queue_delay="5s", queue={"timeout": "20s"}))
    for index in range(8):
        executor.submit("e", rows(index, width=3 + index % 2), box.of(index))
    box.wait(8)
    assert session.batches == [4, 4]  # no profile, no known width: nothing to warm up with
    assert {key: outcome.outputs["y"].shape[1] for key, outcome in box.outcomes.items()} == {
        index: 3 + index % 2 for index in range(8)
    }


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
            load(executor, Session(), profiles=(profile,), memory=Memory(pinned_pool="64B"))
        load(executor, Session(), name="a", memory=Memory(pinned_pool="600B"))
        with pytest.raises(NotLoadable, match=r"engine e.* needs 600 B .*held by: engine a.* 600 B"):
            load(executor, Session(), memory=Memory(pinned_pool="600B"))
        with pytest.raises(NotLoadable, match="needs 600 B"):  # both generations count while one replaces the other
            load(executor, Session(), name="a", generation=2, memory=Memory(pinned_pool="600B"))
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


def test_close_finishes_what_is_in_flight() -> None:
    executor, session, box = Executor(), Session(), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    executor.submit("e", rows(1), box.of(1))
    closer = threading.Thread(target=lambda: executor.close(drain=LONG))
    closer.start()
    while "closing" not in repr(executor):
        pass
    with pytest.raises(Unavailable, match="closing"):
        executor.submit("e", rows(2), box.of(2))
    session.gate.set()
    closer.join(LONG)
    assert not closer.is_alive()
    assert [box.outcomes[key].error for key in (0, 1)] == [None, None]
    assert session.closed.is_set()
    executor.close(drain=0)
    with pytest.raises(NotLoadable, match="closing"):
        load(executor, Session())


def test_close_answers_what_does_not_finish_in_time() -> None:
    executor, session, box = Executor(), Session(), Box()
    load(executor, session, batching=batching(queue={"timeout": "60s"}))
    session.hold()
    executor.submit("e", rows(0), box.of("hangs"))
    session.wait_entered()
    executor.submit("e", rows(1), box.of("waits"))
    executor.close(drain=0.01)
    assert isinstance(box.outcomes["hangs"].error, Unavailable)
    assert isinstance(box.outcomes["waits"].error, Unavailable)
    session.gate.set()
    assert session.closed.wait(LONG)  # when it ended after all


def test_a_callback_that_raises_harms_nobody(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    session, box = Session(), Box()
    load(executor, session)

    def bad(outcome: Any) -> None:
        raise ValueError(outcome.batch)

    executor.submit("e", rows(0), bad)
    executor.submit("e", rows(1), box.of(1))
    assert box.wait_key(1).error is None
    assert "callback of a request raised" in caplog.text


def test_the_observer_is_told_once_a_batch() -> None:
    class Watching:
        def __init__(self) -> None:
            self.batches: list[BatchReport] = []
            self.events: list[tuple[Any, ...]] = []
            self.freed_now = threading.Event()

        def batch(self, report: BatchReport) -> None:
            self.batches.append(report)

        def refused(self, engine: str, reason: str, requests: int) -> None:
            self.events.append((engine, reason, requests))

        def loaded(self, engine: str, generation: int, seconds: float) -> None:
            self.events.append((engine, generation, seconds >= 0))

        def failed(self, engine: str, generation: int, why: str) -> None:
            self.events.append((engine, generation, why))

        def freed(self, engine: str, generation: int) -> None:
            self.events.append((engine, generation, "freed"))

    watching = Watching()
    executor, session, box = Executor(observer=watching), Session(), Box()
    load(executor, session, batching=batching(queue={"max_size": 3, "timeout": "20s"}))
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    executor.submit("e", rows(1), box.of(1))
    executor.submit("e", rows(2, 3), box.of(2))
    executor.submit("e", rows(4), box.of(3))()
    executor.submit("e", rows(5), box.of(4))
    with pytest.raises(Overloaded):
        executor.submit("e", rows(6), box.of(5))
    session.gate.set()
    box.wait(5)
    executor.close(drain=LONG)
    assert [(report.requests, report.rows, report.reason, report.ok) for report in watching.batches] == [
        (1, 1, "idle", True),
        (3, 4, "idle", True),
    ]
    assert len(watching.batches[1].queue_s) == 3
    told: list[tuple[Any, ...]] = [("e", 1, True), ("e", "queue-full", 1), ("e", "cancelled", 1), ("e", 1, "freed")]
    assert sorted(map(str, watching.events)) == sorted(map(str, told))


def test_requests_are_not_kept_after_their_answer(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    array = np.zeros((1, 4), np.float32)
    watch = weakref.ref(array)
    executor.submit("e", Request({"x": array}, 1, deadline=time.monotonic() + 3600), box.of(1))()
    del array
    box.wait_key(1)
    session.gate.set()
    executor.submit("e", rows(2), box.of(2))
    box.wait(3)
    gc.collect()
    assert watch() is None


def test_repr_shows_load(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    executor.submit("e", rows(0), box.of(0))
    session.wait_entered()
    executor.submit("e", rows(1), box.of(1))
    assert "e@1[1 queued, 1 running]; 2 requests, 0 of 1 lanes free" in repr(executor)
    session.gate.set()
    box.wait(2)


class Always:
    """Somebody always stands by."""

    begins = 0

    def __call__(self, expected: float) -> bool:
        return expected >= 0

    def begun(self) -> None:
        self.begins += 1


def test_offers_wait_for_a_start_and_run_in_its_thread(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.threads.clear()
    for index in range(3):
        executor.offer("e", rows(index), box.of(index))
    assert not session.threads
    executor.start(relief=Always())
    assert session.threads == {threading.get_ident()}
    assert [box.outcomes[index].batch for index in range(3)] == [3, 3, 3]  # answered before it returned
    executor.offer("e", rows(3), box.of(3))
    executor.start()
    box.wait(4)
    assert len(session.threads) == 2
    executor.start(relief=Always())  # nothing to do


def test_a_batch_is_run_here_only_if_somebody_else_waits_meanwhile(executor: Executor) -> None:
    slow, box = FakeSession(X, Y[:1], FakeOptions(cost_us=2000)), Box()
    load(executor, slow)
    asked: list[float] = []

    class Ask(Always):
        def __call__(self, expected: float) -> bool:
            asked.append(expected)
            return len(asked) > 1

    ask = Ask()
    executor.offer("e", rows(0), box.of(0))
    executor.start(relief=ask)
    assert not ask.begins
    assert asked[0] >= 0.002  # what it took while it was warmed up
    assert 0 not in box.outcomes  # the lane's thread runs it
    assert box.wait_key(0).error is None
    executor.offer("e", rows(1), box.of(1))
    executor.start(relief=ask)
    assert box.outcomes[1].error is None
    assert ask.begins == 1


def test_a_deadline_is_kept_while_a_batch_runs_in_the_thread_that_offered_it(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session)
    session.hold()
    executor.offer("e", rows(0), box.of("running"))
    runner = threading.Thread(target=lambda: executor.start(relief=Always()))
    runner.start()
    session.wait_entered()
    late = rows(1)
    late.deadline = time.monotonic() + 0.02
    executor.offer("e", late, box.of("late"))
    executor.start(relief=Always())  # the lane is busy: it returns at once
    assert isinstance(box.error("late"), DeadlineExceeded)
    assert "running" not in box.outcomes
    session.gate.set()
    runner.join()
    assert box.outcomes["running"].error is None


def test_answers_come_in_order_whoever_gives_them(executor: Executor) -> None:
    """While the completion thread is held up by a callback, a lane does not overtake it."""
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_batch=1))
    held, go = threading.Event(), threading.Event()

    def slow(outcome: Any) -> None:
        held.set()
        assert go.wait(LONG)
        box.of("first")(outcome)

    executor.offer("e", rows(0), slow)
    executor.offer("e", rows(1), box.of("second"))
    executor.start()
    assert held.wait(LONG)
    executor.submit("e", rows(2), box.of("third"))
    go.set()
    box.wait(3)
    assert box.order == ["first", "second", "third"]


def test_close_waits_for_an_answer_that_a_lane_gives_itself() -> None:
    executor, session, box = Executor(), Session(), Box()
    load(executor, session)
    begun, go = threading.Event(), threading.Event()

    def slow(outcome: Any) -> None:
        begun.set()
        assert go.wait(LONG)
        box.of(0)(outcome)

    executor.submit("e", rows(0), slow)
    assert begun.wait(LONG)
    closing = threading.Thread(target=lambda: executor.close(drain=LONG))
    closing.start()
    time.sleep(0.05)
    go.set()
    closing.join(LONG)
    assert 0 in box.outcomes


def test_a_client_that_fills_the_queue_makes_room_for_another_one(executor: Executor) -> None:
    """Its newest request is told, with a time to come again; then both are served in turn."""
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_batch=1, queue={"max_size": 4, "timeout": "20s"}))
    session.hold()

    def of(client: str, value: float) -> Any:
        request = rows(value)
        request.client = client
        return request

    executor.submit("e", of("greedy", 0), box.of("running"))
    session.wait_entered()
    for number in range(4):
        executor.submit("e", of("greedy", number), box.of(number))
    with pytest.raises(Overloaded):
        executor.submit("e", of("greedy", 9), box.of(9))
    executor.submit("e", of("polite", 5), box.of("polite"))
    error = box.error(3)
    assert isinstance(error, Overloaded)
    assert error.retry_after > 0
    assert "most of them of this client" in str(error)
    session.gate.set()
    box.wait(6)
    assert [key for key in box.order if key != 3] == ["running", 0, "polite", 1, 2]
