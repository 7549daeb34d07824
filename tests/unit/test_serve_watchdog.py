"""When a server that runs engines itself ends, because one hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from trtops.serve.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator


class World:
    """A clock, and the batch that runs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.began: float | None = None
        self.ended = 0
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._make())

    async def _make(self) -> None:
        self.dog = Watchdog(self.longest, 2.0, self.end, clock=lambda: self.now)

    def longest(self) -> tuple[str, float]:
        return ("cls", self.now - self.began) if self.began is not None else ("", 0.0)

    def end(self) -> None:
        self.ended += 1

    def look(self, seconds: float = 0.25, *, loop: bool = True) -> str | None:
        self.now += seconds
        if loop:
            self.dog._beat()
            self.dog._beating.cancel()  # type: ignore[union-attr]
        return self.dog.look()


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    one.loop.close()


def test_a_batch_that_never_ends_is_named(world: World) -> None:
    world.began = world.now
    assert [world.look() for _ in range(9)] == [None] * 9
    assert world.look() == "a batch of engine 'cls' hangs: it has been running for 2.5 s"


def test_batches_that_follow_one_another_are_no_hang(world: World) -> None:
    for _ in range(100):
        world.began = world.now + 0.1
        assert world.look() is None


def test_a_batch_has_its_time_again_after_the_process_stood_still(world: World) -> None:
    world.began = world.now
    assert world.look() is None
    assert world.look(3600.0) is None
    assert [world.look() for _ in range(7)] == [None] * 7
    assert world.look() is not None


def test_an_event_loop_that_stands_still_is_found_without_any_batch(world: World) -> None:
    assert world.look() is None
    assert [world.look(loop=False) for _ in range(8)] == [None] * 8
    assert world.look(loop=False) == "the server hangs: it has answered nobody for 2.2 s"


def test_a_loop_that_goes_on_in_time_is_left_alone(world: World) -> None:
    for _ in range(20):
        assert [world.look(loop=False) for _ in range(7)] == [None] * 7
        assert world.look() is None
