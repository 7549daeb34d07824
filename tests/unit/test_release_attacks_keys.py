"""Attacks by keys that were stolen, and what a root of trust does about them; against a real agent, as in the file beside it."""

from __future__ import annotations

import pytest

from tests.support.attacked import (
    CLS,
    DAY,
    POINTER,
    Scene,
    forged_pointer,
    generation,
    refused,
)
from tests.support.releases import NOW
from tests.support.waiting import until
from trtops.errors import Revoked, TrustError
from trtops.release.envelope import sign, verify
from trtops.release.keys import KeyRing, Signer
from trtops.release.lineage import next_root, with_key, with_rules, without_key
from trtops.release.publish import publish
from trtops.release.root import ALL_ROLES, Role, Tier, root_of

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
        refused(agent, words, stays=1)
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
        scene.registry.lie(POINTER, forged_pointer(scene, stolen, generation=2))
        refused(agent, "which was revoked (root version 2)", stays=1)
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
        refused(agent, "which was revoked", stays=0)
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
        refused(agent, "the root of trust has expired", stays=1)
        scene.follow(with_rules(scene.root, expires=NOW + 9 * DAY))
        until(lambda: generation(agent) == 2)


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
