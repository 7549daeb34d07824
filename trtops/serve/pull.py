"""From a verified pointer to an engine that may be loaded: documents, then bytes, each verified before it is used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from trtops.backend.trt_plugins import bring_libraries
from trtops.errors import NotLoadable, StorageError, TrustError, Unavailable
from trtops.executor.port import Opening, Tolerance, stamp_of
from trtops.release import layout, sealing
from trtops.release.fetch import fetch_proofs
from trtops.serve.reconcile import in_order
from trtops.spec.overrides import apply_override, contradiction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic import SecretStr

    from trtops.backend.port import BackendStatus, Session, Sidecar
    from trtops.digest import Digest
    from trtops.evidence import Evidence
    from trtops.release.documents import ConfigRelease, EngineRelease, ReleasedArtifact
    from trtops.release.fetch import Readable
    from trtops.release.sealing import Identity
    from trtops.release.trust import TrustedChannel
    from trtops.serve.trusting import Trust
    from trtops.spec.engine import Batching, Target


log = logging.getLogger(__name__)


class Artifacts(Protocol):
    """Where engines come from. ``trtops.store.Store`` is one."""

    def path(self, digest: Digest, *, size: int | None = None) -> Path:
        """A local path whose bytes are those of the digest; no more than ``size`` bytes are fetched or read for it.

        Raises:
            FetchFailed: the store has no such artifact.
            IntegrityError: the file is damaged or was changed.
            StorageError: the store cannot be read.
        """


class Loads(Protocol):
    """What pulling needs of a backend; every backend is one, and what asks one in another process."""

    def status(self, target: Target) -> BackendStatus:
        """What it can do for a target on this machine."""

    def load(self, artifact: Path, sidecar: Sidecar) -> Session:
        """Load an engine.

        Raises:
            NotLoadable: it cannot be loaded here.
        """


@dataclass(frozen=True, slots=True)
class Pulled:
    """An engine that was verified from its pointer down to its bytes.

    Attributes:
        release, config: what the pointer names.
        artifact: the target that this machine loads.
        batching: the spec's, with the config's changes.
        open_session: loads it; called by the executor, once for each instance, here or in a worker.
        documents: registry name -> bytes of all documents that vouch for it, the pointer included.
        settings: the config as plain data, its secrets opened (``pydantic.SecretStr``); None without an identity. It
            lives in this process's memory only.
    """

    release: EngineRelease
    config: ConfigRelease
    artifact: ReleasedArtifact
    batching: Batching
    open_session: Opening
    documents: dict[str, bytes]
    settings: dict[str, Any] | None = field(default=None, repr=False)

    def described(self) -> dict[str, str]:
        """What a service's status tells of it; no value of the config."""
        sidecar = self.artifact.sidecar
        return {
            "version": self.release.contract.version,
            "target": self.artifact.target,
            "backend": f"{sidecar.backend} {sidecar.backend_version}",
            "device": sidecar.device.label,
            "digest": str(sidecar.artifact),
        }


@dataclass(frozen=True, slots=True)
class Secrets:
    """Who may open the secrets of this environment, and whose seals are trusted.

    Attributes:
        trust: the keys, and the generations that were seen.
        identity: opens them.
        kept: they come from this machine's own disk, where an older one is no replay.
    """

    trust: Trust
    identity: Identity
    kept: bool = False

    def resolve(self, config: ConfigRelease, documents: Readable) -> dict[str, Any]:
        """A config with its secrets opened.

        Raises:
            TrustError: a secret is forged, misplaced, older than one that was opened here, or sealed to others.
            Unavailable: a secret is missing, or the registry is away.
        """
        place = {"engine": config.engine, "environment": config.environment}

        def opened(path: str) -> SecretStr:
            seen = None if self.kept else self.trust.seen_secret(config.engine, path)
            value, now = sealing.fetch_newer(documents, self.trust.root, self.identity, seen, path=path, **place)
            if not self.kept:
                self.trust.keep_secret(config.engine, path, now)
            return value

        return sealing.resolve(config.config, opened)


