"""What a worker process does: an executor behind the orders of a supervisor.

Threads: this one takes orders; one a load, since a load takes long; one that tells the supervisor that the process
lives, how it is, and what the executor's observer saw. Clients come as sockets that the supervisor accepted, and then
talk to this process alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from trtops.errors import NotLoadable, TrtopsError
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.executor.orders import (
    BEAT,
    Adjust,
    Adopt,
    Beat,
    Compare,
    Freed,
    FromWorker,
    Held,
    Load,
    Loaded,
    Lost,
    Mirror,
    NotLoaded,
    Reports,
    Stop,
    Unload,
    Up,
    next_order,
    parts_of,
    plain,
    send,
)
from trtops.executor.port import Opening
from trtops.executor.shadow import Shadows
from trtops.spec.engine import Batching
from trtops.transport.server import Server

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from trtops.backend.port import Backend
    from trtops.executor.observer import BatchReport
    from trtops.executor.orders import FromSupervisor
    from trtops.transport.limits import Limits

log = logging.getLogger(__name__)

_KEPT: Final = 4096
"""Reports that are kept for the supervisor between two beats; more are dropped, and counted."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Recorder:
    """An observer that keeps what it is told until the next beat. Implements ``trtops.executor.observer.Observer``."""

    def __init__(self, freed: Callable[[str, int], None]) -> None:
        """Pass on at once when a generation was freed; keep the rest."""
        self._freed = freed
        self._batches: deque[BatchReport] = deque()
        self._refused: deque[tuple[str, str, int]] = deque(maxlen=_KEPT)
        self._failed: deque[tuple[str, int, str]] = deque(maxlen=_KEPT)
        self._dropped = 0

    def batch(self, report: BatchReport) -> None:
        """Keep it."""
        if len(self._batches) < _KEPT:
            self._batches.append(report)
        else:
            self._dropped += 1

    def refused(self, engine: str, reason: str, requests: int) -> None:
        """Keep it."""
        self._refused.append((engine, reason, requests))

    def loaded(self, engine: str, generation: int, seconds: float) -> None:
        """Do nothing: the supervisor measures loads itself."""

    def failed(self, engine: str, generation: int, why: str) -> None:
        """Keep it."""
        self._failed.append((engine, generation, why))

    def freed(self, engine: str, generation: int) -> None:
        """Pass it on."""
        self._freed(engine, generation)

    def take(self) -> Reports | None:
        """What was kept, 512 batches at most; None if there is nothing."""
        batches = tuple(self._batches.popleft() for _ in range(min(len(self._batches), 512)))
        refused = tuple(self._refused.popleft() for _ in range(len(self._refused)))
        failed = tuple(self._failed.popleft() for _ in range(len(self._failed)))
        dropped, self._dropped = self._dropped, 0
        return Reports(batches, refused, failed, dropped) if batches or refused or failed or dropped else None


