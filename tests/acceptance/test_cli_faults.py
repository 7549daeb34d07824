"""Faults that are nobody's wrong input: races, damage, full disks, kills. What was there stays, a re-run finishes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.repository import Repository, copy_of, finished
from trtops.registry.file import FileRegistry
from trtops.release import publish as publishing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def changed(repo: Repository, name: str, root: Path) -> Repository:
    """A second clone of the repository whose spec differs, with the same home."""
    other = Repository(copy_of(repo, root).root, repo.home)
    other.edit("owner: team", f"owner: {name}")
    return other


@pytest.mark.parametrize("verb", ["build", "verify", "ship"])
def test_an_artifact_cut_short_is_refused_and_named(shipped: Repository, verb: str) -> None:
    path = shipped.artifact()
    path.write_bytes(path.read_bytes()[:-7])
    shipped.call(verb, "tiny").says(2, f"{path}: error: ", "it was cut short or changed", "--rebuild to replace it")
    assert shipped.generations() == [1]


def test_an_artifact_cut_short_is_rebuilt_on_request(shipped: Repository) -> None:
    path = shipped.artifact()
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    shipped.call("build", "tiny", "--rebuild").says(0, "built")
    assert path.read_bytes() == whole
    shipped.call("ship", "tiny").says(0, "nothing new: generation 1 says the same")


@pytest.mark.parametrize(
    ("kind", "mends"),
    [("sidecar", "--rebuild"), ("evidence", None), ("provenance", None), ("verdict", None)],
)
def test_a_record_cut_short(shipped: Repository, kind: str, mends: str | None) -> None:
    paths = list((shipped.home / "store" / "records" / kind).iterdir())
    assert paths
    for path in paths:
        path.write_bytes(path.read_bytes()[:100])
    if mends is not None:  # what can be made again without a loss is made again
        shipped.call("ship", "tiny").says(2, kind, mends)
        assert shipped.generations() == [1]
    shipped.call("ship", "tiny", *([mends] if mends else [])).says(0)


def test_a_model_cut_short_in_the_store_is_fetched_again(shipped: Repository) -> None:
    (model,) = (shipped.home / "store" / "sha256").rglob("b39*")
    model.write_bytes(model.read_bytes()[:50])
    shipped.call("ship", "tiny").says(0, "nothing new: generation 1 says the same")
    assert model.read_bytes() == (shipped.engine / "model.onnx").read_bytes()


def test_a_forged_pointer_is_told_and_not_built_upon(shipped: Repository) -> None:
    pointer = shipped.home / "registry" / "local" / "channels" / "tiny" / "stable.json"
    text = pointer.read_text()
    pointer.write_text(text.replace('"signatures":[', '"signatures":[{"keyid":"0","sig":"AAAA"},', 1)[:-30])
    for arguments in (("status",), ("history", "tiny"), ("rollback", "tiny"), ("ship", "tiny")):
        shipped.call(*arguments).says(2, "channels/tiny/stable")
    pointer.write_text(text)
    shipped.call("ship", "tiny").says(0, "nothing new: generation 1 says the same")


def test_a_release_while_another_one_is_judged(
    shipped: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner publishes between the loser's gate and the loser's publication."""
    winner, loser = (changed(shipped, name, folder / name) for name in ("winner", "loser"))
    publish = publishing.publish

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(publishing, "publish", publish)
        winner.call("ship", "tiny").says(0, "generation 2 signed and published")
        return publish(*args, **kwargs)

    monkeypatch.setattr(publishing, "publish", late)
    lost = loser.call("ship", "tiny").says(3, "was moved to generation 2 by key", "(release)")
    assert "while a release after generation 1 was judged" in lost.err
    assert "look at trtops status, then run this again if it is still wanted" in lost.err
    assert shipped.generations() == [2, 1]
    loser.call("ship", "tiny").says(0, "generation 3 signed and published")


