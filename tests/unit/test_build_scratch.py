"""Folders of builds: each is its owner's alone, and what dead owners left goes with the next build."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import filelock
import pytest

from trtops.build.scratch import LOCKS, LOGS, scratch, sweep
from trtops.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in (LOCKS, LOGS):
        (tmp_path / name).mkdir()
    return tmp_path


def _folder(store: Path, name: str, *, age: float = 0.0, lock: bool = True) -> Path:
    folder = store / name
    folder.mkdir()
    (folder / "engine").write_bytes(b"half of it")
    if lock:
        (store / LOCKS / name).touch()
    os.utime(folder, (NOW - age, NOW - age))
    return folder


def _log(store: Path, name: str, age: float) -> Path:
    path = store / LOGS / name
    path.write_text("said")
    os.utime(path, (NOW - age, NOW - age))
    return path


def test_folder_of_a_dead_build_is_removed_and_one_in_use_stays(store: Path) -> None:
    dead, used = _folder(store, "build-dead"), _folder(store, "build-used")
    with filelock.FileLock(store / LOCKS / "build-used"):
        assert sweep(store, NOW) == ("build-dead",)
    assert not dead.exists()
    assert (used / "engine").exists()
    assert sorted(path.name for path in (store / LOCKS).iterdir()) == ["build-used"]
    assert sweep(store, NOW) == ("build-used",)  # its owner is done with it now


def test_folder_without_a_lock_is_left_for_a_day(store: Path) -> None:
    """Whoever makes a folder has its lock before: one without is of a store that was copied, or of an old version."""
    young, old = (
        _folder(store, name, age=age, lock=False) for name, age in (("build-1", DAY - 60), ("build-2", DAY + 60))
    )
    (store / "build-notes.txt").write_text("no folder")
    assert sweep(store, NOW) == ("build-2",)
    assert young.exists()
    assert not old.exists()
    assert (store / "build-notes.txt").exists()


def test_logs_of_failed_builds_stay_for_a_week(store: Path) -> None:
    kept = [_log(store, "build-a.log", 7 * DAY - 60), _log(store, "notes.log", 70 * DAY)]
    gone = _log(store, "build-b.log", 7 * DAY + 60)
    assert sweep(store, NOW) == ("build-b.log",)
    assert all(path.exists() for path in kept)
    assert not gone.exists()


def test_folder_is_its_owners_and_goes_with_it(tmp_path: Path) -> None:
    with scratch(tmp_path, lambda: NOW) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "engine").write_bytes(b"whole")
        assert sweep(tmp_path, NOW + 30 * DAY) == ()  # however long the build takes
        with scratch(tmp_path, lambda: NOW) as other:
            assert other != folder
        assert folder.exists()
    assert list(tmp_path.glob("build-*")) == list((tmp_path / LOCKS).iterdir()) == []
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path, lambda: NOW):
        raise KeyboardInterrupt
    assert list(tmp_path.glob("build-*")) == list((tmp_path / LOCKS).iterdir()) == []


def test_next_build_sweeps(store: Path) -> None:
    dead = _folder(store, "build-dead")
    with scratch(store, lambda: NOW):
        assert not dead.exists()


def test_store_that_cannot_hold_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StorageError, match="cannot make a folder for the build") as caught, scratch(tmp_path / "store"):
        pass
    assert caught.value.fix is not None
