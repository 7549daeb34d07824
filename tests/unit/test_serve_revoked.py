"""A service that runs what a key has signed that is revoked meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyrage
import pytest
from pydantic import SecretStr

from tests.support.attacked import CLS, Scene, generation, reason
from tests.support.releases import NOW, runtime
from tests.support.serving import FakeEngines
from tests.support.waiting import until
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.keys import Signer
from trtops.release.lineage import with_key, without_key
from trtops.release.publish import publish, refresh
from trtops.release.sealing import Identity, publish_secret, seal
from trtops.spec.engine import RolloutPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtops.release.root import Role
    from trtops.serve.agent import Agent

NAME = layout.secret("cls", "db/password")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.release("one")
    return made


def _revoke(scene: Scene, role: Role) -> Signer:
    """A key is stolen; another one takes its place. Gives the thief's."""
    old, new = scene.signers[role], Signer.generate()
    scene.follow(without_key(scene.root, old.key_id, instead={role: new.public}))
    scene.signers[role] = new
    scene.refresh()
    return old


def _level(agent: Agent) -> str:
    return str(agent.status()["engines"]["cls"]["status"])


@pytest.mark.parametrize("role", ["release", "builder", "channel"])
def test_what_runs_serves_on_and_health_says_whose_key_was_revoked(scene: Scene, role: Role) -> None:
    given = scene.root
    with scene.agent(root=given) as agent:
        assert (_level(agent), generation(agent)) == ("ready", 1)
        stolen = _revoke(scene, role)
        until(lambda: _level(agent) == "degraded")
        assert f"signed by key {stolen.key_id[:12]}, which was revoked (root version 2)" in reason(agent)
        assert agent.status()["status"] == "degraded"
        assert agent.not_ready() is None, "an orchestrator would stop what serves"
        assert generation(agent) == 1
        assert list(scene.engines.running) == ["cls"]
        scene.release("one")  # the very same, signed anew
        until(lambda: _level(agent) == "ready")
        until(lambda: generation(agent) == (1 if role == "channel" else 2))  # a thief's count is no count
        loads = 2 if role == "builder" else 1  # another builder's word is another release; else nothing is loaded
        assert len(scene.engines.loads) == loads


def test_what_was_signed_anew_is_what_the_next_start_goes_by(scene: Scene) -> None:
    """The last-known-good of before hangs on the revoked key; it is replaced though nothing was loaded."""
    given = scene.root
    with scene.agent(root=given) as agent:
        _revoke(scene, "release")
        until(lambda: _level(agent) == "degraded")
        scene.release("one")
        until(lambda: _level(agent) == "ready")
    for name in scene.registry.names():
        scene.registry.lie(name, None)  # all of the registry is gone
    with scene.agent(root=given) as agent:
        assert generation(agent) == 2
        assert len(scene.engines.loads) == 2


def test_a_pointer_of_the_next_key_is_what_the_next_start_goes_by(scene: Scene) -> None:
    """The channel key was rotated, the pointer refreshed, the old key revoked: what is on disk is the new pointer."""
    old, new = scene.signers["channel"], Signer.generate()
    given = scene.root
    with scene.agent(root=given) as agent:
        scene.follow(with_key(scene.root, "channel", new.public))
        scene.signers["channel"] = new
        refresh(scene.registry, scene.keys, CLS, now=int(scene.now), lifetime=None)
        scene.refresh()
        until(lambda: generation(agent) == 2)
        scene.follow(without_key(scene.root, old.key_id))
        scene.refresh()
        until(lambda: agent.status()["trust"]["root"] == 3)
        assert _level(agent) == "ready"
    for name in scene.registry.names():
        scene.registry.lie(name, None)
    with scene.agent(root=given) as agent:
        assert generation(agent) == 2


def test_mix_and_match_another_document_under_the_name_takes_no_doubt_away(scene: Scene) -> None:
    """Genuine, signed by a trusted key, and not what runs."""
    given = scene.root
    with scene.agent(root=given) as agent:
        _revoke(scene, "release")
        until(lambda: _level(agent) == "degraded")
        digest = agent.status()["engines"]["cls"]["engine_release"]
        other = scene.release("two", engine="det")
        body = MemoryRegistry.read(scene.registry, layout.engine_release("det", other.release))
        name = layout.engine_release("cls", type(other.release).parse(digest))
        scene.registry.lie(name, body)
        scene.registry.asked.clear()
        scene.registry.lie(layout.pointer(CLS), MemoryRegistry.read(scene.registry, layout.pointer(CLS)))  # look again
        until(lambda: name in scene.registry.asked)
        until(lambda: _level(agent) == "degraded")
        assert "was revoked" in reason(agent)


