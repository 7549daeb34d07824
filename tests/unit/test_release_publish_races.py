"""Several publishers at once: one winner a generation, the losers told; and what never happens, whatever does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.published import KEYS, POINTER, generation_read, published
from tests.support.releases import CHANNEL, NOW, digest
from trtops.errors import Conflict, Denied, InputError, StorageError, TrtopsError, Unavailable
from trtops.registry.file import FileRegistry
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import Binding
from trtops.release.envelope import read_unverified
from trtops.release.fetch import fetch, history
from trtops.release.head import head_of
from trtops.release.keys import KeyRing, Signer
from trtops.release.publish import Published, refresh
from trtops.release.refresh import refresh_snapshot
from trtops.release.rollback import rollback
from trtops.release.root import ALL_ROLES, root_of
from trtops.release.trust import Seen, TrustedChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.registry.port import Registry

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


class _Meeting:
    """A registry behind whose swap of the pointer another writer comes first, once."""

    def __init__(self, inner: Registry) -> None:
        self._inner = inner
        self.first: Callable[[Registry], object] | None = None

    def read(self, name: str) -> bytes | None:
        return self._inner.read(name)

    def names(self, prefix: str = "") -> tuple[str, ...]:
        return self._inner.names(prefix)

    def create(self, name: str, body: bytes) -> bool:
        return self._inner.create(name, body)

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        if name == POINTER and self.first is not None:
            first, self.first = self.first, None
            first(self._inner)
        self._inner.swap(name, body, expected)

    def remove(self, name: str, expected: bytes) -> bool:
        return self._inner.remove(name, expected)


@pytest.fixture(params=["memory", "file"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> _Meeting:
    return _Meeting(MemoryRegistry() if request.param == "memory" else FileRegistry(tmp_path, "dev"))


def _lose_pointer(registry: Any) -> None:
    body = registry.read(POINTER)
    assert registry.remove(POINTER, body)


def _met(meeting: Any, keys: KeyRing, *, rejects: str) -> tuple[Binding, Binding]:
    """Two writers make generation 3 at once, one of them bars engine 2. Gives the winner's binding and the loser's."""

    def bar(registry: Any) -> None:
        rollback(registry, keys, CHANNEL, now=NOW + 3, reject="it is slow")

    def release(registry: Any) -> None:
        published(registry, "engine 3", keys=keys, now=NOW + 4)

    published(meeting, "engine 1", keys=keys)
    published(meeting, "engine 2", keys=keys, now=NOW + 1)
    first, second = (bar, release) if rejects == "winner" else (release, bar)
    meeting.first = first
    with pytest.raises(Conflict):
        second(meeting)
    (winner,) = (binding for binding in history(meeting, keys.root(), CHANNEL) if binding.generation == 3)
    every = [
        read_unverified(meeting.read(name) or b"", Binding).value for name in meeting.names(layout.bindings(CHANNEL))
    ]
    (loser,) = (one for one in every if one.generation == 3 and one != winner)
    return winner, loser


@pytest.mark.parametrize("rejects", ["winner", "loser"])
def test_what_lost_a_race_is_passed_over_once_the_pointer_is_lost_where_a_snapshot_tells(
    meeting: Any, rejects: str
) -> None:
    signers = {role: Signer.generate() for role in ALL_ROLES}
    keys = KeyRing(dict(signers), root_of({role: signer.public for role, signer in signers.items()}))
    winner, loser = _met(meeting, keys, rejects=rejects)
    refresh_snapshot(meeting, keys, "dev", now=NOW + 5, lifetime=1)
    _lose_pointer(meeting)
    head = head_of(meeting, keys.root(), CHANNEL)
    assert head.binding == winner != loser
    assert head.settled, "the pointer may be made to hold it again"
    assert published(meeting, "engine 4", keys=keys, now=NOW + 6).generation == 4
    assert winner in history(meeting, keys.root(), CHANNEL)


@pytest.mark.parametrize("rejects", ["winner", "loser"])
def test_where_nobody_knows_which_won_what_was_barred_stays_so(meeting: Any, rejects: str) -> None:
    """Pointer lost, no snapshot: the release that lost to the abort must not bring back what that put in quarantine."""
    winner, loser = _met(meeting, KEYS, rejects=rejects)
    _lose_pointer(meeting)
    head = head_of(meeting, KEYS.root(), CHANNEL)
    assert head.binding == (winner if rejects == "winner" else loser)
    assert not head.settled
    with pytest.raises(Denied, match="quarantine"):
        published(meeting, "engine 2", now=NOW + 6)
    seen = Seen(channel=CHANNEL, generation=3, binding=winner.digest(), signers=(KEYS.signer("channel").key_id,))
    service = TrustedChannel(KEYS.root(), CHANNEL, seen)
    assert published(meeting, "engine 4", now=NOW + 7).generation == 4
    assert fetch(service, meeting, NOW + 8).binding.generation == 4, "who followed the winner goes on"


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


@settings(max_examples=40)
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
