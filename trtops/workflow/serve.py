"""``trtops serve``: an executor, an agent and the front ends in one process, until SIGTERM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError, TrustError, Unavailable
from trtops.spec.engine import Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Listen:
    """Where to listen; a port of 0 takes a free one, None the one of the runtime config.

    Attributes:
        host, port: of the data port.
        control_host, control_port: of metrics and control calls.
        drain: seconds that requests in flight get after SIGTERM.
        ready_json: whether the ready line is a JSON object.
        socket: where clients on this host connect for shared memory; None: nowhere.
    """

    host: str | None = None
    port: int | None = None
    control_host: str = "127.0.0.1"
    control_port: int = 0
    drain: float = 30.0
    ready_json: bool = False
    socket: Path | None = None


def serve(workspace: Workspace, names: Sequence[str], listen: Listen) -> int:
    """Serve the stable channel of engines; of all that are released where none is named.

    Returns:
        the exit code: 0 after an orderly end.

    Raises:
        InputError: nothing of these names is released, or a host is none of this machine's.
        Unavailable: a port is in use, or the registry is away and nothing is kept from before.
    """
    from trtops.serve.agent import Duty
    from trtops.serve.server import ServeSettings, run
    from trtops.workflow.secrets import identity_of

    engines = _released(workspace, names)
    host, port = _address(workspace, engines, listen)
    duty = Duty(
        environment=workspace.environment,
        engines=engines,
        root=workspace.keys.root(),
        identity=identity_of(workspace),
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
    )
    return run(settings, registry=workspace.registry(), store=workspace.store)


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
