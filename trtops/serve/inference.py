"""Inference requests: from an exchange to the executor and back.

The executor calls back from a thread of its own, request by request; the event loop is woken once for all that came
until it runs, since a wake-up costs more than a request.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError, TrtopsError
from trtops.serve.faults import UnknownModel, fault_of
from trtops.serve.oip import Codec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from trtops.executor.port import EngineInfo, Engines, Outcome
    from trtops.serve.exchange import Exchange
    from trtops.serve.measure import EngineMeter, Meters
    from trtops.serve.oip import Decoded

log = logging.getLogger(__name__)

_MAX_DIGITS = 20


class Catalogue:
    """What is served now, with a codec for each engine. The executor hands out the same tuple until that changes."""

    def __init__(self, engines: Engines) -> None:
        """Read it when it is asked for."""
        self._engines = engines
        self._seen: tuple[EngineInfo, ...] | None = None
        self._codecs: dict[str, Codec] = {}

    def codecs(self) -> dict[str, Codec]:
        """Engine's name -> codec."""
        infos = self._engines.engines()
        if infos is not self._seen:
            old = {codec.info: codec for codec in self._codecs.values()} if infos != self._seen else None
            if old is not None:
                self._codecs = {info.name: old.get(info) or Codec(info) for info in infos}
            self._seen = infos
        return self._codecs

    def find(self, name: str, version: str | None = None) -> Codec:
        """The codec of an engine.

        Raises:
            UnknownModel: not served here; says what is.
        """
        codecs = self.codecs()
        codec = codecs.get(name)
        if codec is None:
            known = ", ".join(f"'{known}'" for known in sorted(codecs)) or "none"
            raise UnknownModel(f"unknown model '{name:.100}': served here: {known}")
        if version is not None and version != codec.info.version:
            raise UnknownModel(
                f"model '{name}' has no version '{version:.40}' here: version '{codec.info.version}' is served"
            )
        return codec


class Inference:
    """Passes inference requests to the executor and writes the answers."""

    def __init__(
        self,
        engines: Engines,
        catalogue: Catalogue,
        meters: Meters,
        loop: asyncio.AbstractEventLoop,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """Work on an event loop.

        Args:
            engines: the executor.
            catalogue: what it serves.
            meters: counts.
            loop: everything but the executor's callback runs on its thread.
            wall: epoch seconds.
            clock: monotonic seconds, the executor's clock, from which deadlines count.
        """
        self._engines = engines
        self._catalogue = catalogue
        self._meters = meters
        self._loop = loop
        self._wall = wall
        self._clock = clock
        self._finished: deque[tuple[Exchange, Outcome]] = deque()
        self._woken = False

    def infer(self, exchange: Exchange, name: str, version: str | None) -> None:
        """Take an inference request; it is answered now if it is wrong, else when the executor is done."""
        codec = self._catalogue.find(name, version)
        meter = self._meters.engine(codec.info.name)
        meter.in_flight += 1
        try:
            decoded = codec.decode(exchange.body, _header_length(exchange), self._clock())
            exchange.context = codec, meter, decoded
            exchange.cancel = self._engines.submit(name, decoded.request, partial(self._done, exchange))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the count is right
            self._fail(exchange, meter, error)

    def _done(self, exchange: Exchange, outcome: Outcome) -> None:
        """Called by the executor's thread."""
        self._finished.append((exchange, outcome))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: its clients are gone
                log.debug("an outcome came after the end of the event loop")

    def _deliver(self) -> None:
        self._woken = False
        finished = self._finished
        now, now_ms = self._clock(), int(self._wall() * 1000)
        while finished:
            exchange, outcome = finished.popleft()
            codec, meter, decoded = exchange.context
            exchange.context = None
            if outcome.error is not None:
                self._fail(exchange, meter, outcome.error)
                continue
            try:
                self._answer(exchange, self._of_generation(codec, outcome), decoded, outcome)
            except Exception as error:  # noqa: BLE001 - the rest of the batch has to be answered
                self._fail(exchange, meter, error)
                continue
            meter.in_flight -= 1
            meter.succeeded(outcome, decoded.request.rows, now - exchange.started, now_ms)

    def _of_generation(self, codec: Codec, outcome: Outcome) -> Codec:
        """The codec of the generation that answered: the engine may have been swapped since the request was read."""
        if outcome.generation != codec.info.generation:
            current = self._catalogue.codecs().get(codec.info.name)
            if current is not None and current.info.generation == outcome.generation:
                return current
        return codec

    @staticmethod
    def _answer(exchange: Exchange, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        answer = codec.encode(decoded, outcome)
        if answer.json_bytes is None:
            exchange.respond(200, answer.parts)
        else:
            extra = b"Inference-Header-Content-Length: %d\r\n" % answer.json_bytes
            exchange.respond(200, answer.parts, extra, b"application/octet-stream")

    def _fail(self, exchange: Exchange, meter: EngineMeter, error: Exception) -> None:
        if not isinstance(error, TrtopsError):
            log.error("an inference request failed", exc_info=error)
        fault = fault_of(error)
        seconds = self._clock() - exchange.started
        meter.in_flight -= 1
        meter.failed(fault.reason, seconds)
        meter.answered(fault.status, seconds)
        exchange.fail(fault.status, fault.message, fault.extra)


def _header_length(exchange: Exchange) -> int | None:
    value: Any = exchange.headers.get(b"inference-header-content-length")
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise InputError(f"header Inference-Header-Content-Length: expected a whole number, got {value[:40]!r}")
    return int(value)
