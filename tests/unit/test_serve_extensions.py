"""Triton's extensions over HTTP, by Triton's own client: shared memory, settings, repository, statistics."""

from __future__ import annotations

import http.client
import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.support.serving import FakeEngines, Served, add_up, info, serving, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service


@contextmanager
def control() -> Iterator[tuple[triton.InferenceServerClient, FakeEngines, Served]]:
    engines = FakeEngines()
    engines.add(info(), add_up)
    words = tensor("words", "string", ("n", 2))
    engines.add(info("echo", (words,), (tensor("out", "string", ("n", 2)),)), lambda inputs: {"out": inputs["words"]})
    with serving(engines) as served, triton.InferenceServerClient(f"127.0.0.1:{served.control}") as client:
        yield client, engines, served


@contextmanager
def region(size: int) -> Iterator[tuple[Any, str]]:
    key = f"/trtops-test-{uuid4().hex}"
    handle = shm.create_shared_memory_region("mine", key, size)
    try:
        yield handle, key
    finally:
        shm.destroy_shared_memory_region(handle)


def asked(x: np.ndarray[Any, Any], offset: int = 0) -> triton.InferInput:
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_shared_memory("both", x.nbytes, offset)
    return given


def ask(served: Served, body: bytes) -> bytes:
    """The repository's index, asked for with a body, which tritonclient does not send."""
    connection = http.client.HTTPConnection("127.0.0.1", served.control, timeout=30)
    try:
        connection.request("POST", "/v2/repository/index", body)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_inputs_and_outputs_in_shared_memory() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with control() as (client, _, _), region(256) as (handle, key):
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("both", key, 256)
        assert client.get_system_shared_memory_status() == [{"name": "both", "key": key, "offset": 0, "byte_size": 256}]
        shm.set_shared_memory_region(handle, [x])
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("both", 64, 128)
        result = client.infer("sum", [asked(x)], outputs=[wanted])
        output = result.get_output("y")
        assert output == {"name": "y", "datatype": "FP32", "shape": [2, 1]}  # Triton's C++ client takes no parameters
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 1], 128), [[6.0], [22.0]])
        client.unregister_system_shared_memory("both")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match=r"region 'both' is not registered \(register it first\)"):
            client.infer("sum", [asked(x)])


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_what_the_client_repositorys_first_example_does(coding: str | None) -> None:
    """One input in JSON and one in bytes, one output of each kind or none asked for, a query, an unknown model."""
    names = (tensor("INPUT0", "int32", ("n", 16)), tensor("INPUT1", "int32", ("n", 16)))
    outputs = (tensor("OUTPUT0", "int32", ("n", 16)), tensor("OUTPUT1", "int32", ("n", 16)))
    one, other = np.arange(16, dtype=np.int32)[None], np.full((1, 16), -1, np.int32)

    def both(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"], "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"]}

    engines = FakeEngines()
    engines.add(info("simple", names, outputs), both)
    given = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    given[0].set_data_from_numpy(one, binary_data=False)
    given[1].set_data_from_numpy(other, binary_data=True)
    wanted = [triton.InferRequestedOutput("OUTPUT0"), triton.InferRequestedOutput("OUTPUT1", binary_data=False)]
    how: dict[str, Any] = {"query_params": {"test_1": 1, "test_2": 2}, "headers": {"test": "1"}}
    how |= {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    with serving(engines) as served, triton.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        for asked_for in (wanted, None):
            result = client.infer("simple", given, outputs=asked_for, **how)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), one + other)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), one - other)
        assert len(client.get_inference_statistics("simple", headers={"test": "1"})["model_stats"]) == 1
        with pytest.raises(InferenceServerException, match="Request for unknown model") as refused:
            client.infer("wrong_model_name", given)
        assert refused.value.message().startswith("Request for unknown model")


