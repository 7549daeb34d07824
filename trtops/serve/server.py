"""The server process: executor, agent, data port and control port, from the first line to the last request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from trtops.errors import InputError
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
from trtops.executor.unit import Pace
from trtops.serve.agent import Agent
from trtops.serve.backstage import Begin
from trtops.serve.controls import Settings
from trtops.serve.exchange import Limits
from trtops.serve.fleet_metrics import channel_metrics, fleet_metrics
from trtops.serve.frontends import FrontEnds
from trtops.serve.logs import to_json
from trtops.serve.observe import ExecutorMeter
from trtops.serve.ports import SWITCH_INTERVAL, HttpServer, cannot_listen
from trtops.serve.snapshot import Snapshots
from trtops.serve.trace import from_environment
from trtops.serve.watchdog import Watchdog
from trtops.transport.server import Server as Shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.executor.nursery import Nursery
    from trtops.executor.port import Engines, Loader
    from trtops.registry.port import Registry
    from trtops.serve.duty import Duty
    from trtops.serve.inference import Runs
    from trtops.serve.pull import Artifacts

log = logging.getLogger(__name__)


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
        front_ends: processes that serve the data port; 0: this process does.
        grpc_port: of gRPC's data port, on ``host``; 0 takes a free one, None: no gRPC.
        grpc_control_port: of gRPC with control calls, on ``control_host``; 0 takes a free one, None: none.
        otel: write spans by OpenTelemetry.
        json_logs: whether the log is JSON, as the logging extension tells.
        workers: run engines in processes of their own; None: in this one.
        hang: seconds without a sign of life, or that a batch may run, after which a process is replaced.
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
    front_ends: int = 0
    grpc_port: int | None = None
    grpc_control_port: int | None = None
    otel: bool = False
    json_logs: bool = False
    workers: Workers | None = None
    hang: float = 10.0


@dataclass(frozen=True)
class Workers:
    """How engines run in processes of their own.

    Attributes:
        devices: what ``CUDA_VISIBLE_DEVICES`` is for the workers of each device; "" leaves it as it is.
        settle: seconds that an engine serves alone before it moves in with the others; None: it stays alone.
        host_memory, device_memory: bytes that all pools may take on the host and on each device; None: no bound.
    """

    devices: tuple[str, ...] = ("",)
    settle: float | None = 30.0
    host_memory: int | None = None
    device_memory: int | None = None


def run(
    settings: ServeSettings,
    *,
    registry: Registry,
    store: Artifacts,
    engines: Engines | None = None,
    output: TextIO | None = None,
    nursery: Nursery | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; then finish what is in flight.

    Args:
        settings: how.
        registry: where pointers and documents come from.
        store: where artifacts come from.
        engines: the executor; closed at the end. None: as the settings say.
        output: where the ready line is written; None: standard output.
        nursery: where workers and front ends are forked; None: each gets an interpreter of its own.

    Returns:
        exit code: 0 after an orderly end.

    Raises:
        Unavailable: a port is in use.
        InputError: a host is none of this machine's.
    """
    import uvloop

    if settings.json_logs:
        to_json()
    sys.setswitchinterval(SWITCH_INTERVAL)
    meter = ExecutorMeter()
    home = _home(settings, meter, engines, nursery)
    agent = Agent(settings.duty, home.loader, registry, store, Snapshots(settings.state))
    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(_serve(settings, home, agent, meter, output or sys.stdout)))
    finally:
        with suppress(RuntimeError):
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        home.clean_up()


