"""The server process: executor, agent, data port and control port, from the first line to the last request."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from trtops.errors import InputError, Unavailable
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.serve.agent import Agent, Duty
from trtops.serve.controls import ControlRoutes, Settings
from trtops.serve.desk import Desk
from trtops.serve.exchange import Limits
from trtops.serve.front import Front
from trtops.serve.inference import Catalogue, Inference
from trtops.serve.measure import Meters
from trtops.serve.metrics import Exposition
from trtops.serve.observe import ExecutorMeter
from trtops.serve.regions import Regions
from trtops.serve.routes import DataRoutes
from trtops.serve.snapshot import Snapshots
from trtops.transport.server import Server as Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trtops.executor.port import Engines
    from trtops.registry.port import Registry
    from trtops.serve.desk import Control, Health
    from trtops.serve.grpc_server import GrpcServer
    from trtops.serve.pull import Artifacts
    from trtops.serve.trace import Tracer

log = logging.getLogger(__name__)

_BACKLOG = 1024
SWITCH_INTERVAL = 0.001
_CONTROL_CONNECTIONS = 256


@dataclass(frozen=True)
class ServeSettings:
    """How a server runs.

    Attributes:
        duty: what the agent serves.
        state: folder for what the agent keeps on this machine.
        host, port: of the data port; 0 takes a free one.
        control_host, control_port: of metrics and control calls; never open these to other hosts without need.
        drain: seconds that requests in flight get after SIGTERM.
        settle: seconds that the ready line waits for the first engines at most.
        ready_json: whether the ready line is a JSON object.
        limits: bounds of what clients may ask for.
        socket: where clients on this host connect for shared memory; None: nowhere.
    """

    duty: Duty
    state: Path
    host: str = "127.0.0.1"
    port: int = 8000
    control_host: str = "127.0.0.1"
    control_port: int = 8001
    drain: float = 30.0
    settle: float = 60.0
    ready_json: bool = False
    limits: Limits = field(default_factory=Limits)
    socket: Path | None = None


class Swaps:
    """No swap was ever made: for a server without an agent."""

    def __call__(self) -> Mapping[tuple[str, str], int]:
        """Nothing."""
        return {}


class HttpServer:
    """The two ports in front of an executor, on a running event loop."""

    def __init__(
        self,
        engines: Engines,
        health: Health,
        control: Control,
        swaps: Callable[[], Mapping[tuple[str, str], int]] | None = None,
        limits: Limits | None = None,
        executor: ExecutorMeter | None = None,
        tracer: Tracer | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Put it together; call from within the event loop.

        Args:
            engines: the executor.
            health: state of the process.
            control: what control calls do.
            swaps: counts for the metrics.
            limits: bounds of what clients may ask for.
            executor: counts of the executor, if it has an observer.
            tracer: writes a span a request.
            settings: trace and log settings, to be told to those who ask.
        """
        settings = settings or Settings()
        loop = asyncio.get_running_loop()
        self.meters = Meters()
        regions = Regions()
        catalogue = Catalogue(engines, health.absent, regions)
        self._inference = Inference(engines, catalogue, self.meters, loop, time.time, time.monotonic, tracer)
        self.desk = Desk(catalogue, health, self._numbers, regions)
        routes = DataRoutes(self._inference, self.desk)
        limits = limits or Limits()
        self.data = Front(loop, routes, limits, self.meters.refused)
        metrics = Exposition(self.desk.infos, swaps or Swaps(), executor)
        self.routes = ControlRoutes(metrics, self.desk, control, loop, routes, settings)
        self.control = Front(loop, self.routes, replace(limits, connections=_CONTROL_CONNECTIONS), self.meters.refused)
        self._control_of = control
        self._limits = limits
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._grpc: list[GrpcServer] = []

    async def listen_grpc(self, host: str, port: int, *, control: bool) -> int:
        """Open a port for gRPC.

        Args:
            host: address.
            port: number; 0 takes a free one.
            control: whether control calls are answered there.

        Returns:
            its number.

        Raises:
            InputError: the extra ``grpc`` is not installed.
            Unavailable: the port is in use.
        """
        from trtops.serve.grpc_calls import ControlCalls, DataCalls
        from trtops.serve.grpc_server import GrpcServer

        calls = DataCalls(self.desk)
        if control:
            spread = self.routes.regions_changed
            calls = ControlCalls(self.desk, self._control_of, spread, self._settings)
        server = GrpcServer(self._inference, calls.calls(), self._limits)
        found = await server.listen(host, port)
        self._grpc.append(server)
        return found

    def _numbers(self, done: Callable[[Meters], None]) -> None:
        total = Meters()
        total.add(self.meters)
        total.connections = len(self.data.connections) + len(self.control.connections)
        total.buffered = self.data.buffered + self.control.buffered
        done(total)

    async def listen(self, front: Front, host: str, port: int) -> int:
        """Open a port.

        Returns:
            its number.

        Raises:
            Unavailable: it is in use, or this user may not open it.
            InputError: the host is none of this machine's.
        """
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(front, host, port, backlog=_BACKLOG)
        except socket.gaierror as error:
            raise InputError(
                f"cannot find host '{host}': {error.strerror}", fix="give an address of this machine"
            ) from None
        except OSError as error:
            raise _cannot_listen(error, host, port) from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self, drain: float) -> int:
        """Stop accepting, let requests in flight finish, close.

        Returns:
            connections that were cut because ``drain`` seconds were not enough.
        """
        for server in self._servers:
            server.close()
        await asyncio.gather(*(server.close(drain) for server in self._grpc))
        cut = await self.data.drain(drain)
        await self.control.drain(min(drain, 1.0))
        return cut


