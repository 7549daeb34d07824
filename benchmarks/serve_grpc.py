"""Serving over gRPC beside Triton, in the same run, interleaved.

    python benchmarks/serve_grpc.py [--rounds 5] [--seconds 4] [--write FILE]

The engine of serve_server.py; load by ``h2load``, 4 connections with 16 streams each. A call that fails has HTTP status
200 too, so the bytes of all answers are compared with those of one that was checked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
from serve_bench import Bench, Candidate, Server, best, ratios_of, report, triton, trtops
from serve_load import Seen

from trtops.serve.grpc_messages import SERVICE, messages

METHOD = f"/{SERVICE}/ModelInfer"


def message() -> bytes:
    """A request of one row."""
    asked = messages()["ModelInferRequest"](
        model_name="sum", raw_input_contents=[(np.arange(16, dtype=np.float32) / 2).tobytes()]
    )
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    data: bytes = asked.SerializeToString()
    return data


def checked(port: int) -> int:
    """Ask once and look at the answer.

    Returns:
        its bytes.
    """
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        data = channel.unary_unary(METHOD)(message(), timeout=20)
    answer = messages()["ModelInferResponse"].FromString(data)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32) == [60.0]
    return len(data)


def h2load(port: int, body: Path, seconds: float, size: int) -> Seen:
    """Closed-loop load."""
    command = ["h2load", "-c4", "-m16", "-t1", "-D", str(round(seconds)), "-d", str(body)]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    text = subprocess.run(
        [*command, *headers, f"http://127.0.0.1:{port}{METHOD}"], capture_output=True, text=True, check=True
    ).stdout
    done = int(re.search(r"requests: .*?(\d+) succeeded", text)[1])  # type: ignore[index]
    assert re.search(r" 0 failed, 0 errored", text), text
    data = int(re.search(r"traffic: .*?\((\d+)\) data", text)[1])  # type: ignore[index]
    assert abs(data / (done * (size + 5)) - 1) < 0.02, f"answers have {data / done:.0f} bytes, not {size + 5}"
    times = re.search(r"time for request:\s+\S+\s+(\S+?)(us|ms|s)\s+(\S+?)(us|ms|s)\s", text)
    assert times is not None, text
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    return Seen(done / seconds, float(times[3]) * scale[times[4]], float(times[1]) * scale[times[2]], requests=done)


def candidates(bench: Bench, stack: ExitStack, cost: float) -> list[tuple[Candidate, int]]:
    """Servers, each with its gRPC port."""
    found: list[tuple[Candidate, int]] = []
    for count, name in ((0, "trtops, one process"), (1, "trtops, 1 front end"), (2, "trtops, 2 front ends")):
        server: Server = stack.enter_context(trtops(cost_ms=cost, front_ends=count, grpc=True))
        found.append((Candidate(name, server, "grpc"), server.ports["grpc_port"]))
    venv = bench.peer("triton")
    if venv is not None:
        server = stack.enter_context(triton(venv, bench.options.port, cost))
        found.append((Candidate("Triton", server, "grpc"), bench.options.port + 1))
    return found


def scenario(bench: Bench, cost: float, least: float) -> None:
    """All servers at this device time a batch."""
    body = bench.scripts / "body"
    body.write_bytes(b"\0" + struct.pack(">I", len(message())) + message())
    with ExitStack() as stack:
        found = candidates(bench, stack, cost)
        sizes = {port: checked(port) for _, port in found}
        for _, port in found:
            h2load(port, body, 1, sizes[port])
        for _ in range(bench.options.rounds):
            for one, port in found:
                before = one.server.cpu()
                seen = h2load(port, body, bench.options.seconds, sizes[port])
                one.seen.append(seen)
                one.cpu_us.append((one.server.cpu() - before) / seen.requests * 1e6)
    all_ = [one for one, _ in found]
    base = next((one for one in all_ if one.name == "Triton"), all_[0])
    bench.say(
        f"| server | requests/s | ratio to {base.name} (least to most) | mean ms | longest ms | CPU µs a request |"
    )
    bench.say("|---|---|---|---|---|---|")
    middle = statistics.median
    for one in all_:
        ratios = ratios_of(one, base)
        bench.say(
            f"| {one.name} | {middle(seen.rps for seen in one.seen):,.0f} | {middle(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) | {middle(seen.p50 for seen in one.seen):.1f} "
            f"| {middle(seen.p99 for seen in one.seen):.1f} | {middle(one.cpu_us):.0f} |"
        )
    bench.say()
    if base.name == "Triton":
        mine = best([one for one in all_ if one is not base])
        what = f"{cost:g} ms a batch: {mine.name} to Triton"
        bench.goal(what, f"≥ {least}", ratios_of(mine, base), lambda ratio: ratio >= least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load a round and server")
    parser.add_argument("--port", type=int, default=18120, help="the first of Triton's two ports")
    parser.add_argument("--peers", default=str(Path.home() / ".cache" / "trtops" / "peers"))
    parser.add_argument("--write", type=Path, help="also write the report there")
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        parser.error("h2load is not installed: apt-get install nghttp2-client")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.say("# Serving over gRPC")
        bench.say()
        bench.say(
            f"`python benchmarks/serve_grpc.py --rounds {options.rounds} --seconds {options.seconds:g}`, "
            f"{os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, "
            f"grpcio {grpc.__version__}."
        )
        bench.say()
        for cost, least in ((0.0, 0.9), (5.0, 1.5)):
            bench.say(f"## {'Device free' if not cost else f'{cost:g} ms a batch'}")
            bench.say()
            scenario(bench, cost, least)
        report(bench)
    if options.write is not None:
        options.write.write_text("\n".join(bench.text) + "\n")


if __name__ == "__main__":
    main()
