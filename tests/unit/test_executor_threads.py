"""Whose thread runs a batch and gives an answer: a lane's, or the one that offered it."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.support.executors import LONG, Box, Session, X, Y, batching, load, rows
from trtops.backend.fake import FakeOptions, FakeSession
from trtops.errors import (
    DeadlineExceeded,
)
from trtops.executor.executor import Executor


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
