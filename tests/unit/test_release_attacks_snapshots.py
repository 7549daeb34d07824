"""Attacks on counts: fast-forward of channels and snapshots, replay of secrets; against a real agent, as in the file beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from tests.support.attacked import (
    CLS,
    DAY,
    POINTER,
    Scene,
    forged_pointer,
    forged_snapshot,
    generation,
    refused,
)
from tests.support.releases import NOW, runtime
from tests.support.waiting import until
from trtops.errors import InputError, TrustError
from trtops.release import layout
from trtops.release.documents import Binding, Channel
from trtops.release.envelope import verify
from trtops.release.keys import Signer
from trtops.release.lineage import without_key
from trtops.release.refresh import refresh_snapshot
from trtops.release.sealing import Identity, publish_secret, seal
from trtops.release.snapshot import TrustedSnapshot

if TYPE_CHECKING:
    from trtops.serve.agent import Agent


# Fast-forward


def test_fast_forward_attack_and_recovery_of_a_channel(scene: Scene) -> None:
    """A stolen channel key counts the generation up to the sky. Revoked, it binds nobody, and releases go on."""
    given = scene.root
    scene.release("one")
    stolen = scene.signers["channel"]
    far = forged_pointer(scene, stolen, generation=2**50, previous=None)
    with scene.agent(root=given) as agent:
        scene.registry.put(POINTER, far)
        binding = verify(far, Binding, given)
        scene.registry.put(layout.binding(CLS, binding.digest), far)
        until(lambda: generation(agent) == 2**50)
        scene.refresh()  # the online key cannot know better
        scene.signers["channel"] = Signer.generate()
        scene.follow(without_key(given, stolen.key_id, instead={"channel": scene.signers["channel"].public}))
        scene.release("two")
        until(lambda: scene.backend.loaded[-1] == "cls two")
        assert generation(agent) == 1


def test_fast_forward_attack_and_recovery_of_the_snapshot(scene: Scene) -> None:
    given = scene.root
    scene.release("one")
    stolen = scene.signers["refresh"]
    with scene.agent(root=given) as agent:
        far = {"version": 2**50, "channels": {"cls/stable": {"generation": 2**50, "binding": "sha256:" + "0" * 64}}}
        scene.registry.put(layout.SNAPSHOT, forged_snapshot(scene, stolen, **far))
        refused(agent, f"snapshot of all channels says {2**50}", stays=1)
        scene.signers["refresh"] = Signer.generate()
        scene.follow(without_key(given, stolen.key_id, instead={"refresh": scene.signers["refresh"].public}))
        scene.release("two")
        until(lambda: generation(agent) == 2)


def test_a_floor_does_not_fall_by_itself(scene: Scene) -> None:
    """The online key lists what it sees; a pointer that went back keeps the place that it had."""
    scene.release("one")
    scene.release("two")
    scene.registry.put(POINTER, scene.registry.past[POINTER][0])
    taken, wrong = refresh_snapshot(scene.registry, scene.keys, "dev", now=NOW, lifetime=DAY)
    assert taken.channels["cls/stable"].generation == 2
    assert [str(error) for error in wrong if "went back to generation 1" in str(error)]


def test_more_channels_than_fit_into_a_snapshot_are_told(scene: Scene) -> None:
    """What does not fit changes nothing: the snapshot of before stays."""
    scene.release("one")
    many = {f"engine-{number}/stable": {"generation": 9, "binding": "sha256:" + "a" * 64} for number in range(560)}
    before = forged_snapshot(scene, scene.signers["refresh"], channels=many)
    scene.registry.put(layout.SNAPSHOT, before)
    for number in range(60):
        channel = Channel(engine=f"other-{number}", environment="dev")
        scene.registry.put(
            layout.pointer(channel), forged_pointer(scene, scene.signers["channel"], engine=channel.engine)
        )
    with pytest.raises(InputError, match="621 channels and 0 secrets of dev do not fit into one snapshot"):
        scene.refresh()
    assert scene.registry.read(layout.SNAPSHOT) == before


@pytest.mark.parametrize("body", [None, b"{}", b"elsewhere"])
def test_a_snapshot_that_was_deleted_or_forged_is_replaced(scene: Scene, body: bytes | None) -> None:
    """Whoever can write to the registry cannot stop the one who keeps it fresh; services take the next one."""
    scene.release("one")
    scene.refresh()
    if body == b"elsewhere":
        body = forged_snapshot(scene, scene.signers["refresh"], environment="prod")
    with scene.agent() as agent:
        scene.registry.put(layout.SNAPSHOT, body)
        until(lambda: agent.status()["engines"]["cls"]["status"] == "degraded")
        scene.now += 60
        taken, wrong = refresh_snapshot(scene.registry, scene.keys, "dev", now=int(scene.now), lifetime=DAY)
        assert (len(wrong), taken.version) == (0 if body is None else 1, NOW + 60)
        until(lambda: agent.status()["engines"]["cls"]["status"] == "ready")


def test_two_snapshots_of_one_version(scene: Scene) -> None:
    scene.release("one")
    trusted = TrustedSnapshot(scene.root, "dev")
    trusted.update(scene.registry.past[layout.SNAPSHOT][-1], NOW)
    with pytest.raises(TrustError, match=f"another snapshot of version {NOW}"):
        trusted.update(forged_snapshot(scene, scene.signers["refresh"], created=NOW + 1), NOW)


# Replay of secrets


def _sealed(scene: Scene, identity: Identity, value: str, count: int, **changes: Any) -> bytes:
    place = {"engine": "cls", "environment": "dev", "path": "db/password"}
    made = seal(SecretStr(value), **place, recipients=[identity.recipient], created=NOW, generation=count).model_copy(
        update=changes
    )
    publish_secret(scene.registry, scene.keys, made)
    return scene.registry.past[layout.secret("cls", "db/password")][-1]


def _password(agent: Agent) -> str:
    settings = agent.settings("cls")
    assert settings is not None
    value: SecretStr = settings["sections"]["db"]["password"]
    return value.get_secret_value()


@pytest.fixture
def identity() -> Identity:
    import pyrage

    return Identity(SecretStr(str(pyrage.x25519.Identity.generate())))


def test_replay_attack_on_a_secret(scene: Scene, identity: Identity) -> None:
    """A password that was changed since somebody knows it; the machine has opened the new one before."""
    config = runtime(db={"password": "secret:db/password"})
    old = _sealed(scene, identity, "known to mallory", 1)
    scene.release("one", config=config)
    new = _sealed(scene, identity, "fresh", 2)
    with scene.agent(identity=identity) as agent:
        assert _password(agent) == "fresh"
        scene.registry.lie(layout.secret("cls", "db/password"), old)
        scene.release("two", config=config)
        refused(agent, "the secret goes back to generation 1; 2 was seen", stays=1)
        assert _password(agent) == "fresh"
    assert new != old


def test_replay_attack_on_a_secret_of_a_machine_that_never_saw_it(scene: Scene, identity: Identity) -> None:
    config = runtime(db={"password": "secret:db/password"})
    old = _sealed(scene, identity, "known to mallory", 1)
    _sealed(scene, identity, "fresh", 2)
    scene.release("one", config=config)
    scene.registry.lie(layout.secret("cls", "db/password"), old)
    with scene.agent(identity=identity) as agent:
        refused(agent, "the secret goes back to generation 1; 2 was seen", stays=0)


def test_replay_attack_on_a_secret_under_a_new_number(scene: Scene, identity: Identity) -> None:
    """With the release key stolen, too: the number is inside the seal, where only the value's author could put it."""
    _sealed(scene, identity, "known to mallory", 1, generation=9)
    scene.release("one", config=runtime(db={"password": "secret:db/password"}))
    with scene.agent(identity=identity) as agent:
        refused(agent, "the sealed value is of another generation than its document", stays=0)
