"""A thread with a moment to spare runs short batches itself; what is long is the lane's own thread's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tests.support.executors import LONG, Box, Session, batching, load, rows
from trtops.executor.cost import Cost

if TYPE_CHECKING:
    from trtops.executor.executor import Executor
    from trtops.executor.port import Outcome


def known(executor: Executor, session: Session, **options: object) -> None:
    """Load, and let one batch be seen."""
    load(executor, session, batching=batching(**options))
    box = Box()
    executor.submit("e", rows(0), box.of(0))
    box.wait(1)
    session.threads.clear()
    session.batches.clear()


def test_what_is_short_runs_and_is_answered_before_start_returns(executor: Executor) -> None:
    session, box = Session(), Box()
    known(executor, session, max_batch=4, max_queue_delay="0s")
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