def test_text_in_shared_memory() -> None:
    words = np.array([["a", "bc"]], object)
    data = shm.serialize_byte_tensor(words) if hasattr(shm, "serialize_byte_tensor") else None
    with control() as (client, _, _), region(64) as (handle, key):
        raw = b"".join(len(word).to_bytes(4, "little") + word for word in (b"a", b"bc")) if data is None else data
        shm.set_shared_memory_region(handle, [np.frombuffer(raw, np.uint8)])
        client.register_system_shared_memory("both", key, 64)
        given = triton.InferInput("words", [1, 2], "BYTES")
        given.set_shared_memory("both", len(raw))
        assert client.infer("echo", [given]).as_numpy("out").tolist() == [[b"a", b"bc"]]


def test_a_region_that_is_unregistered_in_mid_request_is_still_written() -> None:
    x = np.ones((1, 4), np.float32)
    with control() as (client, engines, _), region(128) as (handle, key):
        shm.set_shared_memory_region(handle, [x])
        client.register_system_shared_memory("both", key, 128)
        engines.gate.clear()
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("both", 4, 64)
        found: list[Any] = []

        def ask() -> None:
            with triton.InferenceServerClient(client._parsed_url.netloc) as other:
                found.append(other.infer("sum", [asked(x)], outputs=[wanted]))

        thread = threading.Thread(target=ask)
        thread.start()
        while not engines.taken:
            threading.Event().wait(0.002)
        client.unregister_system_shared_memory("both")
        engines.gate.set()
        thread.join(30)
        assert found[0].get_output("y")["shape"] == [1, 1]
        assert shm.get_contents_as_numpy(handle, np.float32, [1, 1], 64)[0][0] == 4.0


def test_a_region_that_its_owner_cuts_short_is_an_error_and_not_the_end_of_the_server() -> None:
    x = np.ones((1, 4), np.float32)
    with control() as (client, _, _), region(128) as (_, key):
        client.register_system_shared_memory("both", key, 128)
        os.truncate(f"/dev/shm{key}", 4)
        with pytest.raises(InferenceServerException, match="became shorter than it was registered"):
            client.infer("sum", [asked(x)])
        os.truncate(f"/dev/shm{key}", 128)
        assert client.infer("sum", [asked(x)]).as_numpy("y").tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("name", "key", "size", "offset", "message"),
    [
        ("a", "/no-such-object", 8, 0, "cannot open shared memory object"),
        ("a", "/../../etc/passwd", 8, 0, "is no name of a shared memory object"),
        ("a", "/KEY", 129, 0, "has 128 bytes, 129 from 0 on are registered"),
        ("a", "/KEY", 8, 121, "has 128 bytes, 8 from 121 on are registered"),
        ("a", "/KEY", 0, 0, "give an offset of 0 or more and a size of 1 or more"),
    ],
)
def test_regions_that_cannot_be(name: str, key: str, size: int, offset: int, message: str) -> None:
    with control() as (client, _, _), region(128) as (_, real):
        with pytest.raises(InferenceServerException, match=message):
            client.register_system_shared_memory(name, real if key == "/KEY" else key, size, offset)
        assert client.get_system_shared_memory_status() == []


def test_places_outside_a_region_are_refused() -> None:
    x = np.ones((1, 4), np.float32)
    with control() as (client, _, _), region(128) as (_, key):
        client.register_system_shared_memory("both", key, 64, 32)
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_system_shared_memory("both", key, 64)
        for offset, message in ((56, "16 bytes from 56 on are not inside region 'both' of 64 bytes"),):
            with pytest.raises(InferenceServerException, match=message):
                client.infer("sum", [asked(x, offset)])
        given = triton.InferInput("x", [1, 4], "FP32")
        given.set_shared_memory("both", 20)
        with pytest.raises(InferenceServerException, match="needs 16 bytes, shared_memory_byte_size is 20"):
            client.infer("sum", [given])
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("both", 2)
        with pytest.raises(InferenceServerException, match="has 4 bytes, its place in shared memory 2"):
            client.infer("sum", [asked(x)], outputs=[wanted])


def test_cuda_memory_is_answered_honestly() -> None:
    with control() as (client, _, _):
        client.unregister_cuda_shared_memory()
        assert client.get_cuda_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match=r"\[404\] CUDA shared memory is not served"):
            client.get_cuda_shared_memory_status("c")
        with pytest.raises(InferenceServerException, match="CUDA shared memory is not served"):
            client.register_cuda_shared_memory("c", b"handle", 0, 64)


