# ruff: noqa: ANN401 - TensorRT and CUDA have no types
"""The executor on a GPU: what shared memory, planner and device thread cost over a bare loop on the same engine.

    python benchmarks/executor_h200.py build --cls cls.onnx --resnet50 r.onnx --work DIR --level 3
    python benchmarks/executor_h200.py measure --work DIR --out results.json
    python benchmarks/executor_h200.py table --out results.json

``build`` builds both engines, at the same time. ``measure`` runs, in processes of their own and interleaved round by
round on a machine that does nothing else:

- ``bare``: TensorRT and the CUDA runtime alone, in one loop: copy in from page-locked memory, CUDA graph of execution
  and copy out, wait. Nothing can be faster on one stream;
- ``on``: the executor with page-locked slots, two streams, CUDA graphs, asked through shared memory by other processes;
- ``off``: the same with none of the three.

Inputs are written in the slots beforehand, as a producer would; the first 64 bytes are written anew each time.
``--torch URL`` adds a peer that listens there, one row a request (``benchmarks/peers/mosec_torch.py``). With
``--backend onnxruntime`` all of it runs with no GPU, to rehearse.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.port import Sidecar
from trtops.backend.select import backend
from trtops.build.plan import plan
from trtops.build.runner import Limits, build
from trtops.digest import Digest
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.spec.engine import Batching, EngineSpec, Execution
from trtops.store import Store
from trtops.transport.client import Client
from trtops.transport.limits import Limits as Slots
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

MODELS: dict[str, dict[str, Any]] = {
    "cls": {"row": [3, 48, 192], "opt": 8, "max": 32, "rows": 8, "in_flight": 16},
    "resnet50": {"row": [3, 224, 224], "opt": 16, "max": 64, "rows": 16, "in_flight": 12},
}
"""Shape of a row, the profile's rows, rows of a request under load and how many requests are in flight then."""

CONTEXT = multiprocessing.get_context("spawn")


# -- build -------------------------------------------------------------------------------------------------------------


def spec_of(name: str, backend_name: str, level: int) -> EngineSpec:
    model = MODELS[name]
    limits = {key: [rows, *model["row"]] for key, rows in (("min", 1), ("opt", model["opt"]), ("max", model["max"]))}
    return EngineSpec.model_validate(
        {
            "apiVersion": "trtops/v1",
            "kind": "Engine",
            "metadata": {"name": name, "owner": "benchmark"},
            "model": {"source": f"file:{name}.onnx", "sha256": "0" * 64},
            "targets": [{"backend": backend_name}],
            "profiles": [{"name": "default", "inputs": {"x": limits}}],
            "memory": {"workspace": "2GiB"},
            "builder": {"optimization_level": level},
            "batching": {"max_batch": model["max"]},
        }
    )


def build_one(name: str, path: Path, work: Path, backend_name: str, level: int) -> None:
    spec, adapter = spec_of(name, backend_name, level), backend(backend_name)
    target = spec.targets[0]
    version = str(adapter.status(target).version)
    wanted = plan(spec, target, model=Digest.of_file(path), backend_version=version, device=adapter.device())
    folder = work / name
    done = build(wanted, model=path, store=Store(folder), limits=Limits(deadline_s=400, silence_s=400))
    (folder / "sidecar.json").write_bytes(done.sidecar.canonical_bytes())
    print(f"{name}: built in {done.seconds:.0f} s", flush=True)


def build_all(options: argparse.Namespace) -> None:
    with ThreadPoolExecutor(len(MODELS)) as pool:
        for job in [
            pool.submit(build_one, name, Path(getattr(options, name)), options.work, options.backend, options.level)
            for name in MODELS
            if getattr(options, name)
        ]:
            job.result()


# -- the processes that are measured -----------------------------------------------------------------------------------


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


def http_load(address: tuple[str, int], body: bytes, seconds: float, connections: int, pipe: Connection) -> None:
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


# -- measure -----------------------------------------------------------------------------------------------------------


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
            with_suppressed(pipe)
        for process, _ in self.members:
            process.join(15)
            if process.is_alive():
                process.kill()


