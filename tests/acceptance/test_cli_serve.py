"""A server process of a released engine, as its clients meet it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

from tests.support.builds import linear, save
from tests.support.serving import scraped
from tests.support.waiting import until
from trtops.digest import Digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.support.repository import Repository, Server

pytestmark = pytest.mark.service

INFER = "/v2/models/tiny/infer"
LENGTH = "Inference_Header_Content_Length"
CLIENTS = 32


def reference(repo: Repository, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ONNX Runtime says of the file that stands in the repository, with no optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = str(repo.engine / "model.onnx")
    (y,) = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(["y"], {"x": x})
    found: NDArray[np.float32] = y
    return found


def post(server: Server, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    try:
        connection.request("POST", INFER, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def asking(x: NDArray[np.float32], **changes: Any) -> bytes:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()} | changes
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


ONES = np.ones((1, 4), np.float32)


def test_tritonclient_gets_what_onnx_runtime_gives(shipped: Repository) -> None:
    import tritonclient.http as triton

    random = np.random.default_rng(7)
    with shipped.serve("tiny") as server:
        with triton.InferenceServerClient("{}:{}".format(*server.address)) as client:
            assert client.is_model_ready("tiny")
            assert client.get_model_metadata("tiny")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
            for rows in (1, 3, 8):
                x = random.standard_normal((rows, 4)).astype(np.float32)
                expected = reference(shipped, x)
                for binary in (True, False):
                    given = triton.InferInput("x", list(x.shape), "FP32")
                    given.set_data_from_numpy(x, binary_data=binary)
                    wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
                    result = client.infer("tiny", [given], outputs=wanted).as_numpy("y")
                    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        assert server.stop() == 0
    assert server.log.read_text() == ""


def test_infer(shipped: Repository) -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    np.save(shipped.root / "x.npy", x)
    expected = reference(shipped, x)
    with shipped.serve("engines/tiny") as server:
        at = ("--url", server.url)
        for more in ((), ("--json-tensors",)):
            done = shipped.call("infer", "tiny", *at, "--input", "x=@x.npy", *more, "--json").says(0)
            (output,) = json.loads(done.out)["outputs"]
            assert (output["name"], output["dtype"], output["shape"]) == ("y", "float32", [3, 3])
            np.testing.assert_allclose(np.reshape(output["data"], (3, 3)), expected, rtol=1e-5, atol=1e-5)
        for value in ("random", "random[5,4]"):
            rows = 5 if "[" in value else 1
            shipped.call("infer", "engines/tiny", *at, "--input", f"x={value}").says(0, f"y float32[{rows}, 3]: ")
        same = [shipped.call("infer", "tiny", *at, "--seed", "3", "--json").out for _ in range(2)]
        assert json.loads(same[0])["outputs"] == json.loads(same[1])["outputs"]
        for value, words in (
            ("x", "'x' is not NAME=VALUE"),
            ("z=random", "there is no input 'z'"),
            ("x=7", "is neither @FILE.npy nor random"),
            ("x=[[1,2]]", "write x=@FILE.npy, x=random or x=random[SIZE,4]"),
            ("x=@nope.npy", "nope.npy cannot be read"),
            ("x=@trtops.toml", "trtops.toml is not a .npy file"),
            ("x=random[2,5]", "x takes [?,4], not [2, 5]"),
            ("x=random[9,4]", "input 'x': expected 1 to 8 rows, got 9"),
        ):
            shipped.call("infer", "tiny", *at, "--input", value).says(2, words)
        np.save(shipped.root / "wrong.npy", x.astype(np.float64))
        wrong = ("--input", "x=@wrong.npy")
        shipped.call("infer", "tiny", *at, *wrong).says(2, "x takes float32 [?,4], wrong.npy holds float64 [3, 4]")
        shipped.call("infer", "nope", *at).says(2, "unknown model: 'nope'", "'tiny'")
        assert server.stop() == 0


def test_malformed_requests_are_answered_with_the_tensors_name(shipped: Repository) -> None:
    header = asking(ONES, data=None, parameters={"binary_data_size": 16})
    two = json.dumps({"inputs": json.loads(asking(ONES))["inputs"] * 2}).encode()
    output = json.dumps(json.loads(asking(ONES)) | {"outputs": [{"name": "q"}]}).encode()
    cases: list[tuple[bytes, str, dict[str, str]]] = [
        (b"", "the body is empty", {}),
        (b"{", "the body is not JSON", {}),
        (b"[]", "not an inference request", {}),
        (b'{"inputs":[]}', "missing input 'x' (FP32 [-1,4])", {}),
        (asking(ONES, name="z"), "unknown input 'z'", {}),
        (asking(np.ones((1, 5), np.float32)), "input 'x': expected shape [-1,4], got [1,5]", {}),
        (asking(np.ones((9, 4), np.float32)), "input 'x': expected 1 to 8 rows, got 9", {}),
        (asking(np.ones((0, 4), np.float32)), "input 'x': expected 1 to 8 rows, got 0", {}),
        (asking(ONES, shape=[-1, 4]), "input 'x': [-1,4] is no shape", {}),
        (asking(ONES, datatype="FP64"), "input 'x': expected datatype FP32, got 'FP64'", {}),
        (asking(ONES, data=[1, 2, 3]), "input 'x': shape [1, 4] needs 4 elements, got data of 3", {}),
        (asking(ONES, data=[1, 2, 3, "a"]), "input 'x': data is not an array of FP32", {}),
        (asking(ONES, data=None), "input 'x': has no data", {}),
        (two, "input 'x' is given twice", {}),
        (output, "unknown output 'q'", {}),
        (header + bytes(15), "input 'x': binary_data_size is 16, and 15 bytes are left", {LENGTH: str(len(header))}),
        (header + bytes(17), "17 bytes follow the JSON", {LENGTH: str(len(header))}),
        (header + bytes(16), "Inference-Header-Content-Length", {LENGTH: str(len(header) + 100)}),
        (header + bytes(16), "Inference-Header-Content-Length", {LENGTH: "x"}),
    ]
    with shipped.serve("tiny") as server:
        for body, words, sizes in cases:
            status, answer = post(server, body, **sizes)
            assert (status, words in answer["error"]) == (400, True), (body, status, answer)
        status, answer = post(server, asking(ONES))
        assert status == 200
        np.testing.assert_allclose(answer["outputs"][0]["data"], reference(shipped, ONES)[0], rtol=1e-5)
        assert server.stop() == 0
    assert server.log.read_text() == ""


def test_a_port_in_use(shipped: Repository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = f"error: port {port} on 127.0.0.1 is in use"
        free = ("--host", "127.0.0.1")
        shipped.run("serve", "tiny", *free, "--port", port, "--control-port", "0").says(2, words, "choose another port")
        shipped.run("serve", "tiny", *free, "--port", "0", "--control-port", port).says(2, words, "choose another port")


def test_sigterm_lets_requests_in_flight_finish(shipped: Repository) -> None:
    limits = shipped.root / "policies" / "data" / "limits.yaml"
    limits.write_text(limits.read_text().replace("queue_delay_ms: 100\n", "queue_delay_ms: 5000\n"))
    shipped.edit("max_queue_delay: 1ms", "max_queue_delay: 3s")
    shipped.call("ship", "tiny").says(0, "generation 2")
    answers: list[tuple[int, dict[str, Any]]] = []
    with shipped.serve("tiny") as server:
        # Three rows, no preferred size among them: the batch waits for more.
        askers = [threading.Thread(target=lambda: answers.append(post(server, asking(ONES)))) for _ in range(3)]
        for asker in askers:
            asker.start()
        in_flight = 'trtops_requests_in_flight{engine="tiny"}'
        until(lambda: scraped(server.ready["control_url"]).get(in_flight, 0) + len(answers) >= 3)
        assert server.stop() == 0
        for asker in askers:
            asker.join(60)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address, timeout=5)
    assert [status for status, _ in answers] == [200] * 3
    assert server.log.read_text() == ""


class Crowd:
    """Clients that ask one question again and again over connections that they keep."""

    def __init__(self, server: Server) -> None:
        self.faults: list[str] = []
        self.answers: list[list[float]] = [[] for _ in range(CLIENTS)]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(number, server)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _loop(self, number: int, server: Server) -> None:
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        body = asking(ONES)
        try:
            while not self._stop.is_set():
                connection.request("POST", INFER, body)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.faults.append(f"{answer.status} {text!r}")
                    return
                self.answers[number].append(json.loads(text)["outputs"][0]["data"][1])
                time.sleep(0.01)  # leaves the release some of the CPUs
        except OSError as error:
            self.faults.append(repr(error))
        finally:
            connection.close()

    def until(self, value: float) -> bool:
        """Wait until each client has got an answer."""
        end = time.monotonic() + 60
        while time.monotonic() < end and not self.faults:
            if all(any(abs(one - value) < 1e-4 for one in seen[-5:]) for seen in self.answers):
                return True
            time.sleep(0.02)
        return False

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def test_32_clients_see_a_new_release_and_no_failure(shipped: Repository) -> None:
    old = float(reference(shipped, ONES)[0, 1])
    with shipped.serve("tiny") as server:
        crowd = Crowd(server)
        try:
            assert crowd.until(old), crowd.faults
            model = linear()
            model.graph.initializer[0].raw_data = (np.arange(12, dtype=np.float32).reshape(4, 3) / 5).tobytes()
            before = Digest.of_file(shipped.engine / "model.onnx").value
            path = save(model, shipped.engine / "model.onnx")
            shipped.edit(before, Digest.of_file(path).value)
            new = float(reference(shipped, ONES)[0, 1])
            assert abs(new - old) > 0.1
            shipped.run("ship", "tiny").says(0, "generation 2 signed and published")
            assert crowd.until(new), crowd.faults
            shipped.run("rollback", "tiny").says(0, "generation 3")
            assert crowd.until(old), crowd.faults
        finally:
            crowd.stop()
        assert server.stop() == 0
    assert crowd.faults == []
    for seen in crowd.answers:
        assert {round(one, 4) for one in seen} == {round(old, 4), round(new, 4)}
    assert server.log.read_text() == ""


def test_a_server_whose_artifact_is_damaged_says_so_and_recovers(shipped: Repository) -> None:
    path = shipped.artifact()
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with shipped.serve("tiny") as server:
        engine = server.ready["engines"]["tiny"]
        assert engine["status"] != "ready"
        assert str(path) in engine["reason"]
        status, answer = post(server, asking(ONES))
        assert 400 <= status < 600
        assert "tiny" in answer["error"]
        path.write_bytes(whole)
        until(lambda: post(server, asking(ONES))[0] == 200)
        assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
    assert "--rebuild" in server.log.read_text()


def test_the_smoke_test_of_a_shipment(shipped: Repository) -> None:
    done = shipped.run("ship", "tiny", "--smoke").says(0, "answered by generation 1", "y float32[1, 3]: ")
    assert "built" not in done.out
    assert shipped.half_written() == []
