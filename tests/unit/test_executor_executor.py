"""The executor with sessions that the test holds in its hand: answers, refusals, deadlines, order, its end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.executors import LONG, Box, Session, batching, load, rows
from trtops.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    NotLoadable,
    Overloaded,
    Unavailable,
)
from trtops.executor.executor import Executor
from trtops.executor.port import Request
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from trtops.executor.observer import BatchReport


def test_answers_each_request_with_its_rows(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_queue_delay="20s", queue={"timeout": "60s"}))
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


def test_refuses_a_request_without_inputs_whatever_shapes_an_engine_takes(executor: Executor) -> None:
    load(executor, Session(inputs=(TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)))
    with pytest.raises(InputError, match=r"input 'x' is missing"):
        executor.submit("e", Request({}, 1), Box().of(0))


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
    load(executor, session, batching=batching(max_batch=4, max_queue_delay="20s", queue={"timeout": "60s"}))
    for index in range(8):
        executor.submit("e", rows(index, width=3 + index % 2), box.of(index))
    box.wait(8)
    assert session.batches == [4, 4]  # no profile, no known width: nothing to warm up with
    assert {key: outcome.outputs["y"].shape[1] for key, outcome in box.outcomes.items()} == {
        index: 3 + index % 2 for index in range(8)
    }


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
