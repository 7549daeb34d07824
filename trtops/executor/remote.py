"""Engines in other processes, with the calls of an executor in this: front ends need not know which they have."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.executor.port import EngineInfo, Outcome
from trtops.tensor import TensorInfo, stored_elements, stored_shape
from trtops.transport.directory import Guide, NoRoutes
from trtops.transport.formats import formats_of
from trtops.transport.links import Links, room
from trtops.transport.routes import bucket_of, bucket_of_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from trtops.executor.port import Request
    from trtops.tensor import Dim
    from trtops.transport.call import Reply
    from trtops.transport.links import Watcher

log = logging.getLogger(__name__)

_AGAIN: Final = 0.2
"""Seconds between two tries to find a supervisor again that went away."""
_FRESH: Final = 0.25
"""Seconds that an executor without workers is not asked again what it serves."""


def infos_of(catalogue: Iterable[Mapping[str, Any]]) -> tuple[EngineInfo, ...]:
    """The engines of a catalogue, as :class:`trtops.executor.attach.Attachment` writes it."""
    return tuple(
        EngineInfo(
            name=plain["name"],
            generation=plain["generation"],
            version=plain["version"],
            digest=plain["digest"],
            backend=plain["backend"],
            inputs=tuple(TensorInfo.model_validate(tensor) for tensor in plain["inputs"]),
            outputs=tuple(TensorInfo.model_validate(tensor) for tensor in plain["outputs"]),
            max_batch=plain["max_batch"],
        )
        for plain in catalogue
    )


class RemoteEngines:
    """Submits to the workers of a supervisor, or to an executor of its own, over shared memory.

    It has the calls of :class:`trtops.executor.port.Engines` but those that load and unload, which belong to the
    supervisor. Answers come in threads of this object, one a connection. A supervisor that goes away is looked for
    until :meth:`close`.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        slots: int = 64,
        input_bytes: int = 1 << 20,
        output_bytes: int = 1 << 16,
        watcher: Watcher | None = None,
    ) -> None:
        """Connect.

        Args:
            path: of the supervisor's or executor's socket.
            slots: requests that may be in flight with a worker.
            input_bytes: bytes of all inputs of a request, as usual: for larger ones it connects once more.
            output_bytes: the same of all outputs.
            watcher: an event loop in whose thread answers come; None: threads of this object.

        Raises:
            Unavailable: nobody listens there, or this user is refused.
            InputError: it does not grant these slots.
        """
        self._path = path
        self._links = Links(path, slots=slots, input_bytes=input_bytes, output_bytes=output_bytes, watcher=watcher)
        self._numbers = itertools.count(random.getrandbits(32))
        self._infos: tuple[EngineInfo, ...] = ()
        self._usual = self._links.usual
        self._outputs: dict[str, _Size] = {}
        self._small: frozenset[str] = frozenset()
        self._stretch: dict[str, float] = {}
        self._asked = -math.inf
        self._closed = threading.Event()
        try:
            self._guide: Guide | None = Guide(path)
        except NoRoutes:
            self._guide = None
            self._links.get(0, self._links.usual)
            self._learn(self._links.get(0, self._links.usual).catalogue())
        else:
            self._learn(self._guide.catalogue)
            self._connect_ahead(self._guide)
            threading.Thread(target=self._watch, name="trtops-routes", daemon=True).start()

    def __repr__(self) -> str:
        """Show the routes and connections."""
        return f"RemoteEngines({self._guide!r}, {self._links!r})"

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Queue a request; ``done`` comes from this object's thread. The inputs may change as soon as this returns.

        Raises:
            InputError: the inputs do not fit in a slot that is granted. What an engine refuses comes as the outcome's
                error.
            Overloaded: all slots are in use.
            Unavailable: the engine, its worker or the supervisor is not there now.
        """
        need = self._usual if engine in self._small else self._need(engine, request)
        seen = -1
        while True:
            worker, channel, generation = self._seat(engine, request.key)
            try:
                client = self._links.get(worker, need)
                call = client.submit(
                    engine,
                    request.inputs,
                    request.rows,
                    deadline=request.deadline,
                    priority=request.priority,
                    done=partial(_deliver, done, channel, generation),
                )
            except Unavailable:
                if worker == seen:
                    raise
                seen = worker  # it ended just now: the routes say who took over
                continue
            except InputError:
                larger = self._need(engine, request)
                if need is not self._usual or (larger[0] <= need[0] and larger[1] <= need[1]):
                    raise
                need = larger  # more than the engine takes: it shall say so itself
                continue
            return partial(client.cancel, call)

    def infer(
        self,
        engine: str,
        inputs: Mapping[str, Any],
        rows: int,
        *,
        key: str = "",
        deadline: float | None = None,
        priority: int = 0,
    ) -> Outcome:
        """Send a request and wait for its outcome, which carries no error.

        Args:
            engine: its name.
            inputs: name -> array whose first axis is rows.
            rows: rows of every input.
            key: requests of the same key go to the same channel and device.
            deadline: ``time.monotonic()`` seconds by which an answer is due.
            priority: 0 is the most urgent.

        Raises:
            TrtopsError: whatever went wrong.
        """
        from trtops.executor.port import Request

        found: list[Outcome] = []
        came = threading.Event()

        def done(outcome: Outcome) -> None:
            found.append(outcome)
            came.set()

        self.submit(engine, Request(inputs, rows, deadline, priority, key), done)
        came.wait()
        if found[0].error is not None:
            raise found[0].error
        return found[0]

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now. The same tuple until that changes.

        Raises:
            Unavailable: the connection to an executor without workers is gone.
        """
        if self._guide is None and time.monotonic() - self._asked > _FRESH:
            self._learn(self._links.get(0, self._links.usual).catalogue())
        return self._infos

    def close(self) -> None:
        """Hang up; requests in flight get an error."""
        self._closed.set()
        if self._guide is not None:
            self._guide.close()
        self._links.close()

    # -- routes --------------------------------------------------------------------------------------------------------

    def _seat(self, engine: str, key: str) -> tuple[int, str, int]:
        """The worker (0: an executor without workers), the channel and the generation that serve a key now."""
        if self._guide is None:
            return 0, "stable", 0
        route = self._guide.find(engine)
        if route is None:
            known = ", ".join(sorted(self._guide.routes)) or "none"
            raise InputError(f"no engine {engine!r} is loaded", fix=f"loaded engines: {known}")
        bucket = bucket_of(key.encode()) if key else bucket_of_number(next(self._numbers))
        seat = route.seats[route.table[bucket]]
        if not seat.worker:
            raise Unavailable(
                f"engine {engine} lost its worker and is being loaded again", fix="send the request again in a moment"
            )
        return seat.worker, seat.channel, seat.generation

    def _watch(self) -> None:
        """Follow routes and catalogue; look for the supervisor when it is gone."""
        while not self._closed.is_set():
            guide = self._guide
            if guide is not None and guide.wait():
                self._learn(guide.catalogue)
                self._connect_ahead(guide)
                continue
            if self._closed.wait(_AGAIN):
                return
            with contextlib.suppress(TrtopsError):  # it is still away
                self._follow(Guide(self._path))

    def _follow(self, guide: Guide) -> None:
        """The supervisor is there again, or another one."""
        old, self._guide = self._guide, guide
        if old is not None:
            old.close()
        self._learn(guide.catalogue)
        self._connect_ahead(guide)
        if self._closed.is_set():
            guide.close()

    def _connect_ahead(self, guide: Guide) -> None:
        """Connect to workers that are new in the routes, before their first request comes."""
        there = self._links.workers()
        wanted = {seat.worker for route in guide.routes.values() for seat in route.seats if seat.worker}
        for worker in sorted(wanted - there):
            with contextlib.suppress(TrtopsError):  # its first request will say why
                self._links.get(worker, self._links.usual)

    def _learn(self, catalogue: Iterable[Mapping[str, Any]]) -> None:
        infos = infos_of(catalogue)
        self._asked = time.monotonic()
        if infos != self._infos:
            self._outputs = {info.name: _Size(info.outputs) for info in infos}
            self._small = frozenset(info.name for info in infos if _fits(info, self._usual))
            self._stretch = {info.name: stretch for info in infos if (stretch := _stretch(info.inputs)) > 1}
            self._infos = infos
            self._links.learn(formats_of(catalogue))

    def _need(self, engine: str, request: Request) -> tuple[int, int]:
        """Bytes that the areas of the request's slot have to have."""
        dense = sum([array.nbytes for array in request.inputs.values()])
        inputs = room(len(request.inputs), math.ceil(dense * self._stretch.get(engine, 1)))
        size = self._outputs.get(engine)
        return inputs, size.of(request.rows, inputs) if size is not None else 0


