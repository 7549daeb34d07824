"""The planner in situations with a name; its laws are in tests/property."""

from __future__ import annotations

import pytest

from trtops.executor.planner import add_engine, can_launch, cancel, finish, next_time, offer, plan
from trtops.executor.state import EngineQueue, Expire, Launch, Policy, Reject, State, Ticket, Wait
from trtops.spec.engine import Batching


def build(policy: Policy, lanes: int = 1) -> tuple[State, EngineQueue]:
    state, engine = State(), EngineQueue("e", policy)
    add_engine(state, engine, list(range(lanes)))
    return state, engine


def launches(state: State, now: float) -> list[Launch]:
    return [action for action in plan(state, now) if isinstance(action, Launch)]


def test_waits_for_company_and_goes_when_the_delay_is_spent() -> None:
    state, engine = build(Policy(max_batch=4, delay=0.5))
    offer(state, engine, (), Ticket(), 1.0)
    offer(state, engine, (), Ticket(), 1.2)
    assert plan(state, 1.2) == [Wait(1.5)]
    (launch,) = launches(state, 1.5)
    assert (launch.reason, launch.rows) == ("delay", 2)


def test_goes_when_full_and_keeps_what_does_not_fit() -> None:
    state, engine = build(Policy(max_batch=4, delay=9), lanes=2)
    for rows in (3, 3, 1):
        offer(state, engine, (), Ticket(rows), 0.0)
    first, second = launches(state, 0.0)
    assert (first.reason, first.rows, first.lane) == ("full", 3, 0)
    assert (second.reason, second.rows, second.lane) == ("full", 4, 1)


def test_a_preferred_size_goes_when_the_device_is_idle_and_the_rest_waits() -> None:
    state, engine = build(Policy(max_batch=8, preferred=(2, 4), delay=1))
    for index in range(5):
        offer(state, engine, (), Ticket(), index / 8)
    (launch,) = launches(state, 0.5)
    assert (launch.reason, launch.rows) == ("preferred", 4)
    finish(state, launch, 0.6, 0.1)
    assert plan(state, 0.6) == [Wait(1.5)]  # the fifth came at 0.5


def test_starts_in_time_for_a_deadline_by_the_measured_cost() -> None:
    state, engine = build(Policy(max_batch=8, delay=9))
    for rows, seconds in ((1, 0.125), (8, 1.0)) * 8:
        engine.cost.observe(rows, seconds)
    offer(state, engine, (), Ticket(deadline=2.0), 0.0)
    offer(state, engine, (), Ticket(), 0.0)
    (wait,) = plan(state, 0.0)
    assert isinstance(wait, Wait)
    assert wait.until == pytest.approx(2.0 - 0.25, abs=0.05)
    (launch,) = launches(state, wait.until)
    assert (launch.reason, launch.rows) == ("deadline", 2)


def test_a_deadline_that_joins_a_bucket_moves_its_start() -> None:
    state, engine = build(Policy(max_batch=8, delay=9))
    offer(state, engine, (), Ticket(), 0.0)
    offer(state, engine, (), Ticket(deadline=2.0), 0.0)
    engine.cost.observe(2, 0.5)
    offer(state, engine, (), Ticket(deadline=3.0), 0.0)
    assert next_time(state) == pytest.approx(1.5)
    (launch,) = launches(state, 1.5)
    assert (launch.reason, launch.rows) == ("deadline", 3)


def test_a_slower_device_moves_the_start_before_the_deadline() -> None:
    state, engine = build(Policy(max_batch=2, delay=9))
    offer(state, engine, "other", Ticket(2), 0.0)
    (running,) = launches(state, 0.0)
    offer(state, engine, (), Ticket(deadline=2.0), 0.0)
    finish(state, running, 1.0, 1.0)  # one batch costs a second
    assert next_time(state) == pytest.approx(1.0)


def test_low_levels_age() -> None:
    state, engine = build(Policy(max_batch=1, priorities=3, ageing=1.0))
    old = Ticket(priority=2)
    offer(state, engine, (), old, 0.0)
    offer(state, engine, (), Ticket(priority=1), 1.5)
    urgent = Ticket(priority=0)
    offer(state, engine, (), urgent, 1.9)
    (first,) = launches(state, 1.9)
    assert first.tickets == (urgent,)
    finish(state, first, 2.0, 0.1)
    offer(state, engine, (), Ticket(priority=0), 2.0)
    (second,) = launches(state, 2.0)
    assert second.tickets == (old,)  # two seconds lifted it to the top, and it is older


def test_late_requests_of_a_queue_that_delays_come_last() -> None:
    state, engine = build(Policy(max_batch=1, delay=0, timeout=1.0, late="delay"))
    running = Ticket()
    offer(state, engine, (), running, 0.0)
    (launch,) = launches(state, 0.0)
    late, fresh = Ticket(), Ticket()
    offer(state, engine, (), late, 0.0)
    offer(state, engine, (), fresh, 0.9)
    assert plan(state, 1.0)[:-1] == []  # not expired, only put behind
    finish(state, launch, 1.1, 1.1)
    (following,) = launches(state, 1.1)
    assert following.tickets == (fresh,)
    finish(state, following, 1.2, 0.1)
    (last,) = launches(state, 1.2)
    assert last.tickets == (late,)


