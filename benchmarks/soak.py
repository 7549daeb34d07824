"""Minutes of load on workers that are swapped and killed, by clients of which one is killed every second.

Run: ``python benchmarks/soak.py [--minutes N] [--rate R] [--swap S] [--kill-worker S] [--write FILE]``. The fake
backend runs the engines, each in a worker process: ``swapped`` gets a new generation every ``--swap`` seconds and its
worker is killed every ``--kill-worker`` seconds; ``steady`` is left alone, in a worker of its own. An engine of
generation g adds g to the sum of each row, so an answer that is not of the generation that it claims is found. Clients
are processes; each asks both engines at a steady rate. One more client is started and killed by SIGKILL every second,
with requests in flight.

Printed: what the clients got, the memory of supervisor and workers that serve in the first and in the last quarter, and
slots in use at the end. Exit code 1 if a request was lost or answered wrongly, a request to ``steady`` failed, one to
``swapped`` got an error that does not say that it may be sent again, a slot is still in use, or memory grew by more
than a tenth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fake_engine import opening
from printing import emit, machine, table

from trtops.errors import DeadlineExceeded, Overloaded, Retryable, TrtopsError, Unavailable
from trtops.executor.port import Request
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace
from trtops.spec.engine import Batching

if TYPE_CHECKING:
    from trtops.executor.port import Outcome

_ROWS = 2
_LOST = 20.0
"""Seconds after which a request without an answer counts as lost."""
_GROWTH = 1.1
_WHO = "supervisor", "worker of steady", "worker of swapped"


def load(supervisor: Supervisor, folder: Path, name: str, generation: int) -> None:
    """Load a generation and wait until it serves."""
    supervisor.load(
        name,
        generation=generation,
        version="1.0.0",
        digest=f"generation {generation}",
        backend="fake",
        batching=Batching(max_batch=16),
        instances=1,
        open_session=opening(folder, wrong_by=generation, cost_us=300),
    )


# -- a client's process ------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What a client got, of one engine."""

    sent: int = 0
    right: int = 0
    wrong: int = 0
    retryable: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0


class Asker:
    """Asks engines at a steady rate and checks the answers."""

    def __init__(self, path: str) -> None:
        """Connect."""
        self.remote = RemoteEngines(path)
        self.tallies = {"swapped": Tally(), "steady": Tally()}
        self._open = 0
        self._ended = threading.Condition()
        self._random = np.random.default_rng(os.getpid())

    def ask(self, name: str) -> None:
        """Send one request; what comes of it is counted."""
        tally = self.tallies[name]
        x = self._random.integers(0, 100, (_ROWS, 64)).astype(np.float32)
        tally.sent += 1
        began = time.monotonic()
        with self._ended:
            self._open += 1
        request = Request({"x": x}, _ROWS, began + 10.0, key=f"key-{tally.sent % 100}")
        try:
            self.remote.submit(name, request, partial(self._done, tally, x.sum(axis=1, keepdims=True), began))
        except TrtopsError as error:
            self._failed(tally, error)

    def _done(
        self, tally: Tally, sums: np.ndarray[tuple[int, ...], np.dtype[np.float32]], began: float, outcome: Outcome
    ) -> None:
        if outcome.error is not None:
            self._failed(tally, outcome.error)
            return
        right = np.array_equal(outcome.outputs["y"], sums + np.float32(outcome.generation))
        with self._ended:
            tally.right += right
            tally.wrong += not right
            tally.slowest = max(tally.slowest, time.monotonic() - began)
            self._open -= 1
            self._ended.notify_all()

    def _failed(self, tally: Tally, error: Exception) -> None:
        kind = type(error).__name__
        with self._ended:
            retryable = isinstance(error, (Retryable, Unavailable, Overloaded))
            (tally.retryable if retryable else tally.other)[kind] += 1
            if isinstance(error, DeadlineExceeded):
                tally.other[str(error)] += 1
            self._open -= 1
            self._ended.notify_all()

    def wait(self) -> int:
        """Wait for the last answers. Returns requests that got none."""
        with self._ended:
            self._ended.wait_for(lambda: self._open == 0, _LOST)
            return self._open


