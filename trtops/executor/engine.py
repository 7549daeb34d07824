"""One generation of an engine: its sessions, buffers and queue, and how they come to be.

Sessions are opened and warmed up in the thread that loads, which owns them until the engine serves; from then on the
thread of its lane owns each. (ONNX Runtime's sessions may be opened in another thread than they run in. A CUDA backend
makes its device current in ``run``.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtops.errors import NotLoadable
from trtops.executor.cost import Cost
from trtops.executor.interface import Interface
from trtops.executor.memory import Pool
from trtops.executor.port import EngineInfo
from trtops.executor.staging import Staging, staging_bytes
from trtops.executor.state import EngineQueue, Policy
from trtops.spec.engine import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from trtops.backend.port import Session
    from trtops.executor.memory import Budget
    from trtops.spec.engine import Batching, Profile
    from trtops.tensor import TensorInfo

log = logging.getLogger(__name__)


class Engine:
    """What serves under a name.

    Attributes:
        info: for front ends.
        interface: its inputs.
        queue: its requests, in the planner.
        sessions, stagings: by lane.
        failed: why it serves no more; None while it does.
        holder: its name in the budgets.
    """

    def __init__(
        self,
        info: EngineInfo,
        interface: Interface,
        queue: EngineQueue,
        sessions: list[Session],
        stagings: list[Staging],
        order: Order,
    ) -> None:
        """Keep the parts that :func:`open_engine` made; the queue gets this engine as its owner."""
        self.info = info
        self.interface = interface
        self.queue = queue
        self.sessions: dict[int, Session] = dict(enumerate(sessions))
        self.stagings: dict[int, Staging] = dict(enumerate(stagings))
        self.failed: str | None = None
        self.holder = order.holder
        self._open_session = order.open_session
        queue.owner = self

    def __repr__(self) -> str:
        """Show name, generation and load."""
        state = f", failed: {self.failed}" if self.failed else ", draining" if self.queue.draining else ""
        queue = self.queue
        return f"{self.info.name}@{self.info.generation}[{queue.queued} queued, {queue.running} running{state}]"

    @property
    def state(self) -> str:
        """``serving``, ``degraded`` (some sessions are away), ``reloading`` (all are), ``draining`` or ``failed``."""
        if self.failed:
            return "failed"
        if self.queue.draining:
            return "draining"
        lanes = len(self.queue.lanes)
        return "serving" if lanes == len(self.stagings) else "degraded" if lanes else "reloading"

    def reopen(self) -> Session:
        """Open another session and run it once, in place of one that died.

        Raises:
            NotLoadable: it cannot be opened, or does not run.
        """
        session = _open(self.info.name, self._open_session)
        try:
            for inputs in warm_inputs(self.interface, (self.interface.min_rows,)):
                session.run(inputs)
        except Exception as error:
            close_session(session)
            raise NotLoadable(f"a new session does not run: {error}", where=f"engine {self.info.name}") from error
        return session

    def close(self) -> None:
        """Close all sessions. Called when no lane runs one of them any more. Idempotent."""
        sessions, self.sessions = list(self.sessions.values()), {}
        for session in sessions:
            close_session(session)


def close_session(session: Session) -> None:
    """Close a session; an error is logged, since nobody can do anything about it."""
    try:
        session.close()
    except Exception:
        log.exception("a session did not close")


def _open(name: str, open_session: Callable[[], Session]) -> Session:
    try:
        return open_session()
    except NotLoadable:
        raise
    except Exception as error:
        raise NotLoadable(f"a session cannot be opened: {error}", where=f"engine {name}") from error


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be loaded: the arguments of ``Engines.load``, and ``holder``, its name in the budgets."""

    name: str
    generation: int
    version: str
    digest: str
    backend: str
    batching: Batching
    instances: int
    open_session: Callable[[], Session]
    profiles: tuple[Profile, ...]
    memory: Memory | None
    holder: str


def open_engine(order: Order, budgets: tuple[Budget, Budget], clock: Callable[[], float]) -> Engine:
    """Open, size and warm up a generation beside what serves. What was made is freed again if it fails.

    Args:
        order: what to load.
        budgets: host memory, device memory.
        clock: monotonic seconds, to measure the warm-up by.

    Raises:
        NotLoadable: it cannot be opened, is too large, or does not run; says why.
    """
    sessions: list[Session] = []
    try:
        memory = order.memory or Memory()
        budgets[0].hold(order.holder, memory.pinned_pool or 0)
        budgets[1].hold(order.holder, memory.device_pool or 0)
        sessions.extend(_open(order.name, order.open_session) for _ in range(order.instances))
        return _assemble(order, sessions, memory.pinned_pool, budgets[0], clock)
    except BaseException:
        for session in sessions:
            close_session(session)
        for budget in budgets:
            budget.release(order.holder)
        raise


