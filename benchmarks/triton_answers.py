"""The same requests to Triton and to this server, over HTTP and gRPC: statuses, and the fields of the answers.

Run: ``python benchmarks/triton_answers.py [--port N] [--peers FOLDER] [--write FILE]``. Triton 2.51 is the one of
``benchmarks/peers/install.sh``. An answer is the same if its status is, and if it has Triton's fields with Triton's
types (more are fine: clients read by name). What differs on purpose stands in docs/concepts/serving.md and here with
its reason; exit code 1 if anything else does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import triton_grpc_cases
from printing import emit, machine, table
from serve_bench import triton, trtops

_INFER, _MODEL, _MEMORY = "/v2/models/sum/infer", "/v2/models/sum", "/v2/systemsharedmemory/region/q"


def _asked(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16} | changes]}


_CASES: dict[str, tuple[str, str, Any]] = {
    "live": ("GET", "/v2/health/live", None),
    "ready": ("GET", "/v2/health/ready", None),
    "model ready": ("GET", f"{_MODEL}/ready", None),
    "model ready, unknown": ("GET", "/v2/models/no/ready", None),
    "server metadata": ("GET", "/v2", None),
    "model metadata": ("GET", _MODEL, None),
    "of a version": ("GET", f"{_MODEL}/versions/1", None),
    "of an unknown version": ("GET", f"{_MODEL}/versions/9", None),
    "of an unknown model": ("GET", "/v2/models/no", None),
    "configuration": ("GET", f"{_MODEL}/config", None),
    "statistics": ("GET", f"{_MODEL}/stats", None),
    "statistics of all": ("GET", "/v2/models/stats", None),
    "statistics, unknown": ("GET", "/v2/models/no/stats", None),
    "repository index": ("POST", "/v2/repository/index", {}),
    "repository index, ready": ("POST", "/v2/repository/index", {"ready": True}),
    "trace settings": ("GET", "/v2/trace/setting", None),
    "trace settings, of an unknown model": ("GET", "/v2/models/no/trace/setting", None),
    "log settings": ("GET", "/v2/logging", None),
    "shared memory, none": ("GET", "/v2/systemsharedmemory/status", None),
    "shared memory, unknown": ("GET", f"{_MEMORY}/status", None),
    "CUDA memory, none": ("GET", "/v2/cudasharedmemory/status", None),
    "CUDA memory, unknown": ("GET", "/v2/cudasharedmemory/region/q/status", None),
    "unregister what is not": ("POST", f"{_MEMORY}/unregister", {}),
    "register what is not": ("POST", f"{_MEMORY}/register", {"key": "/trtops-nowhere", "byte_size": 4}),
    "infer": ("POST", _INFER, _asked()),
    "infer, named": ("POST", _INFER, _asked() | {"id": "a"}),
    "infer, of a version": ("POST", f"{_MODEL}/versions/1/infer", _asked()),
    "infer, unknown model": ("POST", "/v2/models/no/infer", _asked()),
    "one output": ("POST", _INFER, _asked() | {"outputs": [{"name": "y"}]}),
    "no outputs": ("POST", _INFER, _asked() | {"outputs": []}),
    "unknown output": ("POST", _INFER, _asked() | {"outputs": [{"name": "z"}]}),
    "binary output": ("POST", _INFER, _asked() | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}),
    "binary outputs": ("POST", _INFER, _asked() | {"parameters": {"binary_data_output": True}}),
    "a priority": ("POST", _INFER, _asked() | {"parameters": {"priority": 1}}),
    "an unknown parameter": ("POST", _INFER, _asked() | {"parameters": {"foo": 1}}),
    "an unknown field": ("POST", _INFER, _asked() | {"foo": 1}),
    "nested data": ("POST", _INFER, _asked(data=[[1.0] * 16])),
    "wrong type": ("POST", _INFER, _asked(datatype="INT32", data=[1] * 16)),
    "wrong shape": ("POST", _INFER, _asked(shape=[1, 5], data=[1.0] * 5)),
    "too many rows": ("POST", _INFER, _asked(shape=[17, 16], data=[1.0] * 272)),
    "no rows": ("POST", _INFER, _asked(shape=[0, 16], data=[])),
    "too few elements": ("POST", _INFER, _asked(data=[1.0])),
    "text for numbers": ("POST", _INFER, _asked(data=["a"] * 16)),
    "infinity": ("POST", _INFER, _asked(data=[float("inf")] * 16)),
    "no inputs": ("POST", _INFER, {"inputs": []}),
    "unknown input": ("POST", _INFER, _asked(name="q")),
    "an input twice": ("POST", _INFER, {"inputs": _asked()["inputs"] * 2}),
    "no JSON": ("POST", _INFER, "{nope"),
    "an array": ("POST", _INFER, "[]"),
    "no body": ("POST", _INFER, ""),
    "infer by GET": ("GET", _INFER, None),
    "DELETE": ("DELETE", _MODEL, None),
    "unknown path": ("GET", "/v2/foo", None),
}
_OURS = "500 says that the server is at fault; it is the request"
_UNKNOWN = "an unknown model is 404, whatever is asked"
_ON_PURPOSE = {
    "model ready, unknown": _UNKNOWN,
    "statistics, unknown": _UNKNOWN,
    "trace settings, of an unknown model": _UNKNOWN,
    "configuration": "fields that say nothing here are left out",
    "statistics": "no response_stats (decoupled models), no memory_usage",
    "statistics of all": "no response_stats (decoupled models), no memory_usage",
    "register what is not": _OURS,
    "too few elements": _OURS,
    "text for numbers": _OURS,
    "no JSON": _OURS,
    "an array": _OURS,
    "infinity": "JSON has no word for it",
}


def ask(port: int, method: str, path: str, body: Any) -> tuple[int, bool, Any]:  # noqa: ANN401 - JSON
    """Status, whether the body has a binary part, and its JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body))
        answer = connection.getresponse()
        data, head = answer.read(), answer.headers.get("Inference-Header-Content-Length")
    finally:
        connection.close()
    return answer.status, head is not None, json.loads(data[: int(head)] if head else data) if data else None


