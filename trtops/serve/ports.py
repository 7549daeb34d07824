"""The listening ports of a process: HTTP's and gRPC's data ports and their control ports, in front of an executor."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trtops.errors import InputError, Unavailable
from trtops.serve.controls import ControlRoutes, Settings
from trtops.serve.desk import Desk
from trtops.serve.exchange import Limits
from trtops.serve.front import Front
from trtops.serve.inference import Catalogue, Inference
from trtops.serve.measure import Meters
from trtops.serve.metrics import Exposition
from trtops.serve.regions import Regions
from trtops.serve.routes import DataRoutes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtops.serve.desk import Control, Health, Numbers
    from trtops.serve.grpc_server import GrpcPort
    from trtops.serve.inference import Runs
    from trtops.serve.observe import ExecutorMeter
    from trtops.serve.trace import Tracer

_BACKLOG = 1024
_CONTROL_CONNECTIONS = 256
SWITCH_INTERVAL = 0.001
"""Seconds that a thread keeps Python's lock while another one waits for it: a request's way is short steps in two."""


class Swaps:
    """No swap was ever made: for a server without an agent."""

    def __call__(self) -> Mapping[tuple[str, str], int]:
        """Nothing."""
        return {}


class HttpServer:
    """The two ports in front of an executor, on a running event loop."""

    def __init__(  # noqa: PLR0913 - parts that a server may have, each by its name
        self,
        engines: Runs,
        health: Health,
        control: Control,
        *,
        swaps: Callable[[], Mapping[tuple[str, str], int]] | None = None,
        limits: Limits | None = None,
        executor: ExecutorMeter | None = None,
        tracer: Tracer | None = None,
        settings: Settings | None = None,
        numbers: Numbers | None = None,
        one_thread: bool = False,
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
            numbers: finds the numbers of all front ends; None: there is this one only.
            one_thread: whether the executor answers in the event loop's thread.
        """
        settings = settings or Settings()
        loop = asyncio.get_running_loop()
        self.meters = Meters()
        regions = Regions()
        catalogue = Catalogue(engines, health.absent, regions)
        self._inference = Inference(engines, catalogue, self.meters, loop, time.time, time.monotonic, tracer)
        if one_thread:
            self._inference.wake = loop.call_soon
        self.desk = Desk(catalogue, health, numbers or self._numbers, regions)
        routes = DataRoutes(self._inference, self.desk)
        limits = limits or Limits()
        self.data = Front(loop, routes, limits, self.meters.refused)
        self.exposition = Exposition(self.desk.infos, swaps or Swaps(), executor)
        self.routes = ControlRoutes(self.exposition, self.desk, control, loop, routes, settings)
        self.control = Front(loop, self.routes, replace(limits, connections=_CONTROL_CONNECTIONS), self.meters.refused)
        self._control_of = control
        self._limits = limits
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._grpc: list[GrpcPort] = []

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
        server = self._grpc_port(control=control)
        try:
            found = await server.listen(host=host, port=port)
        except OSError as error:
            raise cannot_listen(error, host, port) from None
        self._grpc.append(server)
        return found

    async def listen_grpc_on(self, sock: socket.socket) -> None:
        """Serve gRPC's data calls on a socket that listens already.

        Raises:
            InputError: the extra ``grpc`` is not installed.
        """
        server = self._grpc_port(control=False)
        await server.listen(sock=sock)
        self._grpc.append(server)

    def _grpc_port(self, *, control: bool) -> GrpcPort:
        from trtops.serve.grpc_calls import ControlCalls, DataCalls
        from trtops.serve.grpc_server import GrpcPort

        calls = DataCalls(self.desk)
        if control:
            spread = self.routes.regions_changed
            calls = ControlCalls(self.desk, self._control_of, spread, self._settings)
        return GrpcPort(self._inference, calls.calls(), self._limits, self.meters.refused)

    def snapshot(self) -> Meters:
        """The numbers of these ports."""
        total = Meters()
        total.add(self.meters)
        total.connections = len(self.data.connections) + len(self.control.connections)
        total.buffered = self.data.buffered + self.control.buffered
        return total

    def _numbers(self, done: Callable[[Meters], None]) -> None:
        done(self.snapshot())

    async def listen_on(self, sock: socket.socket) -> None:
        """Serve data on a socket that listens already."""
        self._servers.append(await asyncio.get_running_loop().create_server(self.data, sock=sock, backlog=_BACKLOG))

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
            raise cannot_listen(error, host, port) from None
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


def cannot_listen(error: OSError, host: str, port: int) -> Exception:
    """The error of a port that cannot be opened, in plain words."""
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"port {port} on {host} is in use", fix="choose another port, or stop what listens there")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return Unavailable(f"this user may not listen on port {port}", fix="choose a port from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return InputError(f"{host} is no address of this machine", fix="give one of its addresses, or 0.0.0.0 for all")
    return Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}")
