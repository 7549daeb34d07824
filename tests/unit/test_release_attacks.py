"""The attacks that The Update Framework lists, each against a real agent whose registry the attacker controls.

https://theupdateframework.io/docs/security/ and §1.5.2 of the specification, and what else its tests try. After each:
nothing of the attacker's was loaded, and what ran keeps serving.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from tests.support.attacked import CLS, DAY, AttackedRegistry, Backend, Scene, generation, reason, until
from tests.support.releases import NOW, runtime, sidecar
from trtops.errors import InputError, NotLoadable, Revoked, TrustError
from trtops.executor.port import Opening, stamp_of
from trtops.release import layout
from trtops.release.documents import Binding, Channel, ChannelSnapshot
from trtops.release.envelope import read_unverified, sign, verify
from trtops.release.keys import KeyRing, Signer
from trtops.release.lineage import MAX_STEPS, latest_root, next_root, with_key, with_rules, without_key
from trtops.release.publish import publish
from trtops.release.refresh import refresh_snapshot
from trtops.release.root import ALL_ROLES, Role, Tier, root_of
from trtops.release.sealing import Identity, publish_secret, seal
from trtops.release.snapshot import TrustedSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtops.serve.agent import Agent

POINTER = layout.pointer(CLS)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.engines.close(drain=1)


def _refused(agent: Agent, words: str, *, stays: int, engine: str = "cls") -> None:
    """The attack is noticed and told, and what ran still runs."""
    until(lambda: words in reason(agent, engine))
    assert generation(agent, engine) == stays


def _pointer(scene: Scene, signer: Signer, **changes: Any) -> bytes:
    """The newest pointer with changes, signed by whoever."""
    present = read_unverified(scene.registry.past[POINTER][-1], Binding).value
    forged = Binding.model_validate(present.model_dump() | {"actor": signer.key_id} | changes)
    return sign(forged, [signer])


def _snapshot(scene: Scene, signer: Signer, **changes: Any) -> bytes:
    present = read_unverified(scene.registry.past[layout.SNAPSHOT][-1], ChannelSnapshot).value
    return sign(ChannelSnapshot.model_validate(present.model_dump() | changes), [signer])


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
        _refused(agent, "0 of the 1 refresh keys", stays=1)
        scene.registry.lies.pop(layout.SNAPSHOT)
        _refused(agent, "0 of the 1 channel keys", stays=1)
    assert scene.backend.loaded == ["cls one"]


def test_arbitrary_software_installation_in_the_store(scene: Scene) -> None:
    digest = scene.bundle("one").engine_release.artifacts[0].sidecar.artifact
    scene.release("one")
    scene.artifact(digest).write_text("cls evil")
    with scene.agent() as agent:
        _refused(agent, "bytes are not those of", stays=0)
    assert scene.backend.loaded == []


@pytest.mark.parametrize("role", [role for role in ALL_ROLES if role != "channel"])
def test_arbitrary_software_installation_by_a_key_of_another_role(scene: Scene, role: Role) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, _pointer(scene, scene.signers[role], generation=2))
        _refused(agent, "0 of the 1 channel keys", stays=1)


# Rollback


def test_rollback_attack_on_a_pointer(scene: Scene) -> None:
    scene.release("one")
    scene.release("two")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, scene.registry.past[POINTER][0])
        _refused(agent, "the pointer goes back to generation 1; 2 was seen", stays=2)
        scene.registry.lie(layout.SNAPSHOT, scene.registry.past[layout.SNAPSHOT][0])
        _refused(agent, f"the snapshot goes back to version {NOW}; {NOW + 1} was seen", stays=2)


def test_rollback_attack_on_a_machine_that_was_restarted(scene: Scene) -> None:
    scene.release("one")
    before = scene.registry.copy()
    scene.release("two")
    with scene.agent() as agent:
        assert generation(agent) == 2
    scene.registry.freeze(before)
    with scene.agent() as agent:
        _refused(agent, "the snapshot goes back", stays=2)  # its last-known-good
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
    scene.registry.lie(POINTER, _pointer(scene, stolen, generation=9))
    with scene.agent(root=given) as agent:
        _refused(agent, "which was revoked (root version 2)", stays=1)


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
        _refused(agent, f"the snapshot of version {NOW + 1} has expired", stays=2)
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
        _refused(agent, "has expired", stays=1)
        assert agent.swaps["cls", "restored"] == 1


def test_indefinite_freeze_attack_on_the_root_alone(scene: Scene) -> None:
    """Whoever withholds the newest root keeps a revoked key alive; the snapshot says which version is in force."""
    given = scene.root
    scene.release("one")
    with scene.agent(root=given) as agent:
        scene.registry.lie(layout.root(2), None)
        scene.follow(with_key(given, "channel", Signer.generate().public))
        scene.refresh()
        _refused(agent, "version 2 of the root of trust is in force, and the registry withholds it", stays=1)
        scene.release("two")
        time.sleep(0.1)
        assert generation(agent) == 1
        scene.registry.honest()
        until(lambda: generation(agent) == 2)


def test_a_pointer_is_kept_fresh_by_a_key_that_can_move_nothing(scene: Scene) -> None:
    """Release and channel keys stay offline; the pointer itself would have expired."""
    scene.release("one", lifetime=60)
    online = {"refresh": scene.signers["refresh"]}
    for _ in range(3):
        scene.now += DAY / 2
        refresh_snapshot(scene.registry, KeyRing(dict(online), scene.root), "dev", now=int(scene.now), lifetime=DAY)
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
        _refused(agent, "more than 100000 bytes", stays=0)
        scene.registry.honest()
        until(lambda: generation(agent) == 2)


def test_endless_data_attack_by_an_artifact_that_grows(scene: Scene) -> None:
    """The release says how many bytes there are; no more of them are fetched."""
    artifact = scene.bundle("one").engine_release.artifacts[0].sidecar
    scene.release("one")
    with scene.artifact(artifact.artifact).open("ab") as file:
        file.write(b"x" * 1000)
    with scene.agent() as agent:
        _refused(agent, "bytes are not those of", stays=0)
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
        _refused(agent, "the pointer is of generation 1; the snapshot of all channels says 2", stays=0, engine="det")


def test_mix_and_match_attack_on_the_documents_of_two_releases(scene: Scene) -> None:
    first = scene.release("one")
    second = scene.release("two")
    old = scene.registry.past[layout.engine_release("cls", first.release)][0]
    scene.registry.lie(layout.engine_release("cls", second.release), old)
    with scene.agent() as agent:
        _refused(agent, f"expected {second.release.short}", stays=0)


def test_mix_and_match_attack_by_two_pointers_of_one_generation(scene: Scene) -> None:
    scene.release("one")
    channel = scene.signers["channel"]
    scene.registry.lie(POINTER, _pointer(scene, channel, reason="another"))
    with scene.agent() as agent:
        _refused(agent, "the snapshot names another pointer of generation 1", stays=0)


# Wrong software installation


@pytest.mark.parametrize("change", [{"engine": "det"}, {"environment": "prod"}, {"channel": "canary"}])
def test_wrong_software_installation_by_a_genuine_pointer_of_another_place(
    scene: Scene, change: dict[str, str]
) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(POINTER, _pointer(scene, scene.signers["channel"], generation=2, **change))
        _refused(agent, "this pointer is of", stays=1)


def test_wrong_software_installation_by_a_genuine_release_of_another_engine(scene: Scene) -> None:
    scene.release("one")
    other = scene.release("one", engine="det")
    scene.registry.lie(
        layout.engine_release("cls", other.release),
        scene.registry.past[layout.engine_release("det", other.release)][0],
    )
    pointer = _pointer(scene, scene.signers["channel"], generation=2, engine_release=other.release)
    with scene.agent() as agent:
        scene.registry.lie(POINTER, pointer)
        _refused(agent, "this is a release of det, not of cls", stays=1)
    assert scene.backend.loaded == ["cls one"]


def test_wrong_software_installation_by_the_snapshot_of_another_environment(scene: Scene) -> None:
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.lie(
            layout.SNAPSHOT, _snapshot(scene, scene.signers["refresh"], environment="prod", version=NOW + 7)
        )
        _refused(agent, "this snapshot is of prod, not of dev", stays=1)


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


# Vulnerability to key compromises


def _stolen_release(scene: Scene, **keys: Signer) -> None:
    """What an attacker publishes who has stolen some keys, and signs with keys of their own for the rest."""
    mallory: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
    mallory.update(keys)  # type: ignore[arg-type]
    ring = KeyRing(mallory, root_of({role: one.public for role, one in mallory.items()}))
    evil = Scene(scene.state.parent / "evil")
    evil.signers, evil.root, evil.store, evil.now = mallory, ring.root(), scene.store, scene.now
    for name, body in scene.registry.copy().items():
        if name.startswith(("channels/", "bindings/")) and "channel" in keys:
            evil.registry.put(name, body)
    evil.release("evil", refresh=False)
    for name, body in evil.registry.copy().items():
        scene.registry.lie(name, body)


@pytest.mark.parametrize(
    ("stolen", "words"),
    [
        (("builder",), "channel keys"),
        (("release",), "channel keys"),
        (("refresh",), "channel keys"),
        (("channel",), "release keys"),
        (("channel", "refresh"), "release keys"),
        (("channel", "release"), "builder keys"),
        (("channel", "builder", "refresh"), "release keys"),
    ],
)
def test_vulnerability_to_key_compromises_of_some_roles(scene: Scene, stolen: tuple[Role, ...], words: str) -> None:
    """Loading an engine of the attacker's takes builder, release and channel keys: no two of them are enough."""
    scene.release("one")
    with scene.agent() as agent:
        _stolen_release(scene, **{role: scene.signers[role] for role in stolen})
        _refused(agent, words, stays=1)
    assert scene.backend.loaded == ["cls one"]