def test_a_secret_of_a_revoked_key_is_sealed_again_which_no_release_does(scene: Scene) -> None:
    """Who has the key could have chosen the value."""
    identity = Identity(SecretStr(str(pyrage.x25519.Identity.generate())))

    def sealed(count: int) -> None:
        place = {"engine": "cls", "environment": "dev", "path": "db/password"}
        body = seal(SecretStr("a"), **place, recipients=[identity.recipient], created=NOW, generation=count)
        publish_secret(scene.registry, scene.keys, body)

    sealed(1)
    scene.release("one", config=runtime(db={"password": "secret:db/password"}))
    given, remedy = scene.root, "trtops secret seal cls db/password"
    with scene.agent(root=given, identity=identity) as agent:
        _revoke(scene, "release")
        until(lambda: _level(agent) == "degraded")
        assert reason(agent).endswith(f"it serves on: release it again; {remedy}")
        scene.release("one", config=runtime(db={"password": "secret:db/password"}))
        until(lambda: reason(agent).endswith(f"it serves on: {remedy}"))
        assert NAME in reason(agent)
        sealed(2)
        until(lambda: _level(agent) == "ready")


class _Channels(FakeEngines):
    """A supervisor's engines: what is loaded in a channel beside the stable one is kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: dict[tuple[str, str], dict[str, Any]] = {}

    def load(self, name: str, *, channel: str = "stable", **more: Any) -> None:
        if channel == "stable":
            super().load(name, **more)
        else:
            self.beside[name, channel] = more

    def unload(self, name: str, channel: str | None = None) -> None:
        self.beside.pop((name, channel or ""), None)
        if channel is None:
            super().unload(name)

    def share(self, name: str, weights: Mapping[str, int], shadows: Mapping[str, int] | None = None) -> None:
        """Nobody asks."""

    def promote(self, name: str, channel: str) -> None:
        super().load(name, **self.beside.pop((name, channel)))

    def ailing(self) -> dict[tuple[str, str], str]:
        return {}


def _begin(scene: Scene) -> None:
    """The candidate of a rollout, released beside what runs; signed anew if it is there."""
    plan = RolloutPlan.model_validate({"steps": [{"weight": 5}, {"pause": "60s"}]})
    made = replace(scene.bundle("two", config=runtime(of="two")), rollout=plan)
    publish(scene.registry, scene.keys, CLS, made, now=int(scene.now), has_artifact=scene.store.has)
    scene.refresh()


def _candidate(agent: Agent) -> dict[str, Any]:
    return dict(agent.status()["engines"]["cls"].get("candidate", {}))


@pytest.mark.parametrize("role", ["release", "channel"])
def test_a_candidate_serves_on_and_health_says_whose_key_was_revoked(scene: Scene, role: Role) -> None:
    scene.engines = engines = _Channels()
    given = scene.root
    with scene.agent(root=given) as agent:
        _begin(scene)
        until(lambda: _candidate(agent).get("status") == "ready")
        assert {_candidate(agent)[key] for key in ("backend", "device")} == {
            agent.status()["engines"]["cls"][key] for key in ("backend", "device")
        }
        stolen = _revoke(scene, role)
        until(lambda: _candidate(agent).get("status") == "degraded")
        said = _candidate(agent)["reason"]
        assert f"signed by key {stolen.key_id[:12]}, which was revoked (root version 2)" in said
        assert "it serves on: release it again" in said
        assert list(engines.beside) == [("cls", "canary")]
        _begin(scene)
        if role == "channel":  # nothing of the rollout counts any more: it is the channel's first release, at once
            until(lambda: (_candidate(agent), generation(agent), _level(agent)) == ({}, 1, "ready"))
        else:
            until(lambda: _candidate(agent).get("status") == "ready")
            assert _candidate(agent)["reason"] is None


def test_a_step_of_a_rollout_by_the_next_channel_key_leaves_no_doubt_of_its_candidate(scene: Scene) -> None:
    """The candidate was loaded by a pointer that the old key signed; the pointer of today names it, too."""
    scene.engines = _Channels()
    old, new, given = scene.signers["channel"], Signer.generate(), scene.root
    with scene.agent(root=given) as agent:
        _begin(scene)
        until(lambda: _candidate(agent).get("status") == "ready")
        scene.follow(with_key(scene.root, "channel", new.public))
        scene.signers["channel"] = new
        refresh(scene.registry, scene.keys, CLS, now=int(scene.now), lifetime=None)
        scene.refresh()
        until(lambda: generation(agent) == 3)
        scene.follow(without_key(scene.root, old.key_id))
        scene.refresh()
        until(lambda: agent.status()["trust"]["root"] == 3)
        assert (_level(agent), _candidate(agent)["status"]) == ("ready", "ready")
