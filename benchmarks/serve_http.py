"""The HTTP front end beside other servers, in the same run, interleaved.

The engine adds up 16 floats, in batches of 16 within 5 ms; ``--cost`` milliseconds of sleep a batch stand for a device.
Load comes from ``wrk`` (64 connections, one thread), a client that is light enough not to be the bottleneck.

    python benchmarks/serve_http.py --mosec VENV/bin/python --triton http://127.0.0.1:18000

``--mosec`` is an interpreter with ``mosec``, ``msgspec`` and ``numpy``; ``--triton`` is a server that runs already with
a model ``sum`` (x FP32 [-1,16] -> y). CPU time a request counts the server's processes (not Triton's, which is not ours
to look into); unlike requests a second it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.backend.port import Session

HERE = Path(__file__).parent
CONNECTIONS = 64
OIP = "/v2/models/sum/infer"
ROW = ",".join(str(number / 2) for number in range(16))
JSON = f'{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[{ROW}]}}]}}'
HEAD = (
    '{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","parameters":{"binary_data_size":64}}],'
    '"parameters":{"binary_data_output":true}}'
)
LUA = {
    "json": f"wrk.method='POST'\nwrk.body='{JSON}'\nwrk.headers['Content-Type']='application/json'\n",
    "binary": f"wrk.method='POST'\nwrk.body='{HEAD}'..string.rep('\\0\\0\\128\\63',16)\n"
    f"wrk.headers['Inference-Header-Content-Length']='{len(HEAD)}'\n",
    "mosec": f"wrk.method='POST'\nwrk.body='{{\"x\":[{ROW}]}}'\nwrk.headers['Content-Type']='application/json'\n",
}


@dataclass
class Candidate:
    """A server with one kind of request, and what was measured of it."""

    name: str
    url: str
    script: str
    process: psutil.Process | None
    rps: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def sum_session(cost: float) -> Session:
    from trtops.tensor import TensorInfo

    class Adder:
        inputs = (TensorInfo(name="x", dtype="float32", shape=("n", 16)),)
        outputs = (TensorInfo(name="y", dtype="float32", shape=("n", 1)),)

        def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            if cost:
                time.sleep(cost)
            return {"y": np.add.reduce(inputs["x"], axis=1, keepdims=True)}

        def close(self) -> None:
            """Hold nothing."""

    return Adder()


class Nothing:
    """Health and control of a server without an agent."""

    def not_ready(self) -> str | None:
        """Be ready."""
        return None

    def status(self) -> dict[str, Any]:
        """Tell nothing."""
        return {}

    def absent(self, name: str) -> str | None:
        """Know none."""
        del name

    def load(self, name: str) -> None:
        """Refuse."""
        raise NotImplementedError(name)

    def unload(self, name: str) -> None:
        """Refuse."""
        raise NotImplementedError(name)


def serve(port: int, cost: float) -> None:
    """Serve the engine: executor and HTTP front end, as ``trtops serve`` puts them together, without an agent."""
    import uvloop

    from trtops.executor.executor import Executor
    from trtops.serve.observe import ExecutorMeter
    from trtops.serve.ports import SWITCH_INTERVAL, HttpServer
    from trtops.spec.engine import Batching

    sys.setswitchinterval(SWITCH_INTERVAL)
    meter = ExecutorMeter()
    executor = Executor(observer=meter)
    executor.load(
        "sum",
        generation=1,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=Batching(max_batch=16, max_queue_delay="5ms", queue={"timeout": "10s"}),
        instances=1,
        open_session=lambda: sum_session(cost),
    )

    async def main() -> None:
        server = HttpServer(executor, Nothing(), Nothing(), executor=meter)
        await server.listen(server.data, "127.0.0.1", port)
        await asyncio.Event().wait()

    uvloop.new_event_loop().run_until_complete(main())


def answers(url: str, body: bytes) -> bool:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - loopback
    try:
        urllib.request.urlopen(request, timeout=5).read()  # noqa: S310 - loopback
    except OSError:
        return False
    return True


def wait_for(url: str, body: bytes) -> None:
    end = time.monotonic() + 60
    while not answers(url, body):
        assert time.monotonic() < end, f"nothing answers at {url}"
        time.sleep(0.2)


def cpu_of(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    family = [process, *process.children(recursive=True)]
    return sum(one.cpu_times().user + one.cpu_times().system for one in family)


def measure(candidate: Candidate, seconds: float, scripts: Path) -> None:
    before = cpu_of(candidate.process)
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--latency", "-s", str(scripts / candidate.script)]
    text = subprocess.run([*command, candidate.url], capture_output=True, text=True, check=True).stdout
    used = cpu_of(candidate.process) - before
    assert "Non-2xx" not in text, f"{candidate.name}: {text}"
    requests = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    value, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    candidate.rps.append(float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]))  # type: ignore[index]
    candidate.p99.append(float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit])
    candidate.cpu.append(used / requests * 1e6)


def table(candidates: list[Candidate], base: Candidate) -> str:
    rows = ["| server | requests/s | ratio (least to most) | p99 ms | CPU µs a request |", "|---|---|---|---|---|"]
    for one in candidates:
        ratios = [mine / other for mine, other in zip(one.rps, base.rps, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        cpu = f"{statistics.median(one.cpu):.0f}" if one.process else "-"
        rows.append(
            f"| {one.name} | {statistics.median(one.rps):,.0f} | {spread} | {statistics.median(one.p99):.1f} | {cpu} |"
        )
    return "\n".join(rows)


def candidates_of(options: argparse.Namespace, processes: list[subprocess.Popen[bytes]]) -> list[Candidate]:
    found: list[Candidate] = []
    environment = os.environ | {"COST_MS": str(options.cost)}

    def start(command: list[str], **extra: str) -> psutil.Process:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment | extra, stdout=quiet, stderr=quiet)
        processes.append(process)
        return psutil.Process(process.pid)

    ours = start([sys.executable, __file__, "--serve", str(options.port), "--cost", str(options.cost)])
    url = f"http://127.0.0.1:{options.port}{OIP}"
    found += [Candidate("trtops, JSON", url, "json.lua", ours), Candidate("trtops, binary", url, "binary.lua", ours)]
    if options.mosec:
        for offset, (name, extra) in enumerate((("mosec", {}), ("mosec, msgspec", {"FAST_JSON": "1"})), 2):
            port = str(options.port + offset)
            script = str(HERE / "peers" / "mosec_sum.py")
            process = start([options.mosec, script, "--port", port, "--address", "127.0.0.1"], **extra)
            found.append(Candidate(name, f"http://127.0.0.1:{port}/inference", "mosec.lua", process))
    if options.triton:
        found.append(Candidate("Triton, JSON", options.triton + OIP, "json.lua", None))
        found.append(Candidate("Triton, binary", options.triton + OIP, "binary.lua", None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", type=float, default=0.0, help="milliseconds of device time a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load a round and server")
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--mosec", help="an interpreter that has mosec")
    parser.add_argument("--triton", help="URL of a tritonserver")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.cost / 1e3)
        return
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed: apt-get install wrk")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        found = candidates_of(options, processes)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in LUA.items():
                (Path(folder) / f"{name}.lua").write_text(text)
            for one in found:
                body = f'{{"x":[{ROW}]}}' if one.script == "mosec.lua" else JSON
                wait_for(one.url, body.encode())
                measure(one, 1.0, Path(folder))
                for warm in (one.rps, one.p99, one.cpu):
                    warm.clear()
            for _ in range(options.rounds):
                for one in found:
                    measure(one, options.seconds, Path(folder))
        base = next((one for one in found if one.name == "mosec, msgspec"), found[0])
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{os.cpu_count()} CPUs, load {load}; device time {options.cost:g} ms a batch; ratios to {base.name}\n")
        print(table(found, base))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


if __name__ == "__main__":
    main()