def has(ours: Any, theirs: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether an answer has all fields of another one, of the same types. Of arrays the first elements are compared."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and has(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list):
        return isinstance(ours, list) and (not theirs or not ours or has(ours[0], theirs[0]))
    number = isinstance(theirs, (int, float)) and not isinstance(theirs, bool)
    return isinstance(ours, (int, float)) if number else type(ours) is type(theirs)


@dataclass
class Found:
    """What a comparison found.

    Attributes:
        asked, same: requests, and those that both answer alike.
        rows: of the table: the others.
        bad: something differs that should not, or does not that was said to.
    """

    asked: int
    same: int
    rows: list[list[str]]
    bad: bool


def _compared(answers: dict[str, tuple[Any, ...]], on_purpose: dict[str, str]) -> Found:
    """Ours and theirs by case, each a status, a mark and a document."""
    found = Found(len(answers), 0, [], bad=False)
    for name, (ours, theirs) in answers.items():
        reason = on_purpose.get(name)
        if ours[:2] == theirs[:2] and has(ours[2], theirs[2]):
            found.same += 1
            found.bad |= reason is not None
        else:
            found.bad |= reason is None
            found.rows.append([name, str(ours[0]), str(theirs[0]), reason or f"**not on purpose**: {ours}"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=18140, help="the first of Triton's two ports")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache" / "trtops" / "peers")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the table there, too")
    options = parser.parse_args()
    if not (options.peers / "triton").is_dir():
        parser.error(f"there is no Triton in {options.peers}: run benchmarks/peers/install.sh")
    with triton(options.peers / "triton", options.port, 0.0) as theirs, trtops(grpc=True) as ours:
        ports = ours.ports["control_port"], theirs.port
        http = _compared(
            {name: tuple(ask(port, *case) for port in ports) for name, case in _CASES.items()}, _ON_PURPOSE
        )
        ports = ours.ports["grpc_control_port"], options.port + 1
        channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        answers = {
            name: tuple(triton_grpc_cases.ask(channel, *case) for channel in channels)
            for name, case in triton_grpc_cases.CASES.items()
        }
        called = _compared(answers, triton_grpc_cases.ON_PURPOSE)
        for channel in channels:
            channel.close()
    text = ["# Answers beside Triton's\n", machine(1)]
    for way, found in (("HTTP", http), ("gRPC", called)):
        text += [
            f"## {way}\n",
            f"{found.same} of {found.asked} requests have Triton's status and all of Triton's fields; the others:\n",
            table(["request", "here", "Triton 2.51", "why"], found.rows),
        ]
    emit("\n".join(text), options.write)
    return int(http.bad or called.bad)


if __name__ == "__main__":
    sys.exit(main())
