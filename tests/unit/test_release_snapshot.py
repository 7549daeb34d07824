"""Starting from a service's own snapshot while the registry is away (design: expiry never causes an outage)."""

from __future__ import annotations

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, has_all
from trtops.errors import TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import Channel
from trtops.release.fetch import Recording, Snapshot, fetch, fetch_proofs, restore
from trtops.release.keys import KeyRing
from trtops.release.publish import publish
from trtops.release.trust import TrustedChannel

KEYS = KeyRing()
POINTER = layout.pointer(CHANNEL)


def _publish(registry: MemoryRegistry, artifact: str, now: int) -> None:
    parts = bundle(KEYS, artifact=artifact, created=now)
    publish(registry, KEYS, CHANNEL, parts, now=now, lifetime=60, has_artifact=has_all)


def _taken(registry: MemoryRegistry) -> Snapshot:
    """A service's first start: fetch, verify, keep."""
    recording = Recording(registry)
    service = fetch(TrustedChannel(KEYS.root(), CHANNEL), recording, NOW)
    fetch_proofs(service, recording, "onnxruntime")
    assert service.seen is not None
    return Snapshot.model_validate_json(recording.snapshot(service.seen).canonical_bytes())


@pytest.fixture
def snapshot() -> Snapshot:
    registry = MemoryRegistry()
    _publish(registry, "engine 1", NOW)
    return _taken(registry)


def test_starts_with_the_registry_away_and_the_pointer_expired(snapshot: Snapshot) -> None:
    service = restore(TrustedChannel(KEYS.root(), CHANNEL, snapshot.seen), snapshot)
    artifact = fetch_proofs(service, snapshot, "onnxruntime").sidecar
    assert service.accept_artifact("onnxruntime", artifact.artifact, artifact.size_bytes)
    assert service.binding.generation == 1


def test_starts_with_what_ran_although_more_was_seen(snapshot: Snapshot) -> None:
    """Generation 2 was seen and could not be loaded; what ran is generation 1."""
    seen = snapshot.seen.model_copy(update={"generation": 2})
    service = restore(TrustedChannel(KEYS.root(), CHANNEL, seen), snapshot)
    assert service.binding.generation == 1
    assert service.seen == seen


def test_a_restored_service_still_refuses_to_go_back(snapshot: Snapshot) -> None:
    registry = MemoryRegistry()
    _publish(registry, "engine 2", NOW + 1)
    seen = snapshot.seen.model_copy(update={"generation": 2})
    service = restore(TrustedChannel(KEYS.root(), CHANNEL, seen), snapshot)
    with pytest.raises(TrustError, match="goes back to generation 1"):
        fetch(service, registry, NOW)


def test_a_snapshot_is_verified_like_anything_else(snapshot: Snapshot) -> None:
    with pytest.raises(TrustError, match="of the snapshot"):
        restore(TrustedChannel(KeyRing().root(), CHANNEL), snapshot)
    other = Channel(engine="cls", environment="prod")
    moved = snapshot.documents | {layout.pointer(other): snapshot.documents[POINTER]}
    with pytest.raises(TrustError, match="this pointer is of"):
        restore(TrustedChannel(KEYS.root(), other), snapshot.model_copy(update={"documents": moved}))


def test_a_damaged_snapshot_loads_nothing(snapshot: Snapshot) -> None:
    empty = snapshot.model_copy(update={"documents": {}})
    with pytest.raises(TrustError, match="not a valid DSSE envelope"):
        restore(TrustedChannel(KEYS.root(), CHANNEL), empty)
    half = snapshot.model_copy(update={"documents": {POINTER: snapshot.documents[POINTER]}})
    with pytest.raises(Unavailable):
        restore(TrustedChannel(KEYS.root(), CHANNEL), half)
