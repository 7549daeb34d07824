"""What the planner costs a request: a ticket, offer, its share of plan and of finish, in nanoseconds.

Run: ``python benchmarks/executor_planner.py``. Each case runs in rounds that are interleaved with the others, and the
median of the rounds is printed with the smallest and the largest. No device and no thread takes part.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.executor.planner import add_engine, can_launch, cancel, finish, next_time, offer, plan
from trtops.executor.state import EngineQueue, Launch, Policy, State, Ticket

if TYPE_CHECKING:
    from collections.abc import Hashable

_BATCH = 16
_BATCHES = 500
_ROUNDS = 15


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


def run(case: Case) -> float:
    """Nanoseconds a request of one round."""
    state = State()
    engine = EngineQueue("bench", case.policy)
    add_engine(state, engine, [0])
    number = _BATCH * _BATCHES
    now = 0.0
    shapes = len(case.shapes)
    start = time.perf_counter_ns()
    for index in range(number):
        now += 1e-5
        deadline = None if case.deadline is None else now + case.deadline
        ticket = Ticket(1, index % case.priorities, deadline)
        offer(state, engine, case.shapes[index % shapes], ticket, now)
        if case.cancelled and index & 1:
            cancel(state, ticket)
        if not can_launch(state, engine):
            next_time(state)  # the executor looks whether its timer has to ring earlier
            continue
        for action in plan(state, now):
            if isinstance(action, Launch):
                finish(state, action, now, 0.001)
    return (time.perf_counter_ns() - start) / number


def baseline() -> float:
    """Nanoseconds of making a ticket and keeping it in a list: what no planner at all would cost."""
    number = _BATCH * _BATCHES
    start = time.perf_counter_ns()
    kept = [Ticket(1, 0, None) for _ in range(number)]
    elapsed = time.perf_counter_ns() - start
    assert len(kept) == number
    return elapsed / number


def main() -> None:
    results: dict[str, list[float]] = {"a ticket alone": [], **{case.name: [] for case in _CASES}}
    gc.disable()
    for _ in range(_ROUNDS):
        results["a ticket alone"].append(baseline())
        for case in _CASES:
            results[case.name].append(run(case))
        gc.collect()
    print(f"# {platform.python_implementation()} {platform.python_version()}, {platform.machine()}, batch {_BATCH}")
    print("| case | ns a request, median | min | max |")
    print("|---|---|---|---|")
    for name, rounds in results.items():
        print(f"| {name} | {statistics.median(rounds):.0f} | {min(rounds):.0f} | {max(rounds):.0f} |")


if __name__ == "__main__":
    main()
