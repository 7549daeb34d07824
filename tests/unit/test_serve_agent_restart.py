"""The agent's last-known-good, what it remembers over restarts, and a disk that fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, ring
from tests.support.waiting import until
from tests.support.worlds import POINTER, World, engine, generation, world_in
from trtops.errors import StorageError
from trtops.registry.memory import MemoryRegistry
from trtops.release.publish import publish
from trtops.serve.snapshot import Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


def test_it_starts_from_the_last_known_good_when_the_registry_is_away(world: World) -> None:
    world.release("one", lifetime=100)
    with world.agent():
        pass
    world.registry.away = True
    world.now += 1_000_000  # long after the pointer's end
    with world.agent() as agent:
        assert (generation(agent), engine(agent)["status"]) == (1, "degraded")
        assert "the registry is away" in engine(agent)["reason"]
        assert agent.not_ready() is None
        assert agent.swaps == {("cls", "restored"): 1}
        world.registry.away = False
        world.release("two")
        until(lambda: generation(agent) == 2)
        assert world.registry.watched == 2


def test_a_last_known_good_that_was_changed_on_disk_is_not_started(world: World) -> None:
    world.release("one")
    with world.agent():
        pass
    path = world.folder / "dev" / "cls.stable.good.json"
    good = json.loads(path.read_text())
    strangers = ring()
    other = MemoryRegistry()
    publish(other, strangers, CHANNEL, bundle(strangers), now=NOW, has_artifact=lambda _: True)
    good["documents"][POINTER] = (other.read(POINTER) or b"").decode()
    path.write_text(json.dumps(good))
    world.registry.away = True
    with world.agent() as agent:
        assert "the last-known-good could not be started" in str(agent.not_ready())
        assert world.engines.loads[1:] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"documents": {"a": 1}}', "\x00" * 100])
def test_a_damaged_last_known_good_is_none(world: World, text: str) -> None:
    path = world.folder / "dev" / "cls.stable.good.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    world.registry.away = True
    with world.agent() as agent:
        assert "the registry is away" in str(agent.not_ready())
        world.registry.away = False
        world.release("one")
        until(lambda: agent.not_ready() is None)


def test_a_damaged_record_of_what_was_seen_stops_new_loads(world: World) -> None:
    path = world.folder / "dev" / "cls.stable.seen.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    world.release("one")
    with world.agent() as agent:
        assert "the record of the highest generation seen is damaged" in str(agent.not_ready())
        assert world.engines.loads == []


def test_the_highest_generation_survives_a_restart(world: World) -> None:
    world.release("one")
    first = world.registry.inner.read(POINTER)
    world.release("two")
    with world.agent() as agent:
        assert generation(agent) == 2
    world.registry.inner.put(POINTER, first)
    with world.agent() as agent:
        assert generation(agent) == 2, "the last-known-good runs"
        assert "goes back to generation 1" in engine(agent)["reason"]


def test_a_disk_that_is_full_does_not_stop_a_swap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.release("one")

    def full(*_: Any) -> None:
        raise StorageError("the disk is full", where="good.json")

    monkeypatch.setattr(Snapshots, "keep_good", full)
    with world.agent() as agent:
        assert (generation(agent), engine(agent)["status"]) == (1, "ready")
