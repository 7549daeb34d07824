"""A thread with a moment to spare runs short batches itself; what is long is the lane's own thread's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tests.support.executors import LONG, Box, Session, batching, load, rows
from trtops.executor import planner
from trtops.executor.cost import Cost
from trtops.executor.state import EngineQueue, Launch, Policy, State, Ticket
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from trtops.executor.executor import Executor
    from trtops.executor.port import Outcome


def known(executor: Executor, session: Session, size: int = 1, **options: object) -> None:
    """Load, and let one batch of so many rows be seen."""
    load(executor, session, batching=batching(**options))
    box = Box()
    executor.submit("e", rows(*[0] * size), box.of(0))
    box.wait(1)
    session.threads.clear()
    session.batches.clear()


def test_what_is_short_runs_and_is_answered_before_start_returns(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, 4, max_batch=4, max_queue_delay="0s")
    for index in range(12):
        executor.offer("e", rows(index), box.of(index))
    executor.start(spare=LONG)
    assert list(box.outcomes) == list(range(12)), "in the order in which they came"
    assert session.threads == {threading.get_ident()}
    assert session.batches == [4, 4, 4], "what follows is short as well"
    for index in range(12):
        np.testing.assert_array_equal(box.outcomes[index].outputs["y"][:, 0], [2 * index])


def test_what_takes_longer_is_left_to_the_lane(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_queue_delay="0s")
    session.hold()
    executor.offer("e", rows(1), box.of(1))
    executor.start(spare=0.0)  # it would wait for the gate here
    session.wait_entered()
    assert not box.outcomes
    session.gate.set()
    box.wait(1)
    assert threading.get_ident() not in session.threads


def test_what_takes_longer_does_not_wait_for_start(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_queue_delay="0s")
    executor.offer("e", rows(1), box.of(1), spare=0.0)
    box.wait(1)
    executor.offer("e", rows(2), box.of(2), spare=LONG)
    assert 2 not in box.outcomes
    executor.start(spare=LONG)
    assert 2 in box.outcomes


def test_one_batch_that_took_long_sends_the_next_ones_to_the_lane() -> None:
    cost = Cost()
    assert cost.lately > 1e9
    cost.observe(4, 10e-6)
    assert cost.lately == 10e-6
    cost.observe(4, 400e-3)
    seen = 0
    while cost.lately > 100e-6:
        cost.observe(4, 10e-6)
        seen += 1
    assert seen == 12
    for _ in range(20):
        cost.observe(4, 10e-6)
    assert cost.lately == 10e-6


def test_a_size_or_shape_that_never_ran_is_left_to_the_lane(executor: Executor) -> None:
    free = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
    session, box = Session(inputs=free), Box()
    known(executor, session, max_queue_delay="0s")
    for key, request in enumerate((rows(1), rows(1, 2), rows(1, width=5), rows(3), rows(3, 4), rows(5, width=5))):
        session.threads.clear()
        executor.offer("e", request, box.of(key))
        executor.start(spare=LONG)
        box.wait_key(key)
        assert (threading.get_ident() in session.threads) == (key not in {1, 2}), key


def test_what_follows_and_never_ran_is_left_to_the_lane(executor: Executor) -> None:
    free = (TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)
    session, box = Session(inputs=free), Box()
    known(executor, session, max_queue_delay="0s")
    ran: dict[int, int] = {}
    session.before = lambda inputs: ran.update({inputs["x"].shape[1]: threading.get_ident()})
    for width in (4, 5):
        executor.offer("e", rows(1, width=width), box.of(width))
    executor.start(spare=LONG)
    box.wait(2)
    assert ran[4] == threading.get_ident() != ran[5]


def took(*batches: tuple[str, int, float | None]) -> bool:
    """Whether one row of shape ``small`` would run here with a millisecond to spare, after batches of so many seconds.

    The last of them is asked for; None: it failed, after a second.
    """
    state, engine = State(), EngineQueue("e", Policy(max_batch=8))
    planner.add_engine(state, engine, [0])
    for shape, size, seconds in batches:
        planner.offer(state, engine, shape, Ticket(size), 0.0)
        (launch,) = [action for action in planner.plan(state, 0.0) if isinstance(action, Launch)]
        here = launch.within(1e-3)
        planner.finish(state, launch, 1.0, seconds)
    return here


def test_a_long_batch_is_remembered_by_its_shape_and_size() -> None:
    short = [("small", 1, 1e-5)] * 100
    assert took(*short)
    assert not took(*short, ("small", 1, 0.4), ("small", 1, 0.0))
    assert not took(("large", 1, 0.4), *short, ("large", 1, 0.0))
    assert not took(("small", 8, 0.4), *short, ("small", 8, 0.0))
    assert took(("small", 8, 0.4), *short)
    assert took(("large", 1, 0.4), *[("large", 1, 1e-5)] * 10)


def test_a_batch_that_failed_late_counts_as_a_long_one() -> None:
    short = [("small", 1, 1e-5)] * 20
    assert not took(*short, ("large", 1, None), ("small", 1, 0.0))
    assert not took(*short, ("small", 1, None), ("large", 1, 1e-5), ("small", 1, 0.0))
    assert took(*short, ("large", 1, None), *short)


def test_a_lone_request_still_waits_for_company(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_batch=4, max_queue_delay="20ms")
    executor.offer("e", rows(1), box.of(1))
    executor.start(spare=LONG)
    box.wait(1)
    assert threading.get_ident() not in session.threads, "its delay was spent elsewhere"


def test_a_request_that_is_taken_back_before_start_is_answered_once(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_queue_delay="0s")
    cancel = executor.offer("e", rows(1), box.of(1))
    cancel()
    executor.start(spare=LONG)
    assert "cancelled" in str(box.error(1))
    assert not session.batches


def test_a_callback_may_offer_more(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_queue_delay="0s")

    def again(outcome: Outcome) -> None:
        box.of(1)(outcome)
        executor.offer("e", rows(2), box.of(2))
        executor.start(spare=LONG)

    executor.offer("e", rows(1), again)
    executor.start(spare=LONG)
    box.wait(2)
