"""Builds in a child process: a crash, a hang or a flood of memory in a native builder is an error with its log.

The cache: a record ``sidecar`` under the plan's key names the artifact. Artifact first, record last: a record never
names bytes that were not kept. One build a key at a time on a machine; who waits gets the other's artifact.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import Field, ValidationError

import trtops
from trtops import errors
from trtops.backend.port import Progress, Sidecar
from trtops.backend.trt_plugins import bring_libraries, libraries_of
from trtops.build.conversions import Conversions, conversion_key
from trtops.build.protocol import MESSAGE, MODEL_FILE, TIMING_FILE, Advanced, Done, Failed, Message, Request
from trtops.build.scratch import LOGS, scratch
from trtops.build.timing import Timings, timing_key
from trtops.build.voucher import EngineVoucher
from trtops.digest import Digest, Value
from trtops.errors import BuildFailed, FetchFailed, IntegrityError, StorageError, TrtopsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.build.plan import BuildPlan
    from trtops.build.protocol import SampleSource
    from trtops.build.voucher import Voucher
    from trtops.store import Store

SIDECAR = "sidecar"
"""Kind of the records that the cache is made of: plan key -> :class:`~trtops.backend.port.Sidecar`."""

_TICK = 0.2
_TAIL_LINES = 40
_TAIL_BYTES = 64 << 10
# CUDA maps far more addresses than it uses, so there the resident memory is watched instead of the address space.
_MAPS_FREELY = frozenset({"tensorrt"})


Found_co = TypeVar("Found_co", covariant=True)


class _Kept(Protocol[Found_co]):
    """What a build may start from."""

    def fetch(self, path: Path) -> Found_co | None:
        """Write it to a path; None if there is none."""


class Built(Value):
    """A build's outcome.

    Attributes:
        sidecar: what is known of the engine.
        cached: whether it was there already.
        seconds: how long this call took.
        phases: what parts of it took, in their order; empty where it was cached.
    """

    sidecar: Sidecar
    cached: bool
    seconds: float
    phases: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a build's child may take.

    Attributes:
        deadline_s: seconds until it is ended.
        memory_bytes: bytes of memory; None: no limit.
        silence_s: seconds without a heartbeat after which it counts as hung.
    """

    deadline_s: float = 3600.0
    memory_bytes: int | None = None
    silence_s: float = 120.0


def build(
    plan: BuildPlan,
    *,
    model: Path,
    store: Store,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    rebuild: bool = False,
    samples: SampleSource | None = None,
    voucher: Voucher | None = None,
) -> Built:
    """Build an engine, or find it in the store.

    Args:
        plan: what to build.
        model: the source ONNX file.
        store: where the engine goes.
        limits: of the child process.
        on_progress: called from this thread, again and again while the build runs.
        rebuild: build even if it is there, and replace what is there.
        samples: data that the plan's precision needs (:func:`trtops.build.precision.needs_samples`).
        voucher: vouches for timing caches and converted models; None: the build starts with none and keeps none. One
            that vouches for engines, too, does so for what is built, and what it does not vouch for is built again; it
            is asked while nobody else builds the same. With another, whatever engine the store has is taken.

    Raises:
        BuildFailed: the builder refused, crashed, hung, ran out of memory or time; with its log.
        IntegrityError: what the store has under this key is damaged, or the model is not the planned one.
        StorageError: the engine could not be kept; the store is as it was.
    """
    begin = time.monotonic()
    limits = limits or Limits()
    on_progress = on_progress or (lambda _: None)
    engines = voucher if isinstance(voucher, EngineVoucher) else None
    if not rebuild and (sidecar := _vouched(plan, store, engines)) is not None:
        return Built(sidecar=sidecar, cached=True, seconds=time.monotonic() - begin)
    with _only_one(plan, store, limits, on_progress):
        if not rebuild and (sidecar := _vouched(plan, store, engines)) is not None:
            return Built(sidecar=sidecar, cached=True, seconds=time.monotonic() - begin)
        earlier = _Earlier.of(plan, store, voucher)
        sidecar, phases = _build(plan, _Files(model.absolute(), samples), store, earlier, limits, on_progress)
        if engines is not None:
            engines.vouch(sidecar)
    seconds = time.monotonic() - begin
    phases["store"] = max(0.0, seconds - sum(phases.values()))
    return Built(sidecar=sidecar, cached=False, seconds=seconds, phases=phases)


