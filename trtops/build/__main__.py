"""The child process of a build: ``python -m trtops.build DESCRIPTOR PARENT``, for :mod:`trtops.build.runner` only.

Reads a :class:`~trtops.build.protocol.Request` from its standard input and writes messages to the descriptor. Its
standard output and error are the build's log: native libraries write there past Python.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.backend.laps import Laps
from trtops.backend.port import BuildRequest
from trtops.backend.select import backend
from trtops.build.passes import prepare
from trtops.build.precision import read_samples
from trtops.build.protocol import (
    HEARTBEAT_SECONDS,
    MODEL_FILE,
    TIMING_FILE,
    Advanced,
    Alive,
    Done,
    Failed,
    Message,
    Request,
)
from trtops.build.timing import timing_key
from trtops.digest import Digest
from trtops.errors import BuildFailed, IntegrityError, StorageError, TrtopsError

if TYPE_CHECKING:
    from trtops.backend.port import Backend, Progress

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, prctl(2)


class _Channel:
    """Messages to the parent, from the builder's thread and from the heartbeat's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._last: Progress | None = None

    def send(self, message: Message) -> None:
        line = message.model_dump_json().encode() + b"\n"
        with self._lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def progress(self, progress: Progress) -> None:
        if progress != self._last:
            self._last = progress
            self.send(Advanced(progress=progress))

    def beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_SECONDS):
            self.send(Alive())


def main(arguments: list[str]) -> int:
    """Build once. Always says how it went before it leaves, unless it is killed."""
    channel = _Channel(int(arguments[0]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != int(arguments[1]):  # it died before the kernel was asked
        return 1
    threading.Thread(target=channel.beat, daemon=True).start()
    try:
        request = Request.model_validate_json(sys.stdin.buffer.read())
        laps = Laps()
        # The monotonic clock is the machine's, so that the interpreter's own start is counted, too.
        laps.seconds["start"] = max(0.0, time.monotonic() - request.started)
        if request.address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (request.address_space, request.address_space))
        channel.send(_build(request, channel, laps))
    except TrtopsError as error:
        where = None if error.where is None else str(error.where)
        channel.send(Failed(error=type(error).__name__, what=error.what, where=where, fix=error.fix))
    except MemoryError:
        traceback.print_exc()
        channel.send(Failed(error=MemoryError.__name__, what="the builder got no more memory"))
    except OSError as error:
        traceback.print_exc()
        what = f"the build could not read or write: {error.strerror}"
        fix = "free space there; nothing was stored"
        channel.send(Failed(error=StorageError.__name__, what=what, where=error.filename, fix=fix))
    except Exception as error:  # noqa: BLE001 - whatever a builder raises is the build's failure, told with its log
        traceback.print_exc()
        what = f"the builder failed: {type(error).__name__}: {error}"
        channel.send(Failed(error=BuildFailed.__name__, what=what))
    return 0


def _build(request: Request, channel: _Channel, laps: Laps) -> Done:
    from trtops.backend.port import Progress

    plan = request.plan
    builder = backend(plan.target.backend)
    channel.progress(Progress(phase="load the builder's library"))
    _refuse(request, builder)
    laps.done("library")
    channel.progress(Progress(phase="prepare the model"))
    data = Path(request.model).read_bytes()
    if (found := Digest.of_bytes(data)) != plan.model:
        what = f"the model is not the one that was planned: expected {plan.model}, found {found}"
        raise IntegrityError(what, where=request.model, fix="fetch it again")
    folder = Path(request.folder)
    steps = request.converted
    if steps is None:
        steps = prepare(data, folder / MODEL_FILE, repairs=plan.repairs, profiles=plan.profiles)
        if builder.name != "fake":  # which plays every precision
            steps += _in_precision(request, folder / MODEL_FILE, channel)
    laps.done("model")
    result = builder.build(
        BuildRequest(
            target=plan.target,
            model=str(folder / MODEL_FILE),
            output=str(folder / "engine"),
            precision=plan.precision,
            profiles=plan.profiles,
            bindings=plan.bindings,
            memory=plan.memory,
            builder=plan.builder,
            timing_cache=str(folder / TIMING_FILE) if timing_key(plan) else None,
        ),
        channel.progress,
    )
    # What a builder that counts does not count itself is the library's: CUDA starts there, kernels are loaded.
    laps.done("library" if result.seconds else "build the engine")
    laps.seconds["library"] -= sum(result.seconds.values())
    return Done(result=result, steps=(*steps, *result.notes), seconds={**laps.seconds, **result.seconds})


def _in_precision(request: Request, path: Path, channel: _Channel) -> tuple[str, ...]:
    """Bring the prepared model into the plan's precision, in its place."""
    from trtops.backend.port import Progress
    from trtops.build.precision import MOST_RANGE_SAMPLES, convert, feeds_of
    from trtops.durable import write_durably

    plan = request.plan
    if plan.precision.mode in {"fp32", "tf32"}:
        return ()
    channel.progress(Progress(phase=f"convert the model to {plan.precision.mode}"))
    data = path.read_bytes()
    feeds = []
    if (source := request.samples) is not None:
        samples = read_samples(source, data)
        if samples.digest != plan.calibration:
            what = f"the samples are not those that were planned: expected {plan.calibration}, found {samples.digest}"
            raise IntegrityError(what, where=source.uri, fix="plan the build again")
        most = MOST_RANGE_SAMPLES if plan.precision.mode == "fp16" else None
        feeds = feeds_of(samples, plan.profiles, most=most)
    converted = convert(data, plan.precision, feeds)
    if converted.data != data:
        write_durably(path, [converted.data])
    return converted.steps


def _refuse(request: Request, builder: Backend) -> None:
    plan = request.plan
    status = builder.status(plan.target)
    if not status.can_build:
        raise BuildFailed(status.reason or f"{builder.name} cannot build here", fix="build it on another machine")
    if status.version != plan.backend_version:
        what = f"the build was planned for {builder.name} {plan.backend_version}, here is {status.version}"
        raise BuildFailed(what, fix="plan it again on this machine")
    if reason := builder.refusal(plan.target, plan.precision):
        raise BuildFailed(reason, fix="change precision.mode, or leave this target out")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
