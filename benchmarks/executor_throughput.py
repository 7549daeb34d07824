"""The executor in one process, against the device itself and other ways to schedule, in the same run.

Run: ``python benchmarks/executor_throughput.py [--rounds N] [--seconds S] [--only NAME] [--write FILE]``. The device is
played: a run sleeps a given time, whatever its batch. 16 rows make a batch. Everything is measured in turn, round by
round; each table is printed when it is done, what is being measured stands on standard error. Two minutes in all by
default; nothing waits without an end.

- ``loop``: 64 requests in flight. ``device``: the bare loop, batches of 16 one after the other with no queue and no
  clients: nothing can be faster. ``all policies``: priorities, a deadline each, a timeout, delay, preferred sizes;
- ``scheduler``: event-driven against polling, loaded and nearly idle, and what waiting costs in CPU time;
- ``virtual``: static against dynamic batching as the planner alone decides it, in virtual time;
- ``poisson``: the same with the executor, its threads and this machine's noise: full batches of 16 only, a window of
  20 ms, and dynamic, from idle to 1.2 times what the bare loop did just before;
- ``idle``: 100 requests a second, and what the delay of the policy adds;
- ``shapes``: two shapes that alternate, with a delay of 200 ms;
- ``timeout``: a timeout of 100 ms behind a batch of 400 ms;
- ``callers``: 4, 32 and 128 threads that each ask, wait and ask again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import executor_virtual
import numpy as np
from executor_ways import (
    BATCH,
    ROW,
    arriving,
    await_answers,
    closed,
    device,
    executor,
    idle_cpu,
    plain,
    polling,
    pressing,
)
from printing import arguments, machine, ratios, spread, table

from trtops.errors import DeadlineExceeded
from trtops.executor.port import Outcome, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor_ways import Figures, Submit

_NOTHING = {"queue": {"timeout": "60s", "max_size": 65536}}
_EVERYTHING = {"priorities": 3, "max_queue_delay": "2ms", "preferred": [8, 16]}
_STATIC = {"fixed 16": "5s", "window 20 ms": "20ms"}


@dataclass(frozen=True)
class Run:
    """How much is measured: rounds, and seconds of load of a case and round."""

    rounds: int
    seconds: float

    def say(self, text: str) -> None:
        """Tell what is being measured."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def median(runs: Sequence[Figures], key: str, digits: int) -> str:
    """A figure of the median run."""
    return f"{statistics.median(getattr(run, key) for run in runs):.{digits}f}"


# -- the tables --------------------------------------------------------------------------------------------------------


def loop(run: Run) -> str:
    ways = {
        "ours": (lambda cost: executor(cost, **_NOTHING), plain),
        "ours, all policies": (lambda cost: executor(cost, **_EVERYTHING), pressing),
        "full batches only": (lambda cost: executor(cost, max_queue_delay="5s"), plain),
    }
    text = []
    for title, cost_us in (("device free", 0.0), ("5 ms a batch", 5000.0)):
        results: dict[str, list[Figures]] = defaultdict(list)
        for turn in range(run.rounds):
            run.say(f"loop, {title}: round {turn + 1} of {run.rounds}")
            results["device"].append(device(cost_us, run.seconds / 2))
            for name, (way, make) in ways.items():
                with way(cost_us) as (submit, sizes):
                    results[name].append(closed(submit, sizes, run.seconds, make))
        bare = [one.rps for one in results["device"]]
        rows = [
            [
                name,
                *(median(runs, key, digits) for key, digits in (("rps", 0), ("p50", 2), ("p99", 2), ("rows", 1))),
                spread(ratios([one.rps for one in runs], bare)),
            ]
            for name, runs in results.items()
        ]
        text += [
            f"## 64 in flight, {title}\n",
            table(["", "rps", "p50 ms", "p99 ms", "rows a batch", "rps / device"], rows),
        ]
        cost = ratios([one.rps for one in results["ours, all policies"]], [one.rps for one in results["ours"]])
        text.append(f"All policies on, over none: {spread(cost)} of the rps; goal: 0.95 or more.\n")
    return "\n".join(text)