@dataclass
class Home:
    """Where engines run, and how they are reached.

    Attributes:
        loader: loads them, for the agent.
        runs: takes requests, for the ports of this process.
        socket: where clients of this host, front ends among them, reach them; None: nowhere.
        supervisor: of workers; None: they run in this process.
        folder: made for the socket.
        nursery: where processes are forked.
    """

    loader: Loader
    runs: Runs
    socket: Path | None
    supervisor: Supervisor | None = None
    shared: Shared | None = None
    folder: Path | None = None
    nursery: Nursery | None = None

    def watchdog(self, hang: float) -> Watchdog | None:
        """Ends this process when a batch that it runs itself hangs; None: others run them. On the event loop."""
        return Watchdog(self.loader.longest_run, hang, self._leave) if isinstance(self.loader, Executor) else None

    def _leave(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(70)  # EX_SOFTWARE, sysexits.h

    def close(self, *, drain: float) -> None:
        """Stop. Requests in flight get ``drain`` seconds."""
        if self.shared is not None:
            self.shared.close()
        if isinstance(self.runs, RemoteEngines):
            self.runs.close()
        self.loader.close(drain=drain)

    def clean_up(self) -> None:
        """Remove the folder; what could not be closed before is closed."""
        self.close(drain=0.0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _home(
    settings: ServeSettings, meter: ExecutorMeter, engines: Engines | None, nursery: Nursery | None = None
) -> Home:
    """Workers of a supervisor, or an executor in this process.

    Raises:
        Unavailable: another server listens at the socket.
        StorageError: the socket cannot be made.
    """
    path, folder = settings.socket, None
    isolated = settings.workers if engines is None else None
    if path is None and (settings.front_ends or isolated is not None):
        folder = Path(tempfile.mkdtemp(prefix="trtops-"))
        path = folder / "executor"
    try:
        if isolated is None or path is None:
            here = Executor(observer=meter) if engines is None else engines
            shared = Shared(path, Attachment(here)) if path is not None else None
            return Home(here, here, path, shared=shared, folder=folder, nursery=nursery)
        supervisor = Supervisor(
            path,
            observer=meter,
            devices=isolated.devices,
            pace=Pace(silence=settings.hang, run=settings.hang, settle=isolated.settle),
            host_memory=isolated.host_memory,
            device_memory=isolated.device_memory,
            nursery=nursery,
        )
        return Home(supervisor, RemoteEngines(path), path, supervisor, folder=folder, nursery=nursery)
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


async def _serve(settings: ServeSettings, home: Home, agent: Agent, meter: ExecutorMeter, output: TextIO) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: somebody else stops us
            loop.add_signal_handler(number, stop.set)
    tracer = from_environment() if settings.otel and not settings.front_ends else None
    told = Settings(traced=settings.otel, json_logs=settings.json_logs)
    server = HttpServer(
        home.runs,
        agent,
        agent,
        swaps=lambda: agent.swaps,
        limits=settings.limits,
        executor=meter,
        tracer=tracer,
        settings=told,
    )
    server.exposition.more.append(partial(channel_metrics, agent.channels))
    server.exposition.candidates = agent.candidates.generations
    if home.supervisor is not None:
        server.exposition.more.append(partial(fleet_metrics, home.supervisor))
        agent.parts["workers"] = home.supervisor.overview
    doors, watchdog = Doors(server, settings, home), home.watchdog(settings.hang)
    if watchdog is not None:
        watchdog.start()
    try:
        ports = await doors.open()
        agent.start()
        await _settle(agent, settings.settle, stop)
        await doors.settled()
        gc.collect()
        gc.freeze()  # what lives now lives to the end: the collector need not look at it again
        if not stop.is_set():
            _announce(settings, ports, agent.status(), output)
            await stop.wait()
    finally:
        agent.drain()
        log.info("stopping: requests in flight get %g s", settings.drain)
        started = loop.time()
        await doors.close()
        if home.supervisor is not None:
            await loop.run_in_executor(None, home.supervisor.abandon_loads)
        await loop.run_in_executor(None, agent.close)
        left = max(0.0, settings.drain - (loop.time() - started))
        await loop.run_in_executor(None, partial(home.close, drain=left))
        if tracer is not None:
            await loop.run_in_executor(None, tracer.close)
        if watchdog is not None:
            watchdog.stop()
    return 0


class Doors:
    """What a server opens to its clients: ports of its own, or front ends in processes of theirs."""

    def __init__(self, server: HttpServer, settings: ServeSettings, home: Home) -> None:
        """Open nothing yet. ``home``: where front ends in other processes reach the engines."""
        self._server = server
        self._settings = settings
        self._fronts: FrontEnds | None = None
        self._home = home

    async def open(self) -> dict[str, int]:
        """Open everything.

        Returns:
            name -> number of each port.

        Raises:
            Unavailable: one is in use, or a front end could not start.
            InputError: a host is none of this machine's, or an extra is missing.
        """
        settings, server = self._settings, self._server
        ports: dict[str, int] = {}
        if settings.front_ends:
            ports = await self._open_front_ends(settings)
        else:
            ports["port"] = await server.listen(server.data, settings.host, settings.port)
            if settings.grpc_port is not None:
                ports["grpc_port"] = await server.listen_grpc(settings.host, settings.grpc_port, control=False)
        ports["control_port"] = await server.listen(server.control, settings.control_host, settings.control_port)
        if settings.grpc_control_port is not None:
            host = settings.control_host
            ports["grpc_control_port"] = await server.listen_grpc(host, settings.grpc_control_port, control=True)
        return ports

    async def _open_front_ends(self, settings: ServeSettings) -> dict[str, int]:
        wanted = {"port": settings.port}
        if settings.grpc_port is not None:
            if settings.grpc_port and settings.grpc_port == settings.port:
                raise InputError(f"HTTP and gRPC cannot share port {settings.port}", fix="give gRPC another port")
            wanted["grpc_port"] = settings.grpc_port
        begin = Begin(str(self._home.socket), settings.limits, settings.otel, settings.json_logs)
        fronts = FrontEnds(settings.front_ends, begin, self._server.desk, self._home.nursery, hang=settings.hang)
        self._fronts = fronts
        self._server.desk.numbers = fronts.numbers
        self._server.routes.regions_changed = fronts.regions_changed
        self._server.exposition.front_ends = fronts
        ports = {name: _opened(fronts, settings.host, port) for name, port in wanted.items()}
        await fronts.start(self._server.snapshot)
        return ports

    async def settled(self) -> None:
        """Wait until every front end reaches the engines that serve."""
        if self._fronts is not None:
            await self._fronts.settled()

    async def close(self) -> None:
        """Close everything; requests in flight finish."""
        drain = self._settings.drain
        if self._fronts is not None:
            await self._fronts.close(drain)
        await self._server.close(drain)


def _opened(fronts: FrontEnds, host: str, port: int) -> int:
    try:
        return fronts.open(host, port)
    except socket.gaierror as error:
        raise InputError(
            f"cannot find host '{host}': {error.strerror}", fix="give an address of this machine"
        ) from None
    except OSError as error:
        raise cannot_listen(error, host, port) from None


async def _settle(agent: Agent, seconds: float, stop: asyncio.Event) -> None:
    """Wait until the agent has looked at every engine, the time is over, or the process has to stop."""
    settled = asyncio.ensure_future(asyncio.to_thread(agent.settled, seconds))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((settled, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


def _announce(settings: ServeSettings, ports: Mapping[str, int], status: dict[str, Any], output: TextIO) -> None:
    """Write the ready line: a parent process waits for it, and reads the ports off it."""
    control = ports["control_port"]
    url = f"http://{_host(settings.host)}:{ports['port']}"
    if settings.ready_json:
        control_url = f"http://{_host(settings.control_host)}:{control}"
        line = msgspec.json.encode(
            {"event": "ready", "url": url, "control_url": control_url, "pid": os.getpid()}
            | {**ports, "status": status["status"], "engines": status["engines"]}
        ).decode()
    else:
        engines = ", ".join(_describe(name, engine) for name, engine in status["engines"].items())
        grpc = f", gRPC at {_host(settings.host)}:{ports['grpc_port']}" if "grpc_port" in ports else ""
        line = f"serving at {url}{grpc} (control port {control}): {engines}"
    with suppress(BrokenPipeError):
        print(line, file=output, flush=True)


def _host(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def _describe(name: str, engine: dict[str, Any]) -> str:
    what = f"generation {engine['generation']} on {engine['target']}" if "generation" in engine else "nothing"
    why = f" ({engine['status']}: {engine['reason']})" if engine["reason"] else ""
    return f"{name} {what}{why}"