class Host:
    """Runs in a worker until it is told to stop, or its supervisor is gone."""

    def __init__(
        self, end: socket.socket, backend_of: Callable[[str], Backend], *, limits: Limits | None = None
    ) -> None:
        """Put it together; nothing runs yet.

        Args:
            end: of the pair whose other end the supervisor has.
            backend_of: makes a backend by its name.
            limits: what clients may have.
        """
        self._end = end
        self._backend_of = backend_of
        self._sending = threading.Lock()
        self._recorder = Recorder(lambda name, generation: self._tell(Freed(name, generation)))
        self._executor = Executor(observer=self._recorder, lost=self._leave)
        self._shadows = Shadows(Attachment(self._executor), self._executor.engines)
        self._server = Server(None, self._shadows, limits=limits)
        self._stop = threading.Event()

    def __repr__(self) -> str:
        """Show executor and clients."""
        return f"Host({self._executor!r}, {self._server!r})"

    def run(self) -> None:
        """Take orders until the end."""
        beat = threading.Thread(target=self._beat, name="trtops-beat", daemon=True)
        beat.start()
        self._tell(Up())
        drain = 0.0
        while (got := next_order(self._end)) is not None:
            order, beside = got
            if isinstance(order, Stop):
                drain = order.drain
                break
            try:
                self._obey(order, beside)
            except Exception:
                log.exception("an order failed: %s", type(order).__name__)
        self._executor.close(drain=drain)
        self._shadows.close()
        self._server.close()
        self._stop.set()
        beat.join()

    def _obey(self, order: FromSupervisor, beside: socket.socket | None) -> None:
        if isinstance(order, Load):
            threading.Thread(target=self._load, args=(order,), name="trtops-load", daemon=True).start()
        elif isinstance(order, Adjust):
            batching = Batching.model_validate_json(order.batching)
            if not self._executor.adjust(order.name, generation=order.generation, batching=batching):
                log.error("engine %s: its batching cannot be changed: it does not serve here", order.name)
        elif isinstance(order, Unload):
            self._shadows.left(order.name)
            with contextlib.suppress(TrtopsError):  # it is not there: it failed meanwhile
                self._executor.unload(order.name)
        elif isinstance(order, Adopt) and beside is not None:
            self._server.adopt(beside)
        elif isinstance(order, Mirror):
            self._shadows.mirror(order, beside)
        elif isinstance(order, Compare):
            self._shadows.compare(order)

    def _load(self, order: Load) -> None:
        try:
            self._tell(self._loaded(order))
        except NotLoadable as error:
            where = None if error.where is None else str(error.where)
            self._tell(NotLoaded(number=order.number, what=error.what, where=where, fix=error.fix))
        except Exception as error:
            log.exception("engine %s could not be loaded", order.name)
            what = f"it could not be loaded: {type(error).__name__}: {error}"
            self._tell(NotLoaded(number=order.number, what=what, where=f"engine {order.name}", fix=None))

    def _loaded(self, order: Load) -> Loaded:
        parts = parts_of(order)
        backend = self._backend_of(order.backend)
        held = [budget.used for budget in self._executor.budgets]
        self._executor.load(
            order.name,
            generation=order.generation,
            version=order.version,
            digest=order.digest,
            backend=order.backend,
            batching=parts.batching,
            instances=order.instances,
            open_session=Opening(parts.path, parts.sidecar, backend.load),
            profiles=parts.profiles,
            memory=parts.memory,
            execution=parts.execution,
        )
        self._shadows.came(order.name)
        now = [budget.used for budget in self._executor.budgets]
        info = next(info for info in self._executor.engines() if info.name == order.name)
        return Loaded(
            number=order.number,
            inputs=plain(info.inputs),
            outputs=plain(info.outputs),
            max_batch=info.max_batch,
            host_bytes=max(0, now[0] - held[0]),
            device_bytes=max(0, now[1] - held[1]),
        )

    # -- news --------------------------------------------------------------------------------------------------------

    def _tell(self, message: FromWorker) -> None:
        with self._sending, contextlib.suppress(OSError):  # the supervisor is gone: the next order says so
            send(self._end, message)

    def _leave(self, why: str) -> None:
        """The device is lost to this process: say so and end, so that the next process can have it."""
        self._tell(Lost(why))
        os._exit(70)  # EX_SOFTWARE, sysexits.h

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            self._tell(self._signs())
            while (reports := self._recorder.take()) is not None:
                self._tell(reports)

    def _signs(self) -> Beat:
        engines = tuple(
            Held(status.info.name, status.info.generation, status.state, status.reason, status.queued, status.running)
            for status in self._executor.status()
        )
        name, seconds = self._executor.longest_run()
        host, device = self._executor.budgets
        held = self._server.held()
        return Beat(
            engines=engines,
            busy=seconds,
            busy_with=name,
            clients=held.clients,
            slots=held.in_use,
            granted=held.slots,
            shared=held.bytes,
            memory=resident(),
            pools=(host.used, device.used),
            compared=self._shadows.counts(),
        )


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - one read, four times a second
        return int(file.read().split()[1]) * _PAGE


def serve(end: socket.socket, backend_of: Callable[[str], Backend], *, limits: Limits | None = None) -> None:
    """Run a worker on this thread until its supervisor stops it or is gone."""
    host = Host(end, backend_of, limits=limits)
    started = time.monotonic()
    host.run()
    log.debug("worker %d ends after %.1f s", os.getpid(), time.monotonic() - started)
