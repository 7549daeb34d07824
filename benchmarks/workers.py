"""What clients notice of a swap and of a worker's death, with engines in worker processes.

Run: ``python benchmarks/workers.py [--rounds N] [--seconds S] [--clients C] [--write FILE]``. The fake backend plays an
engine of 1 ms a batch; C closed-loop clients (threads of four processes) ask it through shared memory. Each round
measures, one after the other, with the same load:

- ``calm``: nothing happens.
- ``swap``: a new generation is loaded half-way and takes over.
- ``swap, 2 s to load``: the same with an engine that takes 2 s to load.
- ``killed``: the worker is killed by SIGKILL half-way; its requests in flight fail, and the next one serves.

Workers are forked off a nursery, as ``trtops serve`` does; ``--no-nursery`` starts an interpreter for each. Times are
of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fake_engine import opening
from printing import arguments, emit, machine, spread, table

import trtops.executor.hosting  # noqa: F401 - what is imported before the nursery is in memory once
from trtops.errors import TrtopsError
from trtops.executor.nursery import Nursery
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace
from trtops.spec.engine import Batching

if TYPE_CHECKING:
    from collections.abc import Callable

_PROCESSES = 4


def load(supervisor: Supervisor, folder: Path, generation: int, load_seconds: float = 0.0) -> None:
    """Load a generation and wait until it serves."""
    supervisor.load(
        "e",
        generation=generation,
        version="1.0.0",
        digest=f"generation {generation}",
        backend="fake",
        batching=Batching.model_validate({"max_batch": 64, "queue": {"timeout": "10s"}}),
        instances=1,
        open_session=opening(folder, cost_us=1000, load_seconds=load_seconds),
    )


# -- a client's process ------------------------------------------------------------------------------------------------


def client(path: str, threads: int) -> None:
    """Ask in a loop, by so many threads, for the seconds that each line of the input says; print what came."""
    remote = RemoteEngines(path)
    x = {"x": np.ones((1, 64), np.float32)}
    remote.infer("e", x, 1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds = float(line)
        end = time.monotonic() + seconds
        good: list[tuple[float, float]] = []
        bad: list[tuple[float, float, str]] = []
        askers = [threading.Thread(target=_ask, args=(remote, x, end, good, bad)) for _ in range(threads)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        took = sorted(waited for _, waited in good)
        longest, p99 = (took[-1], took[len(took) * 99 // 100]) if took else (seconds, seconds)
        told = {"answers": len(took), "longest": longest, "p99": p99, "bad": bad}
        sys.stdout.write(json.dumps({**told, "times": [at for at, _ in good]}) + "\n")
        sys.stdout.flush()


def _ask(
    remote: RemoteEngines,
    x: dict[str, np.ndarray[Any, Any]],
    end: float,
    good: list[tuple[float, float]],
    bad: list[tuple[float, float, str]],
) -> None:
    while (began := time.monotonic()) < end:
        error = _infer(remote, x)
        now = time.monotonic()
        if error is None:
            good.append((now, now - began))
        else:
            bad.append((now, now - began, error))
            time.sleep(0.005)


def _infer(remote: RemoteEngines, x: dict[str, np.ndarray[Any, Any]]) -> str | None:
    """Ask once. Returns the error, if there was one."""
    try:
        remote.infer("e", x, 1)
    except TrtopsError as error:
        return f"{type(error).__name__}: {error.what}"
    return None


class Clients:
    """All client processes."""

    def __init__(self, path: Path, number: int) -> None:
        """Start them and wait until each has asked once."""
        command = [sys.executable, __file__, "--role", "client", "--socket", str(path)]
        command += ["--clients", str(max(1, number // _PROCESSES))]
        pipe = subprocess.PIPE
        self._all = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(_PROCESSES)]
        for one in self._all:
            assert one.stdout is not None
            one.stdout.readline()

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """Load for so long."""
        for one in self._all:
            assert one.stdin is not None
            one.stdin.write(f"{seconds}\n")
            one.stdin.flush()
        return [json.loads(one.stdout.readline()) for one in self._all if one.stdout is not None]

    def close(self) -> None:
        """End them."""
        for one in self._all:
            one.communicate()


# -- the measurements --------------------------------------------------------------------------------------------------


class Bench:
    """A supervisor with its clients, and what was measured: name of a case -> name of a number -> a value a round."""

    def __init__(self, supervisor: Supervisor, folder: Path, told: argparse.Namespace) -> None:
        """Load the first generation and start the clients."""
        self._supervisor = supervisor
        self._folder = folder
        self._seconds = told.seconds
        self._generation = 1
        load(supervisor, folder, 1)
        self.clients = Clients(supervisor.path, told.clients)
        self.found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.errors: dict[str, Counter[str]] = defaultdict(Counter)

    def round(self) -> None:
        """Measure each case once."""
        self._measure("calm", self._seconds, lambda: None)
        self._measure("swap", self._seconds, lambda: self._swap(0.0))
        self._measure("swap, 2 s to load", self._seconds + 2, lambda: self._swap(2.0))
        self._swap(0.0)  # which takes no time to load again
        while len(self._supervisor.workers()) > 1:
            time.sleep(0.1)
        self._measure("killed", self._seconds, self._kill)

    def _measure(self, case: str, seconds: float, disturb: Callable[[], float | None]) -> None:
        with ThreadPoolExecutor(1) as beside:
            disturbed = beside.submit(self._later, self._seconds / 2, disturb)
            told = self.clients.run(seconds)
            killed = disturbed.result()  # or what went wrong there
        numbers, bad = self.found[case], [one for client in told for one in client["bad"]]
        numbers["answers/s"].append(sum(client["answers"] for client in told) / seconds)
        numbers["p99 ms"].append(max(client["p99"] for client in told) * 1e3)
        numbers["longest ms"].append(max(client["longest"] for client in told) * 1e3)
        numbers["failed"].append(len(bad))
        self.errors[case].update(name for _, _, name in bad)
        if killed is not None:
            in_flight = [when - killed for when, waited, _ in bad if when - waited <= killed]
            times = sorted(when for client in told for when in client["times"] if when > killed + 0.01)
            numbers["in flight: told after ms"].append(max(in_flight, default=0.0) * 1e3)
            gaps = [later - earlier for earlier, later in zip([killed, *times], times, strict=False)]
            numbers["nobody was served for ms"].append(max(gaps) * 1e3)

    def _later(self, seconds: float, disturb: Callable[[], float | None]) -> float | None:
        time.sleep(seconds)
        return disturb()

    def _swap(self, seconds: float) -> None:
        self._generation += 1
        load(self._supervisor, self._folder, self._generation, seconds)

    def _kill(self) -> float:
        (worker,) = [one for one in self._supervisor.workers() if one.state == "serving"]
        now = time.monotonic()
        os.kill(worker.pid, signal.SIGKILL)
        return now


def report(bench: Bench, told: argparse.Namespace) -> str:
    """What is printed."""
    names = ["answers/s", "p99 ms", "longest ms", "failed"]
    rows = [[case, *(spread(numbers[name], ".1f") for name in names)] for case, numbers in bench.found.items()]
    calm, killed = bench.found["calm"], bench.found["killed"]
    how = "an interpreter a worker" if told.no_nursery else "workers forked off a nursery"
    load = f"{told.clients} closed-loop clients in {_PROCESSES} processes, {told.seconds:g} s a case, {how}"
    lines = [load, "", table(["case", *names], rows)]
    for case in ("swap", "swap, 2 s to load"):
        more = [one - other for one, other in zip(bench.found[case]["longest ms"], calm["longest ms"], strict=True)]
        failed = statistics.fmean(bench.found[case]["failed"])
        lines.append(f"{case}: {failed:g} failed a round; longest request {spread(more, '+.1f')} ms more than calm")
    for case, errors in bench.errors.items():
        lines += [f"{case}: {number} x {name}" for name, number in errors.most_common()]
    told_after, unserved = "in flight: told after ms", "nobody was served for ms"
    lines += [f"killed: {name} {spread(killed[name], '.1f')}" for name in (told_after, unserved)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser, 5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--no-nursery", action="store_true", help="start an interpreter for each worker")
    parser.add_argument("--role", choices=["main", "client"], default="main", help=argparse.SUPPRESS)
    parser.add_argument("--socket", default="", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.role == "client":
        client(told.socket, told.clients)
        return 0
    nursery = None if told.no_nursery else Nursery()
    began = machine(told.rounds)
    with tempfile.TemporaryDirectory(prefix="trtops-workers-") as name:
        supervisor = Supervisor(Path(name) / "s", pace=Pace(settle=None), nursery=nursery)
        try:
            bench = Bench(supervisor, Path(name), told)
            for _ in range(told.rounds):
                bench.round()
            bench.clients.close()
        finally:
            supervisor.close(drain=1.0)
    emit(f"{began}\n{report(bench, told)}", told.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
