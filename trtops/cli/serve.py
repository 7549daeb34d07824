"""Commands that serve, ask and look: serve, infer, top."""

from __future__ import annotations

import contextlib
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, EnvironmentOption, JsonOption
from trtops.cli.start import workspace


class Isolation(str, Enum):
    """Where engines run."""

    WORKER = "worker"
    NONE = "none"


class LogFormat(str, Enum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_CONTROL_URL = "http://127.0.0.1:8001"


_EnginesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ENGINE", help="What to serve; none: all that is released.")
]
_HostOption = Annotated[str | None, typer.Option("--host", help="Address (default: the runtime config's).")]
_PortOption = Annotated[
    int | None,
    typer.Option("--port", "-p", help="Port (default: the runtime config's); 0: a free one.", min=0, max=65535),
]
_ControlPortOption = Annotated[
    int, typer.Option("--control-port", help="Metrics and control calls, on loopback; 0: a free one.", min=0)
]
_DrainOption = Annotated[
    float, typer.Option("--drain", metavar="SECONDS", help="What requests get after SIGTERM.", min=0)
]
_SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="Also serve clients of this host by shared memory, here."),
]
_AcceptsOption = Annotated[
    list[str] | None,
    typer.Option("--accepts", metavar="ENGINE=VERSION", help="Interface that clients need: same major, not older."),
]
_IsolationOption = Annotated[
    Isolation,
    typer.Option("--isolation", help="Engines run in worker processes, or all in the server's own."),
]
_DevicesOption = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="ID", help="For a worker each, as CUDA_VISIBLE_DEVICES names it (repeatable)."),
]
_HangOption = Annotated[
    float, typer.Option("--hang-after", metavar="SECONDS", help="When a process or a batch counts as hung.", min=0.5)
]
_MemoryOption = Annotated[
    list[str] | None,
    typer.Option("--memory", metavar="PLACE=SIZE", help="What all pools may take: host=4GiB, device=20GiB."),
]
_FrontEndsOption = Annotated[
    int | None,
    typer.Option(
        "--front-ends",
        metavar="N",
        help="Processes for HTTP and gRPC; 0: the server's own (default: 1; without isolation 0).",
        min=0,
        max=64,
    ),
]
_GrpcPortOption = Annotated[
    int | None, typer.Option("--grpc-port", help="Also serve gRPC, here; 0: a free port.", min=0, max=65535)
]
_GrpcControlPortOption = Annotated[
    int | None,
    typer.Option("--grpc-control-port", help="gRPC with control calls, on loopback.", min=0, max=65535),
]
_OtelOption = Annotated[bool, typer.Option("--otel", help="Send spans by OTLP, as OTEL_… variables say.")]
_LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Of the log, on stderr.")]
_ReadyJsonOption = Annotated[bool, typer.Option("--ready-json", help="Write the ready line as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (serve, infer, top):
        app.command()(command)


@guarded
def serve(
    engines: _EnginesArgument = None,
    environment: EnvironmentOption = None,
    host: _HostOption = None,
    port: _PortOption = None,
    control_port: _ControlPortOption = 8001,
    drain: _DrainOption = 30.0,
    socket: _SocketOption = None,
    accepts: _AcceptsOption = None,
    isolation: _IsolationOption = Isolation.WORKER,
    devices: _DevicesOption = None,
    hang: _HangOption = 10.0,
    memory: _MemoryOption = None,
    front_ends: _FrontEndsOption = None,
    grpc_port: _GrpcPortOption = None,
    grpc_control_port: _GrpcControlPortOption = None,
    otel: _OtelOption = False,
    log_format: _LogFormatOption = LogFormat.TEXT,
    ready_json: _ReadyJsonOption = False,
) -> int:
    """Serve what is released.

    Follows the registry and swaps with no failed request. SIGTERM ends it in order: requests in flight finish.
    """
    from trtops.workflow.serve import Listen
    from trtops.workflow.serve import serve as run

    listen = Listen(
        host=host,
        port=port,
        control_port=control_port,
        drain=drain,
        ready_json=ready_json,
        socket=socket,
        front_ends=front_ends,
        grpc_port=grpc_port,
        grpc_control_port=grpc_control_port,
        otel=otel,
        json_logs=log_format is LogFormat.JSON,
        isolated=isolation is Isolation.WORKER,
        devices=tuple(devices or ()),
        hang=hang,
        memory=tuple(memory or ()),
    )
    with workspace({"environment": environment}, quiet=True) as here:
        return run(here, engines or (), listen, accepts or ())


@guarded
def infer(
    engine: EngineArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=VALUE", help="x=@file.npy, x=random or x=random[8,3,48,192]."),
    ] = None,
    url: Annotated[str, typer.Option("--url", help="The server.")] = DEFAULT_URL,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help="Ask by shared memory, through the socket of `trtops serve`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json-tensors", help="Send numbers as JSON, not as bytes.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of random inputs.", min=0)] = 0,
    json: JsonOption = False,
) -> int:
    """Ask a server once, print the answer."""
    from trtops.report import answers
    from trtops.workflow.infer import infer as run
    from trtops.workflow.infer import infer_shared

    name = Path(engine).name
    if socket is not None:
        answer = infer_shared(socket, name, inputs or (), seed=seed)
    else:
        answer = run(url, name, inputs or (), binary=not as_json, seed=seed)
    if json:
        say(answers.as_json(answer.outputs, seconds=answer.seconds))
    else:
        say(answers.plain(answer.outputs))
        say(f"{answer.model.name} {answer.model.version} on {answer.model.platform}, {answer.seconds * 1000:.1f} ms\n")
    return 0


@guarded
def top(
    url: Annotated[str, typer.Option("--url", help="The server's control port.")] = DEFAULT_CONTROL_URL,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.", min=0.1, max=3600)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    json: JsonOption = False,
) -> int:
    """Show what a server's engines do: requests, latency, queue, batches, errors.

    A live table in a terminal, until Ctrl-C; one table with --once, with --json, and where the output is no terminal.
    """
    import sys

    from trtops.report import load
    from trtops.workflow import top as workflow

    if not (once or json) and sys.stdout.isatty():
        from rich.console import Console

        with contextlib.suppress(KeyboardInterrupt):
            workflow.watch(url, interval, Console())
        return 0
    found = workflow.once(url, interval)
    say(load.as_json(found) if json else load.plain(found))
    return 0
