"""Other rules of batching for an engine that serves: which ones need no load, and how what waits comes under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trtops.executor import planner
from trtops.executor.state import Bucket
from trtops.executor.turns import demote

if TYPE_CHECKING:
    from trtops.executor.state import EngineQueue, Policy, State
    from trtops.spec.engine import Batching

_LIVE: Final = ("max_queue_delay", "queue", "priorities", "flush")
"""What the planner alone goes by. Sizes and padding are what buffers are made for, and what is warmed up."""


def needs_load(before: Batching, after: Batching) -> bool:
    """Whether an engine has to be loaded anew, to have its requests put together in another way."""
    return before.model_copy(update={name: getattr(after, name) for name in _LIVE}) != after


def retune(state: State, engine: EngineQueue, policy: Policy) -> None:
    """Let an engine follow another policy of the same ``max_batch``. Whoever calls has to plan afterwards.

    What waits keeps its place in time, so that delays and timeouts count from when it came; levels that are no more
    become the last one, and a queue that is longer than the new bound is only not added to.
    """
    old = engine.buckets
    waiting = planner.evict(state, engine)
    engine.buckets = {}
    engine.timeouts.clear()
    engine.armed = False
    state.timers = sorted((entry for entry in state.timers if entry[2] is not engine), key=lambda entry: entry[:2])
    engine.follow(policy)
    engine.bound = max(policy.max_size, len(waiting))
    for ticket in waiting:
        ticket.priority = min(ticket.priority, policy.priorities - 1)
        planner.offer(state, engine, ticket.bucket.shape, ticket, ticket.enqueued)
        if ticket.late:
            demote(ticket)
            if engine.timeouts and engine.timeouts[-1] is ticket:
                engine.timeouts.pop()
    engine.bound = policy.max_size
    for shape, bucket in old.items():
        engine.buckets.setdefault(shape, Bucket(engine, shape)).took = bucket.took
