"""The server of the serving benchmarks: executor and front ends as ``trtops serve`` puts them together, no agent.

The engine adds up floats; a sleep stands for a device. ``python benchmarks/serve_server.py '{"port": 18100, …}'``: the
fields of :class:`Config`. It prints one line of JSON with its ports, then serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.serve.observe import ExecutorMeter
from trtops.serve.ports import SWITCH_INTERVAL, HttpServer
from trtops.serve.server import Doors, Home, ServeSettings
from trtops.spec.engine import Batching
from trtops.tensor import TensorInfo
from trtops.transport.server import Server as Shared

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Config:
    """What to serve, and how.

    Attributes:
        port: of HTTP; 0 takes a free one.
        cost_ms: milliseconds of device time a batch, whatever its size.
        row_ms: and a row.
        front_ends: processes; 0: the server's own.
        grpc: whether gRPC is served.
        load_s: seconds that a new generation takes to load.
        batching: the section of an engine's spec.
        width: floats a row; 0: as many as the request has.
    """

    port: int = 0
    cost_ms: float = 0.0
    row_ms: float = 0.0
    front_ends: int = 0
    grpc: bool = False
    load_s: float = 0.0
    batching: dict[str, Any] | None = None
    width: int = 16


class Adder:
    """The engine."""

    outputs = (TensorInfo(name="y", dtype="float32", shape=("n", 1)),)

    def __init__(self, config: Config) -> None:
        """Take as long as the configuration says."""
        self.inputs = (TensorInfo(name="x", dtype="float32", shape=("n", config.width or "width")),)
        self._cost, self._row = config.cost_ms / 1e3, config.row_ms / 1e3

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run a batch."""
        seconds = self._cost + self._row * len(inputs["x"])
        if seconds:
            time.sleep(seconds)
        return {"y": np.add.reduce(inputs["x"], axis=1, keepdims=True)}

    def close(self) -> None:
        """Hold nothing."""


class Owner:
    """Health and control of a server without an agent; a load swaps in another generation."""

    def __init__(self, executor: Executor, config: Config) -> None:
        """Own an executor."""
        self._executor = executor
        self._config = config
        self._generations = itertools.count(1)

    def not_ready(self) -> str | None:
        """Be ready."""
        return None

    def status(self) -> dict[str, Any]:
        """Tell nothing."""
        return {}

    def absent(self, name: str) -> str | None:
        """Know none."""
        del name

    def absences(self) -> dict[str, str]:
        """Lack none."""
        return {}

    def load(self, name: str) -> None:
        """Load the next generation beside the one that serves."""
        generation = next(self._generations)

        def open_session() -> Adder:
            if generation > 1:
                time.sleep(self._config.load_s)
            return Adder(self._config)

        batching = {"max_batch": 16, "max_queue_delay": "5ms", "queue": {"timeout": "10s"}}
        self._executor.load(
            name,
            generation=generation,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="fake",
            batching=Batching.model_validate({**batching, **(self._config.batching or {})}),
            instances=1,
            open_session=open_session,
        )

    def unload(self, name: str) -> None:
        """Take it out."""
        self._executor.unload(name)


async def serve(config: Config) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    meter = ExecutorMeter()
    executor = Executor(observer=meter)
    owner = Owner(executor, config)
    owner.load("sum")
    server = HttpServer(executor, owner, owner, executor=meter)
    settings = ServeSettings(
        duty=None,  # type: ignore[arg-type]  # there is no agent
        state=Path(),
        port=config.port,
        control_port=0,
        front_ends=config.front_ends,
        grpc_port=0 if config.grpc else None,
        grpc_control_port=0 if config.grpc else None,
        drain=1.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "executor"
        shared = Shared(path, Attachment(executor))
        doors = Doors(server, settings, Home(executor, executor, path, shared=shared))
        ports = await doors.open()
        await doors.settled()
        print(json.dumps(ports), flush=True)
        await stop.wait()
        await doors.close()
        shared.close()
    executor.close(drain=1.0)


def main() -> None:
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL)
    config = msgspec.json.decode(sys.argv[1], type=Config)
    uvloop.new_event_loop().run_until_complete(serve(config))


if __name__ == "__main__":
    main()
