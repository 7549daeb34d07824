"""The attacks that The Update Framework lists, each against a real agent whose registry the attacker controls.

https://theupdateframework.io/docs/security/ and §1.5.2 of the specification, and what else its tests try. After each:
nothing of the attacker's was loaded, and what ran keeps serving.
"""

from __future__ import annotations

import time

import pytest

from tests.support.attacked import (
    DAY,
    POINTER,
    AttackedRegistry,
    Backend,
    Scene,
    forged_pointer,
    forged_snapshot,
    generation,
    reason,
    refused,
)
from tests.support.releases import NOW, sidecar
from tests.support.waiting import until
from trtops.errors import NotLoadable, TrustError
from trtops.executor.port import Opening, stamp_of
from trtops.release import layout
from trtops.release.documents import Channel
from trtops.release.keys import KeyRing, Signer
from trtops.release.lineage import MAX_STEPS, latest_root, next_root, with_key, with_rules, without_key
from trtops.release.refresh import refresh_snapshot
from trtops.release.root import ALL_ROLES, Role, root_of


def test_the_honest_way(scene: Scene) -> None:
    scene.release("one")
    with scene.agent() as agent:
        assert generation(agent) == 1
        scene.release("two")
        until(lambda: generation(agent) == 2)
        scene.follow(with_key(scene.root, "channel", Signer.generate().public))
        scene.refresh()
        scene.release("three")
        until(lambda: generation(agent) == 3)
    assert scene.backend.loaded == ["cls one", "cls two", "cls three"]


# Arbitrary software installation


def test_arbitrary_software_installation_by_keys_of_the_attackers_own(scene: Scene) -> None:
    """A whole release, pointer, snapshot and all, signed by keys that nobody trusts."""
    scene.release("one")
    evil = Scene(scene.state.parent / "evil")
    evil.store = scene.store
    evil.release("evil one")
    evil.release("evil two")
    with scene.agent() as agent:
        for name, body in evil.registry.copy().items():
            scene.registry.lie(name, body)
        refused(agent, "0 of the 1 refresh keys", stays=1)
        scene.registry.lies.pop(layout.SNAPSHOT)
        refused(agent, "0 of the 1 channel keys", stays=1)
    assert scene.backend.loaded == ["cls one"]


def test_arbitrary_software_installation_in_the_store(scene: Scene) -> None:
    digest = scene.bundle("one").engine_release.artifacts[0].sidecar.artifact
    scene.release("one")
    scene.artifact(digest).write_text("cls evil")
    with scene.agent() as agent:
        refused(agent, "bytes are not those of", stays=0)
    assert scene.backend.loaded == []


@pytest.mark.parametrize("role", [role for role in ALL_ROLES if role != "channel"])
def test_arbitrary_software_installation_by_a_key_of_another_role(scene: Scene, role: Role) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, forged_pointer(scene, scene.signers[role], generation=2))
        refused(agent, "0 of the 1 channel keys", stays=1)


# Rollback


def test_rollback_attack_on_a_pointer(scene: Scene) -> None:
    scene.release("one")
    scene.release("two")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, scene.registry.past[POINTER][0])
        refused(agent, "the pointer goes back to generation 1; 2 was seen", stays=2)
        scene.registry.lie(layout.SNAPSHOT, scene.registry.past[layout.SNAPSHOT][0])
        refused(agent, f"the snapshot goes back to version {NOW}; {NOW + 1} was seen", stays=2)


def test_rollback_attack_on_a_machine_that_was_restarted(scene: Scene) -> None:
    scene.release("one")
    before = scene.registry.copy()
    scene.release("two")
    with scene.agent() as agent:
        assert generation(agent) == 2
    scene.registry.freeze(before)
    with scene.agent() as agent:
        refused(agent, "the snapshot goes back", stays=2)  # its last-known-good
        assert agent.swaps["cls", "restored"] == 1


