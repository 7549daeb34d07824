"""What the planner costs a request: a ticket, its offer, its share of plan and of finish, in nanoseconds of CPU time.

Run: ``python benchmarks/executor_planner.py [--rounds N] [--write FILE]``. Each case runs in rounds that are
interleaved with the others, 100,000 requests a round. No device and no thread takes part. Two ways to call it:
``drained``, as the transport does (16 requests are offered, then there is one plan), and ``one by one``, as a caller
in the same process.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from printing import arguments, emit, machine, ratios, spread, table

from trtops.executor.planner import add_engine, can_launch, cancel, finish, next_time, offer, plan
from trtops.executor.state import EngineQueue, Launch, Policy, State, Ticket

if TYPE_CHECKING:
    from collections.abc import Hashable

_BATCH = 16
_BATCHES = 6250


@dataclass(frozen=True)
class Case:
    """One way to use the planner."""

    name: str
    policy: Policy
    shapes: tuple[Hashable, ...] = ((),)
    deadline: float | None = None
    priorities: int = 1
    cancelled: bool = False


_PLAIN = Policy(max_batch=_BATCH, delay=0.002, max_size=4096)
_QUEUE = Policy(max_batch=_BATCH, delay=0.002, max_size=4096, timeout=0.1)
_CASES = (
    Case("size and delay", _PLAIN),
    Case("+ queue timeout", _QUEUE),
    Case("+ preferred sizes", Policy(max_batch=_BATCH, delay=0.002, max_size=4096, timeout=0.1, preferred=(8, 16))),
    Case("+ a deadline each", _QUEUE, deadline=0.05),
    Case(
        "+ 3 priorities", Policy(max_batch=_BATCH, delay=0.002, max_size=4096, timeout=0.1, priorities=3), priorities=3
    ),
    Case("+ two shapes that alternate", _QUEUE, shapes=((3, 48, 192), (3, 48, 320))),
    Case("+ half of them cancelled", _QUEUE, cancelled=True),
)


def run(case: Case, *, drained: bool) -> float:
    """Nanoseconds a request of one round."""
    state = State()
    engine = EngineQueue("bench", case.policy)
    add_engine(state, engine, [0])
    number = _BATCH * _BATCHES
    now = 0.0
    shapes = len(case.shapes)
    start = time.thread_time_ns()
    for index in range(number):
        now += 1e-5
        deadline = None if case.deadline is None else now + case.deadline
        ticket = Ticket(1, index % case.priorities, deadline)
        offer(state, engine, case.shapes[index % shapes], ticket, now)
        if case.cancelled and index & 1:
            cancel(state, ticket)
        if drained:
            if index % _BATCH != _BATCH - 1:
                continue
        elif not can_launch(state, engine):
            next_time(state)  # the executor looks whether its timer has to ring earlier
            continue
        for action in plan(state, now):
            if isinstance(action, Launch):
                finish(state, action, now, 0.001)
    return (time.thread_time_ns() - start) / number


def baseline() -> float:
    """Nanoseconds of the same loop with a list in place of the planner."""
    case = _CASES[0]
    number = _BATCH * _BATCHES
    kept: list[Ticket] = []
    now = 0.0
    shapes = len(case.shapes)
    start = time.thread_time_ns()
    for index in range(number):
        now += 1e-5
        deadline = None if case.deadline is None else now + case.deadline
        ticket = Ticket(1, index % case.priorities, deadline, case.shapes[index % shapes])
        kept.append(ticket)
        if case.cancelled and index & 1:
            kept.pop()
        if index % _BATCH != _BATCH - 1:
            continue
        kept.clear()
    return (time.thread_time_ns() - start) / number


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments(parser, 9)
    options = parser.parse_args()
    text = [f"# The planner, batch {_BATCH}\n", machine(options.rounds)]
    alone: list[float] = []
    results: dict[tuple[str, bool], list[float]] = {(case.name, way): [] for way in (True, False) for case in _CASES}
    gc.disable()
    for _ in range(options.rounds):
        alone.append(baseline())
        for way in (True, False):
            for case in _CASES:
                results[case.name, way].append(run(case, drained=way))
        gc.collect()
    rows = [["the same loop with a list, no planner", spread(alone, ".0f"), "", ""]]
    plain = results[_CASES[0].name, True]
    for case in _CASES:
        times = [results[case.name, way] for way in (True, False)]
        rows.append([case.name, *(spread(part, ".0f") for part in times), spread(ratios(times[0], plain))])
    text.append(table(["case", "drained, ns", "one by one, ns", "drained, over size and delay"], rows))
    added = statistics.median(
        max(results[case.name, True][turn] for case in _CASES) - plain[turn] for turn in range(options.rounds)
    )
    own = statistics.median(one - none for one, none in zip(plain, alone, strict=True))
    text.append(f"The planner's own share, size and delay, drained: {own:.0f} ns; goal: 500 to 600 ns.")
    text.append(f"The dearest policy adds {added:.0f} ns to a request; goal: 5 % of what a request costs.\n")
    emit("\n".join(text), options.write)


if __name__ == "__main__":
    main()
