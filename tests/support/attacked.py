"""A service whose registry an attacker controls: honest publishers on one side, a real agent on the other.

The attacker sits behind the port ``Registry``, knows every document that was ever published, and answers as they like.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.releases import NOW, candidate, runtime, sidecar, spec, verdict
from tests.support.serving import FakeEngines
from tests.support.sessions import FunctionSession
from tests.support.waiting import until
from trtops.backend.port import BackendStatus
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.assemble import config_release, engine_release
from trtops.release.documents import Binding, Channel, ChannelSnapshot
from trtops.release.envelope import read_unverified, sign
from trtops.release.keys import KeyRing, Signer
from trtops.release.publish import Bundle, Published, publish
from trtops.release.refresh import refresh_snapshot
from trtops.release.root import ALL_ROLES, Role, root_of
from trtops.serve.agent import Agent
from trtops.serve.duty import Duty
from trtops.serve.snapshot import Snapshots
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtops.digest import Digest
    from trtops.release.root import Root
    from trtops.release.sealing import Identity
    from trtops.spec.engine import RuntimeConfig

DAY = 86_400
CLS = Channel(engine="cls", environment="dev")
POINTER = layout.pointer(CLS)


class AttackedRegistry(MemoryRegistry):
    """What an agent reads. Publishers write to it as to any other; the attacker decides what comes out.

    Attributes:
        lies: name -> what is answered instead (None: nothing is there).
        asked: every name that was read by the agent.
        past: name -> every body that was ever written under it, oldest first.
        open: cleared, no answer to the agent comes back; ``held`` counts those that do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lies: dict[str, bytes | None] = {}
        self.asked: set[str] = set()
        self.past: dict[str, list[bytes]] = {}
        self.open = threading.Event()
        self.open.set()
        self.held = 0

    def create(self, name: str, body: bytes) -> bool:
        self.past.setdefault(name, []).append(body)
        return super().create(name, body)

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        super().swap(name, body, expected)
        self.past.setdefault(name, []).append(body)

    def lie(self, name: str, body: bytes | None) -> None:
        self.lies[name] = body
        self._notify(name)

    def honest(self) -> None:
        """Give up."""
        self.lies.clear()
        for name in tuple(self._followers):
            self._notify(name)

    def copy(self) -> dict[str, bytes]:
        """Every document as it is now."""
        return {name: body for name in self.names() if (body := MemoryRegistry.read(self, name)) is not None}

    def freeze(self, at: dict[str, bytes]) -> None:
        """Answer as the registry did then, whatever was written since."""
        for name in {*at, *self.names()}:
            self.lie(name, at.get(name))

    def answer(self, name: str) -> bytes | None:
        """To the agent."""
        self.asked.add(name)
        self.held += 1
        assert self.open.wait(120)
        self.held -= 1
        if name in self.lies:
            self._enter()
            return self.lies[name]
        return self.read(name)


class _Agents:
    """The agent's side of the registry."""

    def __init__(self, attacked: AttackedRegistry) -> None:
        self._attacked = attacked

    def read(self, name: str) -> bytes | None:
        return self._attacked.answer(name)

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> Any:
        return self._attacked.watch(name, changed)

    def names(self, prefix: str = "") -> tuple[str, ...]:
        return self._attacked.names(prefix)

    def create(self, name: str, body: bytes) -> bool:
        raise AssertionError(f"an agent writes nothing: {name}, {len(body)} bytes")

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        raise AssertionError(f"an agent writes nothing: {name}, {len(body)} bytes for {expected!r:.80}")

    def remove(self, name: str, expected: bytes) -> bool:
        raise AssertionError(f"an agent removes nothing: {name}, {len(expected)} bytes")


@dataclass
class Backend:
    """Loads what it is given, and remembers the bytes: loading an engine runs its code."""

    loaded: list[str] = field(default_factory=list)

    def status(self, target: Any) -> BackendStatus:
        there = target.backend == "onnxruntime"
        reason = None if there else "not here"
        return BackendStatus(backend=target.backend, version="1", can_build=False, can_load=there, reason=reason)

    def load(self, path: Path, side: Any) -> FunctionSession:
        self.loaded.append(path.read_text())
        return FunctionSession(side.inputs, side.outputs, dict)