def client(path: str, seconds: float, rate: float) -> None:
    """Ask for so long, print what came as JSON."""
    asker = Asker(path)
    end, due = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end:
        for name in asker.tallies:
            asker.ask(name)
        due += 2 / rate
        time.sleep(max(0.0, due - time.monotonic()))
    lost = asker.wait()
    asker.remote.close()
    told = {name: vars(tally) for name, tally in asker.tallies.items()}
    sys.stdout.write(json.dumps({"lost": lost, "tallies": told}) + "\n")


def victim(path: str) -> None:
    """Keep requests in flight until this process is killed."""
    asker = Asker(path)
    sys.stdout.write("asking\n")
    sys.stdout.flush()
    while True:
        for name in asker.tallies:
            asker.ask(name)
        time.sleep(0.002)


# -- the disturbances --------------------------------------------------------------------------------------------------


@dataclass
class Disturbed:
    """What was done to the fleet."""

    swaps: int = 0
    slowest_swap: float = 0.0
    clients: int = 0
    workers: int = 0
    memory: list[tuple[float, ...]] = field(default_factory=list)
    """MiB of each of :data:`_WHO`; NaN where it does not serve just now."""


def resident(pid: int) -> float:
    """MiB of a process that are in memory; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


class Disturbance:
    """Swaps, kills and looks at memory, each at its own pace, until the time is over."""

    def __init__(self, supervisor: Supervisor, folder: Path, told: argparse.Namespace) -> None:
        """Begin with nothing done."""
        self._supervisor = supervisor
        self._folder = folder
        self._told = told
        self._generation = 1
        self.done = Disturbed()

    def run(self, end: float) -> None:
        """Disturb until then."""
        threads = [
            threading.Thread(target=self._every, args=(seconds, what, end))
            for seconds, what in (
                (self._told.swap, self._swap),
                (1.0, self._kill_client),
                (self._told.kill_worker, self._kill_worker),
                (1.0, self._look),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _every(seconds: float, what: object, end: float) -> None:
        assert callable(what)
        due = time.monotonic() + seconds
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            what()
            due = max(due + seconds, time.monotonic())

    def _swap(self) -> None:
        began = time.monotonic()
        self._generation += 1
        load(self._supervisor, self._folder, "swapped", self._generation)
        self.done.swaps += 1
        self.done.slowest_swap = max(self.done.slowest_swap, time.monotonic() - began)

    def _kill_client(self) -> None:
        command = [sys.executable, __file__, "--role", "victim", "--socket", str(self._supervisor.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            process.send_signal(signal.SIGKILL)
        self.done.clients += 1

    def _kill_worker(self) -> None:
        for worker in self._supervisor.workers():
            if any(name.startswith("swapped@") for name in worker.engines) and worker.state == "serving":
                os.kill(worker.pid, signal.SIGKILL)
                self.done.workers += 1
                return

    def _look(self) -> None:
        serving = [worker for worker in self._supervisor.workers() if worker.state == "serving"]
        held = [
            max(
                (resident(one.pid) for one in serving if any(e.startswith(name) for e in one.engines)), default=math.nan
            )
            for name in ("steady@", "swapped@")
        ]
        self.done.memory.append((resident(os.getpid()), *held))


# -- the run -----------------------------------------------------------------------------------------------------------


def run(told: argparse.Namespace) -> tuple[str, bool]:
    """Run it all. Returns what is printed, and whether all is well."""
    with tempfile.TemporaryDirectory(prefix="trtops-soak-") as name:
        folder = Path(name)
        supervisor = Supervisor(folder / "s", pace=Pace(settle=None))
        try:
            return _run(supervisor, folder, told)
        finally:
            supervisor.close(drain=1.0)


def _run(supervisor: Supervisor, folder: Path, told: argparse.Namespace) -> tuple[str, bool]:
    for name in ("steady", "swapped"):
        load(supervisor, folder, name, 1)
    seconds = told.minutes * 60
    command = [sys.executable, __file__, "--role", "client", "--socket", str(supervisor.path), "--rate", str(told.rate)]
    command += ["--minutes", str(told.minutes)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(told.clients)]
    disturbance = Disturbance(supervisor, folder, told)
    disturbance.run(time.monotonic() + seconds)
    found = [json.loads(process.communicate(timeout=_LOST * 3)[0]) for process in clients]
    slots = _settled_slots(supervisor)
    shown = repr(supervisor)
    assert f"; {slots} slots in use; " in shown, shown
    return _report(found, disturbance.done, slots, shown, told)


def _settled_slots(supervisor: Supervisor) -> int:
    """Slots in use when nobody asks any more: workers tell four times a second."""
    end = time.monotonic() + 10
    while (slots := sum(worker.slots for worker in supervisor.workers())) and time.monotonic() < end:
        time.sleep(0.3)
    return slots


def _report(
    found: list[dict[str, object]], done: Disturbed, slots: int, shown: str, told: argparse.Namespace
) -> tuple[str, bool]:
    lost = sum(int(str(one["lost"])) for one in found)
    rows, bad = [], lost > 0 or slots > 0
    for name in ("swapped", "steady"):
        tallies = [one["tallies"][name] for one in found]  # type: ignore[index]
        retryable, other = (
            sum((Counter(tally[kind]) for tally in tallies), Counter()) for kind in ("retryable", "other")
        )
        wrong = sum(tally["wrong"] for tally in tallies)
        bad |= wrong > 0 or bool(other) or (name == "steady" and bool(retryable))
        rows.append(
            [
                name,
                str(sum(tally["sent"] for tally in tallies)),
                str(sum(tally["right"] for tally in tallies)),
                str(wrong),
                ", ".join(f"{kind} {count}" for kind, count in sorted(retryable.items())) or "0",
                ", ".join(f"{kind} {count}" for kind, count in sorted(other.items())) or "0",
                f"{max(tally['slowest'] for tally in tallies) * 1e3:.0f}",
            ]
        )
    quarter = max(1, len(done.memory) // 4)
    first, last = (
        [statistics.median([mib for mib in part if mib > 0] or [math.nan]) for part in zip(*memory, strict=True)]
        for memory in (done.memory[:quarter], done.memory[-quarter:])
    )
    bad |= not all(after <= before * _GROWTH for before, after in zip(first, last, strict=True))
    head = ["engine", "sent", "right", "wrong", "may be sent again", "other errors", "slowest answer ms"]
    load = f"{told.minutes:g} min, {told.clients} clients, {told.rate:g} requests/s each"
    swaps = f"{done.swaps} swaps (slowest {done.slowest_swap:.2f} s)"
    memory = [f"{name} {before:.0f} -> {after:.0f}" for name, before, after in zip(_WHO, first, last, strict=True)]
    text = [
        f"{load}; {swaps}, {done.clients} clients and {done.workers} workers killed",
        table(head, rows),
        f"lost (no answer within {_LOST:g} s): {lost}; slots in use at the end: {slots}",
        f"resident MiB, first and last quarter: {', '.join(memory)}",
        shown,
        "verdict: " + ("NOT well" if bad else "well"),
    ]
    return "\n\n".join(text), not bad


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of each client")
    parser.add_argument("--swap", type=float, default=10.0, help="seconds between two swaps")
    parser.add_argument("--kill-worker", type=float, default=25.0, help="seconds between two kills of a worker")
    parser.add_argument("--role", choices=["main", "client", "victim"], default="main", help=argparse.SUPPRESS)
    parser.add_argument("--socket", default="", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, default=None, help="also write the result there")
    told = parser.parse_args()
    if told.role == "client":
        client(told.socket, told.minutes * 60, told.rate)
        return 0
    if told.role == "victim":
        victim(told.socket)
    text, well = run(told)
    emit(f"{machine(1)}\n{text}\n", told.write)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
