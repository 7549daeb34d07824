"""Engines of regorus are freed by the thread that made them, whoever drops the last reference."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from trtops.policy import native
from trtops.policy.native import NativeEngine


class _Cycle:
    """Keeps an engine in a cycle, as a traceback does."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.me = self


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen


def in_a_thread(what: Any) -> None:
    thread = threading.Thread(target=what)
    thread.start()
    thread.join()


def test_a_collector_in_another_thread_frees_nothing_of_this_one(unraisable: list[Any]) -> None:
    gc.disable()
    try:
        _Cycle(NativeEngine())
        in_a_thread(gc.collect)
    finally:
        gc.enable()
    assert unraisable == []
    NativeEngine()  # frees what was given up
    assert unraisable == []


def test_a_traceback_that_another_thread_drops_holds_no_engine(unraisable: list[Any]) -> None:
    held: list[BaseException] = []

    def fails() -> None:
        engine = NativeEngine()
        try:
            engine.add_policy("a.rego", "no rego")
        except (RuntimeError, ValueError) as error:
            held.append(error)

    fails()
    assert held
    in_a_thread(held.clear)
    gc.collect()
    assert unraisable == []


def test_an_engine_outlives_its_thread_without_a_word(unraisable: list[Any]) -> None:
    made: list[NativeEngine] = []
    in_a_thread(lambda: made.append(NativeEngine()))
    assert not made[0].usable
    made.clear()
    gc.collect()
    assert unraisable == []


def test_it_is_freed_at_once_by_its_own_thread() -> None:
    counts: list[int] = []

    def alone() -> None:  # other tests' engines belong to other threads
        engine = NativeEngine()
        counts.append(len(native._OWNED.engines))
        assert engine.usable
        del engine
        counts.append(len(native._OWNED.engines))

    in_a_thread(alone)
    assert counts == [1, 0]


def test_what_another_thread_dropped_is_freed_when_its_own_makes_the_next() -> None:
    counts: list[int] = []

    def alone() -> None:
        held = [NativeEngine()]
        in_a_thread(held.clear)
        counts.append(len(native._OWNED.engines))
        again = NativeEngine()
        counts.append(len(native._OWNED.engines))
        assert again.usable

    in_a_thread(alone)
    assert counts == [1, 1]
