"""Which requests form a batch, and why it is released: the planner's questions about one bucket."""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

from trtops.executor.state import QUEUED, RUNNING, Bucket, EngineQueue, Reason, Share, State, Ticket
from trtops.executor.turns import charge, seconds_of

if TYPE_CHECKING:
    from collections import deque


def earliest_deadline(bucket: Bucket) -> float:
    """The earliest deadline of what waits; infinity without one."""
    line, stragglers = bucket.deadlines, bucket.stragglers
    while line and line[0].phase != QUEUED:
        line.popleft()
    earliest = math.inf
    if line:
        earliest = line[0].deadline or 0.0
    if stragglers:
        while stragglers and stragglers[0][2].phase != QUEUED:
            heappop(stragglers)
        if stragglers and stragglers[0][0] < earliest:
            return stragglers[0][0]
    return earliest


def latest_start(bucket: Bucket) -> float:
    """When a batch of what waits has to start, so that the earliest deadline is met; infinity without one."""
    earliest = earliest_deadline(bucket)
    if earliest == math.inf:
        return earliest
    engine = bucket.engine
    return earliest - engine.cost.bound(min(bucket.rows, engine.policy.max_batch))


def _head(bucket: Bucket, level: deque[Ticket]) -> Ticket | None:
    while level:
        ticket = level[0]
        if ticket.phase == QUEUED:
            return ticket
        level.popleft()
        bucket.dead -= 1
    return None


def oldest(bucket: Bucket) -> float:
    """When the oldest request of a bucket came; infinity if none waits."""
    earliest = math.inf
    for level in bucket.levels:
        if level:
            head = _head(bucket, level)
            if head is not None and head.enqueued < earliest:
                earliest = head.enqueued
    return earliest


def urgency_of(ticket: Ticket, now: float) -> tuple[int, float]:
    """Order of service: the level after ageing, then age. Those that are late come last and do not age."""
    if ticket.late:
        return ticket.bucket.engine.policy.priorities, ticket.enqueued
    priority = ticket.priority
    if not priority:
        return 0, ticket.enqueued
    aged = priority - int((now - ticket.enqueued) / ticket.bucket.engine.policy.ageing)
    return max(0, aged), ticket.enqueued


def urgency(bucket: Bucket, now: float) -> tuple[int, float, float] | None:
    """Of the request that is served next; None if none waits."""
    turns = [
        _turn(share, head, now)
        for share in bucket.shares.values()
        for level in share.levels
        if level and (head := _head(bucket, level)) is not None
    ]
    return min(turns) if turns else None


_LATELY: Final = 0.2
"""Weight of the newest gap between requests: about the last ten count."""


def note_arrival(engine: EngineQueue, now: float) -> None:
    """Take in that a request came. A long silence counts as two delays: longer ones change no decision."""
    delay = engine.policy.delay
    engine.gap += (min(now - engine.last, 2 * delay) - engine.gap) * _LATELY
    engine.last = now


def patience(engine: EngineQueue, rows: int) -> float:
    """Seconds to wait for company: until the batch is full at the rate of late; 0 if nobody comes within the delay."""
    policy = engine.policy
    if engine.gap > policy.delay:
        return 0.0
    return min(policy.delay, engine.gap * (policy.max_batch - rows))


def reason_of(bucket: Bucket, now: float) -> tuple[Reason, int] | None:
    """Why a bucket is to be released now and with how many rows at most; None: it is not."""
    engine = bucket.engine
    policy = engine.policy
    rows = bucket.rows
    if rows >= policy.max_batch:
        return "full", policy.max_batch
    if engine.draining:
        return "drain", policy.max_batch
    if not bucket.wait:
        return "idle", policy.max_batch
    if now >= oldest(bucket) + bucket.wait:
        return "delay", policy.max_batch
    if (bucket.deadlines or bucket.stragglers) and now >= latest_start(bucket):
        return "deadline", policy.max_batch
    reached = bisect_right(policy.preferred, rows)
    return ("preferred", policy.preferred[reached - 1]) if reached else None


