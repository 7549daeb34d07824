"""What would go with a key: documents that hold today and would not once it is revoked. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtops.digest import Digest, Value
from trtops.errors import TrustError
from trtops.evidence import Evidence
from trtops.policy.verdict import Verdict
from trtops.release import layout
from trtops.release.documents import (
    Binding,
    ChannelSnapshot,
    ConfigRelease,
    EngineRelease,
    Provenance,
    SealedSecret,
)
from trtops.release.envelope import read_unverified, verify
from trtops.release.fetch import bodies, chain, channels, read_binding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.release.documents import Channel
    from trtops.release.fetch import Documents
    from trtops.release.root import Root

Use = Literal["runs", "candidate", "kept", "secret", "snapshot"]
"""``runs``: what a channel's stable release is; ``candidate``: what a rollout runs beside it; ``kept``: what a rollback
could bring back; the others are documents of their own."""

NAMES: dict[type[Value], str] = {
    Binding: "pointer",
    EngineRelease: "engine release",
    ConfigRelease: "config release",
    Verdict: "verdict",
    Evidence: "evidence",
    Provenance: "provenance",
}
"""Kinds of documents, in words and in the order in which they are told."""


@dataclass(frozen=True)
class Hanging:
    """What hangs on a key.

    Attributes:
        environment: where.
        subject: ``ENGINE/CHANNEL``; ``ENGINE/PATH`` of a secret; empty for the snapshot of all channels.
        use: what it is there.
        generation: of the binding that names it last; None where there is none.
        documents: kinds that would not hold any more, in words.
    """

    environment: str
    subject: str
    use: Use
    generation: int | None = None
    documents: tuple[str, ...] = ()


def hanging(registry: Documents, present: Root, new: Root, environment: str) -> tuple[Hanging, ...]:
    """What holds by one root in an environment and would not by the next.

    Args:
        registry: of the environment.
        present: the trusted keys.
        new: the keys that would be trusted.
        environment: its name.

    Raises:
        StorageError, Unavailable: the registry is away.
    """
    look = _Look(registry, present, new, environment)
    found = [one for channel in channels(registry, environment) for one in look.channel(channel)]
    found += look.secrets()
    body = registry.read(layout.SNAPSHOT)
    if body is not None and look.lost(layout.SNAPSHOT, ChannelSnapshot):
        found.append(Hanging(environment, "", "snapshot"))
    return tuple(found)


class _Look:
    """One environment, by two roots. Reads each document once."""

    def __init__(self, registry: Documents, present: Root, new: Root, environment: str) -> None:
        self._registry, self._present, self._new, self._environment = registry, present, new, environment
        self._lost: dict[str, bool] = {}

    def lost(self, name: str, kind: type[Value]) -> bool:
        """Whether a document holds, and would not. One that does not hold today is none that would be lost."""
        if name not in self._lost:
            body = self._registry.read(name)
            self._lost[name] = (
                body is not None and _holds(body, kind, self._present) and not _holds(body, kind, self._new)
            )
        return self._lost[name]

    def channel(self, channel: Channel) -> Iterator[Hanging]:
        """What runs in a channel, and what could be brought back."""
        name = layout.pointer(channel)
        body = self._registry.read(name)
        try:
            present = read_binding(body, self._present, channel, name) if body is not None else None
        except TrustError:  # nothing hangs on a pointer that does not hold
            present = None
        if present is None:
            return
        subject, told = f"{channel.engine}/{channel.name}", set[tuple[Digest, Digest]]()
        pointer: set[type[Value]] = {Binding} if self.lost(name, Binding) else set()
        for number, arm in enumerate(present.arms):
            told.add((arm.engine_release, arm.config_release))
            kinds = self._kinds(channel.engine, arm.engine_release, arm.config_release) | pointer
            if kinds:
                use: Use = "candidate" if number else "runs"
                yield Hanging(self._environment, subject, use, present.generation, _words(kinds))
        for binding in self._before(present):
            pair = (binding.engine_release, binding.config_release)
            if pair not in told and (kinds := self._kinds(channel.engine, *pair)):
                yield Hanging(self._environment, subject, "kept", binding.generation, _words(kinds))
            told.add(pair)

    def _before(self, present: Binding) -> Iterator[Binding]:
        links = chain(self._registry, self._present, present)
        try:
            next(links)
            yield from links
        except TrustError:  # as far as the history holds
            return

    def _kinds(self, engine: str, release: Digest, config: Digest) -> set[type[Value]]:
        """Kinds of documents of a release that would be lost."""
        where = layout.engine_release(engine, release)
        documents: list[tuple[str, type[Value]]] = [
            (where, EngineRelease),
            (layout.config_release(engine, config), ConfigRelease),
        ]
        body = self._registry.read(where)
        try:
            made = read_unverified(body, EngineRelease, where=where) if body is not None else None
        except TrustError:
            made = None
        if made is not None and made.digest == release:
            documents.append((layout.verdict(made.value.spec_verdict), Verdict))
            for one in made.value.artifacts:
                documents += [(layout.evidence(one.evidence), Evidence), (layout.verdict(one.verdict), Verdict)]
                if one.provenance is not None:
                    documents.append((layout.provenance(one.provenance), Provenance))
        return {kind for name, kind in documents if self.lost(name, kind)}

    def secrets(self) -> Iterator[Hanging]:
        """Sealed secrets that no service would open any more."""
        for name, _ in bodies(self._registry, layout.SECRETS):
            if self.lost(name, SealedSecret):
                yield Hanging(self._environment, name.removeprefix(layout.SECRETS), "secret")


def _holds(body: bytes, kind: type[Value], root: Root) -> bool:
    try:
        verify(body, kind, root)
    except TrustError:
        return False
    return True


def _words(kinds: set[type[Value]]) -> tuple[str, ...]:
    return tuple(word for kind, word in NAMES.items() if kind in kinds)
