"""The store: verified reads, atomic writes, faults of the disk."""

from __future__ import annotations

import errno
import multiprocessing
import os
import uuid
from typing import TYPE_CHECKING

import fsspec
import pytest

from trtops.digest import Digest
from trtops.durable import write_durably
from trtops.errors import FetchFailed, InputError, IntegrityError, StorageError, TrtopsError
from trtops.store import RECORD_LIMIT, Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store(tmp_path / "store")
    return Store(f"memory://{uuid.uuid4().hex}/store", cache=tmp_path / "cache")


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_keeps_and_gives_back(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "engine"
    source.write_bytes(b"engine" * 1000)
    digest = store.put_file(source)
    assert digest == Digest.of_file(source)
    assert store.has(digest)
    assert store.path(digest).read_bytes() == source.read_bytes()
    assert store.read(digest, 6000) == source.read_bytes()
    assert store.put_bytes(source.read_bytes()) == digest
    other = store.put_bytes(b"")
    assert store.digests() == tuple(sorted([digest, other]))
    store.remove(digest)
    store.remove(digest)
    assert store.digests() == (other,)
    assert not store.has(digest)


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    digest = Store(tmp_path).put_bytes(b"x")
    Store(tmp_path).keep("sidecar", str(digest), b"{}")
    assert _files(tmp_path) == [
        f"records/sidecar/sha256%3A{digest.value}.json",
        f"sha256/{digest.value[:2]}/{digest.value}",
    ]


def test_absent_artifact_is_named(store: Store) -> None:
    digest = Digest.of_bytes(b"never")
    assert not store.has(digest)
    for ask in (store.path, lambda wanted: store.read(wanted, 10)):
        with pytest.raises(FetchFailed, match=digest.value):
            ask(digest)


def test_no_more_of_a_file_is_fetched_than_was_released(tmp_path: Path) -> None:
    """Whoever has the store cannot fill this machine's disk."""
    url = f"memory://{uuid.uuid4().hex}"
    digest = Store(url, cache=tmp_path / "publisher").put_bytes(b"engine")
    (remote,) = fsspec.filesystem("memory").find(url)
    fsspec.filesystem("memory").pipe_file(remote, b"engine" + b"x" * (64 << 20))
    store = Store(url, cache=tmp_path / "service")
    with pytest.raises(IntegrityError, match="more than the 6 bytes that were released"):
        store.path(digest, size=6)
    assert sum(path.stat().st_size for path in (tmp_path / "service").rglob("*") if path.is_file()) == 0
    fsspec.filesystem("memory").pipe_file(remote, b"engine")
    assert store.path(digest, size=6).read_bytes() == b"engine"
    store.path(digest).write_bytes(b"engine and more")
    with pytest.raises(IntegrityError, match="cut short or changed"):
        store.path(digest, size=6)


def test_limit_of_a_read(store: Store) -> None:
    digest = store.put_bytes(b"12345")
    with pytest.raises(StorageError, match="larger than the 4 bytes"):
        store.read(digest, 4)


@pytest.mark.parametrize("damage", [b"", b"engin", b"Engine"])
def test_damaged_file_is_refused_and_replaced(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    digest = store.put_bytes(b"engine")
    path = store.path(digest)
    path.write_bytes(damage)
    with pytest.raises(IntegrityError, match="--rebuild") as caught:
        store.path(digest)
    assert caught.value.where == str(path)
    with pytest.raises(IntegrityError):
        store.read(digest, 100)
    store.put_bytes(b"engine")
    assert store.path(digest).read_bytes() == b"engine"


def test_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put_bytes(b"engine")
    path = store.path(digest)
    before = path.stat()
    path.write_bytes(b"ENGINE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(IntegrityError):
        store.path(digest)


def test_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    digest = store.put_bytes(b"engine")
    hashed = []
    of_file = Digest.of_file

    def noted(path: Path) -> Digest:
        hashed.append(path)
        return of_file(path)

    monkeypatch.setattr(Digest, "of_file", noted)
    store.path(digest)
    store.path(digest)
    assert len(hashed) == 1
    Store(tmp_path).path(digest)
    assert len(hashed) == 2


def test_damaged_copy_of_a_url_is_fetched_again(tmp_path: Path) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}", cache=tmp_path)
    digest = store.put_bytes(b"engine")
    store.path(digest).write_bytes(b"short")
    with pytest.raises(IntegrityError):
        store.path(digest)
    assert store.path(digest).read_bytes() == b"engine"


def test_unknown_scheme_is_the_users_error() -> None:
    with pytest.raises(InputError, match="nonsense"):
        Store("nonsense://bucket/x")


def test_file_url_is_a_folder(tmp_path: Path) -> None:
    digest = Store(f"file://{tmp_path}/a%20b").put_bytes(b"x")
    assert Store(tmp_path / "a b").has(digest)


def test_file_that_changes_under_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model"
    source.write_bytes(b"new bytes")
    of_file = Digest.of_file
    old = Digest.of_bytes(b"old bytes")
    monkeypatch.setattr(Digest, "of_file", lambda path: old if path == source else of_file(path))
    with pytest.raises(InputError, match="changed while"):
        Store(tmp_path / "store").put_file(source)
    assert _files(tmp_path / "store") == []


def test_unreadable_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        Store(tmp_path / "store").put_file(tmp_path / "absent")


def test_full_disk_keeps_the_old_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    kept = store.put_bytes(b"before")
    store.keep("sidecar", "a", b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: store.put_bytes(b"after"), lambda: store.keep("sidecar", "a", b"after")):
        with pytest.raises(StorageError, match="No space left"):
            write()
    monkeypatch.undo()
    assert store.digests() == (kept,)
    assert store.record("sidecar", "a") == b"before"
    assert len(_files(tmp_path)) == 2


def _write_over_the_limit(root: str, answer: multiprocessing.Queue[str]) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        Store(root).put_bytes(b"x" * 100_000)
    except TrtopsError as error:
        answer.put(f"{type(error).__name__}: {error}")


@pytest.mark.service
def test_file_system_that_takes_no_more_bytes(tmp_path: Path) -> None:
    """The kernel itself refuses in the middle of the file, as on a full disk."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(target=_write_over_the_limit, args=(str(tmp_path / "store"), answer))
    child.start()
    said = answer.get(timeout=60)
    child.join(60)
    assert said.startswith("StorageError")
    assert "File too large" in said
    assert _files(tmp_path) == []


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="Not a directory"):
        Store(tmp_path / "file").put_bytes(b"x")


def test_leftovers_of_killed_writers_are_swept_when_old(tmp_path: Path) -> None:
    digest = Digest.of_bytes(b"engine")
    folder = tmp_path / "sha256" / digest.value[:2]
    folder.mkdir(parents=True)
    leftover = folder / ".tmp-1-dead"
    leftover.write_bytes(b"eng")
    now = leftover.stat().st_mtime
    assert Store(tmp_path).digests() == ()
    Store(tmp_path, clock=lambda: now + 3000).put_bytes(b"engine")
    assert leftover.exists()
    Store(tmp_path, clock=lambda: now + 4000).remove(digest)
    Store(tmp_path, clock=lambda: now + 4000).put_bytes(b"engine")
    assert not leftover.exists()


def test_records(store: Store) -> None:
    assert store.record("evidence", "a") is None
    assert store.records("evidence") == {}
    store.keep("evidence", "b/../c", b"1")
    store.keep("evidence", "..", b"2")
    store.keep("evidence", "a", b"3")
    store.keep("evidence", "a", b"4")
    store.keep("sidecar", "a", b"5")
    assert store.records("evidence") == {"..": b"2", "a": b"4", "b/../c": b"1"}
    store.forget("evidence", "..")
    store.forget("evidence", "..")
    assert list(store.records("evidence")) == ["a", "b/../c"]
    assert store.digests() == ()


@pytest.mark.parametrize("kind", ["", "..", "a/b", "Sidecar"])
def test_kind_of_a_record_is_checked(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="kind of record"):
        Store(tmp_path).keep(kind, "a", b"")


@pytest.mark.parametrize("key", ["", "x" * 241, "é" * 81])
def test_key_of_a_record_is_checked(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        Store(tmp_path).keep("sidecar", key, b"")


def test_record_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most"):
        Store(tmp_path).keep("sidecar", "a", b"x" * (RECORD_LIMIT + 1))


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_durably(tmp_path / "a" / "b", [b"x"])
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o640


def _put_many(root: str, count: int) -> None:
    for _ in range(count):
        store = Store(root)
        store.remove(store.put_bytes(b"engine" * 50_000))
        store.put_bytes(b"engine" * 50_000)
        store.keep("sidecar", "a", b"engine" * 50_000)


@pytest.mark.service
def test_writers_of_the_same_digest_do_no_harm(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_many, args=(str(tmp_path), 15)) for _ in range(3)]
    for writer in writers:
        writer.start()
    store = Store(tmp_path)
    while any(writer.is_alive() for writer in writers):
        body = store.record("sidecar", "a")
        assert body is None or len(body) == 300_000
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert [store.path(digest).stat().st_size for digest in store.digests()] == [300_000]
    assert len(_files(tmp_path)) == 2