def scheduler(run: Run) -> str:
    ways = {
        "event-driven": lambda: executor(5000.0),
        "polling, 1 ms when idle": lambda: polling(5000.0, 1e-3),
        "polling, 10 ms when idle": lambda: polling(5000.0, 1e-2),
        "a tick of 10 ms": lambda: polling(5000.0, 1e-2, tick=True),
    }
    busy: dict[str, list[Figures]] = defaultdict(list)
    calm: dict[str, list[Figures]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    for turn in range(run.rounds):
        run.say(f"scheduler: round {turn + 1} of {run.rounds}")
        for name, way in ways.items():
            with way() as (submit, sizes):
                waits[name].append(idle_cpu(0.2) * 100)
                busy[name].append(closed(submit, sizes, run.seconds))
                calm[name].append(arriving(submit, sizes, 100.0, run.seconds, turn))
    rows = [
        [
            name,
            *(median(busy[name], key, digits) for key, digits in (("rps", 0), ("p50", 1), ("p99", 1))),
            *(median(calm[name], key, 1) for key in ("p50", "p99")),
            f"{statistics.median(waits[name]):.1f}",
            spread(ratios([one.rps for one in busy["event-driven"]], [one.rps for one in busy[name]])),
        ]
        for name in ways
    ]
    head = ["", "64 in flight: rps", "p50 ms", "p99 ms", "100 a second: p50 ms", "p99 ms", "CPU % with nothing to do"]
    return "\n".join(
        [
            "## Event-driven against polling, 5 ms a batch\n",
            table([*head, "rps, event-driven / this"], rows),
            "A tick sleeps after every batch, the others only when they found nothing.\n",
        ]
    )


def virtual(run: Run) -> str:
    return executor_virtual.tables(run.rounds, max(5.0, run.seconds), run.say)


def poisson(run: Run) -> str:
    cost_us = 5000.0
    ways = {**_STATIC, "dynamic": "0ms"}
    rows, worst = [], 0.0
    for share in (0.02, 0.1, 0.3, 0.6, 0.8, 0.9, 1.0, 1.2):
        results: dict[str, list[Figures]] = defaultdict(list)
        for turn in range(run.rounds):
            run.say(f"poisson, load {share:g}: round {turn + 1} of {run.rounds}")
            capacity = device(cost_us, 0.2).rps  # of now: a sleep takes longer on a busy machine
            for name, delay in ways.items():
                with executor(cost_us, max_queue_delay=delay) as (submit, sizes):
                    results[name].append(arriving(submit, sizes, share * capacity, run.seconds, turn))
        best = [min(one.p99 for one in runs) for runs in zip(*(results[name] for name in _STATIC), strict=True)]
        late = ratios([one.p99 for one in results["dynamic"]], best)
        worst = max(worst, statistics.median(late))
        cells = [median(results[name], key, digits) for key, digits in _POISSON for name in ways]
        rows.append([f"{share:g}", *cells, spread(late)])
    head = ["load / capacity", *(f"{name}: {what}" for what in ("rps", "p50 ms", "p99 ms", "rows") for name in ways)]
    title = "## Static against dynamic batching, Poisson, 5 ms a batch: the executor\n"
    goal = f"Worst median of dynamic over the better static way: {worst:.2f}; goal: never worse, 1.00.\n"
    return "\n".join([title, table([*head, "p99 dynamic / the better static"], rows), goal])


_POISSON = (("rps", 0), ("p50", 1), ("p99", 1), ("rows", 1))


def idle(run: Run) -> str:
    rows = []
    for delay in (0, 2, 10):
        runs = []
        for turn in range(run.rounds):
            run.say(f"idle, delay {delay} ms: round {turn + 1} of {run.rounds}")
            with executor(0.0, max_queue_delay=f"{delay}ms") as (submit, sizes):
                runs.append(arriving(submit, sizes, 100.0, max(1.5, run.seconds), turn))
        rows.append([f"{delay} ms", spread([one.p50 for one in runs]), spread([one.p99 - delay for one in runs])])
    head = ["delay of the policy", "p50 ms", "p99 above the delay, ms"]
    return "\n".join(["## Idle: 100 requests a second, device free\n", table(head, rows), "Goal: at most 3.5 ms.\n"])


def shapes(run: Run) -> str:
    found: list[float] = []
    for turn in range(run.rounds):
        run.say(f"shapes: round {turn + 1} of {run.rounds}")
        with executor(1000.0, max_queue_delay="200ms") as (submit, sizes):
            left = threading.Semaphore(0)
            for index in range(BATCH * 8):
                x = np.ones((1, (16, 24)[index & 1]), np.float32)
                submit(Request({"x": x}, 1), lambda _, left=left: left.release())
            await_answers(left, BATCH * 8)
            found.append(statistics.fmean(sizes.batches))
    rows = [["two shapes that alternate", spread(found, ".1f"), "16"]]
    return "\n".join(["## Shapes\n", table(["", "rows a batch, 200 ms delay", "goal"], rows)])


def timeout(run: Run) -> str:
    found: list[float] = []
    for turn in range(run.rounds):
        run.say(f"timeout: round {turn + 1} of {run.rounds}")
        with executor(400_000.0, queue={"timeout": "100ms"}) as (submit, _):
            left = threading.Semaphore(0)
            submit(plain(0), lambda _, left=left: left.release())
            time.sleep(0.02)
            begin = time.perf_counter()
            took: list[float] = []

            def done(
                outcome: Outcome, begin: float = begin, took: list[float] = took, left: threading.Semaphore = left
            ) -> None:
                assert isinstance(outcome.error, DeadlineExceeded), outcome
                took.append((time.perf_counter() - begin) * 1e3)
                left.release()

            submit(plain(1), done)
            await_answers(left, 2)
            found += took
    rows = [["timeout of 100 ms behind a batch of 400 ms", spread(found, ".1f"), "<= 110"]]
    return "\n".join(["## Timeouts\n", table(["", "answered after, ms", "goal"], rows)])


def callers(run: Run) -> str:
    found: dict[int, list[float]] = defaultdict(list)
    for turn in range(run.rounds):
        run.say(f"callers: round {turn + 1} of {run.rounds}")
        for count in (4, 32, 128):
            with executor(1000.0) as (submit, _):
                found[count].append(ask_again(submit, count, run.seconds))
    base = found[4]
    rows = [[str(count), spread(values, ".0f"), spread(ratios(values, base))] for count, values in found.items()]
    head = ["threads", "p50 of a request over the requests that are served at once, us", "over 4 threads"]
    goal = "A batch is 1 ms and 16 rows; up to 16 callers are served at once. Goal: at most 1.5.\n"
    return "\n".join(["## Callers that wait\n", table(head, rows), goal])


def ask_again(submit: Submit, count: int, seconds: float) -> float:
    """p50 latency in us, divided by the batches that a full round of all callers takes."""
    times: list[float] = []
    stop = time.perf_counter() + seconds

    def work() -> None:
        answered = threading.Semaphore(0)
        while (begin := time.perf_counter()) < stop:
            submit(Request({"x": ROW}, 1), lambda _: answered.release())
            await_answers(answered)
            times.append((time.perf_counter() - begin) * 1e6)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(times) / max(1.0, count / BATCH)


_TABLES = {one.__name__: one for one in (loop, scheduler, virtual, poisson, idle, shapes, timeout, callers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=_TABLES, help="one of the tables")
    parser.add_argument("--seconds", type=float, default=0.7, help="of load, of each case and round")
    arguments(parser, 3)
    options = parser.parse_args()
    began = time.monotonic()
    run = Run(options.rounds, options.seconds)
    text: list[str] = []

    def show(part: str) -> None:
        sys.stdout.write(f"{part}\n")
        sys.stdout.flush()
        text.append(part)

    show("# The executor in one process\n")
    show(f"{machine(run.rounds).rstrip()}; {run.seconds:g} s of load a case and round\n")
    for name, make in _TABLES.items():
        if options.only in {None, name}:
            show(make(run))
    run.say(f"done in {time.monotonic() - began:.0f} s\n")
    if options.write is not None:
        Path(options.write).write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
