"""Which path means what on the control port: what operators, Prometheus and clients on this host ask."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from trtops.errors import InputError, TrtopsError
from trtops.serve import documents
from trtops.serve.desk import Unsupported, refuse_changes
from trtops.serve.faults import fault_of
from trtops.serve.regions import Registered, UnknownRegion
from trtops.serve.routes import READERS, allowed, probe, send_json, split_target

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from trtops.serve.desk import Control, Desk
    from trtops.serve.exchange import Exchange
    from trtops.serve.measure import Meters
    from trtops.serve.routes import Path

log = logging.getLogger(__name__)

CUDA = "CUDA shared memory is not served"
CUDA_FIX = "register system shared memory, or use the client of trtops.transport"


class _Region(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


class ControlRoutes:
    """The control port. What it has no path for is the data port's: a client on this host needs one address only."""

    def __init__(
        self,
        metrics: Callable[[Meters], tuple[bytes, bytes]],
        desk: Desk,
        control: Control,
        loop: asyncio.AbstractEventLoop,
        data: Callable[[Exchange], None],
        settings: Settings | None = None,
    ) -> None:
        """Answer from these.

        Args:
            metrics: text of the metrics and its content type.
            desk: documents, shared memory, health.
            control: loads and unloads, in a thread of the loop's pool.
            loop: the event loop.
            data: the data port's routes.
            settings: of trace and log, as they are.
        """
        self._metrics = metrics
        self._desk = desk
        self._control = control
        self._loop = loop
        self._data = data
        self._settings = settings or Settings()
        self.regions_changed: Callable[[Callable[[], None]], None] = _at_once

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, or start what it asks for."""
        path = split_target(exchange.target)
        try:
            self._route(exchange, path)
        except TrtopsError as error:
            exchange.refuse(fault_of(error))

    def _route(self, exchange: Exchange, path: Path) -> None:
        if path == ("metrics",):
            if allowed(exchange, *READERS):
                self._desk.numbers(partial(self._expose, exchange))
        elif path == ("v2", "trtops", "status"):
            if allowed(exchange, *READERS):
                send_json(exchange, self._desk.health.status())
        elif path == ("healthz",):
            if allowed(exchange, *READERS):
                probe(exchange, None)
        elif path[:3] == ("v2", "repository", "models") and len(path) == 5 and path[4] in {"load", "unload"}:  # noqa: PLR2004 - name and verb
            if allowed(exchange, b"POST"):
                self._start(exchange, path[3], path[4])
        elif path[:2] in {("v2", "systemsharedmemory"), ("v2", "cudasharedmemory")}:
            self._memory(exchange, path[1] == "cudasharedmemory", path[2:])
        elif path == ("v2", "logging"):
            self._setting(exchange, "log", self._settings.log(), "start the server with --log-format or --verbose")
        elif path == ("v2", "trace", "setting") or (path[:2] == ("v2", "models") and path[3:] == ("trace", "setting")):
            self._trace(exchange, path[2] if path[1] == "models" else None)
        else:
            self._data(exchange)

    def _expose(self, exchange: Exchange, meters: Meters) -> None:
        text, kind = self._metrics(meters)
        exchange.respond(200, (text,), kind=kind)

    def _trace(self, exchange: Exchange, model: str | None) -> None:
        """The settings are the server's; asked for of a model, it has to be there."""
        if model is not None:
            self._desk.catalogue.find(model, None)
        self._setting(exchange, "trace", self._settings.trace(), "start the server with --otel")

    def _setting(self, exchange: Exchange, what: str, current: dict[str, Any], fix: str) -> None:
        if not allowed(exchange, b"POST", *READERS):
            return
        if exchange.method == b"POST":
            refuse_changes(what, current, _document(exchange.body, dict[str, Any]), fix)
        send_json(exchange, current)

    def _memory(self, exchange: Exchange, cuda: bool, rest: Path) -> None:  # noqa: FBT001 - which of two kinds
        """Status, registration and its end; of CUDA's there is never any."""
        name = rest[1] if len(rest) > 2 and rest[0] == "region" else ""  # noqa: PLR2004 - "region", name, verb
        verb = rest[2:] if name else rest
        if verb == ("status",):
            if allowed(exchange, *READERS):
                if cuda and name:
                    raise UnknownRegion(CUDA, fix=CUDA_FIX)
                send_json(exchange, [] if cuda else self._desk.registered(name))
        elif verb == ("unregister",):
            if allowed(exchange, b"POST"):
                if not cuda:
                    self._desk.regions.unregister(name)
                self.regions_changed(partial(exchange.respond, 200, ()))
        elif verb == ("register",) and name:
            if allowed(exchange, b"POST"):
                if cuda:
                    raise Unsupported(CUDA, fix=CUDA_FIX)
                about = _document(exchange.body, _Region)
                self._desk.regions.register(Registered(name, about.key, about.offset, about.byte_size))
                self.regions_changed(partial(exchange.respond, 200, ()))
        else:
            exchange.fail(404, f"no such path: {exchange.target.decode('ascii', 'replace'):.200}")

    def _start(self, exchange: Exchange, name: str, verb: str) -> None:
        if verb == "load" and exchange.body.strip():
            parameters = _document(exchange.body, dict[str, Any]).get("parameters") or {}
            refuse_overrides(parameters)
        call = self._control.load if verb == "load" else self._control.unload
        future = self._loop.run_in_executor(None, call, name)
        future.add_done_callback(partial(self._finished, exchange))

    @staticmethod
    def _finished(exchange: Exchange, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error is None:
            exchange.respond(200, ())
            return
        if not isinstance(error, TrtopsError):
            log.error("a control call failed", exc_info=error)
        exchange.refuse(fault_of(error if isinstance(error, Exception) else RuntimeError()))


class Settings:
    """Trace and log settings as they are."""

    def __init__(self, *, traced: bool = False, json_logs: bool = False) -> None:
        """Say what is so."""
        self._traced = traced
        self._json_logs = json_logs

    def trace(self) -> dict[str, Any]:
        """Of the trace extension."""
        return dict(documents.trace_settings(on=self._traced))

    def log(self) -> dict[str, Any]:
        """Of the logging extension."""
        return dict(documents.log_settings(json=self._json_logs))


def refuse_overrides(parameters: dict[str, Any]) -> None:
    """A load takes what was released and nothing else.

    Raises:
        Unsupported: the request brings a configuration or files of its own.
    """
    if parameters:
        names = ", ".join(f"'{name:.40}'" for name in parameters)
        raise Unsupported(f"a load takes no parameters, got {names}", fix="release another configuration: trtops ship")


def _at_once(then: Callable[[], None]) -> None:
    then()


def _document(body: bytes, kind: Any) -> Any:  # noqa: ANN401 - of this type
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not what is expected here: {error}") from None
