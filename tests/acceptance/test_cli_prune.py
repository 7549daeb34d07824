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


def test_a_second_run_of_the_home_waits_and_says_for_whom(
    littered: tuple[Repository, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write the file that holds what was taken."""
    from trtops.errors import Unavailable
    from trtops.registry.file import FileRegistry
    from trtops.settings import resolve
    from trtops.workflow.prune import prune
    from trtops.workflow.workspace import Workspace

    repo, left = littered
    remove, refusals = FileRegistry.remove, list[Unavailable]()
    home = {"home": str(repo.home)}

    def second(self: FileRegistry, name: str, expected: bytes) -> bool:
        with pytest.raises(Unavailable) as refused:
            prune(Workspace(resolve(repo.root, home)), after_hours=0, remove=True, patience=0.0)
        refusals.append(refused.value)
        return remove(self, name, expected)

    monkeypatch.setattr(FileRegistry, "remove", second)
    repo.call("registry", "prune", "--yes", "--after", "0").says(0, "removed")
    assert len(refusals) == len(left)
    assert refusals[0].what == "another trtops registry prune of local is at work in this home"
    assert "fuser" in str(refusals[0])
    monkeypatch.setattr(FileRegistry, "remove", remove)
    assert prune(Workspace(resolve(repo.root, home)), after_hours=0, remove=True, patience=0.0).found == ()


def test_where_no_lock_can_be_had_nothing_is_looked_at(littered: tuple[Repository, list[Path]]) -> None:
    repo, left = littered
    (repo.home / "prune").write_text("in the way")
    repo.call("registry", "prune", "--yes", "--after", "0").says(2, "cannot lock this home's prune")
    assert all(path.exists() for path in left)


def _come_back(repo: Repository, left: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The publisher comes back while its documents are removed. Gives the file that holds them meanwhile."""
    from trtops.registry.file import FileRegistry

    pointer = repo.home / "registry" / "local" / "channels" / "tiny" / "stable.json"
    (newest,) = (path for path in left if "bindings" in path.parts)
    body, remove = newest.read_bytes(), FileRegistry.remove
    taken = repo.home / "prune" / "local.taken.json"

    def late(self: FileRegistry, name: str, expected: bytes) -> bool:
        assert len(json.loads(taken.read_bytes())) == len(left), "kept before the first goes"
        pointer.write_bytes(body)
        return remove(self, name, expected)

    monkeypatch.setattr(FileRegistry, "remove", late)
    return taken


def test_what_could_not_be_put_back_is_kept_and_put_back_by_the_next_run(
    littered: tuple[Repository, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtops.errors import StorageError
    from trtops.registry.file import FileRegistry

    repo, left = littered
    taken, create = _come_back(repo, left, monkeypatch), FileRegistry.create

    def full(self: FileRegistry, name: str, body: bytes) -> bool:
        if name.startswith("engines/"):
            raise StorageError("no space left on device", where=name)
        return create(self, name, body)

    with monkeypatch.context() as patch:
        patch.setattr(FileRegistry, "create", full)
        repo.call("registry", "prune", "--yes", "--after", "0").says(2, "could not be put back", str(taken))
    missing = [path for path in left if not path.exists()]
    assert {"bindings", "configs"}.isdisjoint({part for path in missing for part in path.parts}), "the others are back"
    assert any("engines" in path.parts for path in missing)
    repo.call("registry", "prune").says(0, "everything in local belongs to a release")
    assert all(path.exists() for path in left)
    assert not taken.exists()
    repo.call("verify-release", "tiny").says(0, "2 generations")


def test_what_somebody_else_put_back_is_there(
    littered: tuple[Repository, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtops.errors import Conflict
    from trtops.registry.file import FileRegistry

    repo, left = littered
    taken, create = _come_back(repo, left, monkeypatch), FileRegistry.create

    def raced(self: FileRegistry, name: str, body: bytes) -> bool:
        create(self, name, body)
        raise Conflict("another document is there already", where=name)

    monkeypatch.setattr(FileRegistry, "create", raced)
    repo.call("registry", "prune", "--yes", "--after", "0").says(0)
    assert all(path.exists() for path in left)
    assert not taken.exists()
    repo.call("verify-release", "tiny").says(0, "2 generations")


def test_what_only_the_answer_of_was_lost_comes_back(
    littered: tuple[Repository, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtops.errors import Unavailable
    from trtops.registry.file import FileRegistry

    repo, left = littered
    _come_back(repo, left, monkeypatch)
    remove = FileRegistry.remove

    def lost(self: FileRegistry, name: str, expected: bytes) -> bool:
        remove(self, name, expected)
        raise Unavailable("the answer was lost", where=name)

    monkeypatch.setattr(FileRegistry, "remove", lost)
    assert repo.call("registry", "prune", "--yes", "--after", "0").code != 0
    assert all(path.exists() for path in left)


@pytest.mark.parametrize("text", ["{", "[]", '{"bindings/x": "?"}', '{"bindings/x": 1}'])
def test_what_was_taken_and_cannot_be_read_stops_the_next_run(repo: Repository, text: str) -> None:
    path = repo.home / "prune" / "local.taken.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    repo.call("registry", "prune", "--yes").says(2, "had removed cannot be read", str(path))
    assert path.read_text() == text


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