def test_vulnerability_to_key_compromises_below_the_threshold_of_a_tier(scene: Scene) -> None:
    """A gold release takes two release keys; calling it bronze does not help where the root names the engine."""
    second = Signer.generate()
    for rule in (Tier(threshold=2, engines=("cls",)), Tier(threshold=2)):
        root = with_rules(with_key(scene.root, "release", second.public), tiers={"gold": rule})
        tier = "bronze" if rule.engines else "gold"
        release = scene.bundle("x", labels={"tier": tier}).engine_release
        alone, both = (sign(release, keys) for keys in ([scene.signers["release"]], [scene.signers["release"], second]))
        with pytest.raises(TrustError, match="1 of the 2 release keys that it takes"):
            verify(alone, type(release), root)
        assert len(verify(both, type(release), root).key_ids) == 2


def test_vulnerability_to_key_compromises_after_revocation(scene: Scene) -> None:
    """What a stolen key signed is refused, also what was genuine; a release by the new key is taken."""
    given = scene.root
    scene.release("one")
    with scene.agent(root=given) as agent:
        stolen = scene.signers["channel"]
        scene.signers["channel"] = Signer.generate()
        scene.follow(without_key(given, stolen.key_id, instead={"channel": scene.signers["channel"].public}))
        scene.refresh()
        scene.registry.lie(POINTER, _pointer(scene, stolen, generation=2))
        _refused(agent, "which was revoked (root version 2)", stays=1)
        scene.registry.honest()
        scene.release("two")
        until(lambda: scene.backend.loaded[-1] == "cls two")


