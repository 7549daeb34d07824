"""Laws of the planner, and a slow reference planner that must decide the same."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trtops.executor.planner import (
    add_engine,
    cancel,
    drain_engine,
    drained,
    finish,
    offer,
    plan,
    remove_engine,
)
from trtops.executor.state import EngineQueue, Expire, Launch, Policy, Reject, State, Ticket, Wait

TICK = 1 / 1024  # a power of two: sums of ticks are exact, so equal times are equal
SHAPES = ((), (3, 8), (3, 16))

policies = st.builds(
    lambda max_batch, preferred, delay, max_size, timeout, late, priorities: Policy(
        max_batch=max_batch,
        preferred=tuple(sorted({size for size in preferred if size <= max_batch})),
        delay=delay * TICK,
        max_size=max_size,
        timeout=timeout * TICK,
        late=late,
        priorities=priorities,
        ageing=8 * TICK,
    ),
    max_batch=st.sampled_from([1, 3, 6, 7, 8]),
    preferred=st.sets(st.integers(2, 8), max_size=2),
    delay=st.sampled_from([0, 2, 5, 12]),
    max_size=st.integers(1, 24),
    timeout=st.sampled_from([0, 0, 6, 20, 40]),
    late=st.sampled_from(["reject", "delay"]),
    priorities=st.integers(1, 3),
)


@dataclass
class Book:
    """What the reference knows of one engine: plain lists that are searched from end to end."""

    queue: EngineQueue
    waiting: list[Ticket] = field(default_factory=list)
    gone: bool = False


class Planner(RuleBasedStateMachine):
    """Drives the planner by hand and keeps books of everything that it answered."""

    @initialize(first=policies, second=policies, lanes=st.integers(1, 2))
    def setup(self, first: Policy, second: Policy, lanes: int) -> None:
        self.now = 0.0
        self.state = State(0)
        self.books = [Book(EngineQueue(name, policy)) for name, policy in (("a", first), ("b", second))]
        for book in self.books:
            add_engine(self.state, book.queue, list(range(lanes)))
        self.lanes = lanes
        self.running: list[Launch] = []
        self.offered: list[Ticket] = []
        self.order: dict[int, int] = {}
        self.answers: dict[int, str] = {}
        self.demoted: set[int] = set()
        self.last: dict[tuple[int, object, int], int] = {}

    def answer(self, ticket: Ticket, how: str) -> None:
        assert id(ticket) not in self.answers, f"{ticket} was answered twice: {self.answers[id(ticket)]}, {how}"
        self.answers[id(ticket)] = how

    def book(self, queue: EngineQueue) -> Book:
        return next(book for book in self.books if book.queue is queue)

    # -- what happens to it ------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        shape=st.sampled_from(SHAPES),
        burst=st.lists(
            st.tuples(st.integers(1, 8), st.integers(0, 2), st.none() | st.integers(-2, 40)), min_size=1, max_size=6
        ),
        then_plan=st.booleans(),
    )
    def requests(
        self, which: int, shape: tuple[int, ...], burst: list[tuple[int, int, int | None]], then_plan: bool
    ) -> None:
        for rows, priority, due in burst:
            self.request(self.books[which], rows, shape, priority, due)
        if then_plan:
            self.plan()

    @rule(which=st.integers(0, 1), singles=st.integers(1, 9))
    def singles(self, which: int, singles: int) -> None:
        """The commonest traffic: requests of one row and one shape, each followed by a plan."""
        for _ in range(singles):
            self.request(self.books[which], 1, (), 0, None)
            self.plan()

    def request(self, book: Book, rows: int, shape: tuple[int, ...], priority: int, due: int | None) -> None:
        if book.gone or book.queue.draining:
            return
        policy = book.queue.policy
        deadline = None if due is None else self.now + due * TICK
        ticket = Ticket(min(rows, policy.max_batch), min(priority, policy.priorities - 1), deadline)
        full = len(book.waiting) >= policy.max_size
        self.offered.append(ticket)
        rejected = offer(self.state, book.queue, shape, ticket, self.now)
        assert (rejected is not None) == full
        if isinstance(rejected, Reject):
            self.answer(ticket, "rejected")
            return
        self.order[id(ticket)] = len(self.offered)
        book.waiting.append(ticket)

    @rule(ticks=st.integers(1, 16))
    def time_passes(self, ticks: int) -> None:
        self.now += ticks * TICK
        self.plan()

    @rule()
    def sleep_as_told(self) -> None:
        """Sleeping until the time that the planner names loses nothing: a moment before, nothing was to be done."""
        until = self.plan()
        if until < math.inf:
            assert until > self.now
            self.now = max(self.now, until - TICK / 2)
            assert self.plan(expect_nothing=True) == until
            self.now = until
            self.plan()

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3), ticks=st.integers(0, 8), failed=st.booleans())
    def batch_ends(self, index: int, ticks: int, failed: bool) -> None:
        self.now += ticks * TICK
        launch = self.running.pop(index % len(self.running))
        answer, late = finish(self.state, launch, self.now, None if failed else ticks * TICK)
        for ticket in answer:
            assert ticket.deadline is None or self.now <= ticket.deadline, "answered late without an error"
            self.answer(ticket, "served")
        for expired in late:
            assert expired.ticket.deadline is not None
            assert self.now > expired.ticket.deadline
            self.answer(expired.ticket, "expired")
        self.plan()

    @precondition(lambda self: self.offered)
    @rule(index=st.integers(0, 200))
    def cancel(self, index: int) -> None:
        ticket = self.offered[index % len(self.offered)]
        decided = id(ticket) in self.answers
        assert cancel(self.state, ticket) != decided
        if not decided:
            self.answer(ticket, "cancelled")
            for book in self.books:
                book.waiting = [waiting for waiting in book.waiting if waiting is not ticket]

    @rule(which=st.integers(0, 1), really=st.integers(0, 9))
    def drain(self, which: int, really: int) -> None:
        book = self.books[which]
        if really == 9 and not book.gone:
            drain_engine(self.state, book.queue)
            self.plan()

    @precondition(lambda self: any(not book.gone for book in self.books))
    @rule(which=st.integers(0, 1), really=st.integers(0, 9))
    def take_out(self, which: int, really: int) -> None:
        book = self.books[which]
        if really < 9 or book.gone:
            return
        left = remove_engine(self.state, book.queue)
        assert {id(ticket) for ticket in left} == {id(ticket) for ticket in book.waiting}
        for ticket in left:
            self.answer(ticket, "removed")
        book.waiting.clear()
        book.gone = True

    # -- the planner against the reference -----------------------------------------------------------------------------

    def plan(self, *, expect_nothing: bool = False) -> float:
        until = math.inf
        for action in plan(self.state, self.now):
            assert not expect_nothing or isinstance(action, Wait), f"{action} a moment before the time that was named"
            if isinstance(action, Launch):
                self.launched(action)
            elif isinstance(action, Expire):
                self.expired(action)
            elif isinstance(action, Wait):
                until = action.until
        self.nothing_was_forgotten()
        return until

    def expired(self, action: Expire) -> None:
        ticket = action.ticket
        assert ticket.bucket is not None
        book = self.book(ticket.bucket.engine)
        if action.reason == "deadline":
            assert ticket.deadline is not None
            assert self.now >= ticket.deadline
        else:
            assert ticket.deadline is None
            assert book.queue.policy.late == "reject"
            assert self.now >= ticket.enqueued + book.queue.policy.timeout
        assert action.running == any(ticket in launch.tickets for launch in self.running)
        book.waiting = [waiting for waiting in book.waiting if waiting is not ticket]
        self.answer(ticket, "expired")

    def launched(self, launch: Launch) -> None:
        book = self.book(launch.engine)
        policy = launch.engine.policy
        assert launch.tickets
        assert launch.lane not in {other.lane for other in self.running}
        assert launch.rows == sum(ticket.rows for ticket in launch.tickets) <= policy.max_batch
        waiting = [ticket for ticket in book.waiting if ticket.bucket and ticket.bucket.shape == launch.shape]
        assert set(map(id, launch.tickets)) <= set(map(id, waiting)), "launched what does not wait in this bucket"
        self.was_due(launch, waiting, policy)
        self.in_order(launch, waiting, policy)
        offset = 0
        for ticket in launch.tickets:
            assert ticket.offset == offset
            offset += ticket.rows
            assert ticket.deadline is None or self.now < ticket.deadline, "launched after its deadline"
        taken = set(map(id, launch.tickets))
        book.waiting = [ticket for ticket in book.waiting if id(ticket) not in taken]
        self.running.append(launch)

    def was_due(self, launch: Launch, waiting: list[Ticket], policy: Policy) -> None:
        """The reason that is given is true, by the definition."""
        rows = sum(ticket.rows for ticket in waiting)
        oldest = min(ticket.enqueued for ticket in waiting)
        deadline = min((t.deadline for t in waiting if t.deadline is not None), default=math.inf)
        true = {
            "full": rows >= policy.max_batch,
            "drain": launch.engine.draining,
            "delay": policy.delay > 0 and self.now >= oldest + policy.delay,
            "idle": policy.delay == 0,
            "deadline": self.now >= deadline - launch.engine.cost.bound(min(rows, policy.max_batch)),
            "preferred": any(size <= rows for size in policy.preferred),
        }
        assert true[launch.reason], f"{launch.reason} is not true of {waiting}"
        if launch.reason == "preferred":
            reached = max(size for size in policy.preferred if size <= rows)
            assert launch.rows <= reached or len(launch.tickets) == 1
        limit = reached if launch.reason == "preferred" else policy.max_batch
        left = [ticket for ticket in waiting if ticket not in launch.tickets]
        if left:
            nxt = min(left, key=lambda ticket: self.rank(ticket, policy))
            assert launch.rows + nxt.rows > limit, f"there was room for {nxt}"

    def rank(self, ticket: Ticket, policy: Policy) -> tuple[int, float, int]:
        """The order of service, by the definition."""
        late = (
            policy.late == "delay"
            and policy.timeout > 0
            and ticket.deadline is None
            and self.now >= ticket.enqueued + policy.timeout
        )
        assert ticket.late == late
        if late:
            return policy.priorities, ticket.enqueued, 0
        aged = max(0, ticket.priority - math.floor((self.now - ticket.enqueued) / policy.ageing))
        return aged, ticket.enqueued, ticket.priority

    def in_order(self, launch: Launch, waiting: list[Ticket], policy: Policy) -> None:
        """By level and age, and never reordered within its stream (a level of a bucket of an engine)."""
        ranks = [self.rank(ticket, policy) for ticket in launch.tickets]
        assert ranks == sorted(ranks)
        streams: dict[tuple[int, bool], int] = {}
        for ticket in launch.tickets:
            stream = (ticket.priority, ticket.late)
            assert self.order[id(ticket)] > streams.get(stream, 0), "reordered in its stream"
            streams[stream] = self.order[id(ticket)]
        left = [ticket for ticket in waiting if ticket not in launch.tickets]
        for ticket in left:
            assert self.order[id(ticket)] > streams.get((ticket.priority, ticket.late), 0), "overtaken in its stream"

    def nothing_was_forgotten(self) -> None:
        """After a plan, no ticket is overdue, and no bucket that is due waits while a lane is free."""
        busy = {launch.lane for launch in self.running}
        for book in self.books:
            policy = book.queue.policy
            for ticket in book.waiting:
                assert ticket.deadline is None or self.now < ticket.deadline
                if ticket.deadline is None and policy.timeout and policy.late == "reject":
                    assert self.now < ticket.enqueued + policy.timeout
            if len(busy) == self.lanes:
                continue
            for shape in SHAPES:
                waiting = [t for t in book.waiting if t.bucket and t.bucket.shape == shape]
                rows = sum(ticket.rows for ticket in waiting)
                if not waiting:
                    continue
                deadline = min((t.deadline for t in waiting if t.deadline is not None), default=math.inf)
                bound = book.queue.cost.bound(min(rows, policy.max_batch))
                assert not book.queue.draining
                assert rows < policy.max_batch
                assert policy.delay > 0
                assert not any(size <= rows for size in policy.preferred)
                assert self.now < min(ticket.enqueued for ticket in waiting) + policy.delay
                assert self.now < deadline - bound

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "books"):
            return
        for book in self.books:
            assert book.queue.queued == len(book.waiting)
            assert book.queue.running == sum(launch.engine is book.queue for launch in self.running)
        live = sum(id(ticket) not in self.answers for ticket in self.offered)
        assert self.state.live == live

    def teardown(self) -> None:
        """Whatever happened: enough time answers every request, once."""
        if not hasattr(self, "books"):
            return
        for book in self.books:
            if not book.gone:
                drain_engine(self.state, book.queue)
        self.plan()
        for _ in range(len(self.offered) + 1):
            while self.running:
                launch = self.running.pop()
                answer, late = finish(self.state, launch, self.now, TICK)
                for ticket in [*answer, *(expired.ticket for expired in late)]:
                    self.answer(ticket, "served")
                self.plan()
        assert all(drained(book.queue) for book in self.books)
        assert {id(ticket) for ticket in self.offered} == set(self.answers)
        assert self.state.live == 0


TestPlanner = Planner.TestCase
TestPlanner.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
