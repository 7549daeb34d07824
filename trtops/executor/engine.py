"""One generation of an engine: its sessions, buffers and queue, and how they come to be.

Sessions are opened and warmed up in the thread that loads, which owns them until the engine serves; from then on the
thread of its lane owns each. (ONNX Runtime's sessions may be opened in another thread than they run in. A CUDA backend
makes its device current in ``run``.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtops.backend.port import Arranges, Gathers
from trtops.errors import NotLoadable
from trtops.executor.cost import Cost
from trtops.executor.interface import Interface
from trtops.executor.memory import Pool, readable
from trtops.executor.port import EngineInfo
from trtops.executor.retune import needs_load, retune
from trtops.executor.staging import Staging, staging_bytes
from trtops.executor.state import EngineQueue, Policy
from trtops.spec.engine import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from trtops.backend.port import Session
    from trtops.executor.memory import Budget
    from trtops.executor.state import State
    from trtops.spec.engine import Batching, Execution, Profile
    from trtops.tensor import Dim, TensorInfo

log = logging.getLogger(__name__)


class Engine:
    """What serves under a name.

    Attributes:
        info: for front ends.
        interface: its inputs.
        queue: its requests, in the planner.
        sessions, stagings: by lane.
        gathers: sessions put batches together themselves.
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
        self.gathers = all(isinstance(session, Gathers) for session in sessions)
        self.failed: str | None = None
        self.holder = order.holder
        self._open_session = order.open_session
        self._order = order
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

    def adjust(self, state: State, generation: int, batching: Batching) -> bool:
        """Put requests together by other rules, if that needs no load; False: nothing was changed."""
        order = self._order
        if needs_load(order.batching, batching):
            return False
        self._order = replace(order, generation=generation, batching=batching)
        self.info = replace(self.info, generation=generation)
        retune(state, self.queue, Policy.of(batching, max_batch=self.queue.policy.max_batch))
        return True

    def reopen(self) -> Session:
        """Open another session and run it once, in place of one that died.

        Raises:
            NotLoadable: it cannot be opened, or does not run.
        """
        session = _open(self.info.name, self._open_session)
        try:
            if isinstance(session, Arranges):
                alone = self._order.execution.model_copy(update={"streams": 1})
                session.arrange(alone, self._order.memory or Memory(), _sizes(self._order, self.interface))
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


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How an engine is.

    Attributes:
        state: ``serving``, ``degraded``, ``reloading``, ``draining`` or ``failed``.
        reason: why it failed.
        queued: requests that wait. ``running``: batches on devices.
    """

    info: EngineInfo
    state: str
    reason: str | None
    queued: int
    running: int


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
    execution: Execution
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
    interface = Interface(
        name, inputs, outputs, max_batch=batching.max_batch, profiles=order.profiles, padding=batching.padding
    )
    _check_rows(interface)
    sizes = _sizes(order, interface)
    _arrange(order, sessions, sizes, host)
    stagings = _stagings(order, sessions, interface, pinned, host)
    cost = Cost()
    for session in sessions:
        _warm_up(name, session, interface, sizes, cost, clock)
    policy = Policy.of(batching, max_batch=interface.max_rows if interface.batchable else 1)
    info = EngineInfo(
        name, order.generation, order.version, order.digest, order.backend, inputs, outputs, interface.max_rows
    )
    queue = EngineQueue(f"{name}@{order.generation}", policy, cost=cost)
    return Engine(info, interface, queue, sessions, stagings, order)


def _arrange(order: Order, sessions: list[Session], sizes: tuple[int, ...], host: Budget) -> None:
    """Set up streams, graphs and memory of the sessions that have such; a session for each stream is added."""
    memory = order.memory or Memory()
    arranged: list[Arranges] = []
    for session in list(sessions):
        if isinstance(session, Arranges):
            lanes = session.arrange(order.execution, memory, sizes)
            sessions.extend(lanes[1:])
            arranged.extend(lane for lane in lanes if isinstance(lane, Arranges))
    needs = (
        ("pinned_pool", memory.pinned_pool, sum(one.host_bytes for one in arranged)),
        ("device_pool", memory.device_pool, sum(one.device_bytes for one in arranged)),
    )
    for pool, size, need in needs:
        if size is not None and need > size:
            raise NotLoadable(
                f"buffers and contexts need {readable(need)}, memory.{pool} is {readable(size)}",
                where=f"engine {order.name}",
                fix=f"set memory.{pool} to {need}B or more, or lower batching.max_batch or execution.streams",
            )
    if memory.pinned_pool is None:
        host.hold(order.holder, needs[0][2])


def _stagings(
    order: Order, sessions: list[Session], interface: Interface, pinned: int | None, host: Budget
) -> list[Staging]:
    """Buffers to put batches together in; a session that does so itself needs none."""
    if all(isinstance(session, Gathers) for session in sessions):
        return [Staging(interface, None) for _ in sessions]
    need = staging_bytes(interface) * len(sessions)
    if pinned is None:
        host.hold(order.holder, need)
    size = need if pinned is None else pinned
    pool = Pool(f"pinned pool of engine {order.name}", size, setting="memory.pinned_pool")
    return [Staging(interface, pool) for _ in sessions]


def _check_rows(interface: Interface) -> None:
    if interface.batchable and interface.min_rows > interface.max_rows:
        raise NotLoadable(
            f"its profiles begin at {interface.min_rows} rows, batching.max_batch allows {interface.max_rows}",
            where=f"engine {interface.engine}",
            fix=f"set batching.max_batch to {interface.min_rows} or more",
        )


def _sizes(order: Order, interface: Interface) -> tuple[int, ...]:
    """Every batch size that is likely: the smallest, the preferred ones, the largest; for graphs, powers of two too."""
    low, high = interface.min_rows, interface.max_rows
    wanted = {low, high, *order.batching.preferred}
    if order.execution.cuda_graphs:
        wanted |= {1 << power for power in range(high.bit_length())}
    return tuple(sorted(size for size in wanted if low <= size <= high))


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
    known = all(bound.fixed is not None for bound in interface.bounds)
    if not interface.profiles:
        return [{}] if known else []
    optima = [{name: span.opt for name, span in profile.inputs.items()} for profile in interface.profiles]
    for sizes in interface.pads.combinations() if interface.pads is not None else ():
        for spans in optima[: len(interface.profiles)]:
            filled = {
                bound.name: _sized(bound.shape, spans.get(bound.name, ()), sizes)
                for bound in interface.bounds
                if bound.name in spans
            }
            if filled not in optima and interface.allows(filled):
                optima.append(filled)
    return list(optima)


def _sized(dims: tuple[Dim, ...], shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with other sizes for the dimensions that are named."""
    return tuple(sizes.get(dim, size) if isinstance(dim, str) else size for dim, size in zip(dims, shape, strict=True))


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
