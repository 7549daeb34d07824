"""``trtops registry prune``: looked at twice, then removed; never what somebody points to meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Repository


@pytest.fixture
def littered(shipped: Repository) -> tuple[Repository, list[Path]]:
    """Generation 1, and what a publisher of generation 2 left that died before it moved the pointer."""
    registry = shipped.home / "registry" / "local"
    pointer = registry / "channels" / "tiny" / "stable.json"
    before, first = set(registry.rglob("*.json")), pointer.read_bytes()
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("release", "tiny").says(0, "generation 2")
    left = [path for path in registry.rglob("*.json") if path not in before]
    pointer.write_bytes(first)
    return shipped, left


def test_a_look_removes_nothing_and_the_second_only_what_is_old(littered: tuple[Repository, list[Path]]) -> None:
    repo, left = littered
    done = repo.call("registry", "prune").says(0, "bindings/tiny/stable/sha256-", "kept for 24 h")
    assert done.out.count("kept for 24 h") == len(left) >= 4
    repo.call("registry", "prune", "--yes").says(0, "kept for 24 h")
    assert all(path.exists() for path in left)
    seen = repo.home / "prune" / "local.json"
    seen.write_text(json.dumps({name: at - 90_000 for name, at in json.loads(seen.read_text()).items()}))
    repo.call("registry", "prune").says(0, "would be removed: --yes")
    assert all(path.exists() for path in left)
    repo.call("registry", "prune", "--yes").says(0, "removed")
    assert not any(path.exists() for path in left)
    repo.call("registry", "prune").says(0, "everything in local belongs to a release")
    repo.call("verify-release", "tiny").says(0, "1 generations")
    repo.call("release", "tiny").says(0, "generation 2 signed and published")


def test_what_is_pointed_to_meanwhile_comes_back(
    littered: tuple[Repository, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtops.registry.file import FileRegistry

    repo, left = littered
    pointer = repo.home / "registry" / "local" / "channels" / "tiny" / "stable.json"
    (newest,) = (path for path in left if "bindings" in path.parts)
    body, remove = newest.read_bytes(), FileRegistry.remove

    def late(self: FileRegistry, name: str, expected: bytes) -> bool:
        pointer.write_bytes(body)  # the publisher is back, found all it had written, and moves the pointer
        return remove(self, name, expected)

    monkeypatch.setattr(FileRegistry, "remove", late)
    done = repo.call("registry", "prune", "--yes", "--after", "0").says(0)
    assert "removed" not in done.out.replace("would be removed", "")
    assert all(path.exists() for path in left)
    repo.call("verify-release", "tiny").says(0, "2 generations")


def test_a_damaged_memory_of_looks_makes_everything_young(littered: tuple[Repository, list[Path]]) -> None:
    repo, left = littered
    repo.call("registry", "prune").says(0)
    for text in ("{", "[]", '{"bindings/x": "long ago"}'):
        (repo.home / "prune" / "local.json").write_text(text)
        repo.call("registry", "prune", "--yes").says(0, "kept for 24 h")
    assert all(path.exists() for path in left)


def test_nothing_is_removed_by_a_history_that_does_not_hold(littered: tuple[Repository, list[Path]]) -> None:
    repo, left = littered
    pointer = repo.home / "registry" / "local" / "channels" / "tiny" / "stable.json"
    pointer.write_bytes(pointer.read_bytes().replace(b'"sig":"', b'"sig":"00'))
    repo.call("registry", "prune", "--yes", "--after", "0").says(2, "channels/tiny/stable")
    assert all(path.exists() for path in left)