def _vouched(plan: BuildPlan, store: Store, engines: EngineVoucher | None) -> Sidecar | None:
    """What the store has for a plan, if it may be taken."""
    if engines is None:
        return cached(plan, store)
    # Arbitrary software: the record is signed by nobody, and names what is loaded beside the engine.
    sidecar = recorded(plan, store) if (trusted := engines.sidecars()) else None
    return sidecar if sidecar is not None and sidecar.digest() in trusted and _has_bytes(sidecar, store) else None


def cached(plan: BuildPlan, store: Store) -> Sidecar | None:
    """What was built for a plan before, its bytes verified; None if there is nothing.

    Raises:
        IntegrityError: the record or the artifact is damaged; names the file.
        StorageError: the store cannot be read.
    """
    sidecar = recorded(plan, store)
    return sidecar if sidecar is not None and _has_bytes(sidecar, store) else None


def recorded(plan: BuildPlan, store: Store) -> Sidecar | None:
    """What the store's record says of a plan's build, as :func:`cached`; its bytes are not looked at."""
    body = store.record(SIDECAR, str(plan.key))
    if body is None:
        return None
    fix = "run the build again with --rebuild to replace it"
    where = f"{store.root}: record {SIDECAR} {plan.key}"
    try:
        sidecar = Sidecar.model_validate_json(body)
    except ValidationError as error:
        raise IntegrityError("the record of this build is damaged", where=where, fix=fix) from error
    if sidecar.plan != plan.key:
        raise IntegrityError(f"the record of this build is that of {sidecar.plan}", where=where, fix=fix)
    return sidecar


def _has_bytes(sidecar: Sidecar, store: Store) -> bool:
    try:
        store.path(sidecar.artifact)
        bring_libraries(sidecar, store)
    except FetchFailed:
        return False
    return True


