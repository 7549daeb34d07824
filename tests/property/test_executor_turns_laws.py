"""Laws of whose turn it is: what a client that floods the queue can do to others, and what it cannot."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from trtops.executor.planner import add_engine, finish, offer, plan
from trtops.executor.state import EngineQueue, Launch, Policy, Reject, State, Ticket

BOUND = 40


class Device:
    """One lane that runs one batch after the other, a second each."""

    def __init__(self, max_batch: int, engines: int = 1, bound: int = BOUND) -> None:
        self.state = State(1)
        self.engines = []
        for number in range(engines):
            engine = EngineQueue(f"e{number}", Policy(max_batch=max_batch, max_size=bound, priorities=2, ageing=1e9))
            add_engine(self.state, engine, [0])
            self.engines.append(engine)
        self.now = 0.0
        self.running: Launch | None = None
        self.batches = 0
        self.served: Counter[Any] = Counter()
        self.displaced: list[Ticket] = []

    def offer(self, ticket: Ticket, which: int = 0, shape: str = "") -> bool:
        self.now += 1e-6
        rejected = offer(self.state, self.engines[which], shape, ticket, self.now)
        if rejected is not None and rejected.ticket is not ticket:
            assert isinstance(rejected, Reject)
            self.displaced.append(rejected.ticket)
            return True
        return rejected is None

    def step(self) -> tuple[Ticket, ...]:
        """End what runs and start what is next."""
        self.now += 1.0
        if self.running is not None:
            finish(self.state, self.running, self.now, 1.0)
            self.running = None
        for action in plan(self.state, self.now):
            if isinstance(action, Launch):
                self.running = action
                self.batches += 1
                for share in action.engine.buckets[action.shape].shares.values():
                    assert share.waiting == sum(ticket.phase == 1 for level in share.levels for ticket in level)
                for ticket in action.tickets:
                    self.served[ticket.client] += ticket.rows
        return self.running.tickets if self.running is not None else ()


@settings(deadline=None)
@given(
    max_batch=st.integers(1, 8),
    floods=st.integers(1, 4),
    rows=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    apart=st.booleans(),
    other=st.booleans(),
)
def test_a_flood_never_pushes_a_polite_client_beyond_its_turn(
    max_batch: int, floods: int, rows: list[int], pauses: list[int], *, apart: bool, other: bool
) -> None:
    """Its request is never refused, and starts after a batch of each other client and two more, at the latest.

    However full the queue is, whatever sizes the others send, and whether it uses the same shape and the same engine.
    """
    device = Device(max_batch, engines=2)
    sent = 0

    def flood() -> None:
        nonlocal sent
        for number in range(floods):
            for _ in range(BOUND):
                device.offer(Ticket(min(rows[sent % len(rows)], max_batch), client=f"flood {number}"))
                sent += 1

    flood()
    for pause in pauses:
        for _ in range(pause):
            flood()
            device.step()
        flood()
        polite = Ticket(client="polite")
        assert device.offer(polite, int(other), "own" if apart else "")
        before = device.batches
        while polite not in device.step():
            flood()
            assert device.batches - before <= floods + 2
    assert all(ticket.client != "polite" for ticket in device.displaced)


@settings(deadline=None)
@given(max_batch=st.integers(1, 16), sizes=st.lists(st.integers(1, 16), min_size=2, max_size=5))
def test_clients_that_always_wait_get_the_same_rows(max_batch: int, sizes: list[int]) -> None:
    device = Device(max_batch, bound=10_000)
    for _ in range(60):
        for client, size in enumerate(sizes):
            rows = min(size, max_batch)
            for _ in range(-(-max_batch // rows)):
                device.offer(Ticket(rows, client=client))
        device.step()
    had = [device.served[client] for client in range(len(sizes))]
    assert max(had) - min(had) <= 2 * max_batch


@settings(deadline=None)
@given(first=st.integers(0, BOUND), second=st.integers(0, 2 * BOUND))
def test_a_full_queue_is_shared_and_a_lone_client_has_all_of_it(first: int, second: int) -> None:
    device = Device(1)
    assert all(device.offer(Ticket(client="a")) for _ in range(first))
    accepted = sum(device.offer(Ticket(client="b")) for _ in range(second))
    assert device.engines[0].queued == min(BOUND, first + accepted)
    left = accepted
    assert left >= min(second, BOUND // 2 if first > BOUND // 2 else BOUND - first)
    assert len(device.displaced) == first + accepted - device.engines[0].queued
    assert {ticket.client for ticket in device.displaced} <= {"a"}


def test_an_urgent_request_goes_first_whatever_its_client_had() -> None:
    device = Device(1)
    for _ in range(5):
        device.offer(Ticket(priority=1, client="a"))
        device.offer(Ticket(priority=1, client="b"))
    device.step()
    device.step()
    urgent = Ticket(priority=0, client="a")
    device.offer(urgent)
    assert device.step() == (urgent,)


def test_accounts_and_shares_do_not_pile_up() -> None:
    device = Device(1)
    for number in range(2000):
        device.offer(Ticket(client=number))
        device.step()
    assert len(device.state.accounts) <= 257
    assert len(device.engines[0].buckets[""].shares) <= 65
