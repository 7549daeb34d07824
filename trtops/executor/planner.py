"""The batch planner: ``plan(state, now) -> actions``, pure but for the state that is handed in.

No lock, no I/O, no clock: the executor calls it under its own lock and does outside what comes back. A bucket holds
the requests of one engine and one shape, so shapes that alternate never break each other's batches. A bucket is
released, as soon as a lane of its engine is free,

- ``full``: when its rows fill a batch, or the next request does not fit any more;
- ``delay``: when its oldest request waited as long as the policy allows (``idle`` where the policy allows none);
- ``deadline``: when the earliest deadline in it would be missed, given the measured cost a·rows + b of the batch;
- ``preferred``: when a preferred size is reached: the largest one that its rows reach goes, the rest waits on;
- ``drain``: at once, when its engine is being taken out.

Cost: adding a request and taking it into a batch are O(1) amortised, but for a heap of those that carry a deadline of
their own. What was cancelled or has expired leaves queues and heaps lazily; they are swept when most of them is dead.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from trtops.executor.batch import first_level, latest_start, oldest, reason_of, take, urgency_of
from trtops.executor.state import (
    DONE,
    QUEUED,
    RUNNING,
    Action,
    Bucket,
    EngineQueue,
    Expire,
    ExpireReason,
    Launch,
    Reject,
    State,
    Ticket,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

_IDLE_BUCKETS: Final = 64
"""Empty buckets that an engine keeps; clients choose shapes, so their number must be bounded."""

_SLACK: Final = 64
"""Dead entries that a queue or heap may hold before it is looked at."""


def add_engine(state: State, engine: EngineQueue, lanes: list[int]) -> None:
    """Let an engine run on these lanes. Lanes that are not there yet are added, free."""
    while len(state.lanes) <= max(lanes):
        state.lanes.append(True)
        state.free += 1
    engine.lanes = list(lanes)
    state.engines[id(engine)] = engine


def remove_engine(state: State, engine: EngineQueue) -> tuple[Ticket, ...]:
    """Take an engine out; what still waits in it comes back as from :func:`evict`."""
    state.engines.pop(id(engine), None)
    return evict(state, engine)


def evict(state: State, engine: EngineQueue) -> tuple[Ticket, ...]:
    """Empty an engine's queue; what waited comes back, oldest first, decided: the caller answers it with an error."""
    left: list[Ticket] = []
    for bucket in engine.buckets.values():
        left.extend(ticket for level in bucket.levels for ticket in level if ticket.phase == QUEUED)
        state.ready.pop(bucket, None)
    for ticket in left:
        _leave(state, ticket)
        ticket.phase = DONE
    left.sort(key=lambda ticket: ticket.enqueued)
    return tuple(left)


def drain_engine(state: State, engine: EngineQueue) -> None:
    """Release what waits in an engine as soon as lanes are free, without regard to delays."""
    engine.draining = True
    for bucket in engine.buckets.values():
        if bucket.count:
            _make_ready(state, bucket)


def drained(engine: EngineQueue) -> bool:
    """Tell whether nothing of this engine waits or runs."""
    return not engine.queued and not engine.running


def can_launch(state: State, engine: EngineQueue) -> bool:
    """Tell whether :func:`plan` may start something after an offer to this engine; if not, it need not be called."""
    return bool(state.ready) and state.free > 0 and _has_free_lane(state, engine)


def offer(state: State, engine: EngineQueue, shape: Hashable, ticket: Ticket, now: float) -> Reject | None:
    """Queue a ticket, or say why not. ``ticket.rows`` is at most the policy's ``max_batch``."""
    if engine.queued >= engine.policy.max_size:
        return Reject(ticket, "queue-full")
    bucket = engine.buckets.get(shape)
    if bucket is None:
        bucket = _add_bucket(engine, shape)
    ticket.bucket = bucket
    ticket.phase = QUEUED
    ticket.enqueued = now
    bucket.levels[ticket.priority].append(ticket)
    bucket.rows += ticket.rows
    bucket.count += 1
    engine.queued += 1
    state.live += 1
    if ticket.deadline is not None:
        _watch_deadline(state, bucket, ticket)
    elif engine.policy.timeout:
        _watch_timeout(state, engine, ticket)
    if not bucket.ready:
        if bucket.rows >= engine.trigger or engine.draining:
            _make_ready(state, bucket)
        elif bucket.count == 1 or bucket.deadlines:
            _arm(state, bucket)
    return None


def cancel(state: State, ticket: Ticket) -> bool:
    """Take a ticket back. True: the caller answers it with an error now; False: it was answered, or is about to be."""
    if ticket.phase == QUEUED:
        _leave(state, ticket)
    elif ticket.phase == RUNNING:
        state.live -= 1
    else:
        return False
    ticket.phase = DONE
    return True


