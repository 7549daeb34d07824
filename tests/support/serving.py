"""An executor for tests of the front end and the agent: real threads and real batches, no planner.

It keeps the promises of ``trtops.executor.port.Engines``: ``done`` comes once, from a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.errors import Cancelled, InputError, Overloaded, Unavailable
from trtops.executor.port import EngineInfo, Outcome
from trtops.executor.retune import needs_load
from trtops.serve.ports import HttpServer
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtops.executor.port import Request
    from trtops.serve.exchange import Limits
    from trtops.spec.engine import Batching

INFER = "/v2/models/sum/infer"


def tensor(name: str, dtype: str = "float32", shape: tuple[int | str, ...] = ("n", 4)) -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def info(
    name: str = "sum",
    inputs: tuple[TensorInfo, ...] = (tensor("x"),),
    outputs: tuple[TensorInfo, ...] = (tensor("y", shape=("n", 1)),),
    *,
    generation: int = 1,
    max_batch: int = 16,
) -> EngineInfo:
    return EngineInfo(name, generation, "1.0.0", "sha256:" + "0" * 64, "fake", inputs, outputs, max_batch)


def add_up(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"y": inputs["x"].sum(axis=1, keepdims=True)}


def echo(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("in", "out", 1): array for name, array in inputs.items()}


@dataclass
class Job:
    engine: str
    request: Request
    done: Callable[[Outcome], None]
    cancelled: bool = False
    finished: bool = False


@dataclass
class FakeEngines:
    """Runs functions as engines. ``gate`` holds every batch while it is cleared."""

    limit: int = 512
    cost: float = 0.0
    error: Exception | None = None
    running: dict[str, tuple[EngineInfo, Callable[[dict[str, Any]], dict[str, Any]]]] = field(default_factory=dict)
    jobs: deque[Job] = field(default_factory=deque)
    gate: threading.Event = field(default_factory=threading.Event)
    taken: list[Request] = field(default_factory=list)
    cancelled: int = 0
    loads: list[dict[str, Any]] = field(default_factory=list)
    adjusted: list[Batching] = field(default_factory=list)
    refuse_load: Exception | None = None

    def __post_init__(self) -> None:
        self.gate.set()
        self._ring = threading.Condition()
        self._infos: tuple[EngineInfo, ...] = ()
        self._closed = False
        self._sync()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, about: EngineInfo, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.running[about.name] = (about, function)
        self._sync()

    def _sync(self) -> None:
        self._infos = tuple(about for about, _ in self.running.values())

    def engines(self) -> tuple[EngineInfo, ...]:
        return self._infos

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        if self._closed:
            raise Unavailable("the executor is closing")
        if engine not in self.running:
            raise InputError(f"unknown engine '{engine}'")
        if len(self.jobs) >= self.limit:
            raise Overloaded("the queue is full", retry_after=2.0)
        job = Job(engine, request, done)
        self.taken.append(request)
        with self._ring:
            self.jobs.append(job)
            self._ring.notify()

        def cancel() -> None:
            if not job.finished and not job.cancelled:
                job.cancelled = True
                self.cancelled += 1

        return cancel

    def _run(self) -> None:
        while True:
            with self._ring:
                while not self.jobs and not self._closed:
                    self._ring.wait()
                if not self.jobs:
                    return
            self.gate.wait()
            with self._ring:
                batch = [self.jobs.popleft() for _ in range(min(len(self.jobs), 16))]
            if self.cost:
                time.sleep(self.cost)
            for job in batch:
                job.finished = True
                job.done(self._outcome(job, len(batch)))

    def _outcome(self, job: Job, size: int) -> Outcome:
        if job.cancelled:
            return Outcome(error=Cancelled("taken back"))
        if self.error is not None:
            return Outcome(error=self.error)
        about, function = self.running[job.engine]
        outputs = function(dict(job.request.inputs))
        return Outcome(outputs, generation=about.generation, batch=size, queue_us=5.0, compute_us=10.0)

    def load(self, name: str, *, open_session: Callable[[], Any], **about: Any) -> None:
        if self.refuse_load is not None:
            raise self.refuse_load
        session = open_session()
        self.loads.append({"name": name, "session": session, **about})
        made = info(name, tuple(session.inputs), tuple(session.outputs), generation=about["generation"])
        made = replace(made, version=about["version"], digest=about["digest"], backend=about["backend"])
        self.add(made, session.run)

    def adjust(self, name: str, *, generation: int, batching: Batching) -> bool:
        held = next((one["batching"] for one in reversed(self.loads) if one["name"] == name), None)
        if name not in self.running or held is None or needs_load(held, batching):
            return False
        about, function = self.running[name]
        self.adjusted.append(batching)
        self.add(replace(about, generation=generation), function)
        return True

    def unload(self, name: str) -> None:
        self.running.pop(name, None)
        self._sync()

    def close(self, *, drain: float) -> None:
        self._closed = True
        self.gate.set()
        with self._ring:
            self._ring.notify_all()
        self._thread.join(drain + 5)


@dataclass
class Steady:
    """Health and control of a server without an agent."""

    reason: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    error: Exception | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def not_ready(self) -> str | None:
        return self.reason

    def status(self) -> dict[str, Any]:
        return {"status": "ready"}

    def absent(self, name: str) -> str | None:
        return self.missing.get(name)

    def absences(self) -> dict[str, str]:
        return dict(self.missing)

    def load(self, name: str) -> None:
        self._call("load", name)

    def unload(self, name: str) -> None:
        self._call("unload", name)

    def _call(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if self.error is not None:
            raise self.error


@dataclass
class Served:
    """A server that runs in a thread."""

    port: int
    control: int
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    steady: Steady
    grpc: int = 0
    grpc_control: int = 0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def drain(self, seconds: float) -> int:
        return asyncio.run_coroutine_threadsafe(self.server.close(seconds), self.loop).result(60)


@contextmanager
def serving(
    engines: FakeEngines, limits: Limits | None = None, *, uv: bool = True, grpc: bool = False, tracer: Any = None
) -> Iterator[Served]:
    """Serve an executor over HTTP on free loopback ports."""
    import uvloop

    loop = uvloop.new_event_loop() if uv else asyncio.new_event_loop()
    ready = threading.Event()
    made: list[Served] = []
    stop = asyncio.Event()

    async def main() -> None:
        steady = Steady()
        server = HttpServer(engines, steady, steady, limits=limits, tracer=tracer)
        port = await server.listen(server.data, "127.0.0.1", 0)
        control = await server.listen(server.control, "127.0.0.1", 0)
        made.append(Served(port, control, server, loop, steady))
        if grpc:
            made[0].grpc = await server.listen_grpc("127.0.0.1", 0, control=False)
            made[0].grpc_control = await server.listen_grpc("127.0.0.1", 0, control=True)
        ready.set()
        await stop.wait()
        await server.close(0.1)
        await asyncio.sleep(0)

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        engines.close(drain=1.0)
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def summing(limits: Limits | None = None, **engine: Any) -> Iterator[tuple[Served, FakeEngines]]:
    """Serve an engine that adds up."""
    engines = FakeEngines(**engine)
    engines.add(info(), add_up)
    with serving(engines, limits) as served:
        yield served, engines


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


def total(reply: Reply | None) -> list[float]:
    """What an engine that adds up answered."""
    assert reply is not None
    data: list[float] = json.loads(reply.body)["outputs"][0]["data"]
    return data


def read_reply(stream: Any, *, head: bool = False) -> Reply | None:
    """Read one response of a socket's file; None at its end."""
    line = stream.readline()
    if not line:
        return None
    status = int(line.split()[1])
    headers = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        headers[name.decode().lower()] = value.strip().decode()
    size = 0 if head or status == 100 else int(headers.get("content-length", "0"))
    return Reply(status, headers, stream.read(size))