def test_trace_and_log_settings_are_told_and_fixed() -> None:
    with control() as (client, _, _):
        assert client.get_trace_settings()["trace_level"] == ["OFF"]
        assert client.get_trace_settings("sum")["trace_level"] == ["OFF"]
        with pytest.raises(InferenceServerException, match=r"\[404\] .*'nope'"):
            client.get_trace_settings("nope")
        assert client.get_log_settings()["log_verbose_level"] == 0
        kept = client.update_trace_settings(settings={"trace_level": ["OFF"], "trace_rate": "1"})
        assert (kept["trace_rate"], kept["trace_count"], kept["trace_file"]) == ("1", "-1", "")  # text, as Triton's
        with pytest.raises(InferenceServerException, match=r"cannot be changed at run time .*--otel"):
            client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        with pytest.raises(InferenceServerException, match="cannot be changed at run time"):
            client.update_log_settings({"log_verbose_level": 4})
        with pytest.raises(InferenceServerException, match="no log setting 'nope'"):
            client.update_log_settings({"nope": 1})


def test_repository_and_statistics() -> None:
    x = np.ones((2, 4), np.float32)
    with control() as (client, _, served):
        given = triton.InferInput("x", [2, 4], "FP32")
        given.set_data_from_numpy(x)
        client.infer("sum", [given])
        (row,) = client.get_inference_statistics("sum")["model_stats"]
        assert (row["inference_count"], row["inference_stats"]["success"]["count"]) == (2, 1)
        stages = ("queue", "compute_input", "compute_infer", "compute_output")
        assert {row["inference_stats"][stage]["count"] for stage in stages} == {1}  # perf_analyzer demands it
        assert row["version"] == "1"  # an integer, as perf_analyzer reads it, and one that can be asked for
        assert client.get_inference_statistics("sum", "1") == client.get_inference_statistics("sum", "1.0.0")
        assert client.infer("sum", [given], model_version="1").get_response()["model_version"] == "1.0.0"
        with pytest.raises(InferenceServerException, match=r"has no version '2' here: version '1\.0\.0' is served"):
            client.infer("sum", [given], model_version="2")
        assert {row["name"] for row in client.get_model_repository_index()} == {"sum", "echo"}
        served.steady.missing["late"] = "it is being loaded"
        listed = [json.loads(ask(served, body)) for body in (b"", b'{"ready":true}')]
        assert [{row["name"] for row in rows} for rows in listed] == [{"sum", "echo", "late"}, {"sum", "echo"}]
        assert b"the body is not what is expected here" in ask(served, b'{"ready":1}')
        client.load_model("sum")
        client.unload_model("echo")
        assert served.steady.calls == [("load", "sum"), ("unload", "echo")]
        with pytest.raises(InferenceServerException, match="a load takes no parameters, got 'config'"):
            client.load_model("sum", config=json.dumps({"max_batch_size": 4}))


def test_the_data_port_leaves_control_to_the_other_port() -> None:
    with control() as (_, _, served), triton.InferenceServerClient(served.url) as data:
        for call in (data.get_system_shared_memory_status, data.get_log_settings, data.get_trace_settings):
            with pytest.raises(InferenceServerException, match="control port"):
                call()


def test_an_engine_of_this_server_that_does_not_serve_is_503_and_not_404() -> None:
    with control() as (client, _, served):
        served.steady.missing["soon"] = "it is being loaded"
        given = triton.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        with pytest.raises(InferenceServerException, match="model 'soon' does not serve now: it is being loaded") as it:
            client.infer("soon", [given])
        assert it.value.status() == "503"
        (entry,) = [row for row in client.get_model_repository_index() if row["name"] == "soon"]
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "it is being loaded")
        with pytest.raises(InferenceServerException, match="unknown model: 'never'") as it:
            client.infer("never", [given])
        assert it.value.status() == "404"
