"""The planner's state: tickets, buckets, engines and lanes. Data only; what happens to it is in :mod:`.planner`.

Nothing here locks, reads a clock or does I/O. Times are monotonic seconds that the caller hands in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from trtops.executor.cost import Cost

if TYPE_CHECKING:
    from trtops.spec.engine import Batching

NEW: Final = 0
QUEUED: Final = 1
RUNNING: Final = 2
DONE: Final = 3
_PHASES: Final = ("new", "queued", "running", "done")

Reason = Literal["full", "preferred", "delay", "idle", "deadline", "drain"]
"""Why a batch was released."""

RejectReason = Literal["queue-full"]
ExpireReason = Literal["timeout", "deadline"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How the requests of one engine are put together.

    Attributes:
        max_batch: rows of a batch at most.
        preferred: batch sizes (rows, ascending) that are released at once when the device is idle.
        delay: seconds that the oldest request of a bucket waits for company at most.
        max_size: requests that may wait.
        timeout: seconds that a request without a deadline of its own may wait; 0: for ever.
        late: what becomes of it then: ``reject`` answers it with an error, ``delay`` serves it after all others.
        priorities: levels; 0 is the most urgent.
        ageing: seconds of waiting that lift a request by one level.
        adaptive: wait no longer than it takes, at the rate of late, until the batch is full; not at all with no company
            to be expected within ``delay``.
    """

    max_batch: int = 1
    preferred: tuple[int, ...] = ()
    delay: float = 0.0
    max_size: int = 512
    timeout: float = 0.0
    late: Literal["reject", "delay"] = "reject"
    priorities: int = 1
    ageing: float = 0.05
    adaptive: bool = False

    @classmethod
    def of(cls, batching: Batching, *, max_batch: int) -> Policy:
        """Read the spec's section, with ``max_batch`` rows at most (what the engine's profiles allow).

        A delay is cut to half of the queue's timeout, else a lone request would time out while it waits for company.
        The lowest level reaches the top after half of the timeout, so ageing always comes before the timeout.
        """
        timeout = batching.queue.timeout / 1e6
        rows = min(max_batch, batching.max_batch)
        delay = batching.max_queue_delay / 1e6
        return cls(
            max_batch=rows,
            preferred=tuple(sorted({size for size in batching.preferred if size <= rows})),
            delay=min(delay, timeout / 2) if timeout else delay,
            max_size=batching.queue.max_size,
            timeout=timeout,
            late=batching.queue.on_timeout,
            priorities=batching.priorities,
            ageing=timeout / (2 * batching.priorities) if timeout else cls.ageing_default(),
            adaptive=batching.flush == "adaptive",
        )

    @staticmethod
    def ageing_default() -> float:
        """Seconds a level where no timeout gives a measure."""
        return 0.05


class Ticket(msgspec.Struct, eq=False):
    """A request in the planner.

    Attributes:
        rows: rows that it takes of a batch.
        priority: its level, 0 the most urgent.
        deadline: monotonic seconds by which it has to be answered; None: the policy's timeout counts.
        payload: whatever the executor wants to find again.
        client: whose it is; clients are served in turn.
        phase: new, queued, running or done. Done means that its one answer is decided.
        late: it waited too long and was put behind all others.
        enqueued: when it came. ``bucket``: where it waits or waited. Both are there from its offer on.
        offset: its first row in the batch that it runs in; there from its launch on.
    """

    rows: int = 1
    priority: int = 0
    deadline: float | None = None
    payload: Any = None
    client: Hashable = ""
    phase: int = NEW
    late: bool = False
    bucket: Bucket = None  # type: ignore[assignment]  # there from its offer on
    enqueued: float = 0.0
    offset: int = 0

    def __repr__(self) -> str:
        """Show where it is."""
        due = "" if self.deadline is None else f", due {self.deadline:.6f}"
        since = f", at {self.enqueued:.6f}" if self.phase != NEW else ""
        return f"Ticket({_PHASES[self.phase]}, {self.rows} rows, priority {self.priority}{since}{due})"