class _Size:
    """How large tensors of an engine are. ``open``: how many of them have open sizes beside their rows."""

    def __init__(self, tensors: tuple[TensorInfo, ...]) -> None:
        self._fixed = self._row = self.open = 0
        self._arrays = len(tensors)
        for tensor in tensors:
            width = _WIDTHS.get(tensor.dtype, 8)
            whole = _stored(tensor)
            first, rest = whole[:1], whole[1:]
            if any(isinstance(dim, str) for dim in rest):
                self.open += 1
            elif first and isinstance(first[0], str):
                self._row += width * math.prod(dim for dim in rest if isinstance(dim, int))
            else:
                self._fixed += width * math.prod(dim for dim in whole if isinstance(dim, int))

    def of(self, rows: int, inputs: int = 0) -> int:
        """Bytes of all. One with open sizes is taken to be no larger than twice all inputs."""
        return room(self._arrays, self._fixed + self._row * rows + 2 * inputs * self.open)


def _stored(tensor: TensorInfo) -> tuple[Dim, ...]:
    """Sizes of what holds a tensor, the rows first."""
    shape = tensor.shape
    if tensor.format == "linear" or not isinstance(shape[1], int):
        return shape
    return shape[0], stored_shape((1, shape[1], 1, 1), tensor.format)[-1], *shape[2:]


def _stretch(inputs: tuple[TensorInfo, ...]) -> float:
    """How many times its own bytes an input takes at most, in its engine's memory format."""
    sizes = [tensor.shape[1] for tensor in inputs if tensor.format != "linear"]
    channels = [size if isinstance(size, int) else 1 for size in sizes]
    formats = [tensor.format for tensor in inputs if tensor.format != "linear"]
    pairs = zip(channels, formats, strict=True)
    return max((stored_elements((1, size, 1, 1), one) / max(1, size) for size, one in pairs), default=1.0)


def _fits(info: EngineInfo, usual: tuple[int, int]) -> bool:
    """Whether the largest batch of an engine fits in a slot of the usual size."""
    inputs, outputs = _Size(info.inputs), _Size(info.outputs)
    known = not (inputs.open or outputs.open)
    return known and inputs.of(info.max_batch) <= usual[0] and outputs.of(info.max_batch) <= usual[1]


_WIDTHS: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
}
"""Bytes of an element; 8 for any other type."""


def _deliver(done: Callable[[Outcome], None], channel: str, generation: int, reply: Reply) -> None:
    generation = reply.generation or generation  # what was refused has none of its own
    outcome = Outcome(reply.outputs, reply.error, generation, reply.batch, reply.queue_us, reply.compute_us)
    outcome.channel = channel
    try:
        done(outcome)
    except Exception:
        log.exception("the callback of a request raised")