@pytest.mark.parametrize("role", ["builder", "release"])
def test_vulnerability_to_key_compromises_of_proofs_after_revocation(scene: Scene, role: Role) -> None:
    """Evidence, verdict and provenance are read again at each load: a machine that starts takes none of a revoked key."""
    given = scene.root
    scene.release("one")
    stolen = scene.signers[role]
    scene.signers[role] = Signer.generate()
    scene.follow(without_key(given, stolen.key_id, instead={role: scene.signers[role].public}))
    scene.refresh()
    with scene.agent(root=given) as agent:
        _refused(agent, "which was revoked", stays=0)
        assert scene.backend.loaded == []
        scene.release("one")  # the same again, vouched for by the new key
        until(lambda: scene.backend.loaded == ["cls one"])


def test_vulnerability_to_key_compromises_of_root_keys_below_their_threshold(scene: Scene) -> None:
    two, three, mallory = (Signer.generate() for _ in range(3))
    root = with_key(with_key(scene.root, "root", two.public), "root", three.public)
    root = with_rules(root, thresholds={"root": 2})
    evil = with_key(root, "builder", mallory.public)
    for signers in ([two], [mallory, two], [mallory]):
        with pytest.raises(TrustError, match="it takes 2"):
            next_root(root, sign(evil, signers))
    assert next_root(root, sign(evil, [two, three])) == evil