def test_rollback_attack_on_the_root(scene: Scene) -> None:
    """A version that was followed is kept: withholding it from then on brings no revoked key back."""
    given = scene.root
    scene.release("one")
    stolen = scene.signers["channel"]
    scene.signers["channel"] = Signer.generate()
    scene.follow(without_key(given, stolen.key_id, instead={"channel": scene.signers["channel"].public}))
    scene.release("two")
    with scene.agent(root=given) as agent:
        assert generation(agent) == 1  # the first of a new chain: nothing of the stolen key's counts
    scene.registry.lie(layout.root(2), None)
    scene.registry.lie(POINTER, forged_pointer(scene, stolen, generation=9))
    with scene.agent(root=given) as agent:
        refused(agent, "which was revoked (root version 2)", stays=1)


@pytest.mark.parametrize("name", ["root", "snapshot"])
def test_rollback_attack_by_damaging_what_a_machine_remembers(scene: Scene, name: str) -> None:
    """It is never taken for absent: an agent that forgets can be led back."""
    given = scene.root
    scene.follow(with_key(given, "channel", Signer.generate().public))
    scene.release("one")
    with scene.agent(root=given) as agent:
        assert generation(agent) == 1
    (scene.state / "dev" / f"{name}.json").write_text("{")
    with scene.agent(root=given) as agent:
        until(lambda: "what was kept here is damaged" in reason(agent))
        assert generation(agent) == (0 if name == "root" else 1)


def test_another_root_by_hand_starts_anew(scene: Scene) -> None:
    """Whoever looks after a machine can hand it another root; what was followed from the old one is void then."""
    given = scene.root
    scene.follow(with_key(given, "channel", Signer.generate().public))
    scene.release("one")
    with scene.agent(root=given) as agent:
        assert generation(agent) == 1
    other = root_of({role: Signer.generate().public for role in ALL_ROLES})
    with scene.agent(root=other) as agent:
        until(lambda: "0 of the 1 root keys" in reason(agent))
        assert generation(agent) == 0


def test_rollback_attack_with_a_root_of_before(scene: Scene) -> None:
    second = with_key(scene.root, "channel", Signer.generate().public)
    third = with_key(second, "channel", Signer.generate().public)
    body = scene.turn(second)
    with pytest.raises(TrustError, match="this is version 2 of the root, expected 4"):
        next_root(third, body)


# Indefinite freeze


def test_indefinite_freeze_attack(scene: Scene) -> None:
    scene.release("one")
    scene.release("two")
    scene.registry.freeze(scene.registry.copy())
    scene.release("three")
    with scene.agent() as agent:
        assert generation(agent) == 2
        assert agent.status()["engines"]["cls"]["status"] == "ready"
        scene.now += DAY
        refused(agent, f"the snapshot of version {NOW + 1} has expired", stays=2)
        assert agent.status()["engines"]["cls"]["status"] == "degraded"
        assert agent.not_ready() is None  # expiry never causes an outage
        scene.refresh()
        scene.registry.honest()
        until(lambda: generation(agent) == 3)


def test_indefinite_freeze_attack_is_no_outage_for_a_machine_that_starts(scene: Scene) -> None:
    scene.release("one")
    with scene.agent():
        pass
    scene.now += 2 * DAY
    with scene.agent() as agent:
        refused(agent, "has expired", stays=1)
        assert agent.swaps["cls", "restored"] == 1


def test_indefinite_freeze_attack_on_the_root_alone(scene: Scene) -> None:
    """Whoever withholds the newest root keeps a revoked key alive; the snapshot says which version is in force."""
    given = scene.root
    scene.release("one")
    with scene.agent(root=given) as agent:
        scene.registry.lie(layout.root(2), None)
        scene.follow(with_key(given, "channel", Signer.generate().public))
        scene.refresh()
        refused(agent, "version 2 of the root of trust is in force, and the registry withholds it", stays=1)
        scene.release("two")
        time.sleep(0.1)
        assert generation(agent) == 1
        scene.registry.honest()
        until(lambda: generation(agent) == 2)


def test_a_pointer_is_kept_fresh_by_a_key_that_can_move_nothing(scene: Scene) -> None:
    """Release and channel keys stay offline; the pointer itself would have expired."""
    scene.release("one", lifetime=60)
    online: dict[Role, Signer] = {"refresh": scene.signers["refresh"]}
    for _ in range(3):
        scene.now += DAY / 2
        refresh_snapshot(scene.registry, KeyRing(online, scene.root), "dev", now=int(scene.now), lifetime=DAY)
    with scene.agent() as agent:
        assert (generation(agent), agent.not_ready()) == (1, None)


