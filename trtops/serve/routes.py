"""Which path means what: the data port's routes and the control port's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from trtops.errors import TrtopsError
from trtops.serve import documents
from trtops.serve.faults import fault_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from trtops.executor.port import EngineInfo
    from trtops.serve.exchange import Exchange
    from trtops.serve.inference import Catalogue, Inference
    from trtops.serve.measure import Meters

log = logging.getLogger(__name__)

_CACHED_PATHS = 1024
_READERS = frozenset({b"GET", b"HEAD"})

Path = tuple[str, ...]


class Health(Protocol):
    """What the front end needs to know of the process that it stands in."""

    def not_ready(self) -> str | None:
        """Why no traffic should come now; None if it may."""

    def status(self) -> dict[str, Any]:
        """The state in detail, as a JSON object."""


class Control(Protocol):
    """What control calls do. Called from a thread, since it may take long."""

    def load(self, name: str) -> None:
        """Serve an engine, or look again for a new release of it.

        Raises:
            TrtopsError: it cannot be served.
        """

    def unload(self, name: str) -> None:
        """Serve an engine no more until it is loaded again.

        Raises:
            UnknownModel: it is not served.
        """


def split_target(target: bytes) -> Path:
    """The segments of a request target's path; the query is dropped. Bytes that are no UTF-8 become U+FFFD."""
    text = target.decode("ascii", "replace")
    if not text.startswith("/"):
        try:
            text = urlsplit(text).path  # the absolute form, which proxies send
        except ValueError:
            text = ""
    path = text.partition("?")[0].partition("#")[0].rstrip("/")
    return tuple(unquote(segment) for segment in path.split("/")[1:])


def _json(exchange: Exchange, document: Any) -> None:  # noqa: ANN401 - any JSON value
    exchange.respond(200, (msgspec.json.encode(document),))


def _method(exchange: Exchange, *allowed: bytes) -> bool:
    if exchange.method in allowed:
        return True
    names = b", ".join(allowed)
    exchange.fail(405, f"{exchange.method.decode()} is not allowed here; {names.decode()} is", b"Allow: %b\r\n" % names)
    return False


