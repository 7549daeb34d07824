"""Shadowing: a share of an engine's requests is copied to a candidate, and the outputs of both are compared.

At the worker that serves: a request that was answered well is copied, with its outputs, into a slot of the shadow's
worker; copies that find no slot are dropped, so a slow shadow costs nothing. At the shadow's worker: the copy runs like
any request, at the lowest priority, and a thread compares. Nobody who sent the request waits for any of it but for the
copy of its inputs.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError, Overloaded, Retryable, TrtopsError
from trtops.executor.orders import Compared
from trtops.executor.port import Outcome
from trtops.transport.client import Client
from trtops.transport.routes import BUCKETS, bucket_of_number

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.executor.attach import Attachment
    from trtops.executor.orders import Compare, Mirror
    from trtops.executor.port import EngineInfo, Relief
    from trtops.tensor import TensorInfo
    from trtops.transport.call import Reply
    from trtops.transport.connection import Answer

    Arrays = Mapping[str, NDArray[np.generic]]

log = logging.getLogger(__name__)

EXPECTED: Final = "="
"""Before the name of a tensor in a copied request: an output of the engine that serves. No model's tensor begins so."""
_WAITING: Final = 64
"""Copies that wait to be sent; more are dropped."""
_LAST: Final = 1 << 20
"""A priority below every engine's lowest."""


class Shadows:
    """Stands before an executor's attachment: copies what has to be copied, compares what was copied.

    Implements ``trtops.transport.connection.Handler``.
    """

    def __init__(self, inner: Attachment, engines: Callable[[], tuple[EngineInfo, ...]]) -> None:
        """Pass everything on, for now.

        Args:
            inner: the executor.
            engines: what it serves.
        """
        self._inner = inner
        self._engines = engines
        self._mirrors: dict[str, _Mirror] = {}
        self._comparers: dict[str, _Comparer] = {}
        self._past: dict[tuple[str, int], Compared] = {}
        self._left: set[str] = set()

    def submit(
        self,
        engine: str,
        inputs: Arrays,
        rows: int,
        deadline: float | None,
        priority: int,
        done: Callable[[Answer], None],
        client: str = "",
    ) -> Callable[[], None]:
        """Queue a request.

        Raises:
            TrtopsError: as :meth:`trtops.executor.port.Engines.submit`.
        """
        mirror = self._mirrors.get(engine)
        if mirror is not None and mirror.wants():
            done = partial(mirror.copy, inputs, rows, done)
        elif engine in self._comparers and any(name.startswith(EXPECTED) for name in inputs):
            expected = {name[1:]: array for name, array in inputs.items() if name.startswith(EXPECTED)}
            inputs = {name: array for name, array in inputs.items() if not name.startswith(EXPECTED)}
            done = partial(self._comparers[engine].take, expected, done)
        try:
            return self._inner.submit(engine, inputs, rows, deadline, priority, done, client)
        except InputError as error:
            if engine not in self._left:
                raise
            # Its sender looked at the routes before they changed, and comes after this worker was told to let go.
            what = f"engine {engine} is served by another worker now"
            raise Retryable(what, fix="send the request again") from error

    def came(self, engine: str) -> None:
        """An engine is served here."""
        self._left.discard(engine)

    def left(self, engine: str) -> None:
        """An engine is not served here any more."""
        self._left.add(engine)

    def start(self, *, relief: Relief | None = None) -> None:
        """Start what was queued."""
        self._inner.start(relief=relief)

    def mapped(self, memory: NDArray[np.uint8]) -> None:
        """A client's segment was mapped."""
        self._inner.mapped(memory)

    def catalogue(self) -> bytes:
        """The engines that are served, as JSON."""
        return self._inner.catalogue()

    def mirror(self, order: Mirror, beside: socket.socket | None) -> None:
        """Copy an engine's requests from now on, or no more."""
        old = self._mirrors.pop(order.name, None)
        if old is not None:
            old.close()
            self._keep(old.counts())
        if beside is not None and order.percent:
            self._mirrors[order.name] = _Mirror(order, beside)

    def compare(self, order: Compare) -> None:
        """Compare the copies for an engine from now on."""
        old = self._comparers.pop(order.name, None)
        if old is not None:
            old.close()
            self._keep(old.counts())
        self._comparers[order.name] = _Comparer(order, self._engines)

    def _keep(self, counts: Compared) -> None:
        key = counts.name, counts.generation
        self._past[key] = added(self._past.get(key), counts)

    def counts(self) -> tuple[Compared, ...]:
        """What was copied and compared since the start."""
        found = dict(self._past)
        for counts in [part.counts() for part in self._mirrors.values()] + [
            part.counts() for part in self._comparers.values()
        ]:
            key = counts.name, counts.generation
            found[key] = added(found.get(key), counts)
        return tuple(found.values())

    def close(self) -> None:
        """Copy and compare no more."""
        for mirror in self._mirrors.values():
            mirror.close()
        for comparer in self._comparers.values():
            comparer.close()


def added(one: Compared | None, other: Compared) -> Compared:
    """Counts of two workers, or of two times."""
    if one is None:
        return other
    return Compared(
        other.name,
        other.generation,
        one.mirrored + other.mirrored,
        one.dropped + other.dropped,
        one.compared + other.compared,
        one.differing + other.differing,
        one.failed + other.failed,
        max(one.worst, other.worst),
    )


