"""Other rules of batching for an engine that serves, with no load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.executors import Box, Session, batching, load, rows
from trtops.errors import Overloaded, TrtopsError
from trtops.executor import planner
from trtops.executor.retune import needs_load, retune
from trtops.executor.state import QUEUED, EngineQueue, Expire, Launch, Policy, State, Ticket
from trtops.spec.engine import Batching, Padding, Queue

if TYPE_CHECKING:
    from trtops.executor.executor import Executor

POLICIES = st.builds(
    Policy,
    max_batch=st.just(4),
    preferred=st.just((2,)),
    delay=st.sampled_from([0.0, 0.01, 10.0]),
    max_size=st.sampled_from([1, 3, 100]),
    timeout=st.sampled_from([0.0, 5.0, 50.0]),
    late=st.sampled_from(["reject", "delay"]),
    priorities=st.integers(1, 4),
    adaptive=st.booleans(),
)


@pytest.mark.parametrize(
    "changes",
    [{"max_queue_delay": 5000}, {"flush": "adaptive"}, {"queue": Queue(max_size=1)}, {"priorities": 3}, {}],
)
def test_what_the_planner_goes_by_needs_no_load(changes: dict[str, object]) -> None:
    assert not needs_load(Batching(max_batch=8), Batching(max_batch=8).model_copy(update=changes))


@pytest.mark.parametrize(
    "changes", [{"max_batch": 4}, {"preferred": (2,)}, {"padding": Padding(sizes={"width": (8,)})}]
)
def test_what_buffers_are_made_for_needs_one(changes: dict[str, object]) -> None:
    assert needs_load(Batching(max_batch=8), Batching(max_batch=8, priorities=2).model_copy(update=changes))


@given(
    before=POLICIES,
    after=POLICIES,
    asks=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"])),
        max_size=12,
    ),
    cancelled=st.integers(0, 3),
)
def test_nobody_is_lost_and_the_rest_goes_by_the_new_rules(
    before: Policy, after: Policy, asks: list[tuple[int, int, str, str]], cancelled: int
) -> None:
    """What waits is what a planner of the new policy would hold, had the same come to it."""
    state, engine = State(0), EngineQueue("e", before)
    planner.add_engine(state, engine, [0])
    state.lanes[0], state.free = False, 0
    waiting: list[Ticket] = []
    for number, (size, priority, client, shape) in enumerate(asks):
        ticket = Ticket(size, min(priority, before.priorities - 1), None, number, client)
        planner.offer(state, engine, shape, ticket, number / 10)
        waiting.append(ticket)
    waiting = [ticket for ticket in waiting if ticket.phase == QUEUED]
    for ticket in waiting[:cancelled]:
        planner.cancel(state, ticket)
    waiting = [ticket for ticket in waiting if ticket.phase == QUEUED]
    retune(state, engine, after)
    assert all(ticket.phase == QUEUED for ticket in waiting)
    assert engine.queued == len(waiting) == sum(bucket.count for bucket in engine.buckets.values())
    assert all(ticket.priority < after.priorities for ticket in waiting)
    assert engine.bound == after.max_size
    until = planner.next_time(state)
    if after.timeout and waiting:
        assert until <= waiting[0].enqueued + after.timeout
    state.lanes[0], state.free = True, 1
    served: list[Ticket] = []
    now = 4.0
    while engine.queued:
        now = max(now, min(planner.next_time(state), now + 20.0))
        for action in planner.plan(state, now):
            if isinstance(action, Launch):
                assert action.rows <= after.max_batch
                served += action.tickets
                planner.finish(state, action, now, 0.001)
            elif isinstance(action, Expire):
                assert after.timeout
                assert after.late == "reject"
                served.append(action.ticket)
    assert sorted(ticket.payload for ticket in served) == sorted(ticket.payload for ticket in waiting)


def test_what_waits_for_company_goes_when_it_need_not_wait_any_more(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_batch=8, max_queue_delay="20min", queue={"timeout": "1h"}))
    executor.submit("e", rows(3), box.of(0))
    assert not box.outcomes
    assert executor.adjust("e", generation=7, batching=batching(max_batch=8, max_queue_delay="0s"))
    box.wait(1)
    assert box.outcomes[0].generation == 7
    assert [info.generation for info in executor.engines()] == [7]


def test_a_shorter_queue_refuses_from_now_on(executor: Executor) -> None:
    session, box = Session(), Box()
    load(executor, session, batching=batching(max_batch=8, max_queue_delay="20min", queue={"timeout": "1h"}))
    for number in range(3):
        executor.submit("e", rows(number), box.of(number))
    assert executor.adjust(
        "e",
        generation=2,
        batching=batching(max_batch=8, max_queue_delay="20min", queue={"max_size": 2, "timeout": "1h"}),
    )
    with pytest.raises(Overloaded):
        executor.submit("e", rows(9), box.of(9))
    executor.unload("e")
    box.wait(3)
    assert all(not isinstance(outcome.error, TrtopsError) for outcome in box.outcomes.values())


def test_sizes_are_not_changed_so(executor: Executor) -> None:
    session = Session()
    load(executor, session, batching=batching(max_batch=8))
    before = executor.engines()
    assert not executor.adjust("e", generation=2, batching=batching(max_batch=4))
    assert not executor.adjust("nothing", generation=2, batching=batching(max_batch=8))
    assert executor.engines() == before
