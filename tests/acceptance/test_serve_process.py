"""A server process as its users meet it: tritonclient, the small client, swaps under load, signals, ports."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.releases import CHANNEL, NOW, candidate, runtime, sidecar, spec, verdict
from tests.support.serving import post, scraped, tensor
from tests.support.waiting import until
from trtops.errors import InputError, Unavailable
from trtops.registry.file import FileRegistry
from trtops.release.assemble import config_release, engine_release
from trtops.release.keys import KeyStore
from trtops.release.publish import Bundle, publish
from trtops.serve import client
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
X, Y = tensor("x"), tensor("y", shape=("n", 1))
PROFILES = ({"inputs": {"x": {"min": [1, 4], "opt": [8, 4], "max": [32, 4]}}},)


def release(home: Path, number: float) -> int:
    """Release an engine that adds a number to the sum of each row."""
    keys, store = KeyStore(home), Store(home / "store")
    of = spec(profiles=list(PROFILES), batching={"max_batch": 32, "queue": {"timeout": "30s"}})
    text = f"adds {number}".encode()
    side = sidecar(of=of, size_bytes=len(text), inputs=(X,), outputs=(Y,)).model_copy(
        update={"artifact": store.put_bytes(text)}
    )
    one = candidate(of=of, sidecar=side, builder=keys.signer("builder").key_id)
    allowed = verdict("spec")
    made = engine_release(of, allowed, [one], skipped={}, commit="abc", trtops="0.1.0", created=NOW)
    bundle = Bundle(made, config_release("cls", "dev", runtime(), created=NOW), allowed, (one,), {})
    registry = FileRegistry(home / "registry", "dev")
    return publish(registry, keys, CHANNEL, bundle, now=NOW, has_artifact=store.has).generation


@dataclass
class Running:
    process: subprocess.Popen[str]
    ready: dict[str, Any]

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def status(self) -> dict[str, Any]:
        _, body = client._call(self.ready["control_url"], "GET", "/v2/trtops/status", None, {}, 10)
        return json.loads(body)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.serve_main", str(home), *arguments]
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=environment)


@contextmanager
def server(home: Path, **changes: Any) -> Iterator[Running]:
    process = start(home, "0", json.dumps(changes))
    assert process.stdout is not None
    assert process.stderr is not None
    with process, selectors.DefaultSelector() as selector:
        try:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(60), "no ready line"
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Running(process, json.loads(line))
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    release(tmp_path, 0.0)
    return tmp_path


def test_tritonclient_infers_in_json_and_binary(home: Path) -> None:
    import tritonclient.http as triton

    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    with server(home) as running, triton.InferenceServerClient(f"127.0.0.1:{running.port}") as served:
        assert served.is_server_live()
        assert served.is_server_ready()
        assert served.is_model_ready("cls", "1.0.0")
        assert served.get_server_metadata()["name"] == "trtops"
        assert served.get_model_metadata("cls")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert served.get_model_config("cls")["max_batch_size"] == 32
        for binary in (True, False):
            given = triton.InferInput("x", [3, 4], "FP32")
            given.set_data_from_numpy(data, binary_data=binary)
            for outputs in (None, [triton.InferRequestedOutput("y", binary_data=binary)]):
                result = served.infer("cls", [given], outputs=outputs, request_id="r1", timeout=5_000_000, priority=1)
                np.testing.assert_allclose(result.as_numpy("y"), data.sum(1, keepdims=True))
                assert result.get_response()["id"] == "r1"
        compressed = served.infer("cls", [given], request_compression_algorithm="gzip")
        np.testing.assert_allclose(compressed.as_numpy("y"), data.sum(1, keepdims=True))
        pending = [served.async_infer("cls", [given]) for _ in range(5)]
        assert all(one.get_result().as_numpy("y").shape == (3, 1) for one in pending)
        wrong = triton.InferInput("x", [3, 5], "FP32")
        wrong.set_data_from_numpy(np.zeros((3, 5), np.float32))
        with pytest.raises(triton.InferenceServerException, match=r"input 'x': expected shape \[-1,4\], got \[3,5\]"):
            served.infer("cls", [wrong])
        with pytest.raises(triton.InferenceServerException, match="unknown model: 'nope'"):
            served.infer("nope", [given])
        (numbers,) = served.get_inference_statistics("cls")["model_stats"]
        assert numbers["inference_stats"]["success"]["count"] == 10
        assert numbers["inference_stats"]["fail"]["count"] == 1
        assert numbers["inference_count"] == 30
        assert running.stop() == 0


def test_the_small_client(home: Path) -> None:
    with server(home) as running:
        model = client.describe(running.url, "cls")
        assert (model.version, model.inputs[0].oip_shape) == ("1.0.0", (-1, 4))
        for binary in (True, False):
            outputs = client.infer(running.url, "cls", {"x": np.ones((2, 4), np.float32)}, binary=binary, model=model)
            assert outputs["y"].tolist() == [[4.0], [4.0]]
        with pytest.raises(InputError, match="expected datatype FP32, got 'FP64'"):
            client.infer(running.url, "cls", {"x": np.ones((2, 4))})
        with pytest.raises(InputError, match="unknown model: 'nope'"):
            client.describe(running.url, "nope")
        assert running.stop() == 0
    with pytest.raises(Unavailable, match="cannot talk to the server"):
        client.describe(running.url, "cls")


def test_a_port_in_use_is_said_and_nothing_starts(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(home, str(port))
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert out == ""
        assert err == f"port {port} on 127.0.0.1 is in use (choose another port, or stop what listens there)\n"


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    except ConnectionRefusedError:
        return True
    return False


def test_sigterm_lets_requests_in_flight_finish(home: Path) -> None:
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
    held = home / "held"
    with server(home, cost=0.2) as running:  # too long for the thread that reads requests: it goes on reading
        held.touch()
        socks = [socket.create_connection(("127.0.0.1", running.port), timeout=60) for _ in range(8)]
        for sock in socks:
            sock.sendall(post("/v2/models/cls/infer", body, close=False))
        in_flight = 'trtops_requests_in_flight{engine="cls"}'
        until(lambda: scraped(running.ready["control_url"]).get(in_flight) == 8, "all are in flight")
        running.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(running.port), "it takes nothing new")
        held.unlink()
        for sock in socks:
            with sock, sock.makefile("rb") as stream:
                answer = stream.read()
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"Connection: close\r\n" in answer
                assert answer.endswith(b'"data":[10.0]}]}')
        assert running.process.wait(60) == 0


def test_32_clients_in_a_loop_across_swaps_see_no_failure(home: Path) -> None:
    answers: list[set[float]] = [set() for _ in range(32)]
    faults: list[str] = []
    stop = threading.Event()

    def loop(number: int, port: int) -> None:
        body = json.dumps(
            {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}]}
        ).encode()
        raw = post("/v2/models/cls/infer", body, close=False)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, sock.makefile("rb") as stream:
            while not stop.is_set():
                sock.sendall(raw)
                line = stream.readline()
                size = 0
                while (header := stream.readline()) not in {b"\r\n", b""}:
                    if header.startswith(b"Content-Length:"):
                        size = int(header.split()[1])
                answer = stream.read(size)
                if line != b"HTTP/1.1 200 OK\r\n":
                    faults.append(f"{line!r} {answer!r}")
                    return
                answers[number].add(json.loads(answer)["outputs"][0]["data"][0] - 4 * number)

    def wait(value: float) -> None:
        until(lambda: faults or all(value in seen for seen in answers), f"all got {value}")

    with server(home) as running:
        threads = [threading.Thread(target=loop, args=(number, running.port)) for number in range(32)]
        for thread in threads:
            thread.start()
        for swap in (1, 2, 3):
            wait((swap - 1) * 1000.0)
            release(home, swap * 1000.0)
        wait(3000.0)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert faults == []
        assert answers == [{0.0, 1000.0, 2000.0, 3000.0}] * 32
        assert running.stop() == 0
