"""The registry in a folder: its disk, its locks, and what other hands do to it."""

from __future__ import annotations

import errno
import logging
import os
import queue
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from trtops.errors import InputError, StorageError, Unavailable
from trtops.registry.file import FileRegistry
from trtops.registry.port import MAX_DOCUMENT_BYTES


def _files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )


def test_makes_nothing_until_something_is_written(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / "r", "dev")
    assert registry.read("a/b") is None
    assert registry.names() == ()
    assert list(tmp_path.iterdir()) == []


def test_one_file_a_document_that_people_can_find(tmp_path: Path) -> None:
    FileRegistry(tmp_path, "dev").create("channels/cls/stable", b"x")
    FileRegistry(tmp_path, "dev").create("a/b.json/.c", b"x")
    assert _files(tmp_path) == ["dev/a/b.json~/~.c.json", "dev/channels/cls/stable.json"]


def test_environments_are_apart(tmp_path: Path) -> None:
    FileRegistry(tmp_path, "dev").create("a", b"dev")
    FileRegistry(tmp_path, "prod").create("a", b"prod")
    assert FileRegistry(tmp_path, "dev").read("a") == b"dev"
    assert FileRegistry(tmp_path, "prod").names() == ("a",)


@pytest.mark.parametrize("environment", ["", "..", "a/b", ".dev", "d e v"])
def test_an_environment_is_one_name(tmp_path: Path, environment: str) -> None:
    with pytest.raises(InputError, match="not a name of an environment"):
        FileRegistry(tmp_path, environment)


def test_a_file_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        FileRegistry(tmp_path / "r", "dev")


def test_other_users_can_read_what_is_written(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        FileRegistry(tmp_path, "dev").create("a/b", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "dev" / "a" / "b.json").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "dev" / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize("step", ["open", "write", "fsync", "rename"])
def test_a_full_disk_keeps_the_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    registry = FileRegistry(tmp_path, "dev")
    registry.create("a/b", b"old")

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        def __getattr__(self, name: str) -> Any:
            return full if name in {"write", "writelines"} else getattr(self._file, name)

        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

    original = Path.open

    def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if step == "open" and "+" in mode:
            full()
        file = original(path, mode, *rest, **options)
        return Full(file) if "+" in mode and step == "write" else file

    with monkeypatch.context() as patch:
        if step in {"open", "write"}:
            patch.setattr(Path, "open", opened)
        elif step == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(StorageError, match=r"No space left.*free space.*as they were"):
            registry.swap("a/b", b"new", b"old")
        with pytest.raises(StorageError, match="No space left"):
            registry.create("a/c", b"new")
    assert registry.read("a/b") == b"old"
    assert registry.read("a/c") is None
    assert _files(tmp_path) == ["dev/a/b.json"]
    registry.swap("a/b", b"new", b"old")


def test_leftovers_of_killed_writers_are_no_documents_and_are_swept(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path, "dev")
    registry.create("a/b", b"x")
    (tmp_path / "dev" / "a" / ".tmp-1-abc").write_bytes(b"half a docu")
    assert registry.names() == ("a/b",)
    registry.create("a/c", b"x")
    assert _files(tmp_path) == ["dev/a/b.json", "dev/a/c.json"]


def test_a_file_that_is_no_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "a.json").write_bytes(b"x" * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(StorageError, match=r"no document of trtops"):
        FileRegistry(tmp_path, "dev").read("a")


def test_a_folder_in_a_documents_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev" / "a.json").mkdir(parents=True)
    registry = FileRegistry(tmp_path, "dev")
    with pytest.raises(Unavailable, match="cannot read the registry"):
        registry.read("a")


def test_a_writer_that_hangs_is_waited_for_and_then_named(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path, "dev", lock_timeout=0.05)
    registry.create("a", b"x")
    with FileLock(tmp_path / "dev" / ".lock"), pytest.raises(Unavailable, match="another process has held"):
        registry.swap("a", b"y", b"x")
    assert registry.read("a") == b"x"
    registry.swap("a", b"y", b"x")


def test_a_writer_that_is_let_in_late_still_writes(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path, "dev")
    registry.create("a", b"x")
    lock = FileLock(tmp_path / "dev" / ".lock", thread_local=False)
    lock.acquire()
    writer = threading.Thread(target=registry.swap, args=("a", b"y", b"x"))
    writer.start()
    lock.release()
    writer.join(30)
    assert registry.read("a") == b"y"


def test_a_watch_goes_on_after_the_folder_could_not_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = FileRegistry(tmp_path, "dev", interval=0.01)
    heard: queue.Queue[bytes | None] = queue.Queue()
    (tmp_path / "dev" / "a.json").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "trtops.registry"):
        watch = registry.watch("a", heard.put)
        while "the watch goes on" not in caplog.text:
            threading.Event().wait(0.01)
        assert "failing" in repr(watch)
        (tmp_path / "dev" / "a.json").rmdir()
        assert heard.get(timeout=30) is None
        registry.create("a", b"x")
        assert heard.get(timeout=30) == b"x"
        watch.close()
    assert caplog.text.count("the watch goes on") == 1
    assert "closed" in repr(watch)


def test_a_watch_sees_a_document_removed_by_hand(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path, "dev", interval=0.01)
    registry.create("a", b"x")
    heard: queue.Queue[bytes | None] = queue.Queue()
    watch = registry.watch("a", heard.put)
    assert heard.get(timeout=30) == b"x"
    (tmp_path / "dev" / "a.json").unlink()
    assert heard.get(timeout=30) is None
    watch.close()
