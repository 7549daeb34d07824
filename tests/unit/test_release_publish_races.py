"""Several publishers at once: one winner a generation, the losers told; and what never happens, whatever does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.published import KEYS, POINTER, generation_read, published
from tests.support.releases import CHANNEL, NOW, digest
from trtops.errors import Conflict, InputError, StorageError, TrtopsError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release.fetch import fetch, history
from trtops.release.publish import Published, refresh
from trtops.release.rollback import rollback
from trtops.release.trust import TrustedChannel

# Races


class _Racing(MemoryRegistry):
    """Another publisher moves the channel just before the pointer is swapped."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        other, self.other = self.other, None
        if other is not None:
            other(self)
        super().swap(name, body, expected)


def test_the_loser_is_told_who_won_and_where() -> None:
    registry = _Racing(None)
    published(registry, "engine 0", now=NOW - 1)
    registry.other = lambda self: published(self, "engine 2", now=NOW + 1)
    with pytest.raises(Conflict) as caught:
        published(registry, "engine 1")
    actor = KEYS.signer("channel").key_id[:12]
    assert f"was moved to generation 2 by key {actor} (release)" in str(caught.value)
    assert "from generation 1" in str(caught.value)
    assert caught.value.exit_code == 3
    assert published(registry, "engine 1", now=NOW + 2).generation == 3


def test_the_loser_of_the_first_release_of_all_is_told() -> None:
    registry = _Racing(lambda self: published(self, "engine 2", now=NOW + 1))
    with pytest.raises(Conflict, match="while generation 1 was made from generation 0"):
        published(registry, "engine 1")
    service = fetch(TrustedChannel(KEYS.root(), CHANNEL), registry, NOW)
    assert service.engine_release.artifacts[0].sidecar.artifact == digest("engine 2 0")


def test_the_loser_of_a_rollback_is_told() -> None:
    registry = _Racing(None)
    published(registry, "engine 1")
    published(registry, "engine 2", now=NOW + 1)
    registry.other = lambda self: published(self, "engine 3", now=NOW + 2)
    with pytest.raises(Conflict, match="generation 3"):
        rollback(registry, KEYS, CHANNEL, to=1, now=NOW + 3)
    assert generation_read(registry) == 3


@pytest.mark.parametrize("body", [None, b"{}"])
def test_a_pointer_that_was_deleted_or_forged_meanwhile(body: bytes | None) -> None:
    registry = _Racing(None)
    published(registry, "engine 1")
    registry.other = lambda self: self.put(POINTER, body)
    with pytest.raises(Conflict, match=r"lost its pointer|not trusted here"):
        published(registry, "engine 2", now=NOW + 1)


def test_ten_publishers_at_once_have_one_winner_a_generation() -> None:
    registry = MemoryRegistry()
    barrier = threading.Barrier(10)
    results: list[Published | TrtopsError] = []

    def run(number: int) -> None:
        barrier.wait(30)
        try:
            results.append(published(registry, f"engine {number}", now=NOW + number))
        except Conflict as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    won = [result.generation for result in results if isinstance(result, Published)]
    assert len(results) == 10
    assert 1 <= len(won) == len(set(won))
    found = history(registry, KEYS.root(), CHANNEL)
    assert found[0].generation == max(won)
    swaps = [name for operation, name in registry.writes if operation == "swap"]
    assert len(swaps) == 10


# Laws

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("rollback"), st.integers(1, 6)),
        st.tuples(st.just("refresh"), st.none()),
        st.tuples(st.just("fault"), st.integers(1, 10)),
        st.tuples(st.just("delete"), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(MOVES)
def test_whatever_happens_a_service_never_goes_back_and_history_holds(moves: list[tuple[str, Any]]) -> None:
    registry, root = MemoryRegistry(), KEYS.root()
    service = TrustedChannel(root, CHANNEL)
    for step, (move, argument) in enumerate(moves):
        now = NOW + step
        try:
            if move == "publish":
                published(registry, argument, now=now)
            elif move == "rollback":
                rollback(registry, KEYS, CHANNEL, to=argument, now=now)
            elif move == "refresh":
                refresh(registry, KEYS, CHANNEL, now=now, lifetime=None)
            elif move == "fault":
                registry.fail_write(len(registry.writes) + argument)
            else:
                registry.put(POINTER, None)
        except (StorageError, InputError, Unavailable):
            continue
        before = service.seen.generation if service.seen else 0
        if registry.read(POINTER) is not None:
            fetch(service, registry, now)  # refuses a generation that goes back, or forks
            assert service.binding.generation >= before
            found = history(registry, root, CHANNEL)
            assert [binding.generation for binding in found] == list(range(len(found), 0, -1))