def _assemble(
    order: Order, sessions: list[Session], pinned: int | None, host: Budget, clock: Callable[[], float]
) -> Engine:
    name, batching = order.name, order.batching
    inputs, outputs = sessions[0].inputs, sessions[0].outputs
    interface = Interface(name, inputs, outputs, max_batch=batching.max_batch, profiles=order.profiles)
    _check_rows(interface)
    need = staging_bytes(interface) * order.instances
    if pinned is None:
        host.hold(order.holder, need)
    pool = Pool(f"pinned pool of engine {name}", need if pinned is None else pinned, setting="memory.pinned_pool")
    stagings = [Staging(interface, pool) for _ in sessions]
    cost = Cost()
    sizes = _warm_sizes(interface, batching.preferred)
    for session in sessions:
        _warm_up(name, session, interface, sizes, cost, clock)
    policy = Policy.of(batching, max_batch=interface.max_rows if interface.batchable else 1)
    info = EngineInfo(
        name, order.generation, order.version, order.digest, order.backend, inputs, outputs, interface.max_rows
    )
    queue = EngineQueue(f"{name}@{order.generation}", policy, cost=cost)
    return Engine(info, interface, queue, sessions, stagings, order)


def _check_rows(interface: Interface) -> None:
    if interface.batchable and interface.min_rows > interface.max_rows:
        raise NotLoadable(
            f"its profiles begin at {interface.min_rows} rows, batching.max_batch allows {interface.max_rows}",
            where=f"engine {interface.engine}",
            fix=f"set batching.max_batch to {interface.min_rows} or more",
        )


def _warm_sizes(interface: Interface, preferred: tuple[int, ...]) -> tuple[int, ...]:
    """Every batch size that is likely: the smallest, the preferred ones, the largest."""
    low, high = interface.min_rows, interface.max_rows
    return tuple(sorted({low, high, *(size for size in preferred if low <= size <= high)}))


def warm_inputs(interface: Interface, sizes: tuple[int, ...]) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Zeros of each batch size at the optimum of each profile; nothing where a dynamic size has no profile."""
    for spans in _optima(interface):
        for rows in sizes if interface.batchable else sizes[-1:]:
            inputs: dict[str, NDArray[np.generic]] = {}
            for bound in interface.bounds:
                shape = spans.get(bound.name) or tuple(dim if isinstance(dim, int) else 1 for dim in bound.shape)
                whole = (rows, *shape[1:]) if interface.batchable else shape
                inputs[bound.name] = (
                    np.full(whole, "", object) if bound.dtype.hasobject else np.zeros(whole, bound.dtype)
                )
            yield inputs


def _optima(interface: Interface) -> list[Mapping[str, tuple[int, ...]]]:
    if interface.profiles:
        return [{name: span.opt for name, span in profile.inputs.items()} for profile in interface.profiles]
    known = all(bound.fixed is not None for bound in interface.bounds)
    return [{}] if known else []


def _warm_up(
    name: str, session: Session, interface: Interface, sizes: tuple[int, ...], cost: Cost, clock: Callable[[], float]
) -> None:
    """Run every bucket twice; the second run tells what it costs. Finds out whether outputs follow the rows."""
    for inputs in warm_inputs(interface, sizes):
        rows = next(iter(inputs.values())).shape[0] if interface.batchable and inputs else 1
        try:
            session.run(inputs)
            start = clock()
            outputs = session.run(inputs)
        except Exception as error:
            shapes = ", ".join(f"{key!r} {list(array.shape)}" for key, array in inputs.items())
            raise NotLoadable(f"it does not run at {shapes}: {error}", where=f"engine {name}") from error
        cost.observe(rows, clock() - start)
        if interface.batchable and not _follows(session.outputs, outputs, rows):
            log.warning("engine %s: outputs are not split by rows, so each request runs alone", name)
            interface.alone()


def _follows(infos: tuple[TensorInfo, ...], outputs: Mapping[str, NDArray[np.generic]], rows: int) -> bool:
    return all(outputs[info.name].shape[:1] == (rows,) for info in infos if info.name in outputs)
