"""A registry in memory, a store, backends that load anything, and an agent among them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.releases import CHANNEL, NOW, candidate, ring, runtime, sidecar, spec, verdict
from tests.support.serving import FakeEngines
from tests.support.sessions import FunctionSession
from trtops.backend.port import BackendStatus
from trtops.device import Device
from trtops.errors import NotLoadable, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.assemble import config_release, engine_release
from trtops.release.publish import Bundle, publish
from trtops.serve.agent import Agent
from trtops.serve.duty import Duty
from trtops.serve.snapshot import Snapshots
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtops.release.keys import KeyRing
    from trtops.spec.engine import RuntimeConfig

POINTER = layout.pointer(CHANNEL)


@dataclass
class StubBackend:
    """Loads any artifact whose bytes are there; ``refuses`` makes it fail."""

    name: str
    can_load: bool = True
    refuses: bool = False
    loaded: list[str] = field(default_factory=list)

    def status(self, target: Any) -> BackendStatus:
        del target
        reason = None if self.can_load else "this machine has no GPU"
        return BackendStatus(backend=self.name, version="1", can_build=False, can_load=self.can_load, reason=reason)

    def load(self, path: Path, side: Any) -> FunctionSession:
        if self.refuses:
            raise NotLoadable("not enough memory")
        self.loaded.append(path.read_text())
        return FunctionSession(side.inputs, side.outputs, dict)


@dataclass
class Away:
    """A registry with a switch that takes it away."""

    inner: MemoryRegistry
    away: bool = False
    watched: int = 0

    def read(self, name: str) -> bytes | None:
        if self.away:
            raise Unavailable("the registry is away: connection refused")
        return self.inner.read(name)

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> Any:
        if self.away:
            raise Unavailable("the registry is away: connection refused")
        self.watched += 1
        return self.inner.watch(name, changed)

    def create(self, name: str, body: bytes) -> bool:
        return self.inner.create(name, body)

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        self.inner.swap(name, body, expected)

    def remove(self, name: str, expected: bytes) -> bool:
        return self.inner.remove(name, expected)

    def names(self, prefix: str = "") -> tuple[str, ...]:
        return self.inner.names(prefix)


@dataclass
class World:
    """Everything around one agent, with a publisher."""

    keys: KeyRing
    registry: Away
    store: Store
    folder: Path
    engines: FakeEngines
    backends: dict[str, StubBackend]
    now: float = NOW
    extra: dict[str, str] = field(default_factory=dict)

    def bundle(self, name: str, config: RuntimeConfig | None = None, version: str = "1.0.0") -> Bundle:
        """A release of two targets, a GPU's and a CPU's."""
        made = []
        of = spec(interface={"version": version})
        for target, device in ((0, None), (1, Device(kind="gpu", name="A10", compute_capability="8.6"))):
            text = f"{name} {target}".encode()
            digest = self.store.put_bytes(text)
            changes: dict[str, Any] = {"artifact": "-", "size_bytes": len(text)} | (
                {"device": device} if device else {}
            )
            side = sidecar(target, **changes).model_copy(update={"artifact": digest, "extra": self.extra})
            made.append(candidate(target, of=of, sidecar=side, builder=self.keys.signer("builder").key_id))
        allowed = verdict("spec")
        release = engine_release(of, allowed, made, skipped={}, commit="abc", trtops="0.1.0", created=NOW)
        settings = config_release("cls", "dev", config or runtime(), created=NOW)
        return Bundle(release, settings, allowed, tuple(made), {})

    def release(
        self, name: str, config: RuntimeConfig | None = None, lifetime: int | None = None, version: str = "1.0.0"
    ) -> int:
        made = self.bundle(name, config, version)
        done = publish(
            self.registry.inner,
            self.keys,
            CHANNEL,
            made,
            now=int(self.now),
            lifetime=lifetime,
            has_artifact=self.store.has,
        )
        return done.generation

    @contextmanager
    def agent(self, **changes: Any) -> Iterator[Agent]:
        options: dict[str, Any] = {
            "environment": "dev",
            "engines": ("cls",),
            "root": self.keys.root(),
            "poll": 0.05,
            "grace": 0.0,
        }
        agent = Agent(
            Duty(**(options | changes)),
            self.engines,
            self.registry,
            self.store,
            Snapshots(self.folder),
            backend_of=self.backends.__getitem__,
            wall=lambda: self.now,
        )
        agent.start()
        try:
            assert agent.settled(30)
            yield agent
        finally:
            agent.close()


@contextmanager
def world_in(folder: Path) -> Iterator[World]:
    """A world with a CPU, and a GPU target that cannot be loaded."""
    engines = FakeEngines()
    backends = {"onnxruntime": StubBackend("onnxruntime"), "tensorrt_rtx": StubBackend("tensorrt_rtx", can_load=False)}
    yield World(ring(), Away(MemoryRegistry()), Store(folder / "store"), folder / "state", engines, backends)
    engines.close(drain=1)


def engine(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.status()["engines"]["cls"]
    return found


def generation(agent: Agent) -> int:
    return int(engine(agent).get("generation", 0))
