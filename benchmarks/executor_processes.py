# ruff: noqa: ANN401 - TensorRT and CUDA have no types
"""The processes of ``executor_h200.py``: a bare loop, executors, their clients, and those that ask a peer."""

from __future__ import annotations

import http.client
import multiprocessing
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.port import Sidecar
from trtops.backend.select import backend
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.spec.engine import Batching, Execution
from trtops.store import Store
from trtops.transport.client import Client
from trtops.transport.server import Limits as Slots
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

CONTEXT = multiprocessing.get_context("spawn")


def opened(folder: Path) -> tuple[Path, Sidecar]:
    sidecar = Sidecar.model_validate_json((folder / "sidecar.json").read_bytes())
    return Store(folder).path(sidecar.artifact), sidecar


class Bare:
    """The engine with nothing around it: TensorRT's and CUDA's own calls, one context and one graph a batch size."""

    def __init__(self, artifact: Path) -> None:
        """Load it."""
        import tensorrt as trt
        from cuda.bindings import runtime as cudart

        self.cudart, self.log = cudart, trt.Logger(trt.Logger.ERROR)
        trt.init_libnvinfer_plugins(self.log, "")
        self.engine = trt.Runtime(self.log).deserialize_cuda_engine(artifact.read_bytes())
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.source = next(n for n in names if self.engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
        self.results = [name for name in names if name != self.source]
        self.stream = self.call(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
        self.kept: list[Any] = []

    def call(self, answer: tuple[Any, ...]) -> Any:
        """The result of a CUDA call."""
        if int(answer[0]):
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None

    def ready(self, rows: int, row: list[int]) -> Callable[[], object]:
        """A run of this many rows."""
        cudart, stream, call = self.cudart, self.stream, self.call
        context = self.engine.create_execution_context()
        context.set_optimization_profile_async(0, int(stream))
        context.set_input_shape(self.source, (rows, *row))
        size = rows * int(np.prod(row)) * 4
        device = int(call(cudart.cudaMalloc(size)))
        host = int(call(cudart.cudaHostAlloc(size, 0)))
        context.set_tensor_address(self.source, device)
        outs = []
        for name in self.results:
            out_size = int(np.prod(tuple(context.get_tensor_shape(name)))) * 4
            out = int(call(cudart.cudaMalloc(out_size))), int(call(cudart.cudaHostAlloc(out_size, 0))), out_size
            context.set_tensor_address(name, out[0])
            outs.append(out)
        to_device, to_host = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice, cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost

        def work() -> None:
            context.execute_async_v3(int(stream))
            for out_device, out_host, out_bytes in outs:
                cudart.cudaMemcpyAsync(out_host, out_device, out_bytes, to_host, stream)

        work()
        call(cudart.cudaStreamSynchronize(stream))
        call(cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
        work()
        graph = call(cudart.cudaGraphInstantiate(call(cudart.cudaStreamEndCapture(stream)), 0))
        self.kept.append((context, graph, outs))

        def run() -> None:
            cudart.cudaMemcpyAsync(device, host, size, to_device, stream)
            cudart.cudaGraphLaunch(graph, stream)
            call(cudart.cudaStreamSynchronize(stream))

        return run


class BareOnnx:
    """ONNX Runtime with nothing around it."""

    def __init__(self, artifact: Path) -> None:
        """Load it."""
        import onnxruntime

        self.session = onnxruntime.InferenceSession(artifact.read_bytes(), providers=["CPUExecutionProvider"])

    def ready(self, rows: int, row: list[int]) -> Callable[[], object]:
        """A run of this many rows."""
        feed = {self.session.get_inputs()[0].name: np.zeros((rows, *row), np.float32)}
        return lambda: self.session.run(None, feed)


def bare_process(pipe: Connection, folder: Path, model: dict[str, Any]) -> None:
    artifact, sidecar = opened(folder)
    bare = Bare(artifact) if sidecar.backend == "tensorrt" else BareOnnx(artifact)
    runs = {rows: bare.ready(rows, model["row"]) for rows in (1, model["max"])}
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        rows, seconds = order
        run, times = runs[rows], []
        for _ in range(10):
            run()
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            run()
            times.append((time.perf_counter() - begin) * 1e6)
        pipe.send(times)


class Pageable(Attachment):
    """Slots that no device reads."""

    def mapped(self, memory: Any) -> None:
        """Leave them as they are."""


def executor_process(pipe: Connection, folder: Path, model: dict[str, Any], socket: str, *, everything: bool) -> None:
    artifact, sidecar = opened(folder)
    executor = Executor()
    executor.load(
        model["name"],
        generation=1,
        version="1.0.0",
        digest=str(sidecar.artifact),
        backend=sidecar.backend,
        batching=Batching.model_validate(
            {"max_batch": model["max"], "preferred": [model["max"]], "queue": {"timeout": "30s"}}
        ),
        instances=1,
        open_session=lambda: backend(sidecar.backend).load(artifact, sidecar),
        profiles=sidecar.profiles,
        execution=Execution(streams=2, cuda_graphs=True) if everything else Execution(),
    )
    handler = Attachment(executor) if everything else Pageable(executor)
    server = Server(socket, handler, limits=Slots(bytes=1 << 30))
    pipe.send(repr(executor))
    pipe.recv()
    server.close()
    executor.close(drain=5)


def client_process(pipe: Connection, model: dict[str, Any], socket: str) -> None:
    """Asks one executor, as told: (rows, in flight, seconds, spin, copy) -> latencies in us, seconds."""
    row_bytes = int(np.prod(model["row"])) * 4
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        rows, in_flight, seconds, spin, copy = order
        x = np.zeros((rows, *model["row"]), np.float32)
        client = Client(
            socket, slots=in_flight, input_bytes=rows * row_bytes, output_bytes=1 << 20, spin=spin, timeout=60
        )
        with client:
            time.sleep(0.5)  # its slots are page-locked by then
            pipe.send(load(client, model["name"], x, in_flight, seconds, copy=copy))


def load(
    client: Client, engine: str, x: np.ndarray[Any, Any], in_flight: int, seconds: float, *, copy: bool
) -> tuple[list[float], float]:
    """Keep so many requests in flight for so long."""
    rows = x.shape[0]

    def send() -> tuple[float, Any]:
        begin = time.perf_counter()
        if copy:
            return begin, client.submit(engine, {"x": x}, rows)
        call, views = client.reserve(engine, {"x": x}, rows)
        views["x"].reshape(-1)[:16] = 1.0
        client.send(call)
        return begin, call

    times: list[float] = []
    waiting = [send() for _ in range(in_flight)]
    start = time.perf_counter()
    skip, end = start + seconds * 0.2, start + seconds
    counted = start
    while waiting:
        begin, call = waiting.pop(0)
        reply = client.wait(call)
        if reply.error is not None:
            raise reply.error
        now = time.perf_counter()
        if now < skip:
            counted = now
        elif begin < end:
            times.append((now - begin) * 1e6)
            last = now
        if now < end:
            waiting.append(send())
    return times, last - counted


# -- the peer ----------------------------------------------------------------------------------------------------------


def http_load(pipe: Connection, address: tuple[str, int], body: bytes, seconds: float, connections: int) -> None:
    """Threads that post one row after the other."""
    times: list[float] = []
    start = time.perf_counter()

    def work() -> None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        while time.perf_counter() < start + seconds:
            begin = time.perf_counter()
            connection.request("POST", "/inference", body)
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"status {answer.status}")
            if begin > start + 0.2 * seconds:
                times.append((time.perf_counter() - begin) * 1e6)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send((times, seconds * 0.8))


# -- all of them together ----------------------------------------------------------------------------------------------


class Group:
    """Processes that are told what to do by pipes."""

    def __init__(self) -> None:
        """Begin with none."""
        self.members: list[tuple[Any, Connection]] = []

    def start(self, target: Callable[..., None], *rest: Any, **named: Any) -> Connection:
        """Start one; it gets its end of a pipe."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=partial(target, **named), args=(theirs, *rest), daemon=True)
        process.start()
        self.members.append((process, ours))
        return ours

    def stop(self) -> None:
        """End all."""
        for _, pipe in self.members:
            _told_to_end(pipe)
        for process, _ in self.members:
            process.join(15)
            if process.is_alive():
                process.kill()


def _told_to_end(pipe: Connection) -> None:
    try:
        pipe.send(None)
    except OSError:
        return


def answer(pipe: Connection, seconds: float = 180) -> Any:
    if not pipe.poll(seconds):
        raise TimeoutError("a process did not answer")
    return pipe.recv()


def together(clients: list[Connection], order: tuple[Any, ...]) -> tuple[list[float], float]:
    """Latencies of several clients at once, and requests a second of all."""
    for client in clients:
        client.send(order)
    found = [answer(client) for client in clients]
    times = sorted(value for part, _ in found for value in part)
    return times, sum(len(part) / max(spent, 1e-9) for part, spent in found)
