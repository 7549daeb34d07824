"""The agent against a registry in memory: releases, forgeries, outages, restarts. Signatures and files are real."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from tests.support.releases import CHANNEL, NOW, bundle, candidate, ring, runtime, sidecar, spec, verdict
from tests.support.waiting import until
from tests.support.worlds import POINTER, World, engine, generation, world_in
from trtops.digest import Digest
from trtops.errors import NotLoadable, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import sealing
from trtops.release.assemble import config_release, engine_release
from trtops.release.publish import Bundle, publish, refresh
from trtops.release.rollback import rollback
from trtops.serve.faults import UnknownModel
from trtops.spec.engine import BatchingOverride, Padding, RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


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
        faster = runtime().model_copy(update={"batching": BatchingOverride(max_batch=2, max_queue_delay=0)})
        world.release("one", faster)
        until(lambda: generation(agent) == 2)
        assert world.engines.loads[1]["batching"].max_batch == 2
        assert world.engines.loads[0]["digest"] == world.engines.loads[1]["digest"]


def test_a_config_that_the_planner_alone_goes_by_loads_nothing(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        slower = BatchingOverride.model_validate({"max_queue_delay": "3ms", "flush": "adaptive", "priorities": 2})
        world.release("one", runtime().model_copy(update={"batching": slower}))
        until(lambda: generation(agent) == 2)
        assert [(one.max_queue_delay, one.flush, one.priorities) for one in world.engines.adjusted] == [
            (3000, "adaptive", 2)
        ]
        assert len(world.engines.loads) == 1
        assert agent.swaps["cls", "adjusted"] == 1
        assert [info.generation for info in world.engines.engines()] == [2]
        assert engine(agent)["config_release"] != engine(agent)["engine_release"]
        padded = BatchingOverride(padding=Padding(sizes={"width": (8,)}))
        world.release("one", runtime().model_copy(update={"batching": padded}))
        until(lambda: generation(agent) == 3)
        assert world.engines.loads[1]["batching"].padding == padded.padding


def test_a_config_that_cannot_be_kept_leaves_the_old_one_serving(world: World) -> None:
    world.release("one")
    with world.agent() as agent:
        adaptive = runtime().model_copy(update={"batching": BatchingOverride(flush="adaptive", max_queue_delay=0)})
        world.release("one", adaptive)
        until(lambda: engine(agent)["status"] == "degraded")
        assert "runtime config, batching.flush" in engine(agent)["reason"]
        assert generation(agent) == 1
        assert (len(world.engines.loads), world.engines.adjusted) == (1, [])


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