def test_a_root_has_to_be_signed_by_both_of_its_versions(scene: Scene) -> None:
    own, next_key = scene.signers["root"], Signer.generate()
    new = without_key(scene.root, own.key_id, instead={"root": next_key.public})
    with pytest.raises(Revoked):
        next_root(scene.root, sign(new, [own]))  # the new key was never shown to exist
    with pytest.raises(TrustError, match="0 of the 1 root keys"):
        next_root(scene.root, sign(new, [next_key]))
    assert next_root(scene.root, sign(new, [own, next_key])) == new


@pytest.mark.parametrize("version", [1, 3, 9])
def test_a_root_that_skips_or_repeats_a_version_is_refused(scene: Scene, version: int) -> None:
    new = with_key(scene.root, "channel", Signer.generate().public).model_copy(update={"version": version})
    with pytest.raises(TrustError, match=f"version {version} of the root, expected 2"):
        next_root(scene.root, scene.turn(new))


def test_a_revoked_key_never_comes_back(scene: Scene) -> None:
    stolen, new = scene.signers["channel"], Signer.generate()
    second = without_key(scene.root, stolen.key_id, instead={"channel": new.public})
    third = second.model_copy(update={"version": 3, "revoked": {}})
    with pytest.raises(TrustError, match="brings the revoked key"):
        next_root(second, scene.turn(third))


def test_an_expired_root_loads_nothing_new_and_stops_nothing(scene: Scene) -> None:
    given = scene.root
    scene.follow(with_rules(given, expires=NOW + 100))
    scene.release("one")
    with scene.agent(root=given) as agent:
        scene.registry.lie(POINTER, scene.registry.past[POINTER][0])
        scene.release("two", refresh=False)
        scene.now += 100
        scene.registry.honest()
        _refused(agent, "the root of trust has expired", stays=1)
        scene.follow(with_rules(scene.root, expires=NOW + 9 * DAY))
        until(lambda: generation(agent) == 2)


# Slow retrieval


def test_slow_retrieval_attack(scene: Scene) -> None:
    """A registry that takes its time holds up a release, and neither requests nor health nor the end of the process."""
    scene.release("one")
    with scene.agent() as agent:
        scene.registry.delay = 0.4
        done = threading.Thread(target=lambda: (scene.release("two"), None)[1])
        done.start()
        slowest = 0.0
        for _ in range(50):
            start = time.monotonic()
            assert agent.status()["engines"]["cls"]["generation"] in {1, 2}
            assert agent.not_ready() is None
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.01)
        assert slowest < 0.2
        done.join()
        until(lambda: generation(agent) == 2)
        scene.registry.delay = 0.0


# Fast-forward


def test_fast_forward_attack_and_recovery_of_a_channel(scene: Scene) -> None:
    """A stolen channel key counts the generation up to the sky. Revoked, it binds nobody, and releases go on."""
    given = scene.root
    scene.release("one")
    stolen = scene.signers["channel"]
    far = _pointer(scene, stolen, generation=2**50, previous=None)
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
        scene.registry.put(layout.SNAPSHOT, _snapshot(scene, stolen, **far))
        _refused(agent, f"snapshot of all channels says {2**50}", stays=1)
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
    before = _snapshot(scene, scene.signers["refresh"], channels=many)
    scene.registry.put(layout.SNAPSHOT, before)
    for number in range(60):
        channel = Channel(engine=f"other-{number}", environment="dev")
        scene.registry.put(layout.pointer(channel), _pointer(scene, scene.signers["channel"], engine=channel.engine))
    with pytest.raises(InputError, match="621 channels and 0 secrets of dev do not fit into one snapshot"):
        scene.refresh()
    assert scene.registry.read(layout.SNAPSHOT) == before