class Account:
    """What a client had of the device. ``served``: in seconds, counted while there are other clients."""

    __slots__ = ("served",)

    def __init__(self, served: float) -> None:
        """Begin with so much."""
        self.served = served

    def __repr__(self) -> str:
        """Show it."""
        return f"Account({self.served:.6f} s)"


class Share:
    """What waits of one client in a bucket.

    Attributes:
        levels: a queue for each priority; the last one is for those that are late.
        account: of the client, the same in all buckets.
        waiting: requests that wait; in the queues are also those that were taken back.
    """

    __slots__ = ("account", "levels", "waiting")

    def __init__(self, levels: int, account: Account) -> None:
        """Make an empty one."""
        self.levels: tuple[deque[Ticket], ...] = tuple(deque() for _ in range(levels))
        self.account = account
        self.waiting = 0

    def __repr__(self) -> str:
        """Show what waits."""
        return f"Share({self.waiting} requests, {self.account!r})"


class Bucket:
    """Requests of one engine and one shape that may run together; each client's are first in, first out in each level.

    Attributes:
        shares: what waits, by client.
        rows: of the requests that wait. Those taken back leave the queues later, lazily; ``dead`` of them.
        deadlines: requests with a deadline, the earliest first, lazily cleaned; ``stragglers`` is a heap of those that
            came with an earlier one than the request before them: ``(deadline, number, ticket)``.
        alarm: the earliest deadline that :attr:`State.timers` knows of.
        wait: seconds that its oldest request waits for company at most.
        due: when it has to be released at the latest; infinity while nothing waits, or while it is ready.
        ready: it is in :attr:`State.ready`.
        took: seconds that a batch of so many rows took a lane's thread of late, the longest one as in :class:`Cost`.
    """

    __slots__ = (
        "alarm",
        "dead",
        "deadlines",
        "due",
        "engine",
        "ready",
        "rows",
        "shape",
        "shares",
        "stragglers",
        "took",
        "wait",
    )

    def __init__(self, engine: EngineQueue, shape: Hashable) -> None:
        """Make an empty bucket."""
        self.engine = engine
        self.shape = shape
        self.shares: dict[Hashable, Share] = {}
        self.rows = 0
        self.dead = 0
        self.deadlines: deque[Ticket] = deque()
        self.stragglers: list[tuple[float, int, Ticket]] = []
        self.alarm = math.inf
        self.wait = engine.policy.delay
        self.due = math.inf
        self.ready = False
        self.took: dict[int, float] = {}

    def __repr__(self) -> str:
        """Show what waits."""
        ready = ", ready" if self.ready else ""
        return f"Bucket({self.shape!r}: {self.count} requests, {self.rows} rows{ready})"

    @property
    def levels(self) -> list[deque[Ticket]]:
        """The queues of all clients."""
        return [level for share in self.shares.values() for level in share.levels]

    @property
    def count(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.levels)) - self.dead


