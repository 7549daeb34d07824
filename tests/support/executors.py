"""Sessions that a test holds in its hand, and a box that collects answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.executor.port import Outcome, Request
from trtops.spec.engine import Batching
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.executor.executor import Executor

X = (TensorInfo(name="x", dtype="float32", shape=("batch", 4)),)
Y = (TensorInfo(name="y", dtype="float32", shape=("batch", 4)),)
LONG = 60.0
"""Seconds after which a test that waits for an event gives up: only a failure takes so long."""


class Session:
    """Doubles ``x`` and adds ``plus``. Runs at once, or when the test opens its gate."""

    def __init__(
        self,
        *,
        inputs: tuple[TensorInfo, ...] = X,
        outputs: tuple[TensorInfo, ...] = Y,
        plus: float = 0.0,
        before: Callable[[Mapping[str, np.ndarray[Any, Any]]], None] | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.plus = plus
        self.before = before
        self.batches: list[int] = []
        self.threads: set[int] = set()
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._running = threading.Lock()

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        assert self._running.acquire(blocking=False), "a session is not thread-safe"
        try:
            assert not self.closed.is_set(), "run after close"
            x = inputs[self.inputs[0].name]
            assert x.flags.c_contiguous
            self.entered.release()
            assert self.gate.wait(LONG)
            if self.before is not None:
                self.before(inputs)
            self.batches.append(x.shape[0] if x.ndim else 1)
            self.threads.add(threading.get_ident())
            return {self.outputs[0].name: x * 2 + np.float32(self.plus)}
        finally:
            self._running.release()

    def close(self) -> None:
        assert not self._running.locked(), "closed while it runs"
        self.closed.set()

    def hold(self) -> None:
        """From now on ``run`` waits for ``gate``."""
        while self.entered.acquire(blocking=False):
            pass
        self.gate.clear()

    def wait_entered(self) -> None:
        """Until ``run`` was entered once more."""
        assert self.entered.acquire(timeout=LONG), "no batch was started"


class Box:
    """Collects the outcomes of requests, and fails if one comes twice."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.outcomes: dict[object, Outcome] = {}
        self.order: list[object] = []

    def of(self, key: object) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            with self._lock:
                assert key not in self.outcomes, f"{key} was answered twice"
                self.outcomes[key] = outcome
                self.order.append(key)
                self._lock.notify_all()

        return done

    def wait(self, number: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.outcomes) >= number, LONG), f"{len(self.outcomes)} answers"

    def error(self, key: object) -> Exception:
        self.wait_key(key)
        error = self.outcomes[key].error
        assert error is not None, f"{key} was answered without an error"
        return error

    def wait_key(self, key: object) -> Outcome:
        with self._lock:
            assert self._lock.wait_for(lambda: key in self.outcomes, LONG), f"{key} was not answered"
        return self.outcomes[key]


def rows(*values: float, width: int = 4) -> Request:
    """A request with one row a value."""
    x = np.repeat(np.array(values, np.float32)[:, None], width, axis=1)
    return Request({"x": x}, len(values))


def batching(**changes: Any) -> Batching:
    """A section of the spec, as YAML would give it: durations with units."""
    return Batching.model_validate({"max_batch": 8, **changes})


def load(executor: Executor, *sessions: Any, name: str = "e", generation: int = 1, **options: Any) -> None:
    queue = list(sessions)
    fields: dict[str, Any] = {
        "version": "1.0.0",
        "digest": "sha256:" + "0" * 64,
        "backend": "fake",
        "batching": options.pop("batching", batching()),
        "instances": options.pop("instances", 1),
        "open_session": lambda: queue.pop(0),
        **options,
    }
    executor.load(name, generation=generation, **fields)
