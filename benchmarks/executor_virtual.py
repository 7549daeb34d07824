"""Static against dynamic batching as the planner alone decides it, in virtual time: no thread, no clock, no noise.

``executor_throughput.py`` prints these tables beside those of the real executor. The device is a number: what a batch
takes. Requests of one row come by chance (Poisson); each way sees the very same arrivals. What differs between two
ways is therefore the policy's doing and nothing else's.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from printing import ratios, spread, table

from trtops.executor.planner import add_engine, finish, offer, plan
from trtops.executor.state import EngineQueue, Launch, Policy, State, Ticket, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BATCH = 16
_ENDLESS = 10**9
_SHARES = (0.02, 0.1, 0.3, 0.6, 0.8, 0.9, 1.0, 1.2)
_WAYS = {
    "fixed 16": Policy(max_batch=_BATCH, delay=5.0, max_size=_ENDLESS),
    "window 20 ms": Policy(max_batch=_BATCH, delay=0.02, max_size=_ENDLESS),
    "dynamic": Policy(max_batch=_BATCH, max_size=_ENDLESS),
    "dynamic, adaptive flush": Policy(max_batch=_BATCH, delay=0.005, adaptive=True, max_size=_ENDLESS),
}
STATIC, DYNAMIC = ("fixed 16", "window 20 ms"), ("dynamic", "dynamic, adaptive flush")
_COSTS: dict[str, Callable[[int], float]] = {
    "a batch takes 5 ms, whatever its size": lambda _: 5e-3,
    "a batch takes 4 ms and 0.25 ms a row": lambda rows: 4e-3 + 0.25e-3 * rows,
}


@dataclass(frozen=True)
class Played:
    """What came of one run: requests a second, p50 and p99 in ms, rows of a batch on average, reasons of releases."""

    rps: float
    p50: float
    p99: float
    rows: float
    reasons: Counter[str]


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """When requests come, full batches of them, so that a way that waits for those is left with no rest."""
    chance = random.Random(seed)
    due, found = 0.0, []
    for _ in range(max(1, int(rate * seconds) // _BATCH) * _BATCH):
        due += chance.expovariate(rate)
        found.append(due)
    return found


def play(policy: Policy, times: Sequence[float], cost: Callable[[int], float]) -> Played:
    """Let the planner serve these arrivals on one device."""
    state, engine = State(), EngineQueue("played", policy)
    add_engine(state, engine, [0])
    took: list[float] = []
    sizes: list[int] = []
    reasons: Counter[str] = Counter()
    ends: list[tuple[float, int, Launch]] = []
    now, alarm, coming = 0.0, math.inf, 0
    while len(took) < len(times):
        arrives = times[coming] if coming < len(times) else math.inf
        now = min(arrives, alarm, ends[0][0] if ends else math.inf)
        if ends and ends[0][0] <= now:
            ended = heapq.heappop(ends)[2]
            answered, _ = finish(state, ended, now, cost(ended.rows))
            took += [now - ticket.payload for ticket in answered]
        elif arrives <= now:
            refused = offer(state, engine, (), Ticket(payload=arrives), now)
            assert refused is None, refused
            coming += 1
        alarm = math.inf
        for action in plan(state, now):
            if isinstance(action, Launch):
                sizes.append(action.rows)
                reasons[action.reason] += 1
                heapq.heappush(ends, (now + cost(action.rows), len(sizes), action))
            else:
                assert isinstance(action, Wait), action
                alarm = action.until
    took.sort()
    middle, late = took[len(took) // 2], took[len(took) * 99 // 100]
    return Played(len(took) / now, middle * 1e3, late * 1e3, statistics.fmean(sizes), reasons)


def tables(rounds: int, seconds: float, say: Callable[[str], None]) -> str:
    """The planner's decisions under load from idle to 1.2 times what the device can do."""
    text = ["## Static against dynamic batching, Poisson: the planner alone, in virtual time\n"]
    for title, cost in _COSTS.items():
        capacity, worst, rows = _BATCH / cost(_BATCH), 0.0, []
        for share in _SHARES:
            say(f"virtual time, {title}: load {share:g}")
            comings = [arrivals(share * capacity, seconds, seed) for seed in range(rounds)]
            found = {name: [play(policy, times, cost) for times in comings] for name, policy in _WAYS.items()}
            best = [min(runs, key=lambda run: run.p99) for runs in zip(*(found[name] for name in STATIC), strict=True)]
            late = {name: ratios([run.p99 for run in runs], [run.p99 for run in best]) for name, runs in found.items()}
            worst = max(worst, statistics.median(late["dynamic"]))
            rows.append(
                [f"{share:g}", *(_cell(found[name]) for name in _WAYS), *(spread(late[name]) for name in DYNAMIC)]
            )
        head = ["load / capacity", *_WAYS, *(f"p99: {name} / the better static" for name in DYNAMIC)]
        text += [
            f"{title[0].upper()}{title[1:]}; p50 / p99 ms, rows a batch; {seconds:g} s of load a round\n",
            table(head, rows),
            f"Worst median of dynamic over the better static way: {worst:.2f}; goal: never worse, 1.00.\n",
        ]
    return "\n".join(text)


def _cell(runs: list[Played]) -> str:
    p50, p99, rows = (statistics.median(getattr(run, key) for run in runs) for key in ("p50", "p99", "rows"))
    return f"{p50:.1f} / {p99:.1f}, {rows:.1f}"
