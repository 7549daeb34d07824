"""The agent against a registry in memory: releases, forgeries, outages, restarts. Signatures and files are real."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from tests.support.releases import CHANNEL, NOW, bundle, candidate, ring, runtime, sidecar, spec, verdict
from tests.support.serving import FakeEngines
from tests.support.sessions import FunctionSession
from trtops.backend.port import BackendStatus
from trtops.device import Device
from trtops.digest import Digest
from trtops.errors import NotLoadable, StorageError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout, sealing
from trtops.release.assemble import config_release, engine_release
from trtops.release.publish import Bundle, publish, refresh
from trtops.release.rollback import rollback
from trtops.serve.agent import Agent, Duty
from trtops.serve.faults import UnknownModel
from trtops.serve.snapshot import Snapshots
from trtops.spec.engine import BatchingOverride, RuntimeConfig
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.release.keys import KeyRing

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
        return FunctionSession(side.inputs, side.outputs, lambda inputs: inputs)


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


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    engines = FakeEngines()
    backends = {"onnxruntime": StubBackend("onnxruntime"), "tensorrt_rtx": StubBackend("tensorrt_rtx", can_load=False)}
    yield World(ring(), Away(MemoryRegistry()), Store(tmp_path / "store"), tmp_path / "state", engines, backends)
    engines.close(drain=1)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def engine(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.status()["engines"]["cls"]
    return found


def generation(agent: Agent) -> int:
    return int(engine(agent).get("generation", 0))


def test_it_loads_what_is_released_and_swaps_to_the_next(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        assert (generation(agent), engine(agent)["status"], engine(agent)["target"]) == (1, "ready", "onnxruntime")
        assert agent.not_ready() is None
        world.release("two")
        until(lambda: generation(agent) == 2)
        assert [load["generation"] for load in world.engines.loads] == [1, 2]
        assert world.backends["onnxruntime"].loaded == ["one 0", "two 0"]
        assert agent.swaps == {("cls", "done"): 2}
        load = world.engines.loads[1]
        assert load["profiles"] == spec().profiles
        assert (load["version"], load["digest"], load["instances"]) == ("1.0.0", engine(agent)["digest"], 1)


def test_a_gpu_target_is_taken_where_it_can_be_loaded(world: World) -> None:
    world.backends["tensorrt_rtx"].can_load = True
    world.release("one")
    with world.agent() as agent:
        assert engine(agent)["target"] == "tensorrt_rtx-sm8.6"
        assert world.backends["tensorrt_rtx"].loaded == ["one 1"]


def test_no_target_for_this_machine_says_why_for_each(world: World) -> None:
    world.backends["onnxruntime"].can_load = False
    world.release("one")
    with world.agent() as agent:
        reason = agent.not_ready()
        assert reason is not None
        assert "onnxruntime: this machine has no GPU" in reason
        assert "tensorrt_rtx-sm8.6: this machine has no GPU" in reason


def test_nothing_released_waits_and_says_so(world: World) -> None:
    with world.agent() as agent:
        assert "nothing was released to cls/stable in dev" in str(agent.not_ready())
        world.release("one")
        until(lambda: agent.not_ready() is None)


def test_config_overrides_reach_the_executor_and_a_config_alone_is_a_swap(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        faster = runtime().model_copy(update={"batching": BatchingOverride(max_batch=1, max_queue_delay=0)})
        world.release("one", faster)
        until(lambda: generation(agent) == 2)
        assert world.engines.loads[1]["batching"].max_batch == 1
        assert world.engines.loads[0]["digest"] == world.engines.loads[1]["digest"]


def test_a_refreshed_pointer_loads_nothing(world: World) -> None:
    world.release("one", lifetime=100)
    with world.agent() as agent:
        world.now += 50
        refresh(world.registry.inner, world.keys, CHANNEL, now=int(world.now), lifetime=100)
        until(lambda: generation(agent) == 2)
        assert len(world.engines.loads) == 1
        assert engine(agent)["status"] == "ready"


def test_a_rollback_is_a_new_generation(world: World) -> None:
    world.release("one")
    world.release("two")
    with world.agent() as agent:
        rollback(world.registry.inner, world.keys, CHANNEL, to=1, now=int(world.now), has_artifact=world.store.has)
        until(lambda: generation(agent) == 3)
        assert world.backends["onnxruntime"].loaded == ["two 0", "one 0"]


def broken_pointer(world: World) -> None:
    world.registry.inner.put(POINTER, b'{"payloadType": "x", "payload": "", "signatures": []}')


def foreign_pointer(world: World) -> None:
    other = MemoryRegistry()
    strangers = ring()
    publish(other, strangers, CHANNEL, bundle(strangers), now=NOW, has_artifact=lambda _: True)
    world.registry.inner.put(POINTER, other.read(POINTER))


def deleted_pointer(world: World) -> None:
    world.registry.inner.put(POINTER, None)


def older_pointer(world: World) -> None:
    first = world.registry.inner.read(POINTER)
    world.release("two")
    until(lambda: [load["generation"] for load in world.engines.loads][-1:] == [2])
    world.registry.inner.put(POINTER, first)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (broken_pointer, "not a valid DSSE envelope"),
        (foreign_pointer, "0 of the 1 channel keys"),
        (deleted_pointer, "the channel's pointer is gone"),
        (older_pointer, "goes back to generation 1; 2 was seen here"),
    ],
)
def test_a_bad_pointer_leaves_the_old_serving_and_says_why(
    world: World, attack: Callable[[World], None], reason: str
) -> None:
    world.release("one")
    with world.agent() as agent:
        attack(world)
        until(lambda: engine(agent)["status"] == "degraded")
        assert reason in engine(agent)["reason"]
        assert agent.not_ready() is None
        assert agent.status()["status"] == "degraded"
        assert world.engines.engines()[0].generation == generation(agent)


def cut_short(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [cut_short, Path.unlink])
def test_a_bad_artifact_leaves_the_old_serving_and_a_good_one_mends_it(
    world: World, harm: Callable[[Path], None]
) -> None:
    world.release("one")
    with world.agent() as agent:
        world.registry.away = True  # so that the harm is done before the agent looks
        world.release("two")
        artifact = world.bundle("two").engine_release.artifact("onnxruntime")
        assert artifact is not None
        harm(world.store.path(artifact.sidecar.artifact))
        world.registry.away = False
        until(lambda: "generation 2 could not be loaded" in str(engine(agent)["reason"]))
        assert artifact.sidecar.artifact.short in engine(agent)["reason"]
        assert (generation(agent), engine(agent)["status"]) == (1, "degraded")
        assert world.engines.engines()[0].generation == 1
        assert world.backends["onnxruntime"].loaded == ["one 0"]
        world.release("three")
        until(lambda: generation(agent) == 3)
        assert engine(agent)["status"] == "ready"


def test_damaged_bytes_are_never_loaded(world: World) -> None:
    made = world.bundle("one")
    artifact = made.engine_release.artifact("onnxruntime")
    assert artifact is not None
    path = world.store.path(artifact.sidecar.artifact)
    path.chmod(0o644)
    path.write_bytes(b"evi 0")
    publish(world.registry.inner, world.keys, CHANNEL, made, now=NOW, has_artifact=lambda _: True)
    with world.agent() as agent:
        assert "could not be loaded" in str(agent.not_ready())
        assert world.backends["onnxruntime"].loaded == []


def test_plugin_libraries_come_with_the_engine(world: World) -> None:
    library = b"a shared library"
    world.extra = {"plugin-libraries": str(Digest.of_bytes(library))}
    world.release("one")
    with world.agent() as agent:
        assert engine(agent)["status"] != "ready"
        assert Digest.of_bytes(library).value in str(agent.not_ready())
        assert world.backends["onnxruntime"].loaded == []
        world.store.put_bytes(library)
        agent.load("cls")
        until(lambda: engine(agent)["status"] == "ready")
        assert world.backends["onnxruntime"].loaded == ["one 0"]


def test_an_artifact_of_another_size_than_released_is_never_loaded(world: World) -> None:
    digest = world.store.put_bytes(b"one 0")
    side = sidecar(0, artifact="-", size_bytes=6).model_copy(update={"artifact": digest})
    one = candidate(sidecar=side, builder=world.keys.signer("builder").key_id)
    allowed = verdict("spec")
    release = engine_release(spec(), allowed, [one], skipped={}, commit="abc", trtops="0.1.0", created=NOW)
    made = Bundle(release, config_release("cls", "dev", runtime(), created=NOW), allowed, (one,), {})
    publish(world.registry.inner, world.keys, CHANNEL, made, now=NOW, has_artifact=world.store.has)
    with world.agent() as agent:
        assert "with 5 bytes, released was" in str(agent.not_ready())
        assert world.backends["onnxruntime"].loaded == []


def test_a_load_that_fails_is_tried_again_and_counted(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        world.engines.refuse_load = NotLoadable("not enough memory: 3 GiB are needed")
        world.release("two")
        until(lambda: engine(agent)["status"] == "degraded")
        assert engine(agent)["reason"] == "generation 2 could not be loaded: not enough memory: 3 GiB are needed"
        assert generation(agent) == 1
        assert agent.swaps["cls", "failed"] == 1
        world.engines.refuse_load = None
        until(lambda: generation(agent) == 2)
        assert engine(agent)["status"] == "ready"


def test_it_starts_from_the_last_known_good_when_the_registry_is_away(world: World) -> None:
    world.release("one", lifetime=100)
    with world.agent():
        pass
    world.registry.away = True
    world.now += 1_000_000  # long after the pointer's end
    with world.agent() as agent:
        assert (generation(agent), engine(agent)["status"]) == (1, "degraded")
        assert "the registry is away" in engine(agent)["reason"]
        assert agent.not_ready() is None
        assert agent.swaps == {("cls", "restored"): 1}
        world.registry.away = False
        world.release("two")
        until(lambda: generation(agent) == 2)
        assert world.registry.watched == 2


def test_a_last_known_good_that_was_changed_on_disk_is_not_started(world: World) -> None:
    world.release("one")
    with world.agent():
        pass
    path = world.folder / "dev" / "cls.stable.good.json"
    good = json.loads(path.read_text())
    strangers = ring()
    other = MemoryRegistry()
    publish(other, strangers, CHANNEL, bundle(strangers), now=NOW, has_artifact=lambda _: True)
    good["documents"][POINTER] = (other.read(POINTER) or b"").decode()
    path.write_text(json.dumps(good))
    world.registry.away = True
    with world.agent() as agent:
        assert "the last-known-good could not be started" in str(agent.not_ready())
        assert world.engines.loads[1:] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"documents": {"a": 1}}', "\x00" * 100])
def test_a_damaged_last_known_good_is_none(world: World, text: str) -> None:
    path = world.folder / "dev" / "cls.stable.good.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    world.registry.away = True
    with world.agent() as agent:
        assert "the registry is away" in str(agent.not_ready())
        world.registry.away = False
        world.release("one")
        until(lambda: agent.not_ready() is None)


def test_a_damaged_record_of_what_was_seen_stops_new_loads(world: World) -> None:
    path = world.folder / "dev" / "cls.stable.seen.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    world.release("one")
    with world.agent() as agent:
        assert "the record of the highest generation seen is damaged" in str(agent.not_ready())
        assert world.engines.loads == []


def test_the_highest_generation_survives_a_restart(world: World) -> None:
    world.release("one")
    first = world.registry.inner.read(POINTER)
    world.release("two")
    with world.agent() as agent:
        assert generation(agent) == 2
    world.registry.inner.put(POINTER, first)
    with world.agent() as agent:
        assert generation(agent) == 2, "the last-known-good runs"
        assert "goes back to generation 1" in engine(agent)["reason"]


def test_a_disk_that_is_full_does_not_stop_a_swap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.release("one")

    def full(*_: Any) -> None:
        raise StorageError("the disk is full", where="good.json")

    monkeypatch.setattr(Snapshots, "keep_good", full)
    with world.agent() as agent:
        assert (generation(agent), engine(agent)["status"]) == (1, "ready")


def test_an_operator_unloads_and_loads(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        agent.unload("cls")
        assert (engine(agent)["status"], world.engines.engines()) == ("stopped", ())
        world.release("two")
        time.sleep(0.2)
        assert world.engines.engines() == (), "an unload holds"
        agent.load("cls")
        assert generation(agent) == 2
        with pytest.raises(UnknownModel, match="'nope' is no engine of this server: it serves cls"):
            agent.load("nope")
        world.registry.away = True
        with pytest.raises(Unavailable, match="the registry is away"):
            agent.load("cls")
        assert agent.not_ready() is None


def test_an_interface_that_clients_do_not_know_is_not_loaded(world: World) -> None:
    world.release("one", version="1.2.0")
    with world.agent(accepts={"cls": "1.1.0", "other": "9.0.0"}) as agent:
        until(lambda: generation(agent) == 1)
        world.release("two", version="2.0.0")
        until(lambda: "interface 2.0.0 of cls does not serve clients of 1.1.0" in str(engine(agent).get("reason")))
        assert generation(agent) == 1
        world.release("three", version="1.3.0")
        until(lambda: generation(agent) == 3)
    with world.agent(accepts={"cls": "1.4.0"}) as agent:
        until(lambda: "interface 1.3.0 of cls does not serve clients of 1.4.0" in str(engine(agent).get("reason")))
        assert generation(agent) == 0


def test_draining_is_not_ready(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        agent.drain()
        assert "draining" in str(agent.not_ready())
        assert agent.status()["status"] == "draining"


def secret_config() -> RuntimeConfig:
    document = {
        "apiVersion": "trtops/v1",
        "kind": "Runtime",
        "database": {"url": "pg://db", "password": "secret:db/password"},
    }
    return RuntimeConfig.model_validate(document)


def test_secrets_are_opened_in_memory_only(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = sealing.keygen(tmp_path / "age.key")
    sealed = sealing.seal(
        SecretStr("hunter2-value"),
        engine="cls",
        environment="dev",
        path="db/password",
        recipients=[identity.recipient],
        created=NOW,
    )
    sealing.publish_secret(world.registry.inner, world.keys, sealed)
    world.release("one", secret_config())
    caplog.set_level("DEBUG")
    with world.agent(identity=identity) as agent:
        settings = agent.settings("cls")
        assert settings is not None
        assert settings["database"]["password"].get_secret_value() == "hunter2-value"
        assert "hunter2" not in json.dumps(agent.status()) + repr(agent) + repr(agent._pulled) + caplog.text
    world.registry.away = True
    with world.agent(identity=identity) as agent:
        settings = agent.settings("cls")
        assert settings is not None, "the sealed secret is part of the last-known-good"
        assert settings["database"]["password"].get_secret_value() == "hunter2-value"
    written = b"".join(path.read_bytes() for path in world.folder.rglob("*") if path.is_file())
    assert b"hunter2" not in written
    assert len(written) > 1000


def test_a_secret_that_cannot_be_opened_stops_the_release(world: World, tmp_path: Path) -> None:
    world.release("one", secret_config())
    with world.agent(identity=sealing.keygen(tmp_path / "age.key")) as agent:
        assert "there is no secret db/password for cls in dev" in str(agent.not_ready())
        assert world.engines.loads == []


def test_it_stops_while_it_waits(world: World) -> None:
    with world.agent(poll=1000.0) as agent:
        pass
    assert not any(thread.name == "trtops-agent" for thread in threading.enumerate())
    assert "generations={'cls': None}" in repr(agent)
