"""Publishing: once, in order, by one winner, and finished by whoever runs it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.published import KEYS, POINTER, generation_read, published
from tests.support.releases import CHANNEL, NOW, bundle, digest, has_all, runtime
from trtops.errors import FetchFailed, InputError, StorageError, TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import Binding, Channel
from trtops.release.envelope import sign, verify
from trtops.release.fetch import channels, fetch, fetch_proofs, history, status
from trtops.release.keys import KeyRing, Signer
from trtops.release.publish import publish, refresh
from trtops.release.rollback import rollback
from trtops.release.trust import TrustedChannel

if TYPE_CHECKING:
    from trtops.release.root import Role


def test_a_service_gets_what_was_published() -> None:
    registry = MemoryRegistry()
    done = published(registry)
    assert (done.generation, done.new) == (1, True)
    service = fetch(TrustedChannel(KEYS.root(), CHANNEL), registry, NOW)
    assert service.engine_release.digest() == done.release
    assert service.config_release.digest() == done.config
    assert fetch_proofs(service, registry, "onnxruntime").sidecar.artifact == digest("engine 1 0")


def test_a_second_run_writes_nothing() -> None:
    registry = MemoryRegistry()
    first = published(registry)
    writes = list(registry.writes)
    again = published(registry, now=NOW + 1000)
    assert registry.writes == writes
    assert (again.generation, again.release, again.new) == (1, first.release, False)


def test_the_pointer_is_written_last_and_once() -> None:
    registry = MemoryRegistry()
    published(registry)
    operations = [operation for operation, _ in registry.writes]
    assert operations == ["create"] * (len(operations) - 1) + ["swap"]
    assert registry.writes[-1] == ("swap", POINTER)


def test_a_changed_config_is_a_generation_with_the_same_engine_release() -> None:
    registry = MemoryRegistry()
    first = published(registry)
    second = published(registry, config=runtime(flags={"a": 1}), now=NOW + 5)
    assert (second.generation, second.release) == (2, first.release)
    assert second.config != first.config
    assert len(registry.names("engines/")) == 1


def test_a_release_without_its_artifact_is_refused() -> None:
    registry = MemoryRegistry()
    with pytest.raises(FetchFailed, match="trtops build"):
        published(registry, has_artifact=lambda _: False)
    assert registry.names() == ()


def test_what_a_service_would_refuse_is_not_published() -> None:
    """The own key is not in the own root, as after a key was replaced and root.json was not."""
    registry = MemoryRegistry()
    keys = KeyRing({role: KeyRing().signer(role) for role in ("builder", "release", "channel")}, KEYS.root())
    with pytest.raises(TrustError, match=r"root\.json"):
        published(registry, keys=keys)
    assert registry.names() == ()


def test_a_forged_pointer_is_not_built_upon() -> None:
    registry, mallory = MemoryRegistry(), KeyRing()
    published(registry, keys=mallory)
    before = registry.read(POINTER)
    with pytest.raises(TrustError):
        published(registry)
    assert registry.read(POINTER) == before


def test_history_is_verified_down_to_the_first() -> None:
    registry = MemoryRegistry()
    for number in range(4):
        published(registry, f"engine {number}", now=NOW + number)
    found = history(registry, KEYS.root(), CHANNEL)
    assert [binding.generation for binding in found] == [4, 3, 2, 1]
    assert {binding.actor for binding in found} == {KEYS.signer("channel").key_id}


def test_history_of_nothing_is_empty() -> None:
    assert history(MemoryRegistry(), KEYS.root(), CHANNEL) == ()


def test_rewritten_history_is_seen() -> None:
    registry = MemoryRegistry()
    for number in range(3):
        published(registry, f"engine {number}", now=NOW + number)
    first = history(registry, KEYS.root(), CHANNEL)[2]
    name = layout.binding(CHANNEL, first.digest())
    rewritten = Binding.model_validate(first.model_dump() | {"reason": "nothing to see"})
    registry.put(name, sign(rewritten, [KEYS.signer("channel")]))
    with pytest.raises(TrustError, match="not the binding before generation 2"):
        history(registry, KEYS.root(), CHANNEL)
    registry.put(name, None)
    with pytest.raises(TrustError, match="ends before generation 2"):
        history(registry, KEYS.root(), CHANNEL)


def test_history_that_starts_in_the_middle_is_seen() -> None:
    registry = MemoryRegistry()
    published(registry)
    late = history(registry, KEYS.root(), CHANNEL)[0].model_copy(update={"generation": 5})
    registry.put(POINTER, sign(late, [KEYS.signer("channel")]))
    with pytest.raises(TrustError, match="starts at generation 5"):
        history(registry, KEYS.root(), CHANNEL)


def test_rollback_brings_back_the_release_before() -> None:
    registry = MemoryRegistry()
    first = published(registry, "engine 1")
    published(registry, "engine 2", now=NOW + 1)
    back = rollback(registry, KEYS, CHANNEL, now=NOW + 2).binding
    assert (back.generation, back.engine_release, back.reason) == (3, first.release, "rollback to generation 1")
    assert generation_read(registry) == 3


def test_rollback_to_a_generation_reads_no_further_than_that() -> None:
    registry = MemoryRegistry()
    for number in range(3):
        published(registry, f"engine {number}", now=NOW + number)
    third, second, first = history(registry, KEYS.root(), CHANNEL)
    registry.put(layout.binding(CHANNEL, first.digest()), None)
    assert rollback(registry, KEYS, CHANNEL, to=2, now=NOW).binding.bound == second.bound != third.bound


def test_rollback_to_what_is_gone_changes_nothing() -> None:
    registry = MemoryRegistry()
    first = published(registry, "engine 1")
    published(registry, "engine 2", now=NOW + 1)
    before = registry.read(POINTER)
    with pytest.raises(FetchFailed, match="store has no artifact"):
        rollback(registry, KEYS, CHANNEL, now=NOW, has_artifact=lambda _: False)
    registry.put(layout.engine_release("cls", first.release), None)
    with pytest.raises(Unavailable, match="not in the registry"):
        rollback(registry, KEYS, CHANNEL, now=NOW)
    assert registry.read(POINTER) == before


def test_rollback_of_nothing() -> None:
    with pytest.raises(Unavailable, match="nothing is released"):
        rollback(MemoryRegistry(), KEYS, CHANNEL, now=NOW)
    registry = MemoryRegistry()
    published(registry)
    with pytest.raises(InputError, match="never run anything else"):
        rollback(registry, KEYS, CHANNEL, now=NOW)


def test_a_release_after_a_rollback_goes_forward() -> None:
    registry = MemoryRegistry()
    published(registry, "engine 1")
    second = published(registry, "engine 2", now=NOW + 1)
    rollback(registry, KEYS, CHANNEL, now=NOW + 2)
    again = published(registry, "engine 2", now=NOW + 1)
    assert (again.generation, again.release, again.new) == (4, second.release, True)


def test_refresh_prolongs_what_runs() -> None:
    registry = MemoryRegistry()
    done = published(registry, lifetime=60)
    assert status(registry, KEYS.root(), CHANNEL, NOW + 60).state == "expired"
    refreshed = refresh(registry, KEYS, CHANNEL, now=NOW + 60, lifetime=60)
    assert (refreshed.generation, refreshed.engine_release, refreshed.expires) == (2, done.release, NOW + 120)
    assert status(registry, KEYS.root(), CHANNEL, NOW + 61).state == "released"
    with pytest.raises(Unavailable):
        refresh(MemoryRegistry(), KEYS, CHANNEL, now=NOW, lifetime=60)


def test_publishing_what_has_expired_moves_on() -> None:
    registry = MemoryRegistry()
    first = published(registry, lifetime=60)
    again = published(registry, now=NOW + 60, lifetime=60)
    assert (again.generation, again.release, again.new) == (2, first.release, True)


def test_status_tells_what_a_service_would_think() -> None:
    registry, root = MemoryRegistry(), KEYS.root()
    assert status(registry, root, CHANNEL, NOW).state == "absent"
    done = published(registry, lifetime=60)
    found = status(registry, root, CHANNEL, NOW)
    assert (found.state, found.problem) == ("released", None)
    assert found.engine_release is not None
    assert found.engine_release.digest() == done.release
    assert status(registry, KeyRing().root(), CHANNEL, NOW).state == "untrusted"
    expired = status(registry, root, CHANNEL, NOW + 60)
    assert (expired.state, expired.binding and expired.binding.generation) == ("expired", 1)
    registry.put(layout.config_release("cls", done.config), None)
    damaged = status(registry, root, CHANNEL, NOW)
    assert (damaged.state, damaged.engine_release) == ("untrusted", None)
    assert "configs/cls" in str(damaged.problem)


def test_channels_are_found_by_their_pointers() -> None:
    registry = MemoryRegistry()
    published(registry)
    registry.put("channels/det/canary", b"{}")
    registry.put("channels/det/canary/other", b"{}")
    assert [str(one) for one in channels(registry, "dev")] == ["cls/stable in dev", "det/canary in dev"]
    assert channels(registry, "dev", "cls") == (CHANNEL,)


# Faults: at each write, found by counting


def _writes(artifact: str = "engine 1") -> int:
    registry = MemoryRegistry()
    published(registry, artifact)
    return len(registry.writes)


WRITES = _writes()


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("existing", [0, 1])
def test_after_a_fault_at_any_write_a_reader_sees_old_or_new_and_a_rerun_finishes(
    number: int, existing: int, *, applied: bool
) -> None:
    registry = MemoryRegistry()
    if existing:
        published(registry, "engine 0", now=NOW - 10, config=runtime(old=1))
    start = len(registry.writes)
    registry.fail_write(start + number, applied=applied)
    with pytest.raises((StorageError, Unavailable)):
        published(registry)
    landed = applied and number == WRITES
    assert generation_read(registry) == existing + landed
    again = published(registry, now=NOW + 100)
    assert again.generation == existing + 1
    assert again.new is not landed
    assert generation_read(registry) == existing + 1
    assert len(history(registry, KEYS.root(), CHANNEL)) == existing + 1


def test_the_fault_points_are_all_that_there_are() -> None:
    kinds = {"verdicts", "evidence", "provenance", "engines", "configs", "bindings", "channels"}
    registry = MemoryRegistry()
    published(registry)
    assert {name.split("/")[0] for _, name in registry.writes} == kinds


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("applied", [False, True])
def test_a_rollback_that_fails_is_run_again(number: int, *, applied: bool) -> None:
    registry = MemoryRegistry()
    first = published(registry, "engine 1")
    published(registry, "engine 2", now=NOW + 1)
    registry.fail_write(len(registry.writes) + number, applied=applied)
    with pytest.raises((StorageError, Unavailable)):
        rollback(registry, KEYS, CHANNEL, to=1, now=NOW + 2)
    landed = applied and number == 2
    assert generation_read(registry) == 2 + landed
    if landed:
        with pytest.raises(InputError, match="binds what runs already"):
            rollback(registry, KEYS, CHANNEL, to=1, now=NOW + 3)
    else:
        rollback(registry, KEYS, CHANNEL, to=1, now=NOW + 3)
    assert history(registry, KEYS.root(), CHANNEL)[0].engine_release == first.release
    assert generation_read(registry) == 3


def test_a_registry_that_is_away_changes_nothing() -> None:
    registry = MemoryRegistry()
    published(registry)
    registry.away = True
    for call in (lambda: published(registry, "engine 2"), lambda: rollback(registry, KEYS, CHANNEL, now=NOW)):
        with pytest.raises(Unavailable, match="away"):
            call()
    registry.away = False
    assert generation_read(registry) == 1


# A pointer that somebody deleted


def test_after_a_deleted_pointer_generations_go_on() -> None:
    registry = MemoryRegistry()
    published(registry, "engine 1")
    published(registry, "engine 2", now=NOW + 1)
    seen = fetch(TrustedChannel(KEYS.root(), CHANNEL), registry, NOW).seen
    registry.put(POINTER, None)
    again = published(registry, "engine 3", now=NOW + 2)
    assert again.generation == 3
    assert fetch(TrustedChannel(KEYS.root(), CHANNEL, seen), registry, NOW).binding.generation == 3
    assert len(history(registry, KEYS.root(), CHANNEL)) == 3


def test_a_deleted_pointer_is_put_back_by_the_same_release() -> None:
    registry = MemoryRegistry()
    published(registry)
    body = registry.read(POINTER)
    registry.put(POINTER, None)
    assert published(registry, now=NOW + 50).generation == 1
    assert registry.read(POINTER) == body


def test_a_deleted_pointer_is_not_put_back_when_two_could_have_been_it() -> None:
    """One lost a race for this generation: services that saw the other would take it for a fork."""
    registry = MemoryRegistry()
    published(registry)
    only = history(registry, KEYS.root(), CHANNEL)[0]
    loser = only.model_copy(update={"reason": "lost a race"})
    registry.create(layout.binding(CHANNEL, loser.digest()), sign(loser, [KEYS.signer("channel")]))
    registry.put(POINTER, None)
    assert published(registry, now=NOW + 50).generation == 2
    assert generation_read(registry) == 2


def test_a_forged_binding_is_not_taken_for_a_deleted_pointers() -> None:
    registry = MemoryRegistry()
    forged = Binding(
        engine="cls",
        environment="dev",
        generation=99,
        engine_release=digest("a"),
        config_release=digest("b"),
        reason="r",
        actor="k",
        created=NOW,
    )
    registry.put(layout.binding(CHANNEL, forged.digest()), sign(forged, [KeyRing().signer("channel")]))
    with pytest.raises(TrustError):
        published(registry)


# Documents that others signed


def test_documents_that_another_key_signed_count_as_written() -> None:
    """A build runner signed evidence and provenance; this machine has no builder key at all."""
    builder, publisher = KeyRing(), KeyRing()
    signers: dict[Role, Signer] = {role: publisher.signer(role) for role in ("release", "channel")}
    root = builder.root().model_copy(
        update={
            "keys": builder.root().keys | publisher.root().keys,
            "roles": dict(publisher.root().roles) | {"builder": builder.root().roles["builder"]},
        }
    )
    keys = KeyRing(signers, root)
    parts = bundle(builder)
    (one,) = parts.candidates
    signed = {value.digest(): sign(value, [builder.signer("builder")]) for value in (one.evidence, one.provenance)}
    parts = type(parts)(parts.engine_release, parts.config_release, parts.spec_verdict, parts.candidates, signed)
    registry = MemoryRegistry()
    assert publish(registry, keys, CHANNEL, parts, now=NOW, has_artifact=has_all).new
    assert generation_read(registry, keys) == 1


def test_a_document_that_is_there_with_another_trusted_signature_is_kept() -> None:
    registry = MemoryRegistry()
    first, second = KeyRing(), KeyRing()
    named: tuple[Role, ...] = ("builder", "release", "channel")
    roles = {role: {"keys": (first.signer(role).key_id, second.signer(role).key_id)} for role in named}
    root = type(first.root()).model_validate({"keys": first.root().keys | second.root().keys, "roles": roles})
    name = layout.verdict(bundle(first).spec_verdict.digest())
    body = sign(bundle(first).spec_verdict, [second.signer("release")])
    registry.create(name, body)
    published(registry, keys=KeyRing({role: first.signer(role) for role in named}, root))
    assert registry.read(name) == body


def test_a_squatted_name_is_refused_and_named() -> None:
    registry = MemoryRegistry()
    name = layout.evidence(bundle(KEYS).candidates[0].evidence.digest())
    registry.put(name, b"{}")
    with pytest.raises(TrustError, match="evidence/sha256-"):
        published(registry)
    assert registry.read(POINTER) is None


def test_a_pointer_of_another_channel_is_not_moved() -> None:
    registry = MemoryRegistry()
    elsewhere = Channel(engine="cls", environment="prod")
    publish(registry, KEYS, elsewhere, bundle(KEYS, environment="prod"), now=NOW, has_artifact=has_all)
    with pytest.raises(TrustError, match="cls/stable in prod"):
        published(registry)
    pointer = registry.read(POINTER)
    assert pointer is not None
    assert verify(pointer, Binding, KEYS.root()).value.environment == "prod"
