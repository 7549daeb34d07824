"""A running service and its sealed secrets: new values are opened without a release, refused ones change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyrage
import pytest
from pydantic import SecretStr

from tests.support.attacked import Scene, generation
from tests.support.releases import NOW, runtime
from tests.support.waiting import until
from trtops.release import layout
from trtops.release.sealing import Identity, publish_secret, seal

if TYPE_CHECKING:
    from trtops.serve.agent import Agent

NAME = layout.secret("cls", "db/password")
CONFIG = runtime(db={"password": "secret:db/password"})


@pytest.fixture
def identity() -> Identity:
    return Identity(SecretStr(str(pyrage.x25519.Identity.generate())))


def _seal(scene: Scene, value: str, count: int, *recipients: Identity) -> None:
    place = {"engine": "cls", "environment": "dev", "path": "db/password"}
    names = [one.recipient for one in recipients]
    publish_secret(
        scene.registry,
        scene.keys,
        seal(SecretStr(value), **place, recipients=names, created=NOW, generation=count),
    )


def _password(agent: Agent) -> str:
    settings = agent.settings("cls")
    assert settings is not None
    value: SecretStr = settings["sections"]["db"]["password"]
    return value.get_secret_value()


def test_a_value_that_was_changed_arrives_without_a_release(scene: Scene, identity: Identity) -> None:
    _seal(scene, "old", 1, identity)
    scene.release("one", config=CONFIG)
    with scene.agent(identity=identity) as agent:
        assert _password(agent) == "old"
        _seal(scene, "new", 2, identity)
        until(lambda: _password(agent) == "new")
        assert generation(agent) == 1
        assert scene.backend.loaded == ["cls one"]
    kept = (scene.state / "dev" / "cls.stable.good.json").read_text()
    assert "new" not in kept
    scene.registry.away = True
    with scene.agent(identity=identity) as agent:  # from its own disk: the new one, still sealed there
        assert _password(agent) == "new"


def test_a_value_for_others_leaves_the_one_of_before(
    scene: Scene, identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    _seal(scene, "old", 1, identity)
    scene.release("one", config=CONFIG)
    with scene.agent(identity=identity) as agent:
        _seal(scene, "new", 2, Identity(SecretStr(str(pyrage.x25519.Identity.generate()))))
        until(lambda: "secrets are as they were" in caplog.text)
        assert _password(agent) == "old"
        assert agent.not_ready() is None
        _seal(scene, "newest", 3, identity)
        until(lambda: _password(agent) == "newest")


def test_a_service_without_an_identity_keeps_references(scene: Scene, identity: Identity) -> None:
    _seal(scene, "old", 1, identity)
    scene.release("one", config=CONFIG)
    with scene.agent() as agent:
        assert generation(agent) == 1
        assert agent.settings("cls") is None
    assert NAME not in scene.registry.asked