def abandon(state: State, launch: Launch) -> list[Ticket]:
    """Decide the tickets of a batch that nobody waits for any more; its lane stays occupied."""
    left = [ticket for ticket in launch.tickets if ticket.phase == RUNNING]
    for ticket in left:
        ticket.phase = DONE
    state.live -= len(left)
    return left


def finish(state: State, launch: Launch, now: float, seconds: float | None) -> tuple[list[Ticket], list[Expire]]:
    """Free the lane of a batch that ended after ``seconds`` (None: it failed, and tells nothing of its cost).

    Returns:
        The tickets that are to be answered with what came of the batch, and those whose deadline passed meanwhile.
        Tickets that were cancelled or expired while the batch ran are in neither: they have their answer.
    """
    engine = launch.engine
    state.lanes[launch.lane] = True
    state.free += 1
    engine.running -= 1
    if seconds is not None:
        engine.cost.observe(launch.rows, seconds)
        for bucket in engine.buckets.values():
            if bucket.deadlines and bucket.count and not bucket.ready:
                _arm(state, bucket)  # the cost is known better now, so is the latest start
    answer: list[Ticket] = []
    late: list[Expire] = []
    for ticket in launch.tickets:
        if ticket.phase != RUNNING:
            continue
        ticket.phase = DONE
        if ticket.deadline is not None and now > ticket.deadline:
            late.append(Expire(ticket, "deadline", running=True))
        else:
            answer.append(ticket)
    state.live -= len(answer) + len(late)
    return answer, late


def plan(state: State, now: float) -> list[Action]:
    """Decide what is to be done at ``now``. Every launch occupies its lane until :func:`finish`.

    Returns:
        Launches and expirations, to be done in this order; at the end a :class:`Wait` if time alone will bring more.
    """
    actions: list[Action] = []
    timers = state.timers
    while timers and timers[0][0] <= now:
        _fire(state, heappop(timers)[2], now, actions)
    while True:
        dues = state.dues
        while dues and dues[0][0] <= now:
            due, _, bucket = heappop(dues)
            if bucket.due == due and bucket.count:
                _make_ready(state, bucket)
        chosen = _choose(state, now) if state.ready and state.free else None
        if chosen is None:
            break
        launch = _release(state, chosen, now)
        if launch is not None:
            actions.append(launch)
    until = next_time(state)
    if until < math.inf:
        actions.append(Wait(until))
    return actions


def next_time(state: State) -> float:
    """When time alone brings something to do: an expiration, or a release if a lane is free; else infinity."""
    timers, dues = state.timers, state.dues
    until = timers[0][0] if timers else math.inf
    if state.free and dues:
        while dues and (dues[0][2].due != dues[0][0] or dues[0][2].ready):
            heappop(dues)
        if dues and dues[0][0] < until:
            return dues[0][0]
    return until


def _has_free_lane(state: State, engine: EngineQueue) -> bool:
    lanes = state.lanes
    for lane in engine.lanes:  # noqa: SIM110 - asked once a request: twice as fast as any() over a generator
        if lanes[lane]:
            return True
    return False


def _add_bucket(engine: EngineQueue, shape: Hashable) -> Bucket:
    buckets = engine.buckets
    if len(buckets) >= _IDLE_BUCKETS:
        for key in [key for key, bucket in buckets.items() if not bucket.count]:
            del buckets[key]
    bucket = buckets[shape] = Bucket(engine, shape)
    return bucket


def _watch_deadline(state: State, bucket: Bucket, ticket: Ticket) -> None:
    state.number += 1
    if len(state.timers) > _SLACK + 4 * state.live:
        state.timers = [entry for entry in state.timers if _timer_alive(entry[2])]
        heapify(state.timers)
    if len(bucket.deadlines) > _SLACK + 4 * bucket.count:
        bucket.deadlines = [entry for entry in bucket.deadlines if entry[2].phase == QUEUED]
        heapify(bucket.deadlines)
    entry = (ticket.deadline or 0.0, state.number, ticket)
    heappush(state.timers, entry)
    heappush(bucket.deadlines, entry)


def _timer_alive(owner: Ticket | EngineQueue) -> bool:
    return isinstance(owner, EngineQueue) or owner.phase in (QUEUED, RUNNING)


def _watch_timeout(state: State, engine: EngineQueue, ticket: Ticket) -> None:
    timeouts = engine.timeouts
    while timeouts and timeouts[0].phase != QUEUED:
        timeouts.popleft()
    if len(timeouts) > _SLACK + 4 * engine.queued:
        alive = [waiting for waiting in timeouts if waiting.phase == QUEUED]
        timeouts.clear()
        timeouts.extend(alive)
    timeouts.append(ticket)
    if not engine.armed:
        engine.armed = True
        state.number += 1
        heappush(state.timers, (timeouts[0].enqueued + engine.policy.timeout, state.number, engine))