@pytest.mark.parametrize("name", [POINTER, layout.SNAPSHOT])
def test_deleting_is_no_stronger_than_cutting_the_network(scene: Scene, name: str) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(name, None)
        until(lambda: agent.status()["engines"]["cls"]["status"] == "degraded")
        assert (generation(agent), agent.not_ready()) == (1, None)
        scene.registry.honest()
        until(lambda: agent.status()["engines"]["cls"]["status"] == "ready")


# Endless data


@pytest.mark.parametrize("which", ["pointer", "snapshot", "root", "engine release"])
def test_endless_data_attack(scene: Scene, which: str) -> None:
    scene.release("one")
    done = scene.release("two", refresh=False)
    names = {
        "pointer": POINTER,
        "snapshot": layout.SNAPSHOT,
        "root": layout.root(2),
        "engine release": layout.engine_release("cls", done.release),
    }
    scene.registry.lie(names[which], b'{"payload":"' + b"A" * 20_000_000)
    with scene.agent() as agent:
        refused(agent, "more than 100000 bytes", stays=0)
        scene.registry.honest()
        until(lambda: generation(agent) == 2)


def test_endless_data_attack_by_an_artifact_that_grows(scene: Scene) -> None:
    """The release says how many bytes there are; no more of them are fetched."""
    artifact = scene.bundle("one").engine_release.artifacts[0].sidecar
    scene.release("one")
    with scene.artifact(artifact.artifact).open("ab") as file:
        file.write(b"x" * 1000)
    with scene.agent() as agent:
        refused(agent, "bytes are not those of", stays=0)
    assert scene.backend.loaded == []


def test_endless_versions_of_the_root_are_followed_in_bounded_steps(scene: Scene) -> None:
    """Only whoever holds root keys can make them at all."""
    root, asked = scene.root, []
    versions = {}
    for _ in range(MAX_STEPS + 5):
        root = with_rules(root, expires=root.version + NOW)
        versions[layout.root(root.version)] = scene.turn(root)

    class Registry:
        def read(self, name: str) -> bytes | None:
            asked.append(name)
            return versions.get(name)

    assert latest_root(scene.root, Registry()).version == MAX_STEPS + 1
    assert len(asked) == MAX_STEPS


# Extraneous dependencies


def test_extraneous_dependencies_attack(scene: Scene) -> None:
    """Nothing is read but what a verified document names: whatever else lies in the registry is not looked at."""
    done = scene.release("one")
    evil = Scene(scene.state.parent / "evil")
    evil.release("more", engine="more")
    for name, body in evil.registry.copy().items():
        if name not in scene.registry.names():
            scene.registry.put(name, body)
    with scene.agent() as agent:
        assert generation(agent) == 1
    artifact = scene.bundle("one").engine_release.artifacts[0]
    assert artifact.provenance is not None
    assert scene.registry.asked == {
        layout.root(2),
        layout.SNAPSHOT,
        POINTER,
        layout.engine_release("cls", done.release),
        layout.config_release("cls", done.config),
        layout.provenance(artifact.provenance),
        layout.evidence(artifact.evidence),
        layout.verdict(artifact.verdict),
        layout.verdict(scene.bundle("one").spec_verdict.digest()),
    }


# Mix and match


def test_mix_and_match_attack_on_channels(scene: Scene) -> None:
    """One channel of today beside another of last month, on a machine that has never seen either."""
    scene.release("one")
    scene.release("one", engine="det")
    old = scene.registry.past[layout.pointer(Channel(engine="det", environment="dev"))][0]
    scene.release("two", engine="det")
    scene.registry.lie(layout.pointer(Channel(engine="det", environment="dev")), old)
    with scene.agent("cls", "det") as agent:
        assert generation(agent) == 1
        refused(agent, "the pointer is of generation 1; the snapshot of all channels says 2", stays=0, engine="det")


def test_mix_and_match_attack_on_the_documents_of_two_releases(scene: Scene) -> None:
    first = scene.release("one")
    second = scene.release("two")
    old = scene.registry.past[layout.engine_release("cls", first.release)][0]
    scene.registry.lie(layout.engine_release("cls", second.release), old)
    with scene.agent() as agent:
        refused(agent, f"expected {second.release.short}", stays=0)