def with_suppressed(pipe: Connection) -> None:
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


def measure_model(name: str, options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    model = {"name": name, **MODELS[name]}
    work, group = options.work / name, Group()
    rounds: dict[str, list[float]] = defaultdict(list)
    try:
        bare = group.start(bare_process, work, model)
        sockets = {way: f"{folder}/{name}-{way}" for way in ("on", "off")}
        ways = [
            group.start(executor_process, work, model, path, everything=way == "on") for way, path in sockets.items()
        ]
        clients = {way: [group.start(client_process, model, path) for _ in range(2)] for way, path in sockets.items()}
        for pipe in (bare, *ways, *(pipe for pipes in clients.values() for pipe in pipes)):
            print(f"{name}: {answer(pipe, 120)}", flush=True)
        for number in range(options.rounds):
            one_round(model, bare, clients, options.seconds, rounds)
            print(
                f"{name}: round {number + 1}", {key: round(value[-1], 1) for key, value in rounds.items()}, flush=True
            )
        if name == "resnet50" and options.torch:
            against_torch(model, clients["on"], options, rounds)
    finally:
        group.stop()
    return rounds


def one_round(
    model: dict[str, Any],
    bare: Connection,
    clients: dict[str, list[Connection]],
    seconds: float,
    rounds: dict[str, list[float]],
) -> None:
    """Everything once."""

    def note(key: str, times: list[float]) -> None:
        times = sorted(times)
        rounds[f"{key} p50"].append(times[len(times) // 2])
        rounds[f"{key} p99"].append(times[len(times) * 99 // 100])

    bare.send((1, seconds))
    note("1, bare", answer(bare))
    for key, way, spin, copy in (
        ("1, eventfd", "on", 0.0, False),
        ("1, eventfd, copied", "on", 0.0, True),
        ("1, spinning", "on", 1e-2, False),
        ("1, off", "off", 0.0, False),
    ):
        note(key, together(clients[way][:1], (1, 1, seconds, spin, copy))[0])
    bare.send((model["max"], seconds))
    times = answer(bare)
    note("best, bare", times)
    rounds["best, bare rows/s"].append(model["max"] / statistics.fmean(times) * 1e6)
    for key, way, copy in (("best, on", "on", False), ("best, copied", "on", True), ("best, off", "off", False)):
        order = (model["rows"], model["in_flight"] // 2, 2 * seconds, 0.0, copy)
        times, rate = together(clients[way], order)
        note(key, times)
        rounds[f"{key} rows/s"].append(rate * model["rows"])


def against_torch(
    model: dict[str, Any], clients: list[Connection], options: argparse.Namespace, rounds: dict[str, list[float]]
) -> None:
    """64 requests of one row in flight, by torch behind mosec and by the executor in turn."""
    host, _, port = options.torch.removeprefix("http://").partition(":")
    body = np.zeros((1, *model["row"]), np.float32).tobytes()
    for _ in range(options.rounds):
        group = Group()
        pipes = []
        for _ in range(8):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=http_load, args=((host, int(port)), body, 2.5, 8, theirs), daemon=True)
            process.start()
            pipes.append((ours, process))
        found = [answer(pipe) for pipe, _ in pipes]
        for _, process in pipes:
            process.join(10)
        group.stop()
        times = sorted(value for part, _ in found for value in part)
        rounds["64 in flight, torch rows/s"].append(sum(len(part) / spent for part, spent in found))
        rounds["64 in flight, torch p99"].append(times[len(times) * 99 // 100])
        times, rate = together(clients, (1, 32, 2.5, 0.0, True))
        rounds["64 in flight, ours rows/s"].append(rate)
        rounds["64 in flight, ours p99"].append(times[len(times) * 99 // 100])
        print({key: round(value[-1], 1) for key, value in rounds.items() if key.startswith("64")}, flush=True)


def machine() -> dict[str, Any]:
    found: dict[str, Any] = {"cpus": os.cpu_count(), "python": sys.version.split()[0]}
    try:
        device = backend("tensorrt").device()
        found["gpu"] = f"{device.name}, compute capability {device.compute_capability}, driver {device.driver}"
    except Exception as error:  # noqa: BLE001 - a rehearsal has none
        found["gpu"] = f"none ({error})"
    return found


def measure(options: argparse.Namespace) -> None:
    results: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            if not (options.work / name / "sidecar.json").exists():
                continue
            sidecar = opened(options.work / name)[1]
            results["backend"] = f"{sidecar.backend} {sidecar.backend_version}"
            results["models"][name] = measure_model(name, options, Path(folder))
            options.out.write_text(json.dumps(results, indent=1))
    print(table(results))


# -- the table ---------------------------------------------------------------------------------------------------------


def spread(values: list[float], form: str = ".2f") -> str:
    values = sorted(values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}} to {values[-1]:{form}})"


def table(results: dict[str, Any]) -> str:
    about = results["machine"]
    lines = [f"{about['gpu']}; {results.get('backend')}; {about['cpus']} CPUs, CPython {about['python']}", ""]
    lines += ["| model | what | median (smallest to largest round) | goal |", "|---|---|---|---|"]
    for name, rounds in results["models"].items():
        lines += [f"| {name} | {what} | {value} | {goal} |" for what, value, goal in rows_of(name, rounds)]
    return "\n".join(lines) + "\n"


def rows_of(name: str, rounds: dict[str, list[float]]) -> list[tuple[str, str, str]]:
    model = MODELS[name]
    bare, best = rounds["1, bare p50"], rounds["best, bare rows/s"]

    def over(key: str) -> str:
        return spread([value - base for value, base in zip(rounds[key], bare, strict=True)], "+.0f")

    def share(key: str) -> str:
        return spread([value / base for value, base in zip(rounds[key], best, strict=True)])

    load_of = f"{model['in_flight']} requests of {model['rows']} rows in flight, 2 clients"
    found = [
        ("batch 1, bare loop, p50 us", spread(bare, ".0f"), ""),
        ("batch 1 by eventfd, p50 us over bare", over("1, eventfd p50"), "<= +60"),
        ("the same, the client copies its input", over("1, eventfd, copied p50"), ""),
        ("batch 1, a lone client that spins, p50 us over bare", over("1, spinning p50"), "<= +25"),
        ("batch 1, pinned, streams and graphs off, p50 us over bare", over("1, off p50"), ""),
        (f"batch {model['max']}, bare loop, rows/s", spread(best, ".0f"), ""),
        (f"{load_of}: rows/s over bare", share("best, on rows/s"), ">= 0.95"),
        ("the same, the clients copy their inputs", share("best, copied rows/s"), ""),
        ("the same, pinned, streams and graphs off", share("best, off rows/s"), ""),
    ]
    if "64 in flight, torch rows/s" in rounds:
        pairs = zip(rounds["64 in flight, ours rows/s"], rounds["64 in flight, torch rows/s"], strict=True)
        late = zip(rounds["64 in flight, ours p99"], rounds["64 in flight, torch p99"], strict=True)
        found += [
            (
                "64 rows in flight, one a request: rows/s over torch behind mosec",
                spread([a / b for a, b in pairs]),
                ">= 1.3",
            ),
            ("p99 of the same over torch's", spread([a / b for a, b in late]), "<= 1"),
            ("torch behind mosec, rows/s", spread(rounds["64 in flight, torch rows/s"], ".0f"), ""),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("build", "measure", "table"):
        sub = verbs.add_parser(verb)
        sub.add_argument("--work", type=Path, default=Path("/tmp/executor-h200"))  # noqa: S108 - the caller's choice
        sub.add_argument("--out", type=Path, default=Path("executor_h200.json"))
        sub.add_argument("--backend", default="tensorrt")
        sub.add_argument("--level", type=int, default=3)
        sub.add_argument("--rounds", type=int, default=5)
        sub.add_argument("--seconds", type=float, default=0.6)
        sub.add_argument("--torch")
        for name in MODELS:
            sub.add_argument(f"--{name}")
    options = parser.parse_args()
    if options.verb == "table":
        print(table(json.loads(options.out.read_text())))
    else:
        {"build": build_all, "measure": measure}[options.verb](options)


if __name__ == "__main__":
    main()
