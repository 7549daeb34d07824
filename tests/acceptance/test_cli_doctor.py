"""``trtops doctor``, as a user meets it: everything is looked at, one fault hides no other, nothing is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.repository import Done, Repository

pytestmark = pytest.mark.service

SUBJECTS = ("store", "registry", "keys", "secrets", "policies", "backends")


def _states(done: Done) -> dict[str, list[str]]:
    """Subject -> states of its rows."""
    found: dict[str, list[str]] = {}
    for line in done.out.splitlines()[1:]:
        subject, state, *_ = line.split()
        found.setdefault(subject, []).append(state)
    return found


def test_a_fresh_repository_is_well_and_stays_fresh(repo: Repository) -> None:
    done = repo.call("doctor").says(0, "no keys in", "trtops secret keygen", "onnxruntime: builds and runs here")
    states = _states(done)
    assert tuple(states) == SUBJECTS
    assert "bad" not in {state for rows in states.values() for state in rows}
    assert not (repo.home / "keys").exists()
    assert not (repo.home / "root.json").exists()


def test_keys_that_are_not_trusted(shipped: Repository) -> None:
    shipped.call("doctor").says(0, "1 channel in local", "release: ")
    key = shipped.home / "keys" / "release.pem"
    key.unlink()
    shipped.call("doctor").says(0, "there is no release key here")
    key.write_bytes((shipped.home / "keys" / "builder.pem").read_bytes())
    key.chmod(0o600)
    shipped.call("doctor").says(2, "is not trusted by root.json", "bring the key back")
    key.chmod(0o644)
    shipped.call("doctor").says(2, "others than its owner may use this private key", "chmod 600")
    (shipped.home / "root.json").write_text("{}")
    shipped.call("doctor").says(2, "this is not a root document", "backends")


def test_a_registry_that_is_away_hides_nothing_else(repo: Repository) -> None:
    done = repo.call("doctor", TRTOPS_REGISTRY="nacos://127.0.0.1:1").says(2, "Nacos cannot be reached", "start it")
    states = _states(done)
    assert states["registry"] == ["bad"]
    assert tuple(states) == SUBJECTS
    repo.call("doctor", TRTOPS_REGISTRY="etcd://a:1").says(2, "unknown kind of registry")
    repo.call("doctor", "--env", "dev", TRTOPS_ENGINE="embedded").says(2, "demands the engine opa")


def test_a_store_that_cannot_be_written(repo: Repository) -> None:
    (repo.root / "a-file").write_text("")
    states = _states(repo.call("doctor", TRTOPS_STORE=str(repo.root / "a-file")).says(2))
    assert states["store"] == ["bad"]
    assert states["registry"] == ["good"]


def test_an_engine_that_cannot_be_read(repo: Repository) -> None:
    repo.spec.write_text("apiVersion: trtops/v9\n")
    assert _states(repo.call("doctor").says(2))["backends"] == ["bad"]
