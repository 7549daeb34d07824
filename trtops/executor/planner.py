"""The batch planner: ``plan(state, now) -> actions``, pure but for the state that is handed in.

No lock, no I/O, no clock: the executor calls it under its own lock and does outside what comes back. A bucket holds
the requests of one engine and one shape, so shapes that alternate never break each other's batches. A bucket is
released, as soon as a lane of its engine is free,

- ``full``: when its rows fill a batch, or the next request does not fit any more;
- ``delay``: when its oldest request waited as long as the policy allows (``idle`` where the policy allows none), or,
  where the policy adapts, as long as it takes at the rate of late until the batch is full;
- ``deadline``: when the earliest deadline in it would be missed, given the measured cost a·rows + b of the batch;
- ``preferred``: when a preferred size is reached: the largest one that its rows reach goes, the rest waits on;
- ``drain``: at once, when its engine is being taken out.

Of the same urgency the client goes first that had the least of the device (:mod:`.turns`).

Cost: adding a request and taking it into a batch are O(1) amortised. Of requests with a deadline of their own only
those that are due before the one that came before them go on a heap; the timers hold one entry for each bucket, batch
and engine, not for each request. What was cancelled or has expired leaves queues lazily; they are swept when most of
them is dead.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from trtops.executor.batch import (
    earliest_deadline,
    latest_start,
    note_arrival,
    oldest,
    patience,
    reason_of,
    sweep,
    sweep_timeouts,
    take,
    urgency,
)
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
from trtops.executor.turns import add_share, catch_up, demote, excess, has_free_lane, occupy

if TYPE_CHECKING:
    from collections.abc import Hashable

_IDLE_BUCKETS: Final = 64
"""Empty buckets that an engine keeps; clients choose shapes, so their number must be bounded."""

_SLACK: Final = 64
"""Dead entries that a queue or heap may hold before it is looked at."""

_NEVER: Final = math.inf


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
        if bucket.rows:
            _make_ready(state, bucket)


def drained(engine: EngineQueue) -> bool:
    """Tell whether nothing of this engine waits or runs."""
    return not engine.queued and not engine.running


def can_launch(state: State, engine: EngineQueue) -> bool:
    """Tell whether :func:`plan` may start something after an offer to this engine; if not, it need not be called."""
    return bool(state.ready) and state.free > 0 and has_free_lane(state, engine)


def offer(state: State, engine: EngineQueue, shape: Hashable, ticket: Ticket, now: float) -> Reject | None:
    """Queue a ticket, or say why not. ``ticket.rows`` is at most the policy's ``max_batch``.

    A full queue makes room for a client that has less in it than another one: then what comes back tells of the newest
    ticket of that one, which is decided, and ``ticket`` waits.
    """
    rejected = None
    if engine.queued >= engine.bound:
        rejected = _make_room(state, engine, ticket)
        if rejected.ticket is ticket:
            return rejected
    engine.queued += 1
    bucket = engine.buckets.get(shape)
    if bucket is None:
        bucket = _add_bucket(engine, shape)
    ticket.bucket = bucket
    ticket.phase = QUEUED
    ticket.enqueued = now
    share = bucket.shares.get(ticket.client) or add_share(state, bucket, ticket.client)
    if share.account.served < state.served:
        catch_up(state, engine, share.account)
    share.levels[ticket.priority].append(ticket)
    share.waiting += 1
    bucket.rows = rows = bucket.rows + ticket.rows
    if ticket.deadline is not None:
        _watch_deadline(state, bucket, ticket, ticket.deadline)
    elif engine.timeout:
        engine.timeouts.append(ticket)
        if not engine.armed:
            _arm_timeouts(state, engine, now + engine.timeout)
    if engine.adaptive:
        note_arrival(engine, now)
    if not bucket.ready:
        if rows >= engine.trigger or engine.draining:
            bucket.ready = True
            state.ready[bucket] = None
        elif bucket.due == _NEVER or bucket.alarm < _NEVER:
            _await(state, bucket, rows)
    return rejected


def _make_room(state: State, engine: EngineQueue, ticket: Ticket) -> Reject:
    """Who is refused by a full queue: this ticket, or one of a client that has more than its share."""
    victim = excess(engine, ticket.client)
    if victim is None:
        return Reject(ticket, "queue-full")
    _leave(state, victim)
    victim.phase = DONE
    return Reject(victim, "queue-full")


def _await(state: State, bucket: Bucket, rows: int) -> None:
    """Decide until when a bucket waits for company."""
    engine = bucket.engine
    if bucket.due == _NEVER:
        if engine.adaptive:
            bucket.wait = patience(engine, rows)
        if bucket.wait:
            _arm(state, bucket)
        else:
            _make_ready(state, bucket)
    else:  # with more rows the batch takes longer: it has to start earlier
        start = bucket.alarm - engine.cost.slope * rows - engine.cost.ceiling
        if start < bucket.due:
            _set_due(state, bucket, start)


def cancel(state: State, ticket: Ticket) -> bool:
    """Take a ticket back. True: the caller answers it with an error now; False: it was answered, or is about to be."""
    if ticket.phase == QUEUED:
        _leave(state, ticket)
    elif ticket.phase == RUNNING:
        state.flying -= 1
        state.decided += 1
    else:
        return False
    ticket.phase = DONE
    return True


def abandon(state: State, launch: Launch) -> list[Ticket]:
    """Decide the tickets of a batch that nobody waits for any more; its lane stays occupied."""
    left = [ticket for ticket in launch.tickets if ticket.phase == RUNNING]
    for ticket in left:
        ticket.phase = DONE
    state.flying -= len(left)
    state.decided += len(left)
    return left


def finish(
    state: State, launch: Launch, now: float, seconds: float | None, around: float = 0.0
) -> tuple[list[Ticket], list[Expire]]:
    """Free the lane of a batch that ended after ``seconds`` (None: it failed, and tells nothing of its cost).

    ``around``: seconds that its thread spent on inputs and outputs.

    Returns:
        The tickets that are to be answered with what came of the batch, and those whose deadline passed meanwhile.
        Tickets that were cancelled or expired while the batch ran are in neither: they have their answer.
    """
    engine = launch.engine
    state.lanes[launch.lane] = True
    state.free += 1
    engine.running -= 1
    rows, took = launch.rows, launch.tickets[0].bucket.took
    if seconds is None:
        engine.cost.failed(now - launch.at)
        took.pop(rows, None)
    else:
        engine.cost.observe(rows, seconds)
        took[rows] = max(seconds + around, took.get(rows, 0.0) / 2)
        for bucket in engine.buckets.values() if engine.timed else ():
            if bucket.deadlines and bucket.rows and not bucket.ready:
                _arm(state, bucket)  # the cost is known better now, so is the latest start
    answer = list(launch.tickets)
    if state.decided != launch.decided:
        answer = [ticket for ticket in answer if ticket.phase == RUNNING]
    for ticket in answer:
        ticket.phase = DONE
    state.flying -= len(answer)
    if not launch.timed:
        return answer, []
    late = [
        Expire(ticket, "deadline", running=True)
        for ticket in answer
        if ticket.deadline is not None and now > ticket.deadline
    ]
    if late:
        overdue = {id(expired.ticket) for expired in late}
        answer = [ticket for ticket in answer if id(ticket) not in overdue]
    return answer, late


def plan(state: State, now: float) -> list[Action]:
    """Decide what is to be done at ``now``. Every launch occupies its lane until :func:`finish`.

    Returns:
        Launches and expirations, to be done in this order; at the end a :class:`Wait` if time alone will bring more.
    """
    actions: list[Action] = []
    timers = state.timers
    while timers and timers[0][0] <= now:
        when, _, owner = heappop(timers)
        _fire(state, when, owner, now, actions)
        timers = state.timers
    while True:
        dues = state.dues
        while dues and dues[0][0] <= now:
            due, _, bucket = heappop(dues)
            if bucket.due == due and bucket.rows:
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


def _add_bucket(engine: EngineQueue, shape: Hashable) -> Bucket:
    buckets = engine.buckets
    if len(buckets) >= _IDLE_BUCKETS:
        for key in [key for key, bucket in buckets.items() if not bucket.rows]:
            del buckets[key]
    bucket = buckets[shape] = Bucket(engine, shape)
    return bucket


def _watch_deadline(state: State, bucket: Bucket, ticket: Ticket, deadline: float) -> None:
    bucket.engine.timed = True
    line = bucket.deadlines
    if not line or deadline >= (line[-1].deadline or 0.0):
        line.append(ticket)
    else:
        state.number += 1
        heappush(bucket.stragglers, (deadline, state.number, ticket))
    if deadline < bucket.alarm:
        bucket.alarm = deadline
        _set_timer(state, deadline, bucket)


def _set_timer(state: State, when: float, owner: Bucket | EngineQueue | Launch) -> None:
    if len(state.timers) >= state.timers_limit:
        state.timers = [entry for entry in state.timers if _timer_alive(entry[0], entry[2])]
        heapify(state.timers)
        state.timers_limit = max(_SLACK, 2 * len(state.timers))
    state.number += 1
    heappush(state.timers, (when, state.number, owner))


def _timer_alive(when: float, owner: Bucket | EngineQueue | Launch) -> bool:
    if isinstance(owner, Bucket):
        return owner.alarm == when
    return isinstance(owner, EngineQueue) or any(ticket.phase == RUNNING for ticket in owner.tickets)


def _arm_timeouts(state: State, engine: EngineQueue, when: float) -> None:
    engine.armed = True
    _set_timer(state, when, engine)


def _fire(state: State, when: float, owner: Bucket | EngineQueue | Launch, now: float, actions: list[Action]) -> None:
    if isinstance(owner, EngineQueue):
        _fire_timeouts(state, owner, now, actions)
    elif isinstance(owner, Bucket):
        if owner.alarm == when:
            _fire_deadlines(state, owner, now, actions)
    else:
        _fire_running(state, owner, now, actions)


def _fire_deadlines(state: State, bucket: Bucket, now: float, actions: list[Action]) -> None:
    """Expire what waits beyond its deadline, then set the next alarm."""
    line, stragglers = bucket.deadlines, bucket.stragglers
    while (earliest := earliest_deadline(bucket)) <= now:
        ticket = line.popleft() if line and line[0].deadline == earliest else heappop(stragglers)[2]
        _expire(state, ticket, "deadline", actions)
    bucket.alarm = earliest
    if earliest < _NEVER:
        _set_timer(state, earliest, bucket)


def _fire_running(state: State, launch: Launch, now: float, actions: list[Action]) -> None:
    """Expire what runs beyond its deadline, then look again at the next one."""
    following = _NEVER
    for ticket in launch.tickets:
        deadline = ticket.deadline
        if deadline is None or ticket.phase != RUNNING:
            continue
        if deadline <= now:
            _expire(state, ticket, "deadline", actions)
        elif deadline < following:
            following = deadline
    if following < _NEVER:
        _set_timer(state, following, launch)


def _fire_timeouts(state: State, engine: EngineQueue, now: float, actions: list[Action]) -> None:
    timeouts = engine.timeouts
    engine.armed = False
    while timeouts:
        ticket = timeouts[0]
        if ticket.phase == QUEUED:
            when = ticket.enqueued + engine.timeout
            if when > now:
                _arm_timeouts(state, engine, when)
                return
            if engine.policy.late == "delay":
                demote(ticket)
            else:
                _expire(state, ticket, "timeout", actions)
        timeouts.popleft()


def _expire(state: State, ticket: Ticket, reason: ExpireReason, actions: list[Action]) -> None:
    running = ticket.phase == RUNNING
    if running:
        state.flying -= 1
        state.decided += 1
    else:
        _leave(state, ticket)
    ticket.phase = DONE
    actions.append(Expire(ticket, reason, running))


def _leave(state: State, ticket: Ticket) -> None:
    """Count a queued ticket out of its bucket; its place in the queue is dead."""
    bucket = ticket.bucket
    engine = bucket.engine
    bucket.rows -= ticket.rows
    bucket.dead += 1
    bucket.shares[ticket.client].waiting -= 1
    engine.queued -= 1
    if bucket.dead > _SLACK and 2 * bucket.dead > sum(map(len, bucket.levels)):
        ticket.phase = DONE
        sweep(bucket)
    if len(engine.timeouts) > _SLACK + 4 * engine.queued:
        sweep_timeouts(engine)
    if not bucket.rows:
        bucket.due = bucket.alarm = _NEVER
        bucket.ready = False
        state.ready.pop(bucket, None)


def _make_ready(state: State, bucket: Bucket) -> None:
    if not bucket.ready:
        bucket.ready = True
        state.ready[bucket] = None


def _arm(state: State, bucket: Bucket) -> None:
    """Note when a bucket that is not ready has to be released."""
    due = oldest(bucket) + bucket.wait
    if bucket.deadlines or bucket.stragglers:
        due = min(due, latest_start(bucket))
    if due != bucket.due:
        _set_due(state, bucket, due)


def _set_due(state: State, bucket: Bucket, due: float) -> None:
    bucket.due = due
    if len(state.dues) >= state.dues_limit:
        state.dues = [entry for entry in state.dues if entry[2].due == entry[0]]
        heapify(state.dues)
        state.dues_limit = max(_SLACK, 2 * len(state.dues))
    state.number += 1
    heappush(state.dues, (due, state.number, bucket))


def _choose(state: State, now: float) -> Bucket | None:
    """The most urgent bucket that is ready and whose engine has a free lane."""
    best: Bucket | None = None
    best_urgency = (0, 0.0, 0.0)
    single = len(state.ready) == 1
    for bucket in state.ready:
        if not has_free_lane(state, bucket.engine):
            continue
        if single:
            return bucket
        urgent = urgency(bucket, now)
        if urgent is not None and (best is None or urgent < best_urgency):
            best, best_urgency = bucket, urgent
    return best


def _release(state: State, bucket: Bucket, now: float) -> Launch | None:
    """Form a batch of a ready bucket, or find that it is not ready any more (requests were taken back)."""
    engine = bucket.engine
    why = reason_of(bucket, now)
    launch = None
    if why is not None:
        reason, limit = why
        timed = bool(bucket.deadlines or bucket.stragglers)
        tickets, rows = take(state, bucket, limit, now)
        launch = Launch(engine, bucket.shape, occupy(state, engine), tickets, rows, reason, now, timed, state.decided)
        engine.queued -= len(tickets)
        state.flying += len(tickets)
        engine.running += 1
        if timed:
            _watch_running(state, bucket, launch)
        timeouts = engine.timeouts
        while timeouts and timeouts[0].phase != QUEUED:
            timeouts.popleft()
        if bucket.rows and (bucket.rows >= engine.trigger or engine.draining):
            return launch  # what is left is ready as well
    bucket.ready = False
    del state.ready[bucket]
    bucket.due = _NEVER
    if bucket.rows:
        if engine.adaptive:
            bucket.wait = patience(engine, bucket.rows)
        _arm(state, bucket)
    return launch


def _watch_running(state: State, bucket: Bucket, launch: Launch) -> None:
    """Deadlines of a batch count on while it runs; those of what is left must not fill up with them."""
    line = bucket.deadlines
    alarm = earliest_deadline(bucket)
    if alarm != bucket.alarm:
        bucket.alarm = alarm
        if alarm < _NEVER:
            _set_timer(state, alarm, bucket)
    if len(line) + len(bucket.stragglers) > _SLACK + 4 * bucket.count:
        sweep(bucket)
    earliest = min((ticket.deadline for ticket in launch.tickets if ticket.deadline is not None), default=_NEVER)
    if earliest < _NEVER:
        _set_timer(state, earliest, launch)
