"""``trtops verify-release``: everything that vouches for a release, checked as a service would, and its bytes.

Needs the documents of the registry, the artifacts of the store and ``root.json``, nothing else of who released: with a
copied file registry and store it works with no network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtops.errors import FetchFailed, TrtopsError, TrustError, Unavailable
from trtops.release import layout
from trtops.release.documents import STABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtops.digest import Digest
    from trtops.registry.port import Registry
    from trtops.release.documents import Channel, EngineRelease
    from trtops.release.root import Root
    from trtops.release.trust import TrustedChannel
    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Proof:
    """One thing that was checked.

    Attributes:
        subject: what.
        holds: whether it does; None: it is not here to be checked.
        words: what was found.
    """

    subject: str
    holds: bool | None
    words: str


def verify_release(workspace: Workspace, engine: str, root_file: Path | None) -> tuple[Proof, ...]:
    """Check what the stable channel of an engine names, the candidate of a rollout too, down to the artifacts' bytes.

    Before that, as a service would: the root of trust is followed from the given one, and the channel held to the
    snapshot of all, where the root asks for one.

    Args:
        workspace: its environment, registry and store.
        engine: name.
        root_file: the trusted keys; None: this home's ``root.json``.

    Returns:
        every check, in order; the first that fails ends the chain that hangs on it, and no other.

    Raises:
        InputError: there is no root document, or nothing is released.
        Unavailable: the registry is away.
    """
    from trtops.release.fetch import history
    from trtops.release.keys import load_root
    from trtops.workflow.release import channel_of, nothing_released

    given = load_root(root_file or workspace.resolved.home / "root.json")
    registry = workspace.registry()
    channel = channel_of(workspace, engine)
    pointer = registry.read(layout.pointer(channel))
    if pointer is None:
        raise nothing_released(workspace, registry, engine)
    proofs, trusted, root = _trusted(workspace, registry, given, channel)
    checked = _tried("pointer", lambda: _pointer(trusted, pointer, workspace.now()))
    proofs.append(checked)
    proofs.append(
        _tried("history", lambda: f"{len(history(registry, root, channel))} generations, each names the last")
    )
    if checked.holds:
        for arm in trusted.binding.arms:
            words = "" if arm.channel == STABLE else f"{arm.channel}: "
            found = _releases(workspace, registry, trusted.beside(arm))
            proofs += [replace(one, subject=words + one.subject) for one in found]
            if arm.channel == STABLE:
                proofs += _secrets(registry, root, channel, arm.config_release)
    return tuple(proofs)


def _trusted(
    workspace: Workspace, registry: Registry, given: Root, channel: Channel
) -> tuple[list[Proof], TrustedChannel, Root]:
    """The root that is followed from the given one, and the channel held to the snapshot of all."""
    from trtops.release.lineage import latest_root
    from trtops.release.snapshot import fetch_snapshot
    from trtops.release.trust import TrustedChannel

    root, snapshot = given, None
    proofs: list[Proof] = []

    def followed() -> str:
        nonlocal root
        root = latest_root(given, registry)
        since = f", followed from version {given.version}" if root.version != given.version else ""
        return f"version {root.version}{since}, {len(root.revoked)} keys revoked"

    def held() -> str:
        nonlocal snapshot
        snapshot = fetch_snapshot(registry, root, channel.environment, workspace.now())
        return f"version {snapshot.version}, {len(snapshot.channels)} channels" if snapshot else "none is asked for"

    if given.followed:
        proofs.append(_tried("root of trust", followed))
    if root.refreshed:
        proofs.append(_tried("snapshot", held))
    return proofs, TrustedChannel(root, channel, snapshot=snapshot), root


def _secrets(registry: Registry, root: Root, channel: Channel, config: Digest) -> Iterator[Proof]:
    """Seals and signatures of the secrets that a config refers to. No value is opened."""
    from trtops.release.documents import ConfigRelease, SealedSecret
    from trtops.release.envelope import verify
    from trtops.release.sealing import references

    body = registry.read(layout.config_release(channel.engine, config))
    if body is None:
        return
    try:
        released = verify(body, ConfigRelease, root).value
    except TrtopsError:  # told by the config release's own line
        return
    for path in references(released.config):
        where = layout.secret(channel.engine, path)

        def sealed(where: str = where, path: str = path) -> str:
            there = registry.read(where)
            if there is None:
                raise Unavailable(
                    f"nobody sealed a value for it in {channel.environment} yet: a service asks for it in vain",
                    where=where,
                    fix=f"seal one: trtops secret seal {channel.engine} {path}",
                )
            secret = verify(there, SealedSecret, root, where=where).value
            if (secret.engine, secret.environment, secret.path) != (channel.engine, channel.environment, path):
                raise TrustError("this secret was sealed for another place", where=where)
            return f"sealed for {len(secret.recipients)}, generation {secret.generation or 0}"

        yield _tried(f"secret {path}", sealed)


def _tried(subject: str, check: Callable[[], str]) -> Proof:
    try:
        return Proof(subject, holds=True, words=check())
    except FetchFailed as error:
        return Proof(subject, holds=None, words=error.what)
    except TrtopsError as error:
        return Proof(subject, holds=False, words=str(error))


def _pointer(trusted: TrustedChannel, body: bytes, now: int) -> str:
    binding = trusted.update_pointer(body, now)
    return f"generation {binding.generation} ({binding.reason}), signed by {binding.actor[:12]}"


def _releases(workspace: Workspace, registry: Registry, trusted: TrustedChannel) -> Iterator[Proof]:
    channel, arm = trusted.channel, trusted.arm
    name = layout.engine_release(channel.engine, arm.engine_release)
    engine = _tried("engine release", lambda: _engine(trusted, registry.read(name)))
    yield engine
    config = layout.config_release(channel.engine, arm.config_release)
    yield _tried(
        "config release", lambda: f"{trusted.update_config_release(registry.read(config)).digest().short} holds"
    )
    if not engine.holds:
        return
    release = trusted.engine_release
    said = layout.verdict(release.spec_verdict)
    yield _tried("spec verdict", lambda: _spec_verdict(trusted, registry.read(said)))
    for artifact in release.artifacts:
        target = artifact.target
        proven = _tried(f"{target}: proofs", lambda target=target: _proofs(trusted, registry, target))  # type: ignore[misc]
        yield proven
        if proven.holds:
            yield _tried(f"{target}: artifact", lambda target=target: _artifact(workspace, trusted, target))  # type: ignore[misc]
    yield from _approvals(registry, channel, release)


def _engine(trusted: TrustedChannel, body: bytes | None) -> str:
    release = trusted.update_engine_release(body)
    return f"{release.digest().short} holds: interface {release.contract.version}, commit {release.commit or 'unknown'}"


def _spec_verdict(trusted: TrustedChannel, body: bytes | None) -> str:
    verdict = trusted.update_spec_verdict(body)
    assert verdict is not None  # noqa: S101 - only a service's own disk may lack it
    return f"{verdict.decision} by {len(verdict.rules)} rules, {verdict.engine}, in {verdict.environment}"


def _proofs(trusted: TrustedChannel, registry: Registry, target: str) -> str:
    from trtops.release.fetch import fetch_proofs

    artifact = fetch_proofs(trusted, registry, target)
    return f"built by {artifact.sidecar.backend} {artifact.sidecar.backend_version}, verified, gated"


def _artifact(workspace: Workspace, trusted: TrustedChannel, target: str) -> str:
    from trtops.backend.trt_plugins import bring_libraries, libraries_of

    released = trusted.engine_release.artifact(target)
    assert released is not None  # noqa: S101 - the target is the release's own
    digest = released.sidecar.artifact
    path = workspace.store.path(digest, size=released.sidecar.size_bytes)
    trusted.accept_artifact(target, digest, path.stat().st_size)
    bring_libraries(released.sidecar, workspace.store)
    libraries = "".join(f"; plugin library {one.short}" for one in libraries_of(released.sidecar.extra))
    return f"{digest.short}, {path.stat().st_size} bytes as released{libraries}"


def _approvals(registry: Registry, channel: Channel, release: EngineRelease) -> Iterator[Proof]:
    from trtops.release.approval import approvals

    for fact in approvals([registry], channel.engine, release.digest()):
        words = f"by key {fact['key'][:12]}" if fact["valid"] else f"of key {fact['key'][:12]}: it does not hold"
        yield Proof("approval", holds=bool(fact["valid"]), words=words)
