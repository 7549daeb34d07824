"""Inference requests: from an exchange to the executor and back.

The executor calls back from a thread of its own, request by request; the event loop is woken once for all that came
until it runs, since a wake-up costs more than a request.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.executor.port import Offers
from trtops.serve.faults import Fault, UnknownModel, fault_of
from trtops.serve.measure import STABLE
from trtops.serve.oip import Codec
from trtops.serve.regions import Regions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from trtops.executor.port import EngineInfo, Outcome, Request
    from trtops.serve.exchange import Exchange
    from trtops.serve.measure import EngineMeter, Meters
    from trtops.serve.oip import Decoded
    from trtops.serve.trace import Tracer

log = logging.getLogger(__name__)

_SPARE = 1e-4
"""Seconds of a batch up to which the event loop runs it itself: about as long as it takes to have another thread do so.
What takes longer is worth it, since the event loop reads on meanwhile."""
_MAX_DIGITS = 20
_MAX_KEY = 1024


class Runs(Protocol):
    """What inference needs of an executor, in this process (:class:`trtops.executor.port.Engines`) or another."""

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Queue a request; ``done`` comes once, from any thread. Returns what takes it back.

        Raises:
            TrtopsError: it is refused; ``done`` does not come.
        """

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now; the same tuple until that changes."""


class Caller(Protocol):
    """Whoever waits for an inference: an HTTP exchange or a gRPC call.

    Attributes:
        started: monotonic seconds at which the request was complete.
        cancel: takes the request back; set while the executor has it.
        context: belongs to :class:`Inference`.
    """

    started: float
    cancel: Callable[[], None] | None
    context: Any

    def give(self, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        """Answer with what came out.

        Raises:
            TrtopsError: it cannot be written as the client asked for.
        """

    def refuse(self, fault: Fault) -> None:
        """Answer with an error."""

    def header(self, name: bytes) -> bytes | None:
        """A header, or metadata, of the request by its lower-case name."""


AnyCaller = TypeVar("AnyCaller", bound=Caller)


class Catalogue:
    """What is served now, with a codec for each engine. The executor hands out the same tuple until that changes."""

    def __init__(
        self, engines: Runs, absent: Callable[[str], str | None] | None = None, regions: Regions | None = None
    ) -> None:
        """Read it when it is asked for.

        Args:
            engines: the executor.
            absent: why an engine that belongs to this server does not serve; None: it is none of its engines.
            regions: shared memory that tensors may be in.
        """
        self._engines = engines
        self._absent = absent or (lambda _name: None)
        self.regions = regions or Regions()
        self._seen: tuple[EngineInfo, ...] | None = None
        self._codecs: dict[str, Codec] = {}

    def codecs(self) -> dict[str, Codec]:
        """Engine's name -> codec."""
        infos = self._engines.engines()
        if infos is not self._seen:
            old = {codec.info: codec for codec in self._codecs.values()} if infos != self._seen else None
            if old is not None:
                self._codecs = {info.name: old.get(info) or Codec(info, self.regions) for info in infos}
            self._seen = infos
        return self._codecs

    def find(self, name: str, version: str | None = None) -> Codec:
        """The codec of an engine; ``version`` is that of its interface, or the major one alone.

        Raises:
            UnknownModel: not served here; says what is.
            Unavailable: it belongs here and does not serve now.
        """
        codecs = self._codecs if self._engines.engines() is self._seen else self.codecs()
        codec = codecs.get(name)
        if codec is None:
            reason = self._absent(name)
            if reason is not None:
                raise Unavailable(f"model '{name}' does not serve now: {reason}", fix="ask again later")
            known = ", ".join(f"'{known}'" for known in sorted(codecs)) or "none"
            # Triton's words, which its clients' examples look for
            raise UnknownModel(f"Request for unknown model: '{name:.100}' is not found; served here: {known}")
        if version is not None and version not in (codec.info.version, codec.info.version.partition(".")[0]):
            raise UnknownModel(
                f"model '{name}' has no version '{version:.40}' here: version '{codec.info.version}' is served"
            )
        return codec


