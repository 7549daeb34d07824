"""Which requests form a batch, and why it is released: the planner's questions about one bucket."""

from __future__ import annotations

import math
from heapq import heappop
from typing import TYPE_CHECKING

from trtops.executor.state import QUEUED, RUNNING, Bucket, Reason, Ticket

if TYPE_CHECKING:
    from collections import deque


def latest_start(bucket: Bucket) -> float:
    """When a batch of what waits has to start, so that the earliest deadline is met; infinity without one."""
    deadlines = bucket.deadlines
    while deadlines and deadlines[0][2].phase != QUEUED:
        heappop(deadlines)
    if not deadlines:
        return math.inf
    engine = bucket.engine
    return deadlines[0][0] - engine.cost.bound(min(bucket.rows, engine.policy.max_batch))


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
    bucket = ticket.bucket
    assert bucket is not None  # noqa: S101 - queued tickets have one
    policy = bucket.engine.policy
    if ticket.late:
        return policy.priorities, ticket.enqueued
    if not ticket.priority:
        return 0, ticket.enqueued
    return max(0, ticket.priority - int((now - ticket.enqueued) / policy.ageing)), ticket.enqueued


def first_level(bucket: Bucket, now: float) -> deque[Ticket] | None:
    """The level whose head is served next."""
    best: deque[Ticket] | None = None
    best_urgency = (0, 0.0)
    for level in bucket.levels:
        if not level:
            continue
        head = _head(bucket, level)
        if head is None:
            continue
        urgency = urgency_of(head, now)
        if best is None or urgency < best_urgency:
            best, best_urgency = level, urgency
    return best


def reason_of(bucket: Bucket, now: float) -> tuple[Reason, int] | None:
    """Why a bucket is to be released now and with how many rows at most; None: it is not."""
    policy = bucket.engine.policy
    rows = bucket.rows
    if rows >= policy.max_batch:
        return "full", policy.max_batch
    if bucket.engine.draining:
        return "drain", policy.max_batch
    if now >= oldest(bucket) + policy.delay:
        return ("delay" if policy.delay > 0 else "idle"), policy.max_batch
    if now >= latest_start(bucket):
        return "deadline", policy.max_batch
    reached = [size for size in policy.preferred if size <= rows]
    return ("preferred", reached[-1]) if reached else None


def take(bucket: Bucket, limit: int, now: float) -> tuple[tuple[Ticket, ...], int]:
    """Take the most urgent requests, in order, as long as they fit; a first one that is larger goes alone."""
    filled = [level for level in bucket.levels if level]
    if len(filled) == 1:
        return _take_from(bucket, filled[0], limit)
    taken: list[Ticket] = []
    rows = 0
    while bucket.count:
        level = first_level(bucket, now)
        if level is None or (taken and rows + level[0].rows > limit):
            break
        ticket = level.popleft()
        ticket.phase = RUNNING
        ticket.offset = rows
        rows += ticket.rows
        bucket.count -= 1
        taken.append(ticket)
    bucket.rows -= rows
    return tuple(taken), rows


def _take_from(bucket: Bucket, level: deque[Ticket], limit: int) -> tuple[tuple[Ticket, ...], int]:
    """The same from one level: no urgencies to compare."""
    taken: list[Ticket] = []
    rows = 0
    while level:
        ticket = level[0]
        if ticket.phase == QUEUED:
            after = rows + ticket.rows
            if after > limit and taken:
                break
            ticket.phase = RUNNING
            ticket.offset = rows
            rows = after
            taken.append(ticket)
        else:
            bucket.dead -= 1
        level.popleft()
    bucket.count -= len(taken)
    bucket.rows -= rows
    return tuple(taken), rows
