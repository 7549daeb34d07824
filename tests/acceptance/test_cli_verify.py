"""A release is checked down to its bytes, on a machine that has only copies; and configs are compared."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import Repository

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service


def _states(out: str) -> dict[str, str]:
    found = {}
    for line in out.splitlines()[1:]:
        for state in ("holds", "FAILS", "absent"):
            head, mark, _ = line.partition(f"  {state}")
            if mark:
                found[head.strip()] = state
                break
    return found


@pytest.fixture
def copied(shipped: Repository, folder: Path) -> Repository:
    """Another home with copies of registry and store, and no key; only root.json was handed over."""
    other = folder / "other-home"
    for name in ("registry", "store"):
        shutil.copytree(shipped.home / name, other / name)
    shutil.copy(shipped.home / "root.json", folder / "handed.json")
    return Repository(shipped.root, other)


def test_copies_are_enough_and_no_key_is_made(copied: Repository, folder: Path) -> None:
    done = copied.call("verify-release", "tiny", "--root", str(folder / "handed.json")).says(
        0, "generation 1 (release)"
    )
    states = _states(done.out)
    assert set(states.values()) == {"holds"}
    assert {"pointer", "history", "engine release", "config release", "spec verdict", "onnxruntime: artifact"} <= set(
        states
    )
    copied.call("verify-release", "tiny").says(2, "there is no root document")
    assert not (copied.home / "keys").exists()


def test_another_root_trusts_nothing_of_it(copied: Repository, folder: Path, repo: Repository) -> None:
    other = Repository(repo.root, folder / "stranger")
    other.call("secret", "keygen").says(0)
    other.call("ship", "tiny").says(0)
    states = _states(copied.call("verify-release", "tiny", "--root", str(other.home / "root.json")).says(2).out)
    assert states["pointer"] == "FAILS"
    assert "engine release" not in states


@pytest.mark.parametrize(
    ("kind", "fails"),
    [
        ("channels/tiny", "pointer"),
        ("engines/tiny/releases", "engine release"),
        ("configs/tiny", "config release"),
        ("evidence", "onnxruntime: proofs"),
        ("provenance", "onnxruntime: proofs"),
    ],
)
def test_a_signature_that_does_not_hold(shipped: Repository, kind: str, fails: str) -> None:
    (path,) = (shipped.home / "registry" / "local" / kind).iterdir()
    path.write_bytes(path.read_bytes().replace(b'"sig":"', b'"sig":"00'))
    states = _states(shipped.call("verify-release", "tiny").says(2).out)
    assert states[fails] == "FAILS"


def test_bytes_that_were_changed_or_are_not_here(shipped: Repository) -> None:
    path = shipped.artifact()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert _states(shipped.call("verify-release", "tiny").says(2).out)["onnxruntime: artifact"] == "FAILS"
    path.unlink()
    assert _states(shipped.call("verify-release", "tiny").says(0).out)["onnxruntime: artifact"] == "absent"


def test_approvals_are_shown(shipped: Repository) -> None:
    key = shipped.call("approve", "tiny", "--as", "alice").says(0).out.split()[-1]
    shipped.call("verify-release", "tiny").says(0, f"by key {key[:12]}")
    (path,) = (shipped.home / "registry" / "local" / "approvals" / "tiny").rglob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"sig":"', b'"sig":"00'))
    shipped.call("verify-release", "tiny").says(2, "it does not hold")


def test_nothing_released_is_told(shipped: Repository) -> None:
    shipped.call("verify-release", "absent").says(2, "absent is not released", "tiny")


def test_configs_are_compared(shipped: Repository) -> None:
    shipped.call("config", "diff", "tiny", "local", "+local").says(0, "local and +local are the same")
    (shipped.engine / "runtime.prod.yaml").write_text(
        "server: {port: 9000}\nsections: {limits: {rows: 5}}\nbatching: {flush: fixed, padding: {sizes: {n: [4, 8]}}}\n"
    )
    done = shipped.call("config", "diff", "tiny", "local", "+prod").says(
        0, "server.port", "8000", "9000", "sections.limits.rows", "batching.flush", "fixed", "batching.padding.sizes.n"
    )
    assert "features" not in done.out
    text = (shipped.engine / "runtime.yaml").read_text()
    (shipped.engine / "runtime.yaml").write_text(text.replace("scores: true", "scores: false"))
    shipped.call("release", "tiny").says(0, "generation 2")
    shipped.call("config", "diff", "tiny", "local@1", "local").says(0, "scores", "true", "false")
    shipped.call("config", "diff", "tiny", "local@2", "local").says(0, "are the same")


@pytest.mark.parametrize(
    ("side", "says"),
    [
        ("Local", "write ENV for what runs there"),
        ("+local@1", "write ENV for what runs there"),
        ("local@7", "there is no generation 7"),
        ("prod", "there is no release of tiny/stable in prod"),
    ],
)
def test_a_side_that_is_none(shipped: Repository, side: str, says: str) -> None:
    shipped.call("config", "diff", "tiny", side, "+local").says(2, says)
