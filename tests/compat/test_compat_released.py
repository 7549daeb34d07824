"""What any released version of trtops has signed verifies for ever.

Each folder under ``released`` is a registry as that version wrote it, with the ``root.json`` that its services were given
and an age identity that exists for this test alone. A new version adds a folder; none is ever changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from trtops.digest import canonical
from trtops.registry.memory import MemoryRegistry
from trtops.release.approval import approvals
from trtops.release.documents import Channel
from trtops.release.fetch import channels, fetch, fetch_proofs, history
from trtops.release.keys import load_root
from trtops.release.sealing import Identity, fetch_secret
from trtops.release.trust import TrustedChannel

RELEASED = Path(__file__).parent / "released"
VERSIONS = sorted(folder.name for folder in RELEASED.iterdir())
CHANNEL = Channel(engine="cls", environment="dev")
THEN = 1_800_000_010


def _registry(version: str) -> MemoryRegistry:
    registry = MemoryRegistry()
    for name, envelope in json.loads((RELEASED / version / "registry.json").read_text()).items():
        registry.put(name, canonical(envelope))
    return registry


@pytest.mark.parametrize("version", VERSIONS)
def test_a_service_takes_what_was_released(version: str) -> None:
    root, registry = load_root(RELEASED / version / "root.json"), _registry(version)
    assert channels(registry, "dev") == (CHANNEL,)
    service = fetch(TrustedChannel(root, CHANNEL), registry, THEN)
    for artifact in service.engine_release.artifacts:
        fetch_proofs(service, registry, artifact.target)
        service.accept_artifact(artifact.target, artifact.sidecar.artifact, artifact.sidecar.size_bytes)
    assert service.config_release.config.sections == {"limits": {"top": 1}}


@pytest.mark.parametrize("version", VERSIONS)
def test_its_history_holds_down_to_the_first(version: str) -> None:
    moves = history(_registry(version), load_root(RELEASED / version / "root.json"), CHANNEL)
    assert [move.generation for move in moves] == [4, 3, 2, 1]
    assert [move.reason for move in moves] == ["refresh", "rollback to generation 1", "release", "release"]


@pytest.mark.parametrize("version", VERSIONS)
def test_its_secrets_open_and_its_approvals_count(version: str) -> None:
    root, registry = load_root(RELEASED / version / "root.json"), _registry(version)
    identity = Identity(SecretStr((RELEASED / version / "identity.txt").read_text().strip()))
    place = {"engine": "cls", "environment": "dev", "path": "db/password"}
    assert fetch_secret(registry, root, identity, **place).get_secret_value() == "a value of long ago"
    service = fetch(TrustedChannel(root, CHANNEL), registry, THEN)
    (approval,) = approvals([registry], "cls", service.binding.engine_release)
    assert approval["valid"]