class _Recorder:
    """Reads documents and remembers them."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self.found: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        body = self._read(name)
        if body is not None:
            self.found[name] = body
        return body


def pull(
    trusted: TrustedChannel,
    pointer: bytes,
    read: Callable[[str], bytes | None],
    store: Artifacts,
    backend_of: Callable[[str], Loads],
    secrets: Secrets | None = None,
) -> Pulled:
    """Verify and fetch what a channel's pointer names.

    Args:
        trusted: the channel, whose pointer was accepted.
        pointer: the pointer's bytes.
        read: reads a document by its name in the registry.
        store: where artifacts are.
        backend_of: makes a backend by its name.
        secrets: opens the config's secrets; None: they stay references.

    Raises:
        TrustError: a document does not hold (the publisher, or whoever can write to the registry).
        IntegrityError: the artifact's bytes are not what was released (the store).
        FetchFailed, StorageError: the store has no such artifact, or is away.
        Unavailable: the registry is away, or a document is missing in it.
        NotLoadable: no target of the release can be loaded on this machine; says why for each.
    """
    documents = _Recorder(read)
    documents.found[layout.pointer(trusted.channel)] = pointer
    arm = trusted.arm
    engine = trusted.channel.engine
    release = trusted.update_engine_release(documents.read(layout.engine_release(engine, arm.engine_release)))
    config = trusted.update_config_release(documents.read(layout.config_release(engine, arm.config_release)))
    artifact, backend = choose(release, backend_of)
    fetch_proofs(trusted, documents, artifact.target)
    shadowing = _tolerance(trusted.update_evidence(artifact.target, documents.read(layout.evidence(artifact.evidence))))
    sidecar = artifact.sidecar
    path = store.path(sidecar.artifact, size=sidecar.size_bytes)
    bring_libraries(sidecar, store)
    stamp = stamp_of(path)
    path = store.path(sidecar.artifact, size=sidecar.size_bytes)  # still the file of that stamp: not hashed again
    trusted.accept_artifact(artifact.target, sidecar.artifact, path.stat().st_size)
    batching = _batching(release, config)
    settings = None if secrets is None else secrets.resolve(config, documents)
    opening = Opening(path, sidecar, backend.load, shadowing, stamp)
    return Pulled(release, config, artifact, batching, opening, documents.found, settings)


def reopened(pulled: Pulled | None, read: Callable[[str], bytes | None], secrets: Secrets | None) -> Pulled | None:
    """What runs, with secrets that were sealed anew since it was pulled; None if none was.

    A new password is no new release: nothing is loaded for it. One that is refused leaves what was opened before.

    Args:
        pulled: what runs; None: nothing.
        read: reads a document by its name in the registry.
        secrets: opens them; None: nobody does.
    """
    if pulled is None or pulled.settings is None or secrets is None:
        return None
    config = pulled.config
    names = [layout.secret(config.engine, path) for path in sealing.references(config.config)]
    there = _Recorder(read)
    try:
        if all(there.read(name) == pulled.documents.get(name) for name in names):
            return None
        settings = secrets.resolve(config, there)
    except (StorageError, TrustError, Unavailable) as error:
        log.warning("engine %s: secrets are as they were: %s", config.engine, error)
        return None
    log.info("engine %s: secrets were sealed anew, and are opened", config.engine)
    return replace(pulled, settings=settings, documents={**pulled.documents, **there.found})


def _batching(release: EngineRelease, config: ConfigRelease) -> Batching:
    override = config.config.batching
    if refused := contradiction(release.batching, override):
        field, why, fix = refused
        raise NotLoadable(why, where=f"engine {release.engine}, runtime config, batching.{field}", fix=fix)
    return apply_override(release.batching, override)


def _tolerance(evidence: Evidence) -> Tolerance | None:
    """How outputs are compared with those of another release: as they were with the reference, by the same spec."""
    found = evidence.accuracy
    return Tolerance(found.atol, found.rtol, found.required) if found is not None else None


def choose(release: EngineRelease, backend_of: Callable[[str], Loads]) -> tuple[ReleasedArtifact, Loads]:
    """The first artifact that this machine can load, GPUs first.

    Raises:
        NotLoadable: there is none; says why for each.
    """
    reasons: list[str] = []
    for artifact in in_order(release.artifacts):
        target = artifact.sidecar.target
        backend = backend_of(target.backend)
        status = backend.status(target)
        if status.can_load:
            return artifact, backend
        reasons.append(f"{artifact.target}: {status.reason or 'cannot be loaded here'}")
    raise NotLoadable(
        f"no target of {release.engine} {release.contract.version} can be loaded on this machine: {'; '.join(reasons)}",
        fix="release it for a target of this machine",
    )