def _fire(state: State, owner: Ticket | EngineQueue, now: float, actions: list[Action]) -> None:
    if isinstance(owner, EngineQueue):
        _fire_timeouts(state, owner, now, actions)
    elif owner.phase in (QUEUED, RUNNING):
        _expire(state, owner, "deadline", actions)


def _fire_timeouts(state: State, engine: EngineQueue, now: float, actions: list[Action]) -> None:
    timeouts = engine.timeouts
    while timeouts:
        ticket = timeouts[0]
        if ticket.phase == QUEUED:
            when = ticket.enqueued + engine.policy.timeout
            if when > now:
                state.number += 1
                heappush(state.timers, (when, state.number, engine))
                return
            if engine.policy.late == "delay":
                _demote(ticket)
            else:
                _expire(state, ticket, "timeout", actions)
        timeouts.popleft()
    engine.armed = False


def _demote(ticket: Ticket) -> None:
    """Put a ticket behind all others of its bucket. It leaves its queue when it is at its head: the oldest is."""
    bucket = ticket.bucket
    assert bucket is not None  # noqa: S101 - queued tickets have one
    bucket.levels[ticket.priority].remove(ticket)  # near the head: the oldest of its level times out first
    ticket.late = True
    bucket.levels[-1].append(ticket)


def _expire(state: State, ticket: Ticket, reason: ExpireReason, actions: list[Action]) -> None:
    running = ticket.phase == RUNNING
    if running:
        state.live -= 1
    else:
        _leave(state, ticket)
    ticket.phase = DONE
    actions.append(Expire(ticket, reason, running))


def _leave(state: State, ticket: Ticket) -> None:
    """Count a queued ticket out of its bucket; its place in the queue is dead."""
    bucket = ticket.bucket
    assert bucket is not None  # noqa: S101 - queued tickets have one
    bucket.rows -= ticket.rows
    bucket.count -= 1
    bucket.dead += 1
    bucket.engine.queued -= 1
    state.live -= 1
    if bucket.dead > _SLACK + bucket.count:
        for level in bucket.levels:
            alive = [waiting for waiting in level if waiting.phase == QUEUED and waiting is not ticket]
            level.clear()
            level.extend(alive)
        bucket.dead = 0
    if not bucket.count:
        bucket.due = math.inf
        bucket.ready = False
        state.ready.pop(bucket, None)


def _make_ready(state: State, bucket: Bucket) -> None:
    if not bucket.ready:
        bucket.ready = True
        state.ready[bucket] = None


def _arm(state: State, bucket: Bucket) -> None:
    """Note when a bucket that is not ready has to be released."""
    due = min(oldest(bucket) + bucket.engine.policy.delay, latest_start(bucket))
    if due != bucket.due:
        bucket.due = due
        if len(state.dues) > _SLACK + 4 * len(state.engines) * _IDLE_BUCKETS:
            state.dues = [entry for entry in state.dues if entry[2].due == entry[0]]
            heapify(state.dues)
        state.number += 1
        heappush(state.dues, (due, state.number, bucket))


def _choose(state: State, now: float) -> Bucket | None:
    """The most urgent bucket that is ready and whose engine has a free lane."""
    best: Bucket | None = None
    best_urgency = (0, 0.0)
    single = len(state.ready) == 1
    for bucket in state.ready:
        if not _has_free_lane(state, bucket.engine):
            continue
        if single:
            return bucket
        level = first_level(bucket, now)
        if level is None:
            continue
        urgency = urgency_of(level[0], now)
        if best is None or urgency < best_urgency:
            best, best_urgency = bucket, urgency
    return best


def _release(state: State, bucket: Bucket, now: float) -> Launch | None:
    """Form a batch of a ready bucket, or find that it is not ready any more (requests were taken back)."""
    engine = bucket.engine
    why = reason_of(bucket, now)
    launch = None
    if why is not None:
        reason, limit = why
        tickets, rows = take(bucket, limit, now)
        engine.queued -= len(tickets)
        lane = next(number for number in engine.lanes if state.lanes[number])
        state.lanes[lane] = False
        state.free -= 1
        engine.running += 1
        launch = Launch(engine, bucket.shape, lane, tickets, rows, reason, now)
    if bucket.count and (bucket.rows >= engine.trigger or engine.draining) and launch is not None:
        return launch  # what is left is ready as well
    bucket.ready = False
    del state.ready[bucket]
    bucket.due = math.inf
    if bucket.count:
        _arm(state, bucket)
    return launch
