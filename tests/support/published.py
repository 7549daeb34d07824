"""Publishing releases of tests on a registry in memory, and reading them as a service does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.releases import CHANNEL, NOW, bundle, has_all
from trtops.release import layout
from trtops.release.fetch import fetch, fetch_proofs
from trtops.release.keys import KeyRing
from trtops.release.publish import Published, publish
from trtops.release.trust import TrustedChannel

if TYPE_CHECKING:
    from trtops.registry.memory import MemoryRegistry

POINTER = layout.pointer(CHANNEL)
KEYS = KeyRing()


def published(
    registry: MemoryRegistry, artifact: str = "engine 1", *, keys: KeyRing = KEYS, **changes: Any
) -> Published:
    now = changes.pop("now", NOW)
    options: dict[str, Any] = {"has_artifact": has_all}
    options |= {name: changes.pop(name) for name in ("lifetime", "has_artifact") if name in changes}
    parts = bundle(keys, artifact=artifact, created=now, **changes)
    return publish(registry, keys, CHANNEL, parts, now=now, **options)


def generation_read(registry: MemoryRegistry, keys: KeyRing = KEYS) -> int:
    """What a service reads: a whole generation, or nothing at all."""
    if registry.read(POINTER) is None:
        return 0
    service = fetch(TrustedChannel(keys.root(), CHANNEL), registry, NOW)
    fetch_proofs(service, registry, "onnxruntime")
    return service.binding.generation
