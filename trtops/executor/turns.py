"""Whose turn it is: clients that share lanes, and what they may have in a full queue.

Clients are served by what they had: each has an account of the device's time, in seconds by the measured cost of the
batches, and of the requests of one urgency those of the client with the least go first. That is start-time fair
queueing as Goyal, Vin and Cheng describe it, with the time of the device in place of a link's. A client that comes back
after a silence begins a batch before whoever was served last, at most: silence saves up nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trtops.executor.state import QUEUED, Account, Share

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trtops.executor.state import Bucket, EngineQueue, State, Ticket

_IDLE: Final = 64
"""Clients that nothing waits of and that a bucket remembers; four times as many have accounts."""


def has_free_lane(state: State, engine: EngineQueue) -> bool:
    """Tell whether an engine may run something now."""
    lanes = state.lanes
    for lane in engine.lanes:  # noqa: SIM110 - asked once a request: twice as fast as any() over a generator
        if lanes[lane]:
            return True
    return False


def occupy(state: State, engine: EngineQueue) -> int:
    """Take the free lane that an engine prefers."""
    lanes = state.lanes
    for lane in engine.lanes:
        if lanes[lane]:
            lanes[lane] = False
            state.free -= 1
            return lane
    raise AssertionError("a batch was chosen with no free lane")


def add_share(state: State, bucket: Bucket, client: Hashable) -> Share:
    """Let a client wait in a bucket."""
    shares, accounts = bucket.shares, state.accounts
    if len(shares) >= _IDLE:
        for key in [key for key, share in shares.items() if not any(share.levels)]:
            del shares[key]
    account = accounts.get(client)
    if account is None:
        if len(accounts) >= 4 * _IDLE:  # forget those that came first; who comes back starts like one that is new
            for key in list(accounts)[: 2 * _IDLE]:
                del accounts[key]
        account = accounts[client] = Account(state.served)
    share = shares[client] = Share(bucket.engine.policy.priorities + 1, account)
    return share


def catch_up(state: State, engine: EngineQueue, account: Account) -> None:
    """A client that had less than whoever was served last asks for something: it is a full batch before it at most."""
    least = state.served - seconds_of(engine, engine.policy.max_batch)
    account.served = max(account.served, least)


def charge(state: State, account: Account, seconds: float) -> None:
    """A client is served. Who comes next time begins where this one did."""
    state.served = account.served
    account.served += seconds


def seconds_of(engine: EngineQueue, rows: int) -> float:
    """The device's time that rows take in full batches; until one was measured, a batch counts as a second."""
    most = engine.policy.max_batch
    return (engine.cost.estimate(most) or 1.0) * rows / most


def excess(engine: EngineQueue, client: Hashable) -> Ticket | None:
    """What has to leave a full queue for a request of this client: the newest of the client that has most in it.

    None: no client has more than this one would have then.
    """
    waiting: dict[Hashable, int] = {}
    for bucket in engine.buckets.values():
        if bucket.rows:
            for key, share in bucket.shares.items():
                waiting[key] = waiting.get(key, 0) + share.waiting
    most = max(waiting, key=waiting.__getitem__, default=client)
    if waiting.get(most, 0) <= waiting.get(client, 0) + 1:
        return None
    newest: Ticket | None = None
    for bucket in engine.buckets.values():
        held = bucket.shares.get(most)
        for level in held.levels if held is not None else ():
            last = next((ticket for ticket in reversed(level) if ticket.phase == QUEUED), None)
            if last is not None and (newest is None or last.enqueued >= newest.enqueued):
                newest = last
    return newest


def demote(ticket: Ticket) -> None:
    """Put a ticket behind all others of its client. It leaves its queue when it is at its head: the oldest is."""
    levels = ticket.bucket.shares[ticket.client].levels
    levels[ticket.priority].remove(ticket)  # near the head: the oldest of its level times out first
    ticket.late = True
    levels[-1].append(ticket)