def test_a_release_while_another_one_is_published(
    shipped: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner moves the pointer just before the loser does."""
    winner, loser = (changed(shipped, name, folder / name) for name in ("winner", "loser"))
    swap = FileRegistry.swap

    def late(self: FileRegistry, name: str, body: bytes, expected: bytes | None) -> None:
        monkeypatch.setattr(FileRegistry, "swap", swap)
        winner.call("ship", "tiny").says(0, "generation 2 signed and published")
        swap(self, name, body, expected)

    monkeypatch.setattr(FileRegistry, "swap", late)
    lost = loser.call("ship", "tiny").says(3, "was moved to generation 2 by key")
    assert "while generation 2 was made from generation 1" in lost.err
    assert shipped.generations() == [2, 1]


def test_a_rollback_while_another_release_is_published(
    shipped: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(shipped, "second", folder / "second").call("ship", "tiny").says(0, "generation 2")
    third = changed(shipped, "third", folder / "third")
    swap = FileRegistry.swap

    def late(self: FileRegistry, name: str, body: bytes, expected: bytes | None) -> None:
        monkeypatch.setattr(FileRegistry, "swap", swap)
        third.call("ship", "tiny").says(0, "generation 3")
        swap(self, name, body, expected)

    monkeypatch.setattr(FileRegistry, "swap", late)
    shipped.call("rollback", "tiny").says(3, "was moved to generation 3")
    assert shipped.generations() == [3, 2, 1]


@pytest.mark.service
def test_two_processes_that_ship_the_same_at_once(repo: Repository) -> None:
    both = [repo.start("ship", "tiny") for _ in range(2)]
    for done in [finished(process) for process in both]:
        # Each has measured for itself, so that their evidence may differ, and the second release with it.
        assert "Traceback" not in done.err
        assert done.code in {0, 3}, done
    assert set(repo.generations()) <= {1, 2}
    assert repo.half_written() == []
    repo.call("ship", "tiny").says(0, "build onnxruntime   reused")


@pytest.mark.service
def test_of_processes_that_build_the_same_at_once_one_builds(repo: Repository) -> None:
    processes = [repo.start("build", "tiny") for _ in range(3)]
    said = [finished(process).says(0).out for process in processes]
    words = sorted(next(line for line in out.splitlines() if line.startswith("build ")).split()[2] for out in said)
    assert words == ["built", "reused", "reused"]


@pytest.mark.service
def test_two_processes_that_ship_something_else_at_once(shipped: Repository, folder: Path) -> None:
    both = [changed(shipped, name, folder / name).start("ship", "tiny") for name in ("left", "right")]
    codes = []
    for done in [finished(process) for process in both]:
        assert "Traceback" not in done.err
        assert done.code in {0, 3}, done
        assert (done.code == 3) == ("was moved to generation 2" in done.err)
        codes.append(done.code)
    assert 0 in codes
    assert len(shipped.generations()) == 1 + codes.count(0)


def limited(repo: Repository, size: int, *arguments: str) -> subprocess.Popen[bytes]:
    """A command for which the disk is full once any file has so many bytes."""
    command = [sys.executable, "-m", "trtops", *arguments]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.Popen(
        command,
        cwd=repo.root,
        env=repo.environment(PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=limit,  # noqa: PLW1509 - no thread of this process holds a lock here
    )


@pytest.mark.service
@pytest.mark.parametrize("size", [0, 700])
def test_a_full_disk_at_first(repo: Repository, size: int) -> None:
    finished(limited(repo, size, "ship", "tiny")).says(2, "error: ")
    assert repo.half_written() == []
    repo.call("status").says(0, "nothing is released yet")
    repo.call("ship", "tiny").says(0, "generation 1 signed and published")


@pytest.mark.service
@pytest.mark.parametrize("size", [1000])
def test_a_full_disk_keeps_the_old_release(shipped: Repository, size: int) -> None:
    before = {name: (shipped.home / name).read_bytes() for name in shipped.files()}
    shipped.edit("owner: team", "owner: other")
    full = finished(limited(shipped, size, "ship", "tiny")).says(2, "error: ")
    assert "File too large" in full.err or "full" in full.err
    assert {name: (shipped.home / name).read_bytes() for name in before} == before
    assert shipped.half_written() == []
    assert shipped.generations() == [1]
    shipped.call("ship", "tiny").says(0, "generation 2 signed and published")


def _stored(repo: Repository) -> bool:
    return (repo.home / "store" / "records" / "sidecar").exists()


def _built(repo: Repository) -> bool:
    """It builds, or has built: the folder of a small build is there for a moment only."""
    return any((repo.home / "store").glob("build-*")) or _stored(repo)


def _publishing(repo: Repository) -> bool:
    return any((repo.home / "registry").rglob("*.json"))


@pytest.mark.service
@pytest.mark.parametrize("moment", [_built, _stored, _publishing])
def test_killed_in_the_middle(repo: Repository, moment: Callable[[Repository], bool]) -> None:
    with repo.start("ship", "tiny", pipes=False) as process:
        end, came = time.monotonic() + 60, False
        while not (came := moment(repo)) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        assert came
        process.kill()
    assert process.returncode in {-signal.SIGKILL, 0}  # 0: it was done before the signal came
    if (repo.home / "registry" / "local" / "channels").exists():
        repo.call("status").says(0)
    repo.call("ship", "tiny").says(0, "release")
    assert repo.generations() == [1]
    assert not [name for name in repo.half_written() if "registry" in name]


@pytest.mark.service
def test_a_builder_that_is_killed_is_told_with_its_log(repo: Repository) -> None:
    with repo.start("build", "tiny") as process:
        child = None
        end = time.monotonic() + 60
        while child is None and process.poll() is None and time.monotonic() < end:
            child = next((pid for pid in _children(process.pid) if b"trtops.build" in _command(pid)), None)
        assert child is not None
        os.kill(child, signal.SIGKILL)
        done = finished(process)
    done.says(2, "the builder died of signal SIGKILL", "the log: ")
    assert repo.half_written() == []
    repo.call("build", "tiny").says(0, "built")


def _children(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - a process, not a path
            return file.read()
    except OSError:
        return b""


@pytest.mark.service
def test_a_build_out_of_time_or_memory(repo: Repository) -> None:
    repo.call("build", "tiny", "--timeout", "0.01").says(2, "the build was not done within 0.01 seconds", "the log: ")
    done = repo.call("build", "tiny", "--memory", "50000000")
    assert done.code == 2
    assert "50000000 bytes" in done.err
    assert repo.half_written() == []
    repo.call("build", "tiny").says(0, "built")


@pytest.mark.service
def test_interrupted_by_its_user(repo: Repository) -> None:
    with repo.start("ship", "tiny") as process:
        end = time.monotonic() + 60
        while not _built(repo) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        done = finished(process)
    assert done.code == 130
    assert "Traceback" not in done.err
    assert done.err.endswith("interrupted\n")
    assert repo.half_written() == []