class Inference:
    """Passes inference requests to the executor and writes the answers."""

    def __init__(
        self,
        engines: Runs,
        catalogue: Catalogue,
        meters: Meters,
        loop: asyncio.AbstractEventLoop,
        wall: Callable[[], float],
        clock: Callable[[], float],
        tracer: Tracer | None = None,
    ) -> None:
        """Work on an event loop.

        Args:
            engines: the executor.
            catalogue: what it serves.
            meters: counts.
            loop: everything but the executor's callback runs on its thread.
            wall: epoch seconds.
            clock: monotonic seconds, the executor's clock, from which deadlines count.
            tracer: writes a span a request; None: nobody does.
        """
        self._engines = engines
        self._catalogue = catalogue
        self._meters = meters
        self.wake: Callable[[Callable[[], None]], object] = loop.call_soon_threadsafe
        self._wall = wall
        self._clock = clock
        self._tracer = tracer
        self._finished: deque[tuple[Caller, Outcome]] = deque()
        self._woken = False
        self._offers = engines if isinstance(engines, Offers) else None
        self._submit = partial(engines.offer, spare=_SPARE) if isinstance(engines, Offers) else engines.submit
        self._soon = loop.call_soon
        self._starting = False

    def infer(self, exchange: Exchange, name: str, version: str | None) -> None:
        """Take an HTTP request; it is answered now if it is wrong, else when the executor is done."""
        self.take(exchange, name, version, _decode)

    def take(
        self,
        caller: AnyCaller,
        name: str,
        version: str | None,
        decode: Callable[[Codec, AnyCaller, float], Decoded],
    ) -> None:
        """Take a request.

        Args:
            caller: is answered now if the request is wrong, else when the executor is done.
            name: of the model.
            version: of the model; None: the one that is served.
            decode: reads the request; may raise any error.

        Raises:
            UnknownModel: it is not served here.
            Unavailable: it belongs here and does not serve now.
        """
        codec = self._catalogue.find(name, version)
        meter = self._meters.engines.get(name) or self._meters.engine(codec.info.name)
        meter.in_flight += 1
        try:
            decoded = decode(codec, caller, self._clock())
            request = decoded.request
            key = caller.header(b"x-routing-key")
            if key is not None and not request.key:
                request.key = key[:_MAX_KEY].decode("utf-8", "replace")
            caller.context = codec, meter, decoded
            caller.cancel = self._submit(name, request, partial(self._done, caller))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the count is right
            self._fail(caller, codec.info.name, meter, error)
            return
        if self._offers is not None and not self._starting:
            self._starting = True
            self._soon(self._start)

    def _start(self) -> None:
        """Start all that the event loop read at once. What takes no time is run, and answered, here."""
        self._starting = False
        if self._offers is not None:
            self._woken = True
            try:
                self._offers.start(spare=_SPARE)
            finally:
                self._deliver()

    def _done(self, caller: Caller, outcome: Outcome) -> None:
        """Called by the executor's thread, or by the event loop's if answers come there."""
        self._finished.append((caller, outcome))
        if not self._woken:
            self._woken = True
            try:
                self.wake(self._deliver)
            except RuntimeError:  # the loop is closed: its clients are gone
                log.debug("an outcome came after the end of the event loop")

    def _deliver(self) -> None:
        self._woken = False
        finished = self._finished
        now, now_ms = self._clock(), int(self._wall() * 1000)
        while finished:
            caller, outcome = finished.popleft()
            codec, meter, decoded = caller.context
            caller.context = None
            if outcome.error is not None:
                self._fail(caller, codec.info.name, meter, outcome.error, outcome)
                continue
            try:
                if outcome.generation != codec.generation:
                    codec = self._of_generation(codec, outcome)
                caller.give(codec, decoded, outcome)
            except Exception as error:  # noqa: BLE001 - the rest of the batch has to be answered
                self._fail(caller, codec.info.name, meter, error, outcome)
                continue
            meter.in_flight -= 1
            meter.succeeded(outcome, decoded.request.rows, now - caller.started, now_ms)
            if self._tracer is not None:
                self._tracer.answered(caller, codec.info.name, now - caller.started, outcome)

    def _of_generation(self, codec: Codec, outcome: Outcome) -> Codec:
        """The codec of the generation that answered: the engine may have been swapped since the request was read."""
        current = self._catalogue.codecs().get(codec.info.name)
        return current if current is not None and current.generation == outcome.generation else codec

    def _fail(
        self, caller: Caller, engine: str, meter: EngineMeter, error: Exception, outcome: Outcome | None = None
    ) -> None:
        fault = fault_of(error)
        seconds = self._clock() - caller.started
        request = name_of(caller)
        about = {"engine": engine, "request": request, "status": fault.status, "reason": fault.reason}
        if not isinstance(error, TrtopsError):
            log.error("an inference request failed", exc_info=error, extra=about)
        elif request is not None and log.isEnabledFor(logging.INFO):
            log.info("refused: %s", fault.message, extra={**about, "ms": round(seconds * 1e3, 3)})
        meter.in_flight -= 1
        meter.failed(fault.reason, seconds)
        channel, generation = (outcome.channel, outcome.generation) if outcome is not None else (STABLE, 0)
        meter.answered(fault.status, seconds, channel, generation)
        if self._tracer is not None:
            self._tracer.answered(caller, engine, seconds, outcome, fault)
        caller.refuse(fault)


def name_of(caller: Caller) -> str | None:
    """What its client calls a request in a header, to find it in logs; None: it has no name."""
    name = caller.header(b"x-request-id") or caller.header(b"traceparent")
    return None if name is None else name[:200].decode("ascii", "replace")


def _decode(codec: Codec, exchange: Exchange, now: float) -> Decoded:
    return codec.decode(exchange.body, _header_length(exchange), now)


def _header_length(exchange: Exchange) -> int | None:
    value: Any = exchange.headers.get(b"inference-header-content-length")
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise InputError(f"header Inference-Header-Content-Length: expected a whole number, got {value[:40]!r}")
    return int(value)
