"""The faults of the registry in memory."""

from __future__ import annotations

import threading

import pytest

from trtops.errors import StorageError, Unavailable
from trtops.registry.memory import MemoryRegistry


def test_away_and_back() -> None:
    registry = MemoryRegistry()
    registry.create("a", b"1")
    registry.away = True
    for call in (lambda: registry.read("a"), registry.names, lambda: registry.swap("a", b"2", b"1")):
        with pytest.raises(Unavailable):
            call()
    assert "away" in repr(registry)
    registry.away = False
    assert registry.read("a") == b"1"


def test_the_nth_write_fails_once() -> None:
    registry = MemoryRegistry()
    registry.fail_write(2)
    registry.create("a", b"1")
    assert "faults=[2]" in repr(registry)
    with pytest.raises(StorageError):
        registry.create("b", b"1")
    assert registry.read("b") is None
    assert registry.create("b", b"1")


def test_a_lost_answer_is_of_a_write_that_took_place() -> None:
    registry = MemoryRegistry()
    registry.fail_write(1, applied=True)
    with pytest.raises(Unavailable, match="answer was lost"):
        registry.swap("a", b"1", None)
    assert registry.read("a") == b"1"


def test_an_error_of_ones_own() -> None:
    registry = MemoryRegistry()
    registry.fail_write(1, KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        registry.create("a", b"1")


def test_slow_calls_take_their_time() -> None:
    slept: list[float] = []
    registry = MemoryRegistry(slept.append)
    registry.delay = 0.5
    registry.create("a", b"1")
    registry.read("a")
    assert slept == [0.5, 0.5]


def test_a_watch_outlives_a_registry_that_is_away() -> None:
    registry = MemoryRegistry()
    heard, arrived = [], threading.Event()

    def changed(body: bytes | None) -> None:
        heard.append(body)
        if body == b"2":
            arrived.set()

    registry.create("a", b"1")
    watch = registry.watch("a", changed)
    registry.away = True
    watch.wake()
    registry.put("a", b"2")
    registry.away = False
    watch.wake()
    assert arrived.wait(30)
    watch.close()
    assert heard[-1] == b"2"