def test_mix_and_match_attack_by_two_pointers_of_one_generation(scene: Scene) -> None:
    scene.release("one")
    channel = scene.signers["channel"]
    scene.registry.lie(POINTER, forged_pointer(scene, channel, reason="another"))
    with scene.agent() as agent:
        refused(agent, "the snapshot names another pointer of generation 1", stays=0)


# Wrong software installation


@pytest.mark.parametrize("change", [{"engine": "det"}, {"environment": "prod"}, {"channel": "canary"}])
def test_wrong_software_installation_by_a_genuine_pointer_of_another_place(
    scene: Scene, change: dict[str, str]
) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, forged_pointer(scene, scene.signers["channel"], generation=2, **change))
        refused(agent, "this pointer is of", stays=1)


def test_wrong_software_installation_by_a_genuine_release_of_another_engine(scene: Scene) -> None:
    scene.release("one")
    other = scene.release("one", engine="det")
    scene.registry.lie(
        layout.engine_release("cls", other.release),
        scene.registry.past[layout.engine_release("det", other.release)][0],
    )
    pointer = forged_pointer(scene, scene.signers["channel"], generation=2, engine_release=other.release)
    with scene.agent() as agent:
        scene.registry.lie(POINTER, pointer)
        refused(agent, "this is a release of det, not of cls", stays=1)
    assert scene.backend.loaded == ["cls one"]


def test_wrong_software_installation_by_the_snapshot_of_another_environment(scene: Scene) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(
            layout.SNAPSHOT, forged_snapshot(scene, scene.signers["refresh"], environment="prod", version=NOW + 7)
        )
        refused(agent, "this snapshot is of prod, not of dev", stays=1)


# Malicious mirrors


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"\xff\xfe", b"[" * 50_000, None], ids=["empty", "{}", "bytes", "deep", "none"]
)
def test_malicious_mirrors_preventing_updates(scene: Scene, body: bytes | None) -> None:
    """A mirror that answers with rubbish keeps a release away, and nothing worse; an honest one is met again."""
    scene.release("one")
    with scene.agent() as agent:
        for name in scene.registry.names():
            scene.registry.lie(name, body)
        scene.release("two")
        until(lambda: agent.status()["engines"]["cls"]["status"] == "degraded")
        assert (generation(agent), agent.not_ready()) == (1, None)
    with scene.agent() as agent:  # also where it starts anew
        until(lambda: generation(agent) == 1)
        scene.registry.honest()
        until(lambda: generation(agent) == 2)


# Slow retrieval


def test_slow_retrieval_attack(scene: Scene) -> None:
    """A registry that takes its time holds up a release, and neither requests nor health nor the end of the process."""
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.open.clear()
        scene.release("two")
        until(lambda: scene.registry.held)
        for _ in range(50):
            assert generation(agent) == 1
            assert agent.not_ready() is None
        assert scene.registry.held, "it has waited all the while"
        scene.registry.open.set()
        until(lambda: generation(agent) == 2)


def test_the_registry_of_these_tests_is_the_attackers() -> None:
    """The simulator lies to the agent and to nobody else."""
    registry = AttackedRegistry()
    registry.create("a", b"one")
    registry.swap("a", b"two", b"one")
    registry.lie("a", None)
    assert (registry.answer("a"), registry.read("a"), registry.past["a"]) == (None, b"two", [b"one", b"two"])
    registry.honest()
    assert registry.answer("a") == b"two"


def test_arbitrary_software_installation_after_it_was_verified(scene: Scene) -> None:
    """A worker that starts again loads the engine from its file, long after: the bytes are looked at once more."""
    digest = scene.store.put_bytes(b"cls one")
    path = scene.store.path(digest)
    made = sidecar().model_copy(update={"artifact": digest, "size_bytes": 7})
    backend = Backend()
    assert Opening(path, made, backend.load)().inputs == made.inputs
    verified = Opening(path, made, backend.load, None, stamp_of(path))
    path.chmod(0o644)
    path.write_text("cls bad")
    for opening in (Opening(path, made, backend.load), verified):
        with pytest.raises(NotLoadable, match="the file was changed"):
            opening()
    path.unlink()
    with pytest.raises(NotLoadable, match="cannot be read"):
        verified()
    assert backend.loaded == ["cls one"]