@contextmanager
def _only_one(plan: BuildPlan, store: Store, limits: Limits, on_progress: Callable[[Progress], None]) -> Iterator[None]:
    """Hold the lock of a key."""
    import filelock

    path = store.folder / "locks" / f"build-{plan.key.value}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        end = time.monotonic() + limits.deadline_s
        waited = False
        while True:
            try:
                lock.acquire(timeout=0 if not waited else _TICK)
                break
            except filelock.Timeout as error:
                waited = True
                if time.monotonic() > end:
                    what = f"another process has been building {plan.engine} for {limits.deadline_s:g} seconds"
                    raise BuildFailed(what, where=str(path), fix="wait for it, or end it") from error
                on_progress(Progress(phase="wait for another process that builds the same"))
    except OSError as error:
        raise StorageError(
            f"cannot lock the build: {error.strerror}", where=str(path), fix="look at the disk"
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class _Files:
    """What a build reads."""

    model: Path
    samples: SampleSource | None
    converted: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What earlier builds left for later ones."""

    timings: Timings | None
    conversions: Conversions | None

    @classmethod
    def of(cls, plan: BuildPlan, store: Store, voucher: Voucher | None) -> _Earlier:
        timed, converted = timing_key(plan), conversion_key(plan)
        return cls(
            Timings(store, timed, voucher) if timed and voucher else None,
            Conversions(store, converted, voucher) if converted and voucher else None,
        )


def _build(
    plan: BuildPlan,
    files: _Files,
    store: Store,
    earlier: _Earlier,
    limits: Limits,
    on_progress: Callable[[Progress], None],
) -> tuple[Sidecar, dict[str, float]]:
    with scratch(store.folder) as folder:
        log = store.folder / LOGS / f"build-{plan.engine}-{plan.target.id}-{plan.key.short}.log"
        began = _fetched("timing cache", earlier.timings, folder / TIMING_FILE, on_progress)
        converted = _fetched("converted model", earlier.conversions, folder / MODEL_FILE, on_progress)
        done = _run(plan, replace(files, converted=converted), folder, log, limits, on_progress)
        engine = folder / "engine"
        if not engine.is_file() or not engine.stat().st_size:
            raise BuildFailed("the builder says that it is done, but wrote no engine", where=str(log), log=_tail(log))
        on_progress(Progress(phase="store the engine"))
        for plugin in plan.builder.plugins:
            if plugin.library is not None and libraries_of(done.result.extra):
                store.put_file(Path(plugin.library))
        artifact = store.put_file(engine)
        sidecar = _sidecar(plan, done, artifact, engine.stat().st_size)
        if earlier.timings and (folder / TIMING_FILE).exists():
            on_progress(Progress(phase="keep the timing cache"))
            if (failed := earlier.timings.keep(folder / TIMING_FILE, began)) is not None:
                on_progress(Progress(phase=failed))
        if earlier.conversions and converted is None:
            made = done.steps[: len(done.steps) - len(done.result.notes)]
            if (failed := earlier.conversions.keep(folder / MODEL_FILE, made)) is not None:
                on_progress(Progress(phase=failed))
        store.keep(SIDECAR, str(plan.key), sidecar.canonical_bytes())
        log.unlink(missing_ok=True)
        return sidecar, dict(done.seconds)


def _fetched(
    what: str, kept: _Kept[Found_co] | None, path: Path, on_progress: Callable[[Progress], None]
) -> Found_co | None:
    """Bring what an earlier build left to a path, if it is there and somebody vouches for it; no half of it stays."""
    try:
        return kept.fetch(path) if kept is not None else None
    except (OSError, TrtopsError) as error:
        path.unlink(missing_ok=True)
        on_progress(Progress(phase=f"the {what} of an earlier build is left out: {getattr(error, 'what', error)}"))
        return None


def _sidecar(plan: BuildPlan, done: Done, artifact: Digest, size: int) -> Sidecar:
    result = done.result
    return Sidecar(
        backend=plan.target.backend,
        backend_version=result.backend_version,
        target=plan.target,
        device=result.device,
        plan=plan.key,
        model=plan.model,
        artifact=artifact,
        size_bytes=size,
        inputs=result.inputs,
        outputs=result.outputs,
        profiles=plan.profiles,
        steps=done.steps,
        format=result.format,
        extra=result.extra,
    )


@dataclass(slots=True)
class _Child:
    """A running child and what it has said so far."""

    process: subprocess.Popen[bytes]
    pipe: int
    heard: float
    buffer: bytearray = field(default_factory=bytearray)
    verdict: Done | Failed | None = None
    progress: Progress = field(default_factory=lambda: Progress(phase="start"))
    open: bool = True


def _run(
    plan: BuildPlan,
    files: _Files,
    folder: Path,
    log: Path,
    limits: Limits,
    on_progress: Callable[[Progress], None],
) -> Done:
    child = _start(plan, files, folder, log, limits)
    end = time.monotonic() + limits.deadline_s
    try:
        while child.open and child.verdict is None:
            on_progress(child.progress)
            _listen(child, min(_TICK, max(0.0, end - time.monotonic())))
            if (reason := _overdue(child, plan, limits, end)) is not None:
                _dump_stacks(child)
                raise _failure(reason, log, fix="give it more, or make the model smaller; the log shows where it was")
        status = _status(child) if child.verdict is None else 0
    finally:
        _end(child)
    if isinstance(child.verdict, Done):
        return child.verdict
    if isinstance(child.verdict, Failed):
        raise _told(child.verdict, log, limits)
    raise _died(status, log, limits)


def _start(plan: BuildPlan, files: _Files, folder: Path, log: Path, limits: Limits) -> _Child:
    space = None if plan.target.backend in _MAPS_FREELY else limits.memory_bytes
    request = Request(
        plan=plan,
        model=str(files.model),
        folder=str(folder),
        address_space=space,
        samples=files.samples,
        converted=files.converted,
        started=time.monotonic(),
    )
    # The child's own folder is its working directory, so that no file of the caller's can shadow a module.
    package = str(Path(trtops.__file__).parent.parent)
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([package, *map(os.path.abspath, inherited)])
    receive, send = os.pipe()
    try:
        (folder / "request.json").write_bytes(request.canonical_bytes())
        with (folder / "request.json").open("rb") as stdin, log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trtops.build", str(send), str(os.getpid())],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(send,),
                cwd=folder,
                # Kernels are loaded when they are first used: old drivers load all of them at the start.
                env={"CUDA_MODULE_LOADING": "LAZY", **os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
    except OSError as error:
        os.close(receive)
        raise StorageError(f"cannot start the build: {error.strerror}", where=str(folder)) from error
    finally:
        os.close(send)
    return _Child(process, receive, time.monotonic())


def _listen(child: _Child, seconds: float) -> None:
    """Wait for the child's next words, and take them in."""
    if not select.select([child.pipe], [], [], seconds)[0]:
        return
    chunk = os.read(child.pipe, 1 << 16)
    if not chunk:
        child.open = False
        return
    child.heard = time.monotonic()
    child.buffer += chunk
    *lines, rest = child.buffer.split(b"\n")
    child.buffer = bytearray(rest)
    for line in lines:
        message: Message = MESSAGE.validate_json(line)
        if isinstance(message, Advanced):
            child.progress = message.progress
        elif isinstance(message, Done | Failed):
            child.verdict = message


def _overdue(child: _Child, plan: BuildPlan, limits: Limits, end: float) -> str | None:
    if child.verdict is not None or not child.open:
        return None
    now = time.monotonic()
    if now >= end:
        return f"the build was not done within {limits.deadline_s:g} seconds (it was at: {child.progress.phase})"
    if now - child.heard > limits.silence_s:
        return f"the build has given no sign of life for {limits.silence_s:g} seconds (at: {child.progress.phase})"
    if limits.memory_bytes is not None and plan.target.backend in _MAPS_FREELY:
        resident = _resident_bytes(child.process.pid)
        if resident > limits.memory_bytes:
            return f"the build took {resident} bytes of memory, {limits.memory_bytes} are allowed"
    return None


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _dump_stacks(child: _Child) -> None:
    """Have the child write to its log what each of its threads is at."""
    with suppress(ProcessLookupError):
        child.process.send_signal(signal.SIGUSR1)
    time.sleep(_TICK)


def _status(child: _Child) -> int:
    """The child's exit status once it has said its last word: negative is a signal."""
    try:
        return child.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return 0


def _end(child: _Child) -> None:
    """Kill the child with everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.process.wait(timeout=5)
    os.close(child.pipe)


def _died(status: int, log: Path, limits: Limits) -> BuildFailed:
    if status >= 0:
        scarce = "" if limits.memory_bytes is None else f"; its memory was limited to {limits.memory_bytes} bytes"
        return _failure(f"the builder left with status {status} and no word{scarce}", log, fix=None)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    what = f"the builder died of signal {name}"
    if limits.memory_bytes is not None and -status in {signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL, signal.SIGBUS}:
        what += f"; its memory was limited to {limits.memory_bytes} bytes, which may be why"
    elif -status == signal.SIGKILL:
        what += "; the system kills so when memory runs out"
    return _failure(what, log, fix=None)


def _told(failed: Failed, log: Path, limits: Limits) -> TrtopsError:
    """The child's error, made again here."""
    kind = getattr(errors, failed.error, None)
    if failed.error == MemoryError.__name__:
        limit = f": {limits.memory_bytes} bytes are allowed" if limits.memory_bytes is not None else ""
        return _failure(failed.what + limit, log, fix="allow it more memory, or build on a larger machine")
    if isinstance(kind, type) and issubclass(kind, TrtopsError) and kind is not BuildFailed:
        return kind(failed.what, where=failed.where, fix=failed.fix)
    # Native code tells a lack of memory in many ways, of which MemoryError is one.
    scarce = "" if limits.memory_bytes is None else f"; its memory was limited to {limits.memory_bytes} bytes"
    return _failure(failed.what + scarce, log, where=failed.where, fix=failed.fix)


def _failure(what: str, log: Path, *, fix: str | None, where: str | None = None) -> BuildFailed:
    hint = f"the log: {log}"
    return BuildFailed(what, where=where, fix=f"{fix}; {hint}" if fix else hint, log=_tail(log))


def _tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