class Scene:
    """Publisher, registry, store and one machine that serves. ``now`` is everybody's clock."""

    def __init__(self, folder: Path) -> None:
        self.signers: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
        self.root = root_of({role: signer.public for role, signer in self.signers.items()})
        self.registry = AttackedRegistry()
        self.store = Store(folder / "store")
        self.state = folder / "state"
        self.backend = Backend()
        self.engines = FakeEngines()
        self.now: float = NOW

    @property
    def keys(self) -> KeyRing:
        return KeyRing(dict(self.signers), self.root)

    def bundle(
        self,
        text: str,
        *,
        engine: str = "cls",
        config: RuntimeConfig | None = None,
        environment: str = "dev",
        **of: Any,
    ) -> Bundle:
        made = spec(metadata={"name": engine, "owner": "team", **of})
        body = f"{engine} {text}".encode()
        side = sidecar(of=made).model_copy(update={"artifact": self.store.put_bytes(body), "size_bytes": len(body)})
        one = candidate(of=made, sidecar=side, builder=self.signers["builder"].key_id)
        if engine != "cls":
            evidence = one.evidence.model_copy(update={"engine": engine})
            one = one.model_copy(update={"evidence": evidence})
        allowed = verdict("spec", subject=engine)
        release = engine_release(made, allowed, [one], skipped={}, commit="abc", trtops="0.1.0", created=NOW)
        settings = config_release(engine, environment, config or runtime(), created=NOW)
        return Bundle(release, settings, allowed, (one,), {})

    def release(
        self, text: str, *, engine: str = "cls", lifetime: int | None = DAY, refresh: bool = True, **more: Any
    ) -> Published:
        """An honest release, and the snapshot that follows it."""
        done = publish(
            self.registry,
            self.keys,
            Channel(engine=engine, environment="dev"),
            self.bundle(text, engine=engine, **more),
            now=int(self.now),
            lifetime=lifetime,
            has_artifact=self.store.has,
        )
        if refresh:
            self.refresh()
        return done

    def refresh(self) -> None:
        """What the schedule does with the online key."""
        refresh_snapshot(self.registry, self.keys, "dev", now=int(self.now), lifetime=DAY)

    def turn(self, root: Root, *signers: Signer) -> bytes:
        """A version of the root, signed; by the root key of before unless told otherwise."""
        return sign(root, signers or [self.signers["root"]])

    def follow(self, root: Root, *signers: Signer) -> None:
        """Publish the next version of the root, honestly."""
        self.registry.create(layout.root(root.version), self.turn(root, *signers))
        self.root = root

    @contextmanager
    def agent(self, *engines: str, root: Root | None = None, identity: Identity | None = None) -> Iterator[Agent]:
        """The machine starts, with the root that it was handed long ago."""
        made = Agent(
            Duty(
                environment="dev",
                engines=engines or ("cls",),
                root=root or self.root,
                poll=0.03,
                grace=0.0,
                identity=identity,
            ),
            self.engines,
            _Agents(self.registry),
            self.store,
            Snapshots(self.state),
            backend_of=lambda _name: self.backend,
            wall=lambda: self.now,
        )
        made.start()
        try:
            assert made.settled(30)
            yield made
        finally:
            made.close()

    def artifact(self, digest: Digest) -> Path:
        return self.store.folder / digest.algorithm / digest.value[:2] / digest.value


def generation(agent: Agent, engine: str = "cls") -> int:
    return int(agent.status()["engines"][engine].get("generation", 0))


def reason(agent: Agent, engine: str = "cls") -> str:
    return str(agent.status()["engines"][engine]["reason"])


def refused(agent: Agent, words: str, *, stays: int, engine: str = "cls") -> None:
    """The attack is noticed and told, and what ran still runs."""
    until(lambda: words in reason(agent, engine))
    assert generation(agent, engine) == stays


def forged_pointer(scene: Scene, signer: Signer, **changes: Any) -> bytes:
    """The newest pointer with changes, signed by whoever."""
    present = read_unverified(scene.registry.past[POINTER][-1], Binding).value
    forged = Binding.model_validate(present.model_dump() | {"actor": signer.key_id} | changes)
    return sign(forged, [signer])


def forged_snapshot(scene: Scene, signer: Signer, **changes: Any) -> bytes:
    present = read_unverified(scene.registry.past[layout.SNAPSHOT][-1], ChannelSnapshot).value
    return sign(ChannelSnapshot.model_validate(present.model_dump() | changes), [signer])
