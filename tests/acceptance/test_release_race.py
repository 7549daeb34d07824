"""Publishers in processes of their own: one winner a generation, and the others are told."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import release
from tests.support.releases import CHANNEL, NOW
from trtops.errors import Conflict
from trtops.registry.file import FileRegistry
from trtops.release.fetch import history
from trtops.release.keys import KeyStore

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

Outcome = tuple[int, str]


def _run(home: Path, number: int, barrier: Barrier, queue: multiprocessing.Queue[Outcome]) -> None:
    barrier.wait(60)
    try:
        queue.put((release(home, f"engine {number}", now=NOW + number), ""))
    except Conflict as error:
        queue.put((0, str(error)))


@pytest.mark.service
def test_ten_processes_at_once(tmp_path: Path) -> None:
    release(tmp_path, "engine 0", now=NOW - 1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.crash"])
    barrier, queue = context.Barrier(10), context.Queue()
    workers = [context.Process(target=_run, args=(tmp_path, number, barrier, queue)) for number in range(1, 11)]
    for worker in workers:
        worker.start()
    outcomes = [queue.get(timeout=90) for _ in workers]
    for worker in workers:
        worker.join(30)
    won = sorted(generation for generation, _ in outcomes if generation)
    lost = [message for generation, message in outcomes if not generation]
    assert won == list(range(2, 2 + len(won)))
    assert won
    assert all("was moved to generation" in message and "by key" in message for message in lost)
    found = history(FileRegistry(tmp_path, "dev"), KeyStore(tmp_path).root(), CHANNEL)
    assert len(found) == 1 + len(won)