@pytest.mark.parametrize("body", [None, b"{}", b"elsewhere"])
def test_a_snapshot_that_was_deleted_or_forged_is_replaced(scene: Scene, body: bytes | None) -> None:
    """Whoever can write to the registry cannot stop the one who keeps it fresh; services take the next one."""
    scene.release("one")
    scene.refresh()
    if body == b"elsewhere":
        body = _snapshot(scene, scene.signers["refresh"], environment="prod")
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
        trusted.update(_snapshot(scene, scene.signers["refresh"], created=NOW + 1), NOW)


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
        _refused(agent, "the secret goes back to generation 1; 2 was seen", stays=1)
        assert _password(agent) == "fresh"
    assert new != old


def test_replay_attack_on_a_secret_of_a_machine_that_never_saw_it(scene: Scene, identity: Identity) -> None:
    config = runtime(db={"password": "secret:db/password"})
    old = _sealed(scene, identity, "known to mallory", 1)
    _sealed(scene, identity, "fresh", 2)
    scene.release("one", config=config)
    scene.registry.lie(layout.secret("cls", "db/password"), old)
    with scene.agent(identity=identity) as agent:
        _refused(agent, "the secret goes back to generation 1; 2 was seen", stays=0)


def test_replay_attack_on_a_secret_under_a_new_number(scene: Scene, identity: Identity) -> None:
    """With the release key stolen, too: the number is inside the seal, where only the value's author could put it."""
    _sealed(scene, identity, "known to mallory", 1, generation=9)
    scene.release("one", config=runtime(db={"password": "secret:db/password"}))
    with scene.agent(identity=identity) as agent:
        _refused(agent, "the sealed value is of another generation than its document", stays=0)


def test_the_registry_of_these_tests_is_the_attackers() -> None:
    """The simulator lies to the agent and to nobody else."""
    registry = AttackedRegistry()
    registry.create("a", b"one")
    registry.swap("a", b"two", b"one")
    registry.lie("a", None)
    assert (registry.answer("a"), registry.read("a"), registry.past["a"]) == (None, b"two", [b"one", b"two"])
    registry.honest()
    assert registry.answer("a") == b"two"


def test_publishing_again_after_a_revocation_goes_on_from_what_still_counts(scene: Scene) -> None:
    """Two channel keys: the revoked one's generation is left out of the chain, the other's is gone on from."""
    second = Signer.generate()
    scene.follow(with_key(scene.root, "channel", second.public))
    scene.release("one")
    first = scene.signers["channel"]
    scene.signers["channel"] = second
    scene.release("two")
    scene.signers["channel"] = first
    scene.follow(without_key(scene.root, second.key_id))
    done = publish(
        scene.registry, scene.keys, CLS, scene.bundle("three"), now=NOW, lifetime=None, has_artifact=scene.store.has
    )
    assert done.generation == 2


def test_arbitrary_software_installation_after_it_was_verified(scene: Scene) -> None:
    """A worker that starts again loads the engine from its file, long after: the bytes are looked at once more."""
    digest = scene.store.put_bytes(b"cls one")
    path = scene.store.path(digest)
    made = sidecar().model_copy(update={"artifact": digest, "size_bytes": 7})
    backend = Backend()
    assert Opening(path, made, backend.load)().inputs == made.inputs  # type: ignore[arg-type]
    verified = Opening(path, made, backend.load, None, stamp_of(path))  # type: ignore[arg-type]
    path.chmod(0o644)
    path.write_text("cls bad")
    for opening in (Opening(path, made, backend.load), verified):  # type: ignore[arg-type]
        with pytest.raises(NotLoadable, match="the file was changed"):
            opening()
    path.unlink()
    with pytest.raises(NotLoadable, match="cannot be read"):
        verified()
    assert backend.loaded == ["cls one"]