def exchange(served: Served, raw: bytes, *, head: bool = False) -> list[Reply]:
    """Send bytes, close the sending half only after the answers, and read all answers until the server closes."""
    replies = []
    with served.connect() as sock, sock.makefile("rb") as stream:
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(raw)
        while (reply := read_reply(stream, head=head)) is not None:
            replies.append(reply)
    return replies


def post(path: str, body: bytes, *lines: str, close: bool = True) -> bytes:
    """The bytes of a POST request."""
    head = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *lines]
    if close:
        head.append("Connection: close")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def request_json(**changes: Any) -> bytes:
    """A good request to ``sum``, with changes of its one input or, by a dotted name, of the document."""
    given: dict[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    document: dict[str, Any] = {"inputs": [given]}
    for name, value in changes.items():
        (document if name in {"id", "inputs", "outputs", "parameters"} else given)[name] = value
    return json.dumps(document).encode()


def scraped(control_url: str) -> dict[str, float]:
    """The metrics of a server that runs in another process, by name and labels."""
    from trtops.serve import client

    _, text = client._call(control_url, "GET", "/metrics", None, {}, 10)
    rows = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


__all__ = ["FakeEngines", "Reply", "Served", "Steady", "add_up", "echo", "exchange", "info", "np", "post"]
__all__ += ["INFER", "read_reply", "request_json", "scraped", "serving", "summing", "tensor", "total"]
