"""Attacks on a service, each by whoever controls the registry, the store or some keys. Names follow TUF's list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.releases import CHANNEL, NOW, accuracy, bundle, candidate, digest, has_all, runtime, verdict
from trtops.errors import IntegrityError, TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import Binding, Channel
from trtops.release.envelope import sign, verify
from trtops.release.fetch import fetch, fetch_proofs
from trtops.release.keys import KeyRing, Signer
from trtops.release.publish import publish
from trtops.release.root import Role, RoleKeys, Root, root_of
from trtops.release.trust import Seen, TrustedChannel

if TYPE_CHECKING:
    from trtops.digest import Value

TARGET = "onnxruntime"
POINTER = layout.pointer(CHANNEL)


class Scene:
    """A registry with two generations in it, and a service that has seen both."""

    def __init__(self) -> None:
        self.keys = KeyRing()
        self.root = self.keys.root()
        self.registry = MemoryRegistry()
        self.old = self.release("engine 1", created=NOW)
        self.new = self.release("engine 2", created=NOW + 10)
        self.service = TrustedChannel(self.root, CHANNEL)
        fetch(self.service, self.registry, NOW)

    def release(self, artifact: str, *, created: int, channel: Channel = CHANNEL, **changes: Any) -> bytes:
        parts = bundle(self.keys, artifact=artifact, created=created, environment=channel.environment, **changes)
        publish(self.registry, self.keys, channel, parts, now=created, has_artifact=has_all)
        return self.body(layout.pointer(channel))

    def body(self, name: str) -> bytes:
        body = self.registry.read(name)
        assert body is not None
        return body

    def binding(self, body: bytes | None = None) -> Binding:
        return verify(body or self.new, Binding, self.root).value

    def signed(self, value: Value, role: Role) -> bytes:
        return sign(value, [self.keys.signer(role)])

    def pointer(self, **changes: Any) -> bytes:
        """A third generation, genuinely signed."""
        base = {"generation": 3, "previous": self.binding().digest()}
        return self.signed(Binding.model_validate(self.binding().model_dump() | base | changes), "channel")

    def restarted(self) -> TrustedChannel:
        return TrustedChannel(self.root, CHANNEL, self.service.seen)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def _serves(service: TrustedChannel, generation: int) -> None:
    assert service.binding.generation == generation
    assert service.engine_release is not None


def test_the_honest_way(scene: Scene) -> None:
    service = fetch(scene.restarted(), scene.registry, NOW)
    artifact = fetch_proofs(service, scene.registry, TARGET)
    made = artifact.sidecar
    assert service.accept_artifact(TARGET, made.artifact, made.size_bytes) == artifact
    assert service.seen == Seen(
        channel=CHANNEL,
        generation=2,
        binding=scene.binding().digest(),
        signers=(scene.keys.signer("channel").key_id,),
    )
    assert "seen=2" in repr(service)


# Rollback and freeze


def test_rollback_attack_with_an_older_pointer(scene: Scene) -> None:
    with pytest.raises(TrustError, match="goes back to generation 1; 2 was seen"):
        scene.service.update_pointer(scene.old, NOW)
    _serves(scene.service, 2)


def test_rollback_attack_after_a_restart(scene: Scene) -> None:
    service = scene.restarted()
    with pytest.raises(TrustError, match="goes back"):
        service.update_pointer(scene.old, NOW)
    assert service.seen == scene.service.seen


def test_rollback_attack_with_the_old_release_under_the_new_pointer(scene: Scene) -> None:
    service = scene.restarted()
    service.update_pointer(scene.new, NOW)
    old = scene.body(layout.engine_release("cls", scene.binding(scene.old).engine_release))
    with pytest.raises(TrustError, match="expected"):
        service.update_engine_release(old)


def test_freeze_attack_is_noticed_by_expiry(scene: Scene) -> None:
    frozen = scene.pointer(expires=NOW + 60)
    assert scene.service.update_pointer(frozen, NOW + 59).generation == 3
    service = scene.restarted()
    with pytest.raises(Unavailable, match="expired"):
        service.update_pointer(frozen, NOW + 60)
    with pytest.raises(RuntimeError, match="update_pointer"):
        _ = service.binding


def test_freeze_attack_leaves_what_runs_and_remembers_the_generation(scene: Scene) -> None:
    with pytest.raises(Unavailable):
        scene.service.update_pointer(scene.pointer(expires=NOW - 1), NOW)
    _serves(scene.service, 2)
    assert scene.service.seen is not None
    assert scene.service.seen.generation == 3
    with pytest.raises(TrustError, match="goes back to generation 2"):
        scene.service.update_pointer(scene.new, NOW)


def test_a_deleted_pointer_means_the_registry_is_away(scene: Scene) -> None:
    with pytest.raises(Unavailable, match="is gone"):
        scene.service.update_pointer(None, NOW)
    _serves(scene.service, 2)
    with pytest.raises(Unavailable, match="nothing was released"):
        TrustedChannel(scene.root, CHANNEL).update_pointer(None, NOW)


def test_a_fork_of_the_generation_that_was_seen(scene: Scene) -> None:
    with pytest.raises(TrustError, match="another pointer of generation 2"):
        scene.service.update_pointer(scene.pointer(generation=2, reason="other"), NOW)
    _serves(scene.service, 2)


def test_the_same_pointer_again_is_fine(scene: Scene) -> None:
    fetch(scene.service, scene.registry, NOW)
    _serves(scene.service, 2)


# Wrong software


@pytest.mark.parametrize("change", [{"engine": "det"}, {"environment": "prod"}, {"channel": "canary"}])
def test_wrong_software_by_a_genuine_pointer_of_another_place(scene: Scene, change: dict[str, str]) -> None:
    with pytest.raises(TrustError, match="this pointer is of"):
        scene.service.update_pointer(scene.pointer(**change), NOW)


def test_wrong_software_by_a_genuine_release_of_another_engine(scene: Scene) -> None:
    current = scene.service.engine_release
    other = current.model_copy(update={"engine": "det"})
    scene.service.update_pointer(scene.pointer(engine_release=other.digest()), NOW)
    with pytest.raises(TrustError, match="a release of det"):
        scene.service.update_engine_release(scene.signed(other, "release"))


def test_wrong_software_by_a_genuine_config_of_another_environment(scene: Scene) -> None:
    other = scene.service.config_release.model_copy(update={"environment": "prod"})
    scene.service.update_pointer(scene.pointer(config_release=other.digest()), NOW)
    with pytest.raises(TrustError, match="config of cls in prod"):
        scene.service.update_config_release(scene.signed(other, "release"))


def test_an_interface_that_clients_do_not_know(scene: Scene) -> None:
    service = TrustedChannel(scene.root, CHANNEL, accepts="1.1.0")
    with pytest.raises(TrustError, match=r"interface 1\.0\.0 of cls does not serve clients of 1\.1\.0"):
        fetch(service, scene.registry, NOW)
    fetch(TrustedChannel(scene.root, CHANNEL, accepts="1.0.0"), scene.registry, NOW)


# Mix and match


def test_mix_and_match_of_genuine_releases(scene: Scene) -> None:
    first, second = scene.binding(scene.old), scene.binding()
    scene.release("engine 2", created=NOW + 20, config=runtime(a=1))
    service = TrustedChannel(scene.root, CHANNEL)
    service.update_pointer(scene.body(POINTER), NOW)
    with pytest.raises(TrustError, match="expected"):
        service.update_engine_release(scene.body(layout.engine_release("cls", first.engine_release)))
    with pytest.raises(TrustError, match="expected"):
        service.update_config_release(scene.body(layout.config_release("cls", second.config_release)))


@pytest.mark.parametrize("kind", ["provenance", "evidence", "verdict"])
def test_mix_and_match_of_genuine_proofs(scene: Scene, kind: str) -> None:
    other = candidate(artifact="engine 1", builder=scene.keys.signer("builder").key_id)
    bodies = {
        "provenance": scene.signed(other.provenance, "builder"),
        "evidence": scene.signed(other.evidence, "builder"),
        "verdict": scene.signed(verdict("evidence", subject="other"), "release"),
    }
    with pytest.raises(TrustError, match="expected"):
        getattr(scene.service, f"update_{kind}")(TARGET, bodies[kind])


def _release_with(scene: Scene, kind: str, value: Value) -> TrustedChannel:
    """A service that is led to a genuine release which names a genuine document that does not fit."""
    release = scene.service.engine_release
    artifact = release.artifacts[0].model_copy(update={kind: value.digest()})
    mixed = release.model_copy(update={"artifacts": (artifact,)})
    scene.service.update_pointer(scene.pointer(engine_release=mixed.digest()), NOW)
    scene.service.update_engine_release(scene.signed(mixed, "release"))
    return scene.service


@pytest.mark.parametrize("change", ["engine", "target", "artifact", "sidecar", "model", "plan"])
def test_provenance_of_another_build(scene: Scene, change: str) -> None:
    builder = scene.keys.signer("builder").key_id
    wrong = "det" if change in {"engine", "target"} else digest("wrong")
    proof = candidate(artifact="engine 2", builder=builder).provenance.model_copy(update={change: wrong})
    service = _release_with(scene, "provenance", proof)
    with pytest.raises(TrustError, match="another build"):
        service.update_provenance(TARGET, scene.signed(proof, "builder"))


@pytest.mark.parametrize("change", ["engine", "artifact", "spec"])
def test_evidence_of_another_build(scene: Scene, change: str) -> None:
    wrong = "det" if change == "engine" else digest("wrong")
    record = candidate(artifact="engine 2").evidence.model_copy(update={change: wrong})
    service = _release_with(scene, "evidence", record)
    with pytest.raises(TrustError, match="another build"):
        service.update_evidence(TARGET, scene.signed(record, "builder"))


@pytest.mark.parametrize("report", [None, accuracy(passed=False)])
def test_evidence_of_an_engine_that_was_not_verified(scene: Scene, report: Any) -> None:
    record = candidate(artifact="engine 2").evidence.model_copy(update={"accuracy": report})
    service = _release_with(scene, "evidence", record)
    with pytest.raises(TrustError, match="was not verified"):
        service.update_evidence(TARGET, scene.signed(record, "builder"))


@pytest.mark.parametrize("said", [verdict("evidence", deny=True), verdict("spec")])
def test_a_verdict_that_lets_nothing_through(scene: Scene, said: Any) -> None:
    service = _release_with(scene, "verdict", said)
    with pytest.raises(TrustError, match="does not let it through"):
        service.update_verdict(TARGET, scene.signed(said, "release"))


# Arbitrary software


def test_arbitrary_software_by_an_unknown_key(scene: Scene) -> None:
    mallory = Signer.generate()
    forged = Binding.model_validate(scene.binding().model_dump() | {"generation": 3, "actor": mallory.key_id})
    with pytest.raises(TrustError, match="0 of the 1 channel keys"):
        scene.service.update_pointer(sign(forged, [mallory]), NOW)
    _serves(scene.service, 2)


def test_arbitrary_software_by_a_key_of_another_role(scene: Scene) -> None:
    for role in ("builder", "release"):
        with pytest.raises(TrustError, match="channel keys"):
            scene.service.update_pointer(sign(scene.binding(), [scene.keys.signer(role)]), NOW)


def test_arbitrary_software_without_provenance(scene: Scene) -> None:
    release = scene.service.engine_release
    artifact = release.artifacts[0].model_copy(update={"provenance": None})
    bare = release.model_copy(update={"artifacts": (artifact,)})
    scene.service.update_pointer(scene.pointer(engine_release=bare.digest()), NOW)
    scene.service.update_engine_release(scene.signed(bare, "release"))
    with pytest.raises(TrustError, match="no provenance"):
        scene.service.update_provenance(TARGET, None)


def test_arbitrary_software_by_a_builder_in_anothers_name(scene: Scene) -> None:
    proof = candidate(artifact="engine 2", builder="ab" * 32).provenance
    service = _release_with(scene, "provenance", proof)
    with pytest.raises(TrustError, match="did not sign"):
        service.update_provenance(TARGET, scene.signed(proof, "builder"))


def test_arbitrary_software_in_the_store(scene: Scene) -> None:
    artifact = fetch_proofs(scene.service, scene.registry, TARGET)
    with pytest.raises(IntegrityError, match="the artifact of onnxruntime is"):
        scene.service.accept_artifact(TARGET, digest("other"), artifact.sidecar.size_bytes)
    with pytest.raises(IntegrityError):
        scene.service.accept_artifact(TARGET, artifact.sidecar.artifact, artifact.sidecar.size_bytes + 1)


@pytest.mark.parametrize("said", [verdict("spec", deny=True), verdict("evidence")])
def test_a_verdict_on_the_spec_that_lets_nothing_through(scene: Scene, said: Any) -> None:
    release = scene.service.engine_release.model_copy(update={"spec_verdict": said.digest()})
    scene.service.update_pointer(scene.pointer(engine_release=release.digest()), NOW)
    scene.service.update_engine_release(scene.signed(release, "release"))
    with pytest.raises(TrustError, match="does not let the spec through"):
        scene.service.update_spec_verdict(scene.signed(said, "release"))
    with pytest.raises(Unavailable):
        scene.service.update_spec_verdict(None)


def test_a_last_known_good_of_before_starts_without_the_verdict_on_the_spec(scene: Scene) -> None:
    """A version that did not keep it must not cost an outage on its successor; the registry is asked for it always."""
    kept = TrustedChannel(scene.root, CHANNEL)
    kept.update_pointer(scene.new, 0)
    kept.update_engine_release(scene.body(layout.engine_release("cls", scene.binding().engine_release)))
    assert kept.update_spec_verdict(None) is None
    with pytest.raises(Unavailable):
        fetch(scene.restarted(), scene.registry, NOW).update_spec_verdict(None)


@pytest.mark.parametrize("left_out", ["provenance", "evidence", "verdict", "verdict on the spec"])
def test_no_artifact_before_all_of_its_proofs(scene: Scene, left_out: str) -> None:
    artifact = scene.service.engine_release.artifacts[0]
    assert artifact.provenance is not None
    names = {
        "provenance": layout.provenance(artifact.provenance),
        "evidence": layout.evidence(artifact.evidence),
        "verdict": layout.verdict(artifact.verdict),
    }
    for kind, name in names.items():
        if kind != left_out:
            getattr(scene.service, f"update_{kind}")(TARGET, scene.body(name))
    if left_out != "verdict on the spec":
        scene.service.update_spec_verdict(scene.body(layout.verdict(scene.service.engine_release.spec_verdict)))
    with pytest.raises(RuntimeError, match=left_out):
        scene.service.accept_artifact(TARGET, artifact.sidecar.artifact, artifact.sidecar.size_bytes)


def test_proofs_of_the_release_before_do_not_count(scene: Scene) -> None:
    artifact = fetch_proofs(scene.service, scene.registry, TARGET)
    fetch(scene.service, scene.registry, NOW)
    with pytest.raises(RuntimeError):
        scene.service.accept_artifact(TARGET, artifact.sidecar.artifact, artifact.sidecar.size_bytes)


# Endless data, missing documents


def test_endless_data(scene: Scene) -> None:
    with pytest.raises(TrustError, match="more than 100000 bytes"):
        scene.service.update_pointer(b"{" * 10_000_000, NOW)
    _serves(scene.service, 2)


def test_a_deleted_document_is_no_release(scene: Scene) -> None:
    service = scene.restarted()
    scene.registry.put(layout.engine_release("cls", scene.binding().engine_release), None)
    with pytest.raises(Unavailable, match="not in the registry"):
        fetch(service, scene.registry, NOW)


# Key compromise


def _two_of_three(keys: KeyRing, role: Role) -> tuple[Root, list[Signer]]:
    signers = [Signer.generate() for _ in range(3)]
    base = keys.root()
    roles = dict(base.roles) | {role: RoleKeys(keys=tuple(one.key_id for one in signers), threshold=2)}
    root = Root(keys=dict(base.keys) | {one.key_id: one.public for one in signers}, roles=roles)
    return root, signers


def test_key_compromise_below_the_threshold(scene: Scene) -> None:
    root, signers = _two_of_three(scene.keys, "channel")
    binding = Binding.model_validate(scene.binding().model_dump() | {"actor": signers[0].key_id})
    service = TrustedChannel(root, CHANNEL)
    with pytest.raises(TrustError, match="1 of the 3 channel keys"):
        service.update_pointer(sign(binding, signers[:1]), NOW)
    assert service.update_pointer(sign(binding, signers[:2]), NOW) == binding


def test_key_compromise_of_the_release_key_alone_loads_nothing(scene: Scene) -> None:
    """With release and channel keys but no builder key, an attacker gets no engine of their own loaded."""
    evil = bundle(scene.keys, artifact="evil", created=NOW)
    builder = Signer.generate()
    proof = evil.candidates[0].provenance.model_copy(update={"builder": builder.key_id})
    artifact = evil.engine_release.artifacts[0].model_copy(update={"provenance": proof.digest()})
    release = evil.engine_release.model_copy(update={"artifacts": (artifact,)})
    scene.service.update_pointer(scene.pointer(engine_release=release.digest()), NOW)
    scene.service.update_engine_release(scene.signed(release, "release"))
    with pytest.raises(TrustError, match="builder keys"):
        scene.service.update_provenance(TARGET, sign(proof, [builder]))


def test_moving_a_channel_in_anothers_name(scene: Scene) -> None:
    with pytest.raises(TrustError, match="did not sign"):
        scene.service.update_pointer(scene.pointer(actor="ab" * 32), NOW)


def test_an_expired_root_loads_nothing_new(scene: Scene) -> None:
    root = scene.root.model_copy(update={"expires": NOW})
    with pytest.raises(Unavailable, match="root of trust has expired"):
        TrustedChannel(root, CHANNEL).update_pointer(scene.new, NOW)
    assert TrustedChannel(root, CHANNEL).update_pointer(scene.new, NOW - 1).generation == 2


# Misuse


def test_out_of_order_is_a_programming_error(scene: Scene) -> None:
    service = TrustedChannel(scene.root, CHANNEL)
    with pytest.raises(RuntimeError, match="update_pointer"):
        service.update_engine_release(b"")
    service.update_pointer(scene.new, NOW)
    with pytest.raises(RuntimeError, match="update_engine_release"):
        service.update_provenance(TARGET, b"")
    fetch(service, scene.registry, NOW)
    with pytest.raises(KeyError):
        service.update_verdict("tensorrt", b"")
    with pytest.raises(KeyError):
        fetch_proofs(service, scene.registry, "tensorrt")


def test_what_was_seen_elsewhere_does_not_count_here(scene: Scene) -> None:
    elsewhere = Channel(engine="cls", environment="prod")
    with pytest.raises(ValueError, match="cls/stable in dev"):
        TrustedChannel(root_of({}), elsewhere, scene.service.seen)


def test_seen_survives_the_disk(scene: Scene) -> None:
    assert scene.service.seen is not None
    assert Seen.model_validate_json(scene.service.seen.canonical_bytes()) == scene.service.seen