def _turn(share: Share, head: Ticket, now: float) -> tuple[int, float, float]:
    """Order in which queues are served."""
    level, enqueued = urgency_of(head, now)
    return level, share.account.served, enqueued


def take(state: State, bucket: Bucket, limit: int, now: float) -> tuple[tuple[Ticket, ...], int]:
    """Take the most urgent requests, in order, as long as they fit; a first one that is larger goes alone.

    Of the same urgency the client is served that had the least, then the oldest request.
    """
    filled = [(share, level) for share in bucket.shares.values() for level in share.levels if level]
    taken: list[Ticket] = []
    if len(filled) == 1:
        share, level = filled[0]
        rows = _take_from(bucket, level, limit, 0, taken)
        share.waiting -= len(taken)
        if len(state.accounts) > 1:
            charge(state, share.account, seconds_of(bucket.engine, rows))
    else:
        rows = _take_mixed(state, bucket, filled, limit, now, taken)
    bucket.rows -= rows
    return tuple(taken), rows


def _take_mixed(
    state: State,
    bucket: Bucket,
    filled: list[tuple[Share, deque[Ticket]]],
    limit: int,
    now: float,
    taken: list[Ticket],
) -> int:
    """From several queues: the head that is next, again and again."""
    rows = 0
    each = seconds_of(bucket.engine, 1) if len(state.accounts) > 1 else 0.0
    heads = [
        (*_turn(share, head, now), index)
        for index, (share, level) in enumerate(filled)
        if (head := _head(bucket, level)) is not None
    ]
    heapify(heads)  # queues of one urgency go by their place
    while heads:
        level_now, served, _, index = heads[0]
        share, level = filled[index]
        if served != share.account.served:  # it was served out of another of its queues
            heapreplace(heads, (level_now, share.account.served, level[0].enqueued, index))
            continue
        ticket = level[0]
        after = rows + ticket.rows
        if after > limit and taken:
            break
        level.popleft()
        ticket.phase = RUNNING
        ticket.offset = rows
        rows = after
        taken.append(ticket)
        share.waiting -= 1
        if each:
            charge(state, share.account, each * ticket.rows)
        head = _head(bucket, level)
        if head is None:
            heappop(heads)
            if len(heads) == 1:
                share, level = filled[heads[0][3]]
                before = len(taken)
                whole = _take_from(bucket, level, limit, rows, taken)
                share.waiting -= len(taken) - before
                if each:
                    charge(state, share.account, each * (whole - rows))
                return whole
        else:
            heapreplace(heads, (*_turn(share, head, now), index))
    return rows


def _take_from(bucket: Bucket, level: deque[Ticket], limit: int, rows: int, taken: list[Ticket]) -> int:
    """From one level: no urgencies to compare."""
    if len(level) == bucket.rows and not bucket.dead and not rows:  # requests of one row, as most are
        if limit >= len(level):
            taken.extend(level)
            level.clear()
        else:
            pop = level.popleft
            taken.extend([pop() for _ in range(limit)])
        for offset, ticket in enumerate(taken):
            ticket.phase = RUNNING
            ticket.offset = offset
        return len(taken)
    pop, append = level.popleft, taken.append
    while level:
        ticket = level[0]
        if ticket.phase == QUEUED:
            after = rows + ticket.rows
            if after > limit and taken:
                break
            ticket.phase = RUNNING
            ticket.offset = rows
            rows = after
            append(ticket)
        else:
            bucket.dead -= 1
        pop()
    return rows


def sweep(bucket: Bucket) -> None:
    """Forget the dead of a bucket."""
    for line in (*bucket.levels, bucket.deadlines):
        alive = [waiting for waiting in line if waiting.phase == QUEUED]
        line.clear()
        line.extend(alive)
    bucket.dead = 0
    bucket.stragglers = [entry for entry in bucket.stragglers if entry[2].phase == QUEUED]
    heapify(bucket.stragglers)


def sweep_timeouts(engine: EngineQueue) -> None:
    """Forget those of an engine that no timeout concerns any more."""
    alive = [waiting for waiting in engine.timeouts if waiting.phase == QUEUED]
    engine.timeouts.clear()
    engine.timeouts.extend(alive)
