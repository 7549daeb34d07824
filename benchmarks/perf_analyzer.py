"""NVIDIA's perf_analyzer, unchanged, against ``trtops serve``: that it runs, and that both sides count the same.

Run: ``python benchmarks/perf_analyzer.py [--milliseconds N] [--concurrency N] [--write FILE]``. It drives a server as a
user starts it (two front ends, an engine of the fake backend with 1 ms a batch) over HTTP, gRPC, a gRPC stream, in JSON
and with tensors in system shared memory. Peer: none; perf_analyzer is the judge. Exit code 1 if a way fails, or if the
server's count of inferences is not about the client's (both count windows of their own).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from printing import emit, machine, table
from served import ENGINE, serving, ship

_PROGRAM = Path(__file__).parent / "peers" / "perf_analyzer.sh"
_SHARED = ("--shared-memory", "system", "--output-shared-memory-size", "4096")
_WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "HTTP, binary tensors": ("http", ()),
    "HTTP, JSON": ("http", ("--input-tensor-format", "json", "--output-tensor-format", "json", "--input-data", "zero")),
    "HTTP, asynchronous": ("http", ("--async",)),
    "HTTP, by its version": ("http", ("-x", "1")),
    "HTTP, system shared memory": ("http control", _SHARED),
    "gRPC": ("grpc", ()),
    "gRPC, a stream": ("grpc", ("--streaming",)),
    "gRPC, system shared memory": ("grpc control", _SHARED),
}
_ALIKE = 0.1


def analyze(address: str, protocol: str, flags: tuple[str, ...], options: argparse.Namespace) -> str:
    """Run it once; what it said."""
    command = [str(_PROGRAM), "-m", ENGINE, "-u", address, "-i", protocol, "--shape", "x:16", "-s", "999", "-r", "3"]
    command += ["--concurrency-range", str(options.concurrency), "-p", str(options.milliseconds), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as hung:
        return f"{(hung.stdout or b'').decode()}\nit did not end"
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


def number(pattern: str, said: str) -> float:
    """A number that it printed; 0 if it did not."""
    found = re.search(pattern, said)
    return float(found[1]) if found else 0.0


def row(name: str, said: str) -> tuple[list[str], bool]:
    """A line of the table, and whether it went well."""
    client, server = number(r"Request count: (\d+)", said), number(r"Inference count: (\d+)", said)
    well = said.endswith("exit code 0") and client > 0 and abs(server - client) <= client * _ALIKE
    figures = (
        r"Throughput: ([\d.]+)",
        r"p50 latency: (\d+)",
        r"p99 latency: (\d+)",
        r"queue (\d+)",
        r"infer (\d+) usec",
    )
    cells = [f"{number(pattern, said):.0f}" for pattern in figures]
    return [name, *cells, f"{client:.0f}", f"{server:.0f}", "runs" if well else "**fails**"], well


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--milliseconds", type=int, default=2000, help="of a window; three of them are measured")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the table there, too")
    options = parser.parse_args()
    rows, bad = [], False
    with tempfile.TemporaryDirectory(prefix="trtops-analyzed-") as name:
        ship(Path(name))
        flags = ("--front-ends", "2", "--grpc-port", "0", "--grpc-control-port", "0")
        with serving(Path(name), *flags, cost_us=1000) as (_, ready):
            addresses = _addresses(ready)
            for way, (where, more) in _WAYS.items():
                sys.stderr.write(f"{way}\n")
                said = analyze(addresses[where], where.split()[0], more, options)
                line, well = row(way, said)
                rows.append(line)
                bad |= not well
                if not well:
                    sys.stderr.write(f"{said}\n")
    head = ["way", "inferences/s", "p50 us", "p99 us", "server: queue us", "compute us", "client counted", "server", ""]
    what = (
        f"perf_analyzer 2.60.0; {options.concurrency} at once, 3 windows of {options.milliseconds} ms; "
        "an engine of 1 ms a batch, 2 front ends\n"
    )
    text = ["# perf_analyzer against trtops serve\n", machine(1), what, table(head, rows)]
    emit("\n".join(text), options.write)
    return int(bad)


def _addresses(ready: dict[str, Any]) -> dict[str, str]:
    return {
        "http": ready["url"].removeprefix("http://"),
        "http control": ready["control_url"].removeprefix("http://"),
        "grpc": f"127.0.0.1:{ready['grpc_port']}",
        "grpc control": f"127.0.0.1:{ready['grpc_control_port']}",
    }


if __name__ == "__main__":
    sys.exit(main())