class EngineQueue:
    """The requests of one engine (one generation of it) and where it may run.

    Attributes:
        lanes: numbers of the lanes that hold a session of it, in the order of preference.
        timeouts: requests under the policy's timeout, oldest first, lazily cleaned.
        armed: :attr:`State.timers` holds an entry for ``timeouts``.
        queued: requests that wait. ``running``: batches on lanes.
        draining: what waits is released at once, nothing new comes.
        gap: seconds between requests, of late; ``last``: when the last one came. Both only where the policy adapts.
        timed: requests with deadlines of their own were seen.
        bound: requests that may wait. ``timeout``: of the policy. ``trigger``: rows at which a bucket is ready without
            a look at the clock.
    """

    __slots__ = (
        "adaptive",
        "armed",
        "bound",
        "buckets",
        "cost",
        "draining",
        "gap",
        "lanes",
        "last",
        "name",
        "owner",
        "policy",
        "queued",
        "running",
        "timed",
        "timeout",
        "timeouts",
        "trigger",
    )

    def __init__(self, name: str, policy: Policy, *, cost: Cost | None = None, owner: Any = None) -> None:  # noqa: ANN401 - the executor's own
        """Make the queue of an engine that holds no lane yet. ``owner`` is handed back with every launch."""
        self.name = name
        self.cost = cost or Cost()
        self.owner = owner
        self.lanes: list[int] = []
        self.buckets: dict[Hashable, Bucket] = {}
        self.timeouts: deque[Ticket] = deque()
        self.armed = False
        self.queued = 0
        self.running = 0
        self.draining = False
        self.timed = False
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Go by a policy, while nothing waits."""
        self.policy = policy
        self.adaptive = policy.adaptive and policy.delay > 0
        self.bound = policy.max_size
        self.timeout = policy.timeout
        self.gap = 2 * policy.delay
        self.last = -math.inf
        smallest = policy.preferred[0] if policy.preferred else policy.max_batch
        self.trigger = smallest if policy.delay > 0 else 0

    def __repr__(self) -> str:
        """Show its load."""
        draining = ", draining" if self.draining else ""
        waiting = [bucket for bucket in self.buckets.values() if bucket.rows]
        return (
            f"EngineQueue({self.name}: {self.queued} queued, {self.running} running, lanes {self.lanes}"
            f"{draining}, {waiting})"
        )


class State:
    """Everything that the planner knows.

    Attributes:
        lanes: whether each lane is free; ``free`` counts those.
        ready: buckets that may be released, in the order in which they became so.
        dues: heap of ``(when, number, bucket)``: when a bucket becomes ready by time.
        timers: heap of ``(when, number, whose)``: the earliest deadline of a bucket and of a batch that runs, the
            oldest timeout of an engine.
        accounts: of clients. ``served``: what whoever was served last had had until then.
        flying: requests that run and are not decided. ``decided``: how many were while they ran, ever.
        dues_limit, timers_limit: entries at which the heaps are swept.
    """

    __slots__ = (
        "accounts",
        "decided",
        "dues",
        "dues_limit",
        "engines",
        "flying",
        "free",
        "lanes",
        "number",
        "ready",
        "served",
        "timers",
        "timers_limit",
    )

    def __init__(self, lanes: int = 1) -> None:
        """Make a state with this many free lanes."""
        self.lanes = [True] * lanes
        self.free = lanes
        self.engines: dict[int, EngineQueue] = {}
        self.ready: dict[Bucket, None] = {}
        self.dues: list[tuple[float, int, Bucket]] = []
        self.timers: list[tuple[float, int, Bucket | EngineQueue | Launch]] = []
        self.dues_limit = self.timers_limit = 128
        self.accounts: dict[Hashable, Account] = {}
        self.served = 0.0
        self.flying = self.decided = 0
        self.number = 0

    def __repr__(self) -> str:
        """Show engines and lanes."""
        lanes = "".join("." if free else "#" for free in self.lanes)
        return f"State(lanes [{lanes}], {self.live} live, {list(self.engines.values())})"

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return self.flying + sum(engine.queued for engine in self.engines.values())


class Launch(NamedTuple):
    """Run these tickets together on this lane.

    Attributes:
        reason: why the batch was released now.
        at: when.
        timed: some of them may have deadlines.
        decided: :attr:`State.decided` at that time.
    """

    engine: EngineQueue
    shape: Hashable
    lane: int
    tickets: tuple[Ticket, ...]
    rows: int
    reason: Reason
    at: float
    timed: bool
    decided: int

    def within(self, spare: float) -> bool:
        """Whether it is to be expected to take no longer than so many seconds: what never ran may take any time."""
        if self.engine.cost.lately > spare:
            return False
        return self.tickets[0].bucket.took.get(self.rows, math.inf) <= spare


class Reject(NamedTuple):
    """Refuse this ticket: the one that comes, or one that waits, of a client that has more than its share."""

    ticket: Ticket
    reason: RejectReason


class Expire(NamedTuple):
    """Answer this ticket with an error now: its time is over. ``running``: its batch runs; drop what comes of it."""

    ticket: Ticket
    reason: ExpireReason
    running: bool


class Wait(NamedTuple):
    """Nothing more to do before ``until``, unless something happens."""

    until: float


Action = Launch | Reject | Expire | Wait