def test_expires_on_time_with_all_lanes_busy() -> None:
    state, engine = build(Policy(max_batch=1, timeout=0.1))
    offer(state, engine, (), Ticket(), 0.0)
    (launch,) = launches(state, 0.0)
    waiting = Ticket()
    offer(state, engine, (), waiting, 0.01)
    assert not can_launch(state, engine)
    assert next_time(state) == pytest.approx(0.1)  # the timer of the one that runs already: it fires and sets the next
    actions = plan(state, 0.2)
    assert actions == [Expire(waiting, "timeout", running=False)]
    assert launch.tickets[0].phase == 2


def test_bounds_hold_and_say_so() -> None:
    state, engine = build(Policy(max_batch=4, delay=9, max_size=2))
    offer(state, engine, (), Ticket(), 0.0)
    offer(state, engine, "b", Ticket(), 0.0)
    third = Ticket()
    assert offer(state, engine, (), third, 0.0) == Reject(third, "queue-full")
    assert repr(state) == (
        "State(lanes [.], 2 live, [EngineQueue(e: 2 queued, 0 running, lanes [0], "
        "[Bucket((): 1 requests, 1 rows), Bucket('b': 1 requests, 1 rows)])])"
    )


def test_structures_stay_small_whatever_clients_do() -> None:
    """Endless cancelling, endless deadlines in the far future, endless shapes: nothing grows with what is over."""
    state, engine = build(Policy(max_batch=4, delay=9, max_size=64, timeout=8.0))
    for index in range(20_000):
        ticket = Ticket(deadline=1e9 if index % 2 else None)
        offer(state, engine, index % 500, ticket, index / 1e6)
        cancel(state, ticket)
    assert len(state.timers) < 500
    assert len(state.dues) < 2_000
    assert len(engine.timeouts) < 500
    assert len(engine.buckets) <= 65
    for bucket in engine.buckets.values():
        assert sum(map(len, bucket.levels)) < 500
        assert len(bucket.deadlines) < 500
    assert state.live == 0


def test_policy_is_read_off_the_spec() -> None:
    batching = Batching.model_validate(
        {
            "max_batch": 32,
            "preferred": [16, 8, 32],
            "max_queue_delay": "80ms",
            "queue": {"max_size": 5, "timeout": "100ms", "on_timeout": "delay"},
            "priorities": 2,
        }
    )
    policy = Policy.of(batching, max_batch=16)
    assert (policy.max_batch, policy.preferred, policy.max_size, policy.late) == (16, (8, 16), 5, "delay")
    assert policy.delay == pytest.approx(0.05)  # half of the timeout
    assert policy.ageing == pytest.approx(0.025)
    assert Policy.of(Batching(), max_batch=16).max_batch == 1


def test_sweeping_out_the_dead_loses_nobody() -> None:
    state, engine = build(Policy(max_batch=512, delay=1.0, max_size=4096, timeout=5.0))
    tickets = [Ticket(deadline=100.0 + index if index % 3 else None) for index in range(600)]
    for index, ticket in enumerate(tickets):
        offer(state, engine, (), ticket, index / 1e6)
    for index, ticket in enumerate(tickets):
        if index % 4:
            assert cancel(state, ticket)
    (launch,) = launches(state, 2.0)
    assert launch.tickets == tuple(tickets[::4])
    assert state.live == 150


def test_an_adaptive_flush_waits_for_company_only_where_some_is_to_be_expected() -> None:
    policy = Policy(max_batch=8, delay=1.0, adaptive=True)
    state, engine = build(policy)
    offer(state, engine, (), Ticket(), 0.0)  # nothing is known yet: nobody is expected
    (alone,) = launches(state, 0.0)
    assert (alone.reason, alone.rows) == ("idle", 1)
    finish(state, alone, 0.0, 0.001)
    now = 0.0
    for _ in range(400):  # one request every 10 ms: a batch of 8 takes about 80 ms
        now += 0.01
        offer(state, engine, (), Ticket(), now)
        for launch in launches(state, now):
            finish(state, launch, now, 0.001)
    while engine.queued:
        now = next_time(state)
        for launch in launches(state, now):
            finish(state, launch, now, 0.001)
    offer(state, engine, (), Ticket(), now + 0.01)
    assert 0.05 < next_time(state) - (now + 0.01) < 0.3
    (late,) = launches(state, next_time(state))
    assert late.reason == "delay"
    finish(state, late, now + 0.1, 0.001)
    for _ in range(8):  # it grows quiet
        now += 5.0
        offer(state, engine, (), Ticket(), now)
        for launch in launches(state, next_time(state)):
            finish(state, launch, now, 0.001)
    offer(state, engine, (), Ticket(), now + 5.0)
    (last,) = launches(state, now + 5.0)
    assert (last.reason, last.rows) == ("idle", 1)


def test_an_adaptive_flush_adapts_to_a_load_that_comes_at_once() -> None:
    state, engine = build(Policy(max_batch=8, delay=1.0, adaptive=True))
    offer(state, engine, (), Ticket(), 0.0)
    (first,) = launches(state, 0.0)
    sizes = []
    finish(state, first, 0.0, 0.001)
    for index in range(1, 200):
        now = 100 + index / 100
        offer(state, engine, (), Ticket(), now)
        for launch in launches(state, now):
            sizes.append(launch.rows)
            finish(state, launch, now, 0.001)
    assert sizes[:3] == [1, 1, 1]  # still quiet, as far as it knows
    assert sizes[-10:] == [8] * 10