class DataRoutes:
    """The port that clients infer at."""

    def __init__(self, inference: Inference, catalogue: Catalogue, meters: Meters, health: Health) -> None:
        """Answer from these."""
        self._inference = inference
        self._catalogue = catalogue
        self._meters = meters
        self._health = health
        self._inferring: dict[bytes, tuple[str, str | None]] = {}

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, or pass it on."""
        try:
            known = self._inferring.get(exchange.target)
            if known is not None and exchange.method == b"POST":
                self._inference.infer(exchange, *known)
            else:
                self._route(exchange, split_target(exchange.target))
        except TrtopsError as error:
            fault = fault_of(error)
            exchange.fail(fault.status, fault.message, fault.extra)

    def _route(self, exchange: Exchange, path: Path) -> None:
        if path[:2] == ("v2", "models") and len(path) > 2:  # noqa: PLR2004 - a name follows
            self._models(exchange, path[2:])
        elif path == ("v2",):
            if _method(exchange, *_READERS):
                _json(exchange, documents.server_metadata())
        elif path[:2] == ("v2", "health") and len(path) == 3 and path[2] in {"live", "ready"}:  # noqa: PLR2004 - its kind
            if _method(exchange, *_READERS):
                _probe(exchange, self._health.not_ready() if path[2] == "ready" else None)
        elif path == ("v2", "repository", "index"):
            if _method(exchange, b"POST", *_READERS):
                _json(exchange, documents.repository_index(self._infos()))
        elif path[:3] == ("v2", "repository", "models"):
            exchange.fail(403, "loading and unloading belong to the control port")
        else:
            exchange.fail(404, f"no such path: /{'/'.join(path):.200}")

    def _models(self, exchange: Exchange, rest: Path) -> None:
        name, version, verb = _parts(rest)
        if rest == ("stats",):
            if _method(exchange, *_READERS):
                self._statistics(exchange, self._infos())
        elif verb == ("infer",):
            if _method(exchange, b"POST"):
                self._inference.infer(exchange, name, version)
                if len(self._inferring) >= _CACHED_PATHS:
                    self._inferring.clear()
                self._inferring[exchange.target] = name, version
        elif not _method(exchange, *_READERS):
            return
        elif verb == ("ready",):
            self._ready(exchange, name, version)
        elif verb in {(), ("config",), ("stats",)}:
            info = self._catalogue.find(name, version).info
            if verb == ("stats",):
                self._statistics(exchange, (info,))
            else:
                _json(exchange, documents.model_config(info) if verb else documents.model_metadata(info))
        else:
            exchange.fail(404, f"no such path: /v2/models/{'/'.join(rest):.200}")

    def _infos(self) -> tuple[EngineInfo, ...]:
        return tuple(codec.info for codec in self._catalogue.codecs().values())

    def _ready(self, exchange: Exchange, name: str, version: str | None) -> None:
        self._catalogue.find(name, version)
        _probe(exchange, None)

    def _statistics(self, exchange: Exchange, infos: tuple[EngineInfo, ...]) -> None:
        rows = [documents.model_statistics(info, self._meters.engine(info.name)) for info in infos]
        _json(exchange, {"model_stats": rows})


def _probe(exchange: Exchange, reason: str | None) -> None:
    if reason is None:
        exchange.respond(200, ())
    else:
        exchange.fail(503, reason, b"Retry-After: 1\r\n")


def _parts(rest: Path) -> tuple[str, str | None, Path]:
    if len(rest) >= 3 and rest[1] == "versions":  # noqa: PLR2004 - name, "versions", version
        return rest[0], rest[2], rest[3:]
    return rest[0], None, rest[1:]


class ControlRoutes:
    """The port that operators and Prometheus ask."""

    def __init__(
        self,
        metrics: Callable[[], tuple[bytes, bytes]],
        health: Health,
        control: Control,
        loop: asyncio.AbstractEventLoop,
        index: Callable[[], tuple[EngineInfo, ...]],
    ) -> None:
        """Answer from these.

        Args:
            metrics: text of the metrics and its content type.
            health: state of the process.
            control: loads and unloads, in a thread of the loop's pool.
            loop: the event loop.
            index: what is served.
        """
        self._metrics = metrics
        self._health = health
        self._control = control
        self._loop = loop
        self._index = index

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, or start what it asks for."""
        path = split_target(exchange.target)
        if path == ("metrics",):
            if _method(exchange, *_READERS):
                text, kind = self._metrics()
                exchange.respond(200, (text,), kind=kind)
        elif path == ("v2", "trtops", "status"):
            if _method(exchange, *_READERS):
                _json(exchange, self._health.status())
        elif path == ("healthz",):
            if _method(exchange, *_READERS):
                _probe(exchange, None)
        elif path == ("v2", "repository", "index"):
            if _method(exchange, b"POST", *_READERS):
                _json(exchange, documents.repository_index(self._index()))
        elif path[:3] == ("v2", "repository", "models") and len(path) == 5 and path[4] in {"load", "unload"}:  # noqa: PLR2004 - name and verb
            if _method(exchange, b"POST"):
                self._start(exchange, path[3], path[4])
        else:
            exchange.fail(404, f"no such path: /{'/'.join(path):.200}")

    def _start(self, exchange: Exchange, name: str, verb: str) -> None:
        call = self._control.load if verb == "load" else self._control.unload
        future = self._loop.run_in_executor(None, call, name)
        future.add_done_callback(lambda done: self._finished(exchange, done))

    @staticmethod
    def _finished(exchange: Exchange, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error is None:
            exchange.respond(200, ())
            return
        if not isinstance(error, TrtopsError):
            log.error("a control call failed", exc_info=error)
        fault = fault_of(error if isinstance(error, Exception) else RuntimeError())
        exchange.fail(fault.status, fault.message, fault.extra)