class _Mirror:
    """Sends copies of an engine's requests to the worker of its shadow."""

    def __init__(self, order: Mirror, beside: socket.socket) -> None:
        self._name = order.name
        self._generation = order.generation
        self._limit = order.percent * BUCKETS // 100
        self._seen = 0
        self._mirrored = 0
        self._dropped = 0
        self._waiting: SimpleQueue[tuple[Arrays, Arrays, int] | None] = SimpleQueue()
        self._closed = False
        self._client: Client | None = None
        arguments = (beside, order.slots, order.input_bytes)
        threading.Thread(target=self._run, args=arguments, name="trtops-mirror", daemon=True).start()

    def wants(self) -> bool:
        """Whether the next request is one of the share."""
        self._seen += 1
        return bucket_of_number(self._seen) < self._limit

    def copy(self, inputs: Arrays, rows: int, done: Callable[[Answer], None], answer: Answer) -> None:
        """A request was answered: keep a copy of it, then let the answer go its way."""
        if answer.error is None:
            if self._closed or self._waiting.qsize() >= _WAITING:
                self._dropped += 1
            else:
                self._waiting.put(({name: array.copy("K") for name, array in inputs.items()}, answer.outputs, rows))
        done(answer)

    def _run(self, beside: socket.socket, slots: int, input_bytes: int) -> None:
        try:
            client = self._client = Client(beside, slots=slots, input_bytes=input_bytes, output_bytes=0)
        except TrtopsError as error:
            log.warning("engine %s: its shadow cannot be reached: %s", self._name, error)
            self._closed = True
            return
        threading.Thread(target=self._listen, args=(client,), name="trtops-mirror-answers", daemon=True).start()
        while not self._closed and (copied := self._waiting.get()) is not None:
            inputs, outputs, rows = copied
            tensors = {**inputs, **{EXPECTED + name: array for name, array in outputs.items()}}
            try:
                client.submit(self._name, tensors, rows, priority=_LAST, done=_ignore)
                self._mirrored += 1
            except Overloaded:
                self._dropped += 1
            except InputError as error:
                self._dropped += 1
                log.debug("engine %s: a request cannot be copied: %s", self._name, error)
            except TrtopsError:
                break  # its worker is gone; the supervisor sends the next one
        self._closed = True
        client.close()

    def _listen(self, client: Client) -> None:
        try:
            while not self._closed:
                client.poll()
        except TrtopsError:
            self._closed = True
            self._waiting.put(None)

    def counts(self) -> Compared:
        return Compared(self._name, self._generation, mirrored=self._mirrored, dropped=self._dropped)

    def close(self) -> None:
        self._closed = True
        self._waiting.put(None)


def _ignore(reply: Reply) -> None:
    """The shadow's worker counts."""


class _Comparer:
    """Compares outputs with what a copied request brought along, in a thread. The request's slot is held meanwhile."""

    def __init__(self, order: Compare, engines: Callable[[], tuple[EngineInfo, ...]]) -> None:
        self._order = order
        self._engines = engines
        self._compared = self._differing = self._failed = 0
        self._worst = 0.0
        self._answered: SimpleQueue[tuple[Arrays, Callable[[Answer], None], Answer] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="trtops-compare", daemon=True).start()

    def take(self, expected: Arrays, done: Callable[[Answer], None], answer: Answer) -> None:
        """The candidate answered."""
        self._answered.put((expected, done, answer))

    def _run(self) -> None:
        while (item := self._answered.get()) is not None:
            expected, done, answer = item
            try:
                self._judge(expected, answer)
            except Exception:
                self._failed += 1
                log.exception("engine %s: outputs could not be compared", self._order.name)
            done(Outcome(generation=answer.generation))

    def _judge(self, expected: Arrays, answer: Answer) -> None:
        if answer.error is not None:
            self._failed += 1
            return
        outputs = next((info.outputs for info in self._engines() if info.name == self._order.name), ())
        same, excess = agree(outputs, expected, answer.outputs, self._order)
        self._worst = max(self._worst, excess)
        self._differing += not same
        self._compared += 1

    def counts(self) -> Compared:
        return Compared(
            self._order.name,
            self._order.generation,
            compared=self._compared,
            differing=self._differing,
            failed=self._failed,
            worst=self._worst,
        )

    def close(self) -> None:
        self._answered.put(None)


def agree(outputs: tuple[TensorInfo, ...], expected: Arrays, actual: Arrays, rules: Compare) -> tuple[bool, float]:
    """Whether outputs are the same by a spec's tolerance (:mod:`trtops.accuracy.compare`).

    Returns:
        Whether they are, and the largest excess: how far the worst element is out of tolerance (1: just within;
        infinite: an output has another shape, or there is none).
    """
    from trtops.accuracy.compare import Tally

    if not outputs:
        return False, float("inf")
    tally = Tally(rules.atol, rules.rtol, rules.bounds)
    for info in outputs:
        want, have = expected.get(info.name), actual.get(info.name)
        if want is None or have is None or want.shape != have.shape:
            return False, float("inf")
        if info.dtype != "string" and want.size:
            tally.add(info, want if want.dtype == have.dtype else want.astype(have.dtype), have)
    reached = all(value >= rules.bounds[name] for name, value in tally.metrics().items())
    return not tally.outside and reached, tally.worst.excess if tally.worst is not None else 0.0
