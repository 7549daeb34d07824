"""The executor in one process under a closed loop: what it leaves of the device, against peers in the same run.

Run: ``python benchmarks/executor_throughput.py [--rounds N]``. The device is played: a run sleeps a given time,
whatever its batch. 64 requests are in flight, 16 rows make a batch. Peers, interleaved with ours round by round:

- ``device``: the bare loop, batches of 16 one after the other with no queue and no clients: nothing can be faster;
- ``polling``: what a scheduler that looks every millisecond does: one thread, ``queue.Queue``, take up to 16, run,
  answer, and sleep if there was nothing;
- ``static``: our planner told to wait for full batches only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import queue
import statistics
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from trtops.backend.fake import FakeOptions, FakeSession
from trtops.executor.executor import Executor
from trtops.executor.port import Outcome, Request
from trtops.spec.engine import Batching
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    Submit = Callable[[Request, Callable[[Outcome], None]], object]

_BATCH, _IN_FLIGHT = 16, 64
_X = (TensorInfo(name="x", dtype="float32", shape=("batch", 16)),)
_Y = (TensorInfo(name="y", dtype="float32", shape=("batch",)),)
_ROW = np.ones((1, 16), np.float32)
_FULL = np.ones((_BATCH, 16), np.float32)


def session(cost_us: float) -> FakeSession:
    return FakeSession(_X, _Y, FakeOptions(cost_us=cost_us))


def closed_loop(submit: Submit, number: int) -> tuple[float, float, float]:
    """Requests a second, p50 and p99 in ms, of ``number`` requests with 64 in flight."""
    times: list[float] = []
    room = threading.Semaphore(_IN_FLIGHT)
    start = time.perf_counter()
    for _ in range(number):
        room.acquire()
        sent = time.perf_counter()

        def done(outcome: Outcome, sent: float = sent) -> None:
            assert outcome.error is None, outcome.error
            times.append(time.perf_counter() - sent)
            room.release()

        submit(Request({"x": _ROW}, 1), done)
    for _ in range(_IN_FLIGHT):
        room.acquire()
    elapsed = time.perf_counter() - start
    times.sort()
    return number / elapsed, times[number // 2] * 1e3, times[number * 99 // 100] * 1e3


def device(cost_us: float, number: int) -> tuple[float, float, float]:
    bare = session(cost_us)
    batches = number // _BATCH
    start = time.perf_counter()
    for _ in range(batches):
        bare.run({"x": _FULL})
    elapsed = time.perf_counter() - start
    return batches * _BATCH / elapsed, elapsed / batches * 1e3, elapsed / batches * 1e3


def ours(cost_us: float, number: int, **batching: object) -> tuple[float, float, float]:
    executor = Executor()
    section = Batching.model_validate({"max_batch": _BATCH, "queue": {"timeout": "10s"}, **batching})
    executor.load(
        "e",
        generation=1,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=section,
        instances=1,
        open_session=lambda: session(cost_us),
    )
    try:
        return closed_loop(lambda request, done: executor.submit("e", request, done), number)
    finally:
        executor.close(drain=5)


def polling(cost_us: float, number: int) -> tuple[float, float, float]:
    waiting: queue.Queue[tuple[Request, Callable[[Outcome], None]]] = queue.Queue()
    stop = threading.Event()
    device_session = session(cost_us)

    def serve() -> None:
        while not stop.is_set():
            batch = []
            with contextlib.suppress(queue.Empty):
                while len(batch) < _BATCH:
                    batch.append(waiting.get_nowait())
            if not batch:
                time.sleep(0.001)
                continue
            outputs = device_session.run({"x": np.concatenate([request.inputs["x"] for request, _ in batch])})
            for index, (_, done) in enumerate(batch):
                done(Outcome({name: array[index : index + 1] for name, array in outputs.items()}))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return closed_loop(lambda request, done: waiting.put((request, done)), number)
    finally:
        stop.set()
        thread.join()


_EVERYTHING = {"priorities": 3, "max_queue_delay": "2ms", "preferred": [8, 16]}
_WAYS: dict[str, Callable[[float, int], tuple[float, float, float]]] = {
    "device": device,
    "ours": ours,
    "ours, priorities, delay, preferred": lambda cost, number: ours(cost, number, **_EVERYTHING),
    "static": lambda cost, number: ours(cost, number, max_queue_delay="5s"),
    "polling": polling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"# {os.cpu_count()} CPUs, {platform.machine()}, CPython {platform.python_version()}, {rounds} rounds\n")
    for title, cost_us, number in (("device free", 0.0, 9600), ("5 ms a batch", 5000.0, 3200)):
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _WAYS}
        for _ in range(rounds):
            for name, way in _WAYS.items():
                results[name].append(way(cost_us, number))
        print(f"## {title}\n\n| | rps | p50 ms | p99 ms | rps / device (smallest to largest round) |")
        print("|---|---|---|---|---|")
        for name, runs in results.items():
            rps, p50, p99 = (statistics.median(run[column] for run in runs) for column in range(3))
            shares = sorted(run[0] / bound[0] for run, bound in zip(runs, results["device"], strict=True))
            share = f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})"
            print(f"| {name} | {rps:.0f} | {p50:.2f} | {p99:.2f} | {share} |")
        print()


if __name__ == "__main__":
    main()
