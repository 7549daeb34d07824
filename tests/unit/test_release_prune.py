"""What nothing leads to, and what somebody still needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, digest, has_all, ring, runtime
from trtops.errors import Conflict, TrustError
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.approval import approve
from trtops.release.fetch import fetch, fetch_proofs, history
from trtops.release.keys import Signer
from trtops.release.prune import referenced, unreferenced
from trtops.release.publish import publish, refresh
from trtops.release.rollback import rollback
from trtops.release.trust import TrustedChannel
from trtops.spec.engine import RolloutPlan


class Scene:
    def __init__(self) -> None:
        self.keys, self.registry = ring(), MemoryRegistry()

    def release(self, artifact: str, *, plan: RolloutPlan | None = None, **changes: Any) -> None:
        made = bundle(self.keys, artifact=artifact, config=runtime(of=artifact), **changes)
        publish(self.registry, self.keys, CHANNEL, replace(made, rollout=plan), now=NOW, has_artifact=has_all)

    def lost(self, artifact: str) -> set[str]:
        """Documents of a publisher that dies before its pointer."""
        before = set(self.registry.names())
        writes = len(self.registry.writes)
        copy = MemoryRegistry()
        for name in before:
            copy.put(name, self.registry.read(name))
        other = Scene.__new__(Scene)
        other.keys, other.registry = self.keys, copy
        other.release(artifact)
        self.registry.fail_write(writes + len(copy.writes))  # the last one moves the pointer
        with pytest.raises(Exception, match="no space"):
            self.release(artifact)
        return set(self.registry.names()) - before

    def unreferenced(self) -> set[str]:
        return set(unreferenced(self.registry, self.keys.root(), "dev")[0])


def test_everything_of_every_generation_is_needed() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.release("engine 2")
    refresh(scene.registry, scene.keys, CHANNEL, now=NOW, lifetime=60)
    rollback(scene.registry, scene.keys, CHANNEL, now=NOW)
    scene.release("engine 3", plan=RolloutPlan.model_validate({"steps": [{"weight": 5}]}))
    approve(scene.registry, Signer.generate(), "cls", digest("to come"), now=NOW)
    assert scene.unreferenced() == set()


def test_what_a_publisher_that_died_left_is_found_and_nothing_else() -> None:
    scene = Scene()
    scene.release("engine 1")
    left = scene.lost("engine 2")
    assert {name.split("/")[0] for name in left} == {"bindings", "configs", "engines", "evidence", "provenance"}
    assert scene.unreferenced() == left
    for name in left:
        body = scene.registry.read(name)
        assert body is not None
        scene.registry.remove(name, body)
    assert scene.unreferenced() == set()
    trusted = fetch(TrustedChannel(scene.keys.root(), CHANNEL), scene.registry, NOW)
    fetch_proofs(trusted, scene.registry, "onnxruntime")
    scene.release("engine 2")  # published again, all of it is there
    assert len(history(scene.registry, scene.keys.root(), CHANNEL)) == 2


def test_of_a_channel_whose_pointer_is_gone_all_is_kept() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.lost("engine 2")
    scene.registry.put(layout.pointer(CHANNEL), None)
    assert scene.unreferenced() == set()  # its publisher may go on from any of them


def test_where_a_history_does_not_hold_nothing_is_told() -> None:
    scene = Scene()
    scene.release("engine 1")
    scene.release("engine 2")
    first = history(scene.registry, scene.keys.root(), CHANNEL)[1]
    scene.registry.put(layout.binding(CHANNEL, first.digest()), None)
    with pytest.raises(TrustError, match="the history"):
        scene.unreferenced()


def test_what_an_engine_release_names_is_read_from_one_that_holds() -> None:
    scene = Scene()
    scene.release("engine 1")
    (binding,) = history(scene.registry, scene.keys.root(), CHANNEL)
    name = layout.engine_release("cls", binding.engine_release)
    scene.registry.put(name, b"damaged")
    with pytest.raises(TrustError):
        referenced(scene.registry, scene.keys.root(), "dev")


def test_to_remove_is_to_name_what_was_seen() -> None:
    scene = Scene()
    scene.release("engine 1")
    (left, *_) = scene.lost("engine 2")
    with pytest.raises(Conflict):
        scene.registry.remove(left, b"another")
