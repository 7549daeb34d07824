"""The child that builds: what it says, how it dies, what is left then. Faults are played by the fake backend."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.builds import engine_spec, files, linear, plan_for, save
from trtops.backend.fake import ENVIRONMENT
from trtops.build.runner import SIDECAR, Limits, build, cached
from trtops.digest import Digest
from trtops.errors import BuildFailed, InputError, IntegrityError, StorageError, TrtopsError
from trtops.store import Store

if TYPE_CHECKING:
    from trtops.backend.port import Progress
    from trtops.build.plan import BuildPlan

pytestmark = pytest.mark.service


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(linear(), tmp_path / "model.onnx")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def plan(model: Path) -> BuildPlan:
    return plan_for(model)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_options(**options: Any) -> None:
        monkeypatch.setenv(ENVIRONMENT, json.dumps(options))

    monkeypatch.delenv(ENVIRONMENT, raising=False)
    return set_options


def _children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True) if "trtops.build" in _words(child)]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has just ended
        return []


def test_builds_once_and_then_finds_it(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build_seconds=0.1)
    seen: list[Progress] = []
    first = build(plan, model=model, store=store, on_progress=seen.append)
    assert not first.cached
    assert first.sidecar.plan == plan.key
    assert first.sidecar.artifact == Digest.of_file(store.path(first.sidecar.artifact))
    assert first.sidecar.size_bytes == store.path(first.sidecar.artifact).stat().st_size
    phases = [progress.phase for progress in seen]
    assert phases[0] == "start"
    assert "play" in phases
    assert phases[-1] == "store the engine"
    kept = files(store.folder)
    play(build="crash")  # would be seen if it built again
    second = build(plan, model=model, store=store)
    assert second.cached
    assert second.sidecar == first.sidecar
    assert files(store.folder) == kept
    assert len(kept) == 2
    assert not list((store.folder / "logs").iterdir())


def test_rebuild_builds_again(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play()
    first = build(plan, model=model, store=store)
    again = build(plan, model=model, store=store, rebuild=True)
    assert not again.cached
    assert again.sidecar == first.sidecar


@pytest.mark.parametrize("damage", ["artifact", "record", "swapped"])
def test_damaged_cache_is_named_and_replaced(
    plan: BuildPlan, model: Path, store: Store, play: Any, damage: str
) -> None:
    play()
    built = build(plan, model=model, store=store)
    path = store.path(built.sidecar.artifact)
    if damage == "artifact":
        path.write_bytes(path.read_bytes()[:10])
    elif damage == "record":
        store.keep(SIDECAR, str(plan.key), built.sidecar.canonical_bytes()[:50])
    else:
        other = built.sidecar.model_copy(update={"plan": Digest.of_bytes(b"other")})
        store.keep(SIDECAR, str(plan.key), other.canonical_bytes())
    with pytest.raises(IntegrityError, match="--rebuild") as caught:
        build(plan, model=model, store=store)
    assert str(path if damage == "artifact" else plan.key) in str(caught.value.where)
    assert not build(plan, model=model, store=store, rebuild=True).cached
    assert build(plan, model=model, store=store).cached


def test_record_whose_artifact_is_gone_builds_again(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play()
    store.remove(build(plan, model=model, store=store).sidecar.artifact)
    assert cached(plan, store) is None
    assert not build(plan, model=model, store=store).cached


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("refuse", "told to refuse"),
        ("error", "builder failed: JSONDecodeError: told to raise"),
        ("crash", "died of signal SIGSEGV"),
        ("kill", "died of signal SIGKILL"),
        ("cut", "died of signal SIGKILL"),
        ("exit", "left with status 3"),
    ],
)
def test_failures_leave_nothing_and_keep_their_log(
    plan: BuildPlan, model: Path, store: Store, play: Any, how: str, words: str
) -> None:
    play(build=how)
    with pytest.raises(BuildFailed, match=words) as caught:
        build(plan, model=model, store=store)
    assert f"fake: build fails by {how}" in caught.value.log
    log = Path(str(caught.value.fix).rpartition("the log: ")[2])
    assert f"build fails by {how}" in log.read_text()
    assert files(store.folder) == []
    assert _children() == []
    play()
    assert not build(plan, model=model, store=store).cached


def test_crash_shows_where_it_was(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build="crash")
    with pytest.raises(BuildFailed) as caught:
        build(plan, model=model, store=store)
    assert "Fatal Python error: Segmentation fault" in caught.value.log
    assert "in _fail" in caught.value.log


@pytest.mark.parametrize(
    ("how", "limit", "words"),
    [
        ("hang", "deadline_s", "not done within {} seconds"),
        ("freeze", "silence_s", "no sign of life for {} seconds"),
    ],
)
def test_builds_that_never_end_are_ended(
    plan: BuildPlan, model: Path, store: Store, play: Any, how: str, limit: str, words: str
) -> None:
    play(build=how)
    for seconds in (3, 40):  # where the machine is busy, it has not begun after three
        limits: dict[str, Any] = {limit: seconds}
        with pytest.raises(BuildFailed, match=words.format(seconds)) as caught:
            build(plan, model=model, store=store, limits=Limits(**limits))
        if "at: play" in caught.value.what:
            break
    assert "at: play" in caught.value.what
    if how == "hang":
        assert "in _fail" in caught.value.log
    assert files(store.folder) == []
    assert _children() == []


def test_memory_is_limited(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build="memory")
    with pytest.raises(BuildFailed, match="no more memory: 2147483648 bytes are allowed"):
        build(plan, model=model, store=store, limits=Limits(memory_bytes=2 << 30))
    assert files(store.folder) == []


def test_disk_of_the_child_is_full(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build="disk")
    with pytest.raises(StorageError, match="No space left"):
        build(plan, model=model, store=store)
    assert files(store.folder) == []


def test_store_that_cannot_be_written(plan: BuildPlan, model: Path, tmp_path: Path, play: Any) -> None:
    play()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        build(plan, model=model, store=Store(tmp_path / "file"))


def test_full_store_keeps_no_record(
    plan: BuildPlan, model: Path, store: Store, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play()

    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(store, "keep", full)
    with pytest.raises(StorageError):
        build(plan, model=model, store=store)
    monkeypatch.undo()
    assert cached(plan, store) is None
    assert store.records(SIDECAR) == {}
    assert not build(plan, model=model, store=store).cached


def test_gpu_that_is_gone_when_the_build_begins(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(gone=True)
    with pytest.raises(BuildFailed, match="Fake GPU is gone") as caught:
        build(plan, model=model, store=store)
    assert "build it on another machine" in str(caught.value.fix)
    assert files(store.folder) == []
    play()
    assert not build(plan, model=model, store=store).cached


def test_wrong_options_are_told_by_their_own_error(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(nonsense=1)
    with pytest.raises(InputError, match="nonsense") as caught:
        build(plan, model=model, store=store)
    assert ENVIRONMENT in str(caught.value.where)


def test_model_that_is_not_the_planned_one(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play()
    save(linear("M"), model)
    with pytest.raises(IntegrityError, match="not the one that was planned"):
        build(plan, model=model, store=store)


def test_version_that_is_not_the_planned_one(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(version="9.9.9")
    with pytest.raises(BuildFailed, match=r"planned for fake 1\.0\.0, here is 9\.9\.9"):
        build(plan, model=model, store=store)


def test_precision_that_the_backend_lacks_is_refused(model: Path, store: Store) -> None:
    from trtops.backend.versions import installed

    spec = engine_spec("onnxruntime", precision={"mode": "bf16"})
    with pytest.raises(BuildFailed, match="fp32, fp16, int8 on a CPU, not bf16"):
        build(plan_for(model, str(installed("onnxruntime")), spec), model=model, store=store)
    assert files(store.folder) == []


def test_callers_folder_shadows_no_module(
    plan: BuildPlan, model: Path, store: Store, play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play()
    for name in ("onnx.py", "json.py", "trtops.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert not build(plan, model=model, store=store).cached


def test_callers_own_error_ends_the_child(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build="hang")

    def stop(progress: Progress) -> None:
        if progress.phase == "play":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(plan, model=model, store=store, on_progress=stop)
    assert _children() == []
    assert files(store.folder) == []


def test_two_threads_build_once(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build_seconds=1)
    outcomes: list[bool] = []
    phases: set[str] = set()

    def work() -> None:
        built = build(plan, model=model, store=store, on_progress=lambda progress: phases.add(progress.phase))
        outcomes.append(built.cached)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == [False, True]
    assert "wait for another process that builds the same" in phases


SCRIPT = """
import sys
from pathlib import Path
from trtops.build.plan import BuildPlan
from trtops.build.runner import build
from trtops.store import Store
plan = BuildPlan.model_validate_json(sys.stdin.read())
print("ready", flush=True)
built = build(plan, model=Path(sys.argv[1]), store=Store(sys.argv[2]))
print("cached" if built.cached else "built", flush=True)
"""


def _start(plan: BuildPlan, model: Path, store: Store) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(model), str(store.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdin is not None
    process.stdin.write(plan.model_dump_json())
    process.stdin.close()
    process.stdin = None
    return process


def test_two_processes_build_once(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    play(build_seconds=2)
    processes = [_start(plan, model, store) for _ in range(2)]
    said = [process.communicate(timeout=90) for process in processes]
    assert sorted(out.split()[-1] for out, _ in said) == ["built", "cached"], said
    assert len(files(store.folder)) == 2


def _builder_of(parent: int) -> psutil.Process:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(parent).children():
            if "trtops.build" in _words(child):
                return child
        time.sleep(0.05)
    raise AssertionError("no child was started")


@pytest.mark.parametrize("doing", ["start", "hang", "freeze"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_child_ends_with_its_parent(
    plan: BuildPlan, model: Path, store: Store, play: Any, how: signal.Signals, doing: str
) -> None:
    play(**({"build_seconds": 120} if doing == "start" else {"build": doing}))
    parent = _start(plan, model, store)
    child = _builder_of(parent.pid)
    time.sleep(0 if doing == "start" else 1)
    parent.send_signal(how)
    parent.communicate(timeout=60)
    child.wait(timeout=60)  # by itself it would go on for minutes
    assert [name for name in files(store.folder) if name.startswith(("sha256", "records"))] == []
    play()
    assert not build(plan, model=model, store=store).cached


def test_waiting_ends_at_the_deadline(plan: BuildPlan, model: Path, store: Store, play: Any) -> None:
    import filelock

    play()
    path = store.folder / "locks" / f"build-{plan.key.value}"
    path.parent.mkdir(parents=True)
    with filelock.FileLock(path), pytest.raises(TrtopsError, match="another process has been building small"):
        build(plan, model=model, store=store, limits=Limits(deadline_s=0.5))
