"""``trtops serve``: an agent, workers that run the engines, and front ends, until SIGTERM."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError, TrustError, Unavailable
from trtops.spec.engine import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtops.executor.nursery import Nursery
    from trtops.serve.server import Workers
    from trtops.workflow.workspace import Workspace


_MAX_DEVICES = 8
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){2}")


@dataclass(frozen=True)
class Listen:
    """Where to listen; a port of 0 takes a free one, None the one of the runtime config.

    Attributes:
        host, port: of the data port.
        control_host, control_port: of metrics and control calls.
        drain: seconds that requests in flight get after SIGTERM.
        ready_json: whether the ready line is a JSON object.
        socket: where clients on this host connect for shared memory; None: nowhere.
        front_ends: processes that serve the data port; 0: the server's own does; None: one beside workers, else 0.
        grpc_port: of gRPC, on ``host``; None: no gRPC.
        grpc_control_port: of gRPC with control calls, on ``control_host``; None: none.
        otel: write spans by OpenTelemetry.
        json_logs: write the log as JSON.
        isolated: run engines in worker processes; else in the server's own.
        devices: of the workers, as CUDA_VISIBLE_DEVICES names them; none: the first that there is.
        hang: seconds after which a worker that shows no life, or a batch that does not end, is given up.
        memory: ``host=SIZE`` and ``device=SIZE``: what pools may take on the host and on each device; where it is not
            given, all that there is.
    """

    host: str | None = None
    port: int | None = None
    control_host: str = "127.0.0.1"
    control_port: int = 0
    drain: float = 30.0
    ready_json: bool = False
    socket: Path | None = None
    front_ends: int | None = None
    grpc_port: int | None = None
    grpc_control_port: int | None = None
    otel: bool = False
    json_logs: bool = False
    isolated: bool = True
    devices: tuple[str, ...] = ()
    hang: float = 10.0
    memory: tuple[str, ...] = ()


def serve(workspace: Workspace, names: Sequence[str], listen: Listen, accepts: Sequence[str] = ()) -> int:
    """Serve the stable channel of engines; of all that are released where none is named.

    Args:
        workspace: whose environment.
        names: engines, or their folders.
        listen: where.
        accepts: ``ENGINE=VERSION`` each: the interface that clients of this service were written against. A release of
            another major, or an older one, is not loaded, and what runs keeps serving.

    Returns:
        the exit code: 0 after an orderly end.

    Raises:
        InputError: nothing of these names is released, ``accepts`` is wrong, a host is none of this machine's, or two
            ports are the same.
        Unavailable: a port is in use, or the registry is away and nothing is kept from before.
    """
    from trtops.serve.duty import Duty
    from trtops.serve.server import ServeSettings, run
    from trtops.workflow.secrets import identity_of

    workers = _workers(listen)
    with _nursery(listen) as nursery:  # before the registry's client has threads
        engines = _released(workspace, names)
        accepted = _accepted(accepts, engines)
        host, port = _address(workspace, engines, listen)
        _ports_apart(host, port, listen)
        duty = Duty(
            environment=workspace.environment,
            engines=engines,
            root=workspace.keys.root(),
            identity=identity_of(workspace),
            accepts=accepted,
        )
        settings = ServeSettings(
            duty=duty,
            state=workspace.resolved.home / "serve" / workspace.environment,
            host=host,
            port=port,
            control_host=listen.control_host,
            control_port=listen.control_port,
            drain=listen.drain,
            ready_json=listen.ready_json,
            socket=listen.socket,
            front_ends=int(listen.isolated) if listen.front_ends is None else listen.front_ends,
            grpc_port=listen.grpc_port,
            grpc_control_port=listen.grpc_control_port,
            otel=listen.otel,
            json_logs=listen.json_logs,
            workers=workers,
            hang=listen.hang,
        )
        return run(settings, registry=workspace.registry(), store=workspace.store, nursery=nursery)


@contextmanager
def _nursery(listen: Listen) -> Iterator[Nursery | None]:
    """Where workers and front ends are forked, with all that they need in memory; None where there are none."""
    if not listen.isolated and not listen.front_ends:
        yield None
        return
    import trtops.executor.hosting
    import trtops.serve.frontend  # noqa: F401 - both are in memory once
    from trtops.executor.nursery import Nursery

    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


def _ports_apart(host: str, port: int, listen: Listen) -> None:
    """Front ends share a port with others of this user, so that two of their own on one would both seem to listen.

    Raises:
        InputError: two ports are the same.
    """
    taken: dict[tuple[str, int], str] = {}
    for option, place in (
        ("--port", (host, port)),
        ("--control-port", (listen.control_host, listen.control_port)),
        ("--grpc-port", (host, listen.grpc_port or 0)),
        ("--grpc-control-port", (listen.control_host, listen.grpc_control_port or 0)),
    ):
        if place[1] and (other := taken.setdefault(place, option)) != option:
            raise InputError(f"{other} and {option} are both {place[1]}", fix="give each a port of its own")


def _workers(listen: Listen) -> Workers | None:
    """How engines run in processes of their own, if they do.

    Raises:
        InputError: options that need workers, without them; or a device is named twice.
    """
    from trtops.serve.server import Workers

    if len(set(listen.devices)) != len(listen.devices) or len(listen.devices) > _MAX_DEVICES:
        raise InputError(
            f"{len(listen.devices)} devices: {', '.join(listen.devices)}",
            where="--device",
            fix=f"name each device once, {_MAX_DEVICES} at most",
        )
    if listen.isolated:
        sizes = _sizes(listen.memory)
        return Workers(
            devices=listen.devices or ("",),
            host_memory=sizes.get("host", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
            device_memory=sizes.get("device"),
        )
    if listen.devices or listen.memory:
        raise InputError(
            "devices and bounds of memory are those of workers",
            where="--isolation none",
            fix="leave --isolation out, or set CUDA_VISIBLE_DEVICES instead of --device",
        )
    return None


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    """Place -> bytes, of ``PLACE=SIZE`` each."""
    from trtops.spec.units import parse_bytes

    found: dict[str, int] = {}
    for text in texts:
        place, _, size = text.partition("=")
        if place not in {"host", "device"} or place in found:
            raise InputError(
                f"{text!r} is no bound", where="--memory", fix="write host=4GiB or device=20GiB, once each"
            )
        try:
            found[place] = parse_bytes(size)
        except ValueError as error:
            raise InputError(f"{text!r}: {error}", where="--memory", fix="write a size such as 4GiB") from None
    return found


def _accepted(accepts: Sequence[str], engines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in accepts:
        name, _, version = text.partition("=")
        if not _VERSION.fullmatch(version):
            raise InputError(f"no engine and version: {text[:80]!r}", where="--accepts", fix="write ENGINE=1.2.0")
        if name not in engines or name in found:
            why = "is given twice" if name in found else "is not served here"
            raise InputError(f"{name} {why}", where="--accepts", fix=f"served here: {', '.join(engines)}")
        found[name] = version
    return found


def _released(workspace: Workspace, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the engines to serve. With the registry away those that were named: the agent has what it kept."""
    from pathlib import Path

    from trtops.release.fetch import channels
    from trtops.workflow.release import nothing_released

    # A folder (engines/x) names its engine, as everywhere on the command line.
    wanted = tuple(dict.fromkeys(Path(name).name for name in names))
    registry = workspace.registry()
    try:
        there = sorted({channel.engine for channel in channels(registry, workspace.environment)})
    except Unavailable:
        if wanted:
            return wanted
        raise
    for name in wanted:
        if name not in there:
            raise nothing_released(workspace, registry, name)
    if not wanted and not there:
        raise InputError(
            f"nothing is released in the environment {workspace.environment}",
            where=workspace.resolved.registry,
            fix="release an engine: trtops ship ENGINE",
        )
    return wanted or tuple(there)


def _address(workspace: Workspace, engines: Sequence[str], listen: Listen) -> tuple[str, int]:
    """The flags, else the runtime config of the first engine, as it was released."""
    from trtops.workflow.release import channel_of, current

    if listen.host is not None and listen.port is not None:
        return listen.host, listen.port
    try:
        there = current(workspace, workspace.registry(), channel_of(workspace, engines[0]))
    except (TrustError, Unavailable):  # the agent will say so, and may have something to serve all the same
        there = None
    server = there.config.config.server if there is not None else Server()
    host = listen.host if listen.host is not None else server.host
    return host, listen.port if listen.port is not None else server.port
