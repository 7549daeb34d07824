"""Many threads submit, cancel and let time run out while engines are swapped and sessions die: one answer each."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.executors import LONG, Box, X, Y, batching, rows
from tests.support.sessions import assert_close
from trtops.backend.fake import FakeOptions, FakeSession
from trtops.errors import Cancelled, DeadlineExceeded, Overloaded, Retryable
from trtops.executor.executor import Executor
from trtops.executor.port import Request

if TYPE_CHECKING:
    from collections.abc import Callable

_CLIENTS = 8
_REQUESTS = 150
_SWAPS = 12


def open_with(seed: int) -> Callable[[], FakeSession]:
    """Sessions that take 0.2 ms, some of which die after a while."""
    source = random.Random(seed)
    lock = threading.Lock()

    def open_session() -> FakeSession:
        with lock:
            dies = source.randrange(20, 60) if source.random() < 0.5 else None
        return FakeSession(X, Y, FakeOptions(cost_us=200, fail_run=dies))

    return open_session


def client(executor: Executor, number: int, box: Box, kept: list[tuple[int, int]]) -> None:
    source = random.Random(number)
    for index in range(_REQUESTS):
        values = [float(source.randrange(1000)) for _ in range(source.randrange(1, 4))]
        deadline = time.monotonic() + source.choice([0.0005, 0.005, 5.0]) if source.random() < 0.3 else None
        request = Request(rows(*values).inputs, len(values), deadline=deadline, priority=source.randrange(3))
        key = (number, index, tuple(values))
        try:
            cancel = executor.submit("e", request, box.of(key))
        except Overloaded:
            continue
        kept.append(key)  # type: ignore[arg-type]
        if source.random() < 0.2:
            cancel()
        if source.random() < 0.3:
            box.wait_key(key)


def test_every_request_is_answered_once_and_right() -> None:
    executor, box = Executor(), Box()
    options: dict[str, Any] = {
        "version": "1.0.0",
        "digest": "sha256:" + "0" * 64,
        "backend": "fake",
        "batching": batching(
            max_queue_delay="1ms", preferred=[4], priorities=3, queue={"timeout": "2s", "max_size": 200}
        ),
        "instances": 2,
    }
    executor.load("e", generation=1, open_session=open_with(1), **options)
    kept: list[list[Any]] = [[] for _ in range(_CLIENTS)]
    threads = [
        threading.Thread(target=client, args=(executor, number, box, kept[number])) for number in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for generation in range(2, 2 + _SWAPS):
        executor.load("e", generation=generation, open_session=open_with(generation), **options)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    executor.close(drain=LONG)

    sent = [key for keys in kept for key in keys]
    assert len(sent) > _CLIENTS * _REQUESTS / 2
    assert set(box.outcomes) == set(sent)  # the box fails if an answer comes twice
    kinds: Counter[str] = Counter()
    for key, outcome in box.outcomes.items():
        kinds[type(outcome.error).__name__] += 1
        if outcome.error is None:
            assert_close(outcome.outputs["y"][:, 0], [4 * value for value in key[2]])  # type: ignore[index]
        else:
            assert isinstance(outcome.error, Cancelled | DeadlineExceeded | Retryable), outcome.error
    assert kinds["NoneType"] > len(sent) / 2
    assert "0 requests, 2 of 2 lanes free" in repr(executor)
    assert "0 B" in repr(executor)