def _cannot_listen(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"port {port} on {host} is in use", fix="choose another port, or stop what listens there")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return Unavailable(f"this user may not listen on port {port}", fix="choose a port from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return InputError(f"{host} is no address of this machine", fix="give one of its addresses, or 0.0.0.0 for all")
    return Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}")


def run(
    settings: ServeSettings,
    *,
    registry: Registry,
    store: Artifacts,
    engines: Engines | None = None,
    output: TextIO | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; then finish what is in flight.

    Args:
        settings: how.
        registry: where pointers and documents come from.
        store: where artifacts come from.
        engines: the executor; closed at the end. None: one in this process.
        output: where the ready line is written; None: standard output.

    Returns:
        exit code: 0 after an orderly end.

    Raises:
        Unavailable: a port is in use.
        InputError: a host is none of this machine's.
    """
    import uvloop

    # A request's way is a chain of short steps in two threads; by Python's default each may wait 5 ms for the other.
    sys.setswitchinterval(SWITCH_INTERVAL)
    meter = ExecutorMeter()
    engines = Executor(observer=meter) if engines is None else engines
    agent = Agent(settings.duty, engines, registry, store, Snapshots(settings.state))
    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(_serve(settings, engines, agent, meter, output or sys.stdout)))
    finally:
        with suppress(RuntimeError):
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _serve(settings: ServeSettings, engines: Engines, agent: Agent, meter: ExecutorMeter, output: TextIO) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: somebody else stops us
            loop.add_signal_handler(number, stop.set)
    server = HttpServer(engines, agent, agent, lambda: agent.swaps, settings.limits, meter)
    shared: Shared | None = None
    try:
        port = await server.listen(server.data, settings.host, settings.port)
        control = await server.listen(server.control, settings.control_host, settings.control_port)
        shared = Shared(settings.socket, Attachment(engines)) if settings.socket is not None else None
        agent.start()
        await _settle(agent, settings.settle, stop)
        gc.collect()
        gc.freeze()  # what lives now lives to the end: the collector need not look at it again
        if not stop.is_set():
            _announce(settings, port, control, agent.status(), output)
            await stop.wait()
    finally:
        agent.drain()
        log.info("stopping: requests in flight get %g s", settings.drain)
        started = loop.time()
        await server.close(settings.drain)
        await loop.run_in_executor(None, agent.close)
        if shared is not None:
            await loop.run_in_executor(None, shared.close)
        left = max(0.0, settings.drain - (loop.time() - started))
        await loop.run_in_executor(None, partial(engines.close, drain=left))
    return 0


async def _settle(agent: Agent, seconds: float, stop: asyncio.Event) -> None:
    """Wait until the agent has looked at every engine, the time is over, or the process has to stop."""
    settled = asyncio.ensure_future(asyncio.to_thread(agent.settled, seconds))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((settled, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


def _announce(settings: ServeSettings, port: int, control: int, status: dict[str, Any], output: TextIO) -> None:
    """Write the ready line: a parent process waits for it, and reads the ports off it."""
    url = f"http://{_host(settings.host)}:{port}"
    if settings.ready_json:
        control_url = f"http://{_host(settings.control_host)}:{control}"
        line = msgspec.json.encode(
            {"event": "ready", "url": url, "control_url": control_url, "pid": os.getpid()}
            | {"port": port, "control_port": control, "status": status["status"], "engines": status["engines"]}
        ).decode()
    else:
        engines = ", ".join(_describe(name, engine) for name, engine in status["engines"].items())
        line = f"serving at {url} (control port {control}): {engines}"
    with suppress(BrokenPipeError):
        print(line, file=output, flush=True)


def _host(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def _describe(name: str, engine: dict[str, Any]) -> str:
    what = f"generation {engine['generation']} on {engine['target']}" if "generation" in engine else "nothing"
    why = f" ({engine['status']}: {engine['reason']})" if engine["reason"] else ""
    return f"{name} {what}{why}"
