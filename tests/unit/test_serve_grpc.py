"""The gRPC front end by Triton's own client, and by raw calls where that client is too polite."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

from tests.support.serving import FakeEngines, Served, add_up, echo, info, serving, tensor
from trtops.errors import DeadlineExceeded, Retryable
from trtops.serve.exchange import Limits
from trtops.serve.grpc_messages import DESCRIPTION, messages, varint
from trtops.tensor import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service

INFER = "/inference.GRPCInferenceService/ModelInfer"


@contextmanager
def client(*, control: bool = False, limits: Limits | None = None, **engine: Any) -> Iterator[Any]:
    engines = FakeEngines(**engine)
    engines.add(info(), add_up)
    with serving(engines, limits, grpc=True) as served:
        port = served.grpc_control if control else served.grpc
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as one:
            yield one, engines, served


def given(x: np.ndarray[Any, Any], name: str = "x", datatype: str = "FP32") -> triton.InferInput:
    made = triton.InferInput(name, list(x.shape), datatype)
    made.set_data_from_numpy(x)
    return made


ONES = np.ones((1, 4), np.float32)


def call(served: Served, body: bytes, method: str = INFER, timeout: float | None = 20, **metadata: str) -> bytes:
    """A raw call; its message is exactly these bytes."""
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        raw = channel.unary_unary(method)
        return raw(body, timeout=timeout, metadata=tuple(metadata.items()))


def request(**changes: Any) -> Any:
    made = messages()["ModelInferRequest"](model_name="sum", **changes)
    if "inputs" not in changes:
        made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return made


def test_the_compiled_interface_is_the_one_that_stands_in_the_file(tmp_path: Any) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path / "out.binpb"
    source = DESCRIPTION.with_suffix(".proto")
    assert protoc.main(["protoc", f"-I{source.parent}", f"--descriptor_set_out={out}", str(source)]) == 0
    assert out.read_bytes() == DESCRIPTION.read_bytes()


def test_every_field_has_the_name_number_and_type_that_clients_use() -> None:
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}

    def compare(mine: Any, other: Any) -> None:
        for field in mine.fields:
            same = other.fields_by_name[field.name]
            assert (same.number, same.type, same.label) == (field.number, field.type, field.label), field.full_name
        for nested in mine.nested_types:
            compare(nested, other.nested_types_by_name[nested.name])
        for enum in mine.fields:
            if enum.enum_type is not None:
                same = other.fields_by_name[enum.name].enum_type
                for value in enum.enum_type.values:
                    assert same.values_by_name[value.name].number == value.number

    for name, kind in messages().items():
        compare(kind.DESCRIPTOR, theirs[name])
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    text = DESCRIPTION.with_suffix(".proto").read_text()
    assert all(f"rpc {name}(" in text for name in methods)


def test_health_metadata_configuration_statistics() -> None:
    with client() as (one, _, served):
        assert one.is_server_live()
        assert one.is_server_ready()
        assert one.is_model_ready("sum")
        assert not one.is_model_ready("nope")
        assert one.get_server_metadata().name == "trtops"
        metadata = one.get_model_metadata("sum", as_json=True)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
        config = one.get_model_config("sum").config
        assert (config.max_batch_size, list(config.input[0].dims)) == (16, [4])
        assert config.input[0].data_type == model_config_pb2.TYPE_FP32
        one.infer("sum", [given(np.ones((3, 4), np.float32))])
        stats = one.get_inference_statistics("sum").model_stats[0]
        assert (stats.inference_count, stats.inference_stats.success.count) == (3, 1)
        assert [model.name for model in one.get_model_repository_index().models] == ["sum"]
        served.steady.reason = "loading"
        assert not one.is_server_ready()
        assert call(served, b"", "/grpc.health.v1.Health/Check") == b"\x08\x02"
        served.steady.reason = None
        assert call(served, b"", "/grpc.health.v1.Health/Check") == b"\x08\x01"


@pytest.mark.parametrize("dtype", sorted(name for name in DTYPES if name not in {"bfloat16", "float8_e4m3"}))
def test_every_type_there_and_back(dtype: str) -> None:
    engines = FakeEngines()
    engines.add(info("echo", (tensor("in", dtype, ("n", 3)),), (tensor("out", dtype, ("n", 3)),)), echo)
    text = np.array([["", "ü", "abc"], ["d", "e", "f"]], object)
    x = text if dtype == "string" else np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    with serving(engines, grpc=True) as served, triton.InferenceServerClient(f"127.0.0.1:{served.grpc}") as one:
        result = one.infer("echo", [given(x, "in", DTYPES[dtype][0])], request_id="r1")
        out = result.as_numpy("out")
        assert result.get_response().id == "r1"
        expected = np.array([[word.encode() for word in row] for row in x], object) if dtype == "string" else x
        np.testing.assert_array_equal(out, expected)
        assert engines.taken[0].rows == 2


def test_bfloat16_travels_as_raw_bytes() -> None:
    engines = FakeEngines()
    engines.add(info("echo", (tensor("in", "bfloat16", ("n", 2)),), (tensor("out", "bfloat16", ("n", 2)),)), echo)
    asked = messages()["ModelInferRequest"](model_name="echo", raw_input_contents=[b"\xc0\x3f\x00\xc0"])
    asked.inputs.add(name="in", datatype="BF16", shape=[1, 2])
    with serving(engines, grpc=True) as served:
        answer = messages()["ModelInferResponse"].FromString(call(served, asked.SerializeToString()))
        assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BF16", [1, 2])
        assert list(answer.raw_output_contents) == [b"\xc0\x3f\x00\xc0"]


def test_typed_contents_are_taken() -> None:
    asked = request()
    asked.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    with client() as (_, _, served):
        answer = messages()["ModelInferResponse"].FromString(call(served, asked.SerializeToString()))
        assert (answer.model_name, answer.model_version) == ("sum", "1.0.0")
        assert (answer.outputs[0].name, answer.outputs[0].datatype, list(answer.outputs[0].shape)) == (
            "y",
            "FP32",
            [1, 1],
        )
        assert np.frombuffer(answer.raw_output_contents[0], np.float32) == [10.0]


def _contents(**values: Any) -> Callable[[Any], None]:
    def change(asked: Any) -> None:
        for name, value in values.items():
            getattr(asked.inputs[0].contents, name).extend(value)

    return change


def _raw(*data: bytes) -> Callable[[Any], None]:
    return lambda asked: asked.raw_input_contents.extend(data)


def _both(asked: Any) -> None:
    _raw(bytes(16))(asked)
    _contents(fp32_contents=[1])(asked)


def _set(**values: Any) -> Callable[[Any], None]:
    def change(asked: Any) -> None:
        _raw(bytes(16))(asked)
        for name, value in values.items():
            target = asked if hasattr(asked, name) else asked.inputs[0]
            if isinstance(value, list):
                getattr(target, name)[:] = value
            else:
                setattr(target, name, value)

    return change


def _parameter(key: str, **value: Any) -> Callable[[Any], None]:
    def change(asked: Any) -> None:
        _raw(bytes(16))(asked)
        for kind, what in value.items():
            setattr(asked.parameters[key], kind, what)

    return change


WRONG: list[tuple[str, Callable[[Any], None], str]] = [
    ("too few bytes", _raw(bytes(12)), "input 'x': FP32 of shape [1, 4] needs 16 bytes, its raw_input_contents is 12"),
    ("two contents", _raw(bytes(16), b""), "2 raw_input_contents for 1 inputs"),
    ("none", _raw(), "input 'x': shape [1, 4] needs 4 elements, got 0"),
    ("raw and typed", _both, "input 'x': has contents, and the request raw_input_contents"),
    (
        "another type",
        _contents(int_contents=[1, 2, 3, 4]),
        "input 'x': expected fp32_contents for FP32, got int_contents",
    ),
    ("too few", _contents(fp32_contents=[1]), "input 'x': shape [1, 4] needs 4 elements, got 1"),
    ("datatype", _set(datatype="INT8"), "input 'x': expected datatype FP32, got 'INT8'"),
    ("shape", _set(shape=[1, 5]), "input 'x': expected shape [-1,4], got [1,5]"),
    ("negative", _set(shape=[-1, 4]), "input 'x': [-1,4] is no shape"),
    ("name", _set(name="z"), "unknown input 'z': engine 'sum' takes 'x'"),
    ("long id", _set(id="i" * 2000), "id has 2000 characters; 1024 are allowed"),
    ("sequence", _parameter("sequence_id", int64_param=3), "sequences are not supported"),
    ("timeout", _parameter("timeout", string_param="soon"), "parameter 'timeout': expected a whole number"),
    ("no value", _parameter("priority"), "shape"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with client() as (_, _, served):
        yield served


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in WRONG[:-1]], ids=[row[0] for row in WRONG[:-1]])
def test_what_is_wrong_is_said(shared: Served, change: Callable[[Any], None], message: str) -> None:
    asked = request()
    change(asked)
    with pytest.raises(grpc.RpcError) as caught:
        call(shared, asked.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in caught.value.details()


def test_no_protobuf_is_an_error_and_not_the_end(shared: Served) -> None:
    for body in (b"\xff", b"\x0a\xff", bytes(range(256)), b"\x2a\x02\x08"):
        with pytest.raises(grpc.RpcError) as caught:
            call(shared, body)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not a ModelInferRequest" in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        call(shared, b"", "/inference.GRPCInferenceService/Nothing")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def good() -> bytes:
    asked = request()
    _raw(ONES.tobytes())(asked)
    return asked.SerializeToString()


def test_errors_have_their_codes_and_say_when_to_try_again() -> None:
    with client(limit=0) as (_, engines, served):
        with pytest.raises(grpc.RpcError) as caught:
            call(served, good())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["retry-after"] == "2"
        assert b"type.googleapis.com/google.rpc.RetryInfo" in trailers["grpc-status-details-bin"]
        engines.limit = 8
        for error, code in (
            (Retryable("lost"), grpc.StatusCode.UNAVAILABLE),
            (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
            (ValueError("secret"), grpc.StatusCode.INTERNAL),
        ):
            engines.error = error
            with pytest.raises(grpc.RpcError) as caught:
                call(served, good())
            assert caught.value.code() is code
            assert "secret" not in caught.value.details()
        engines.error = None
        with pytest.raises(grpc.RpcError) as caught:
            call(served, request(model_version="9").SerializeToString())
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        served.steady.missing["soon"] = "it is being loaded"
        with pytest.raises(grpc.RpcError) as caught:
            call(served, messages()["ModelInferRequest"](model_name="soon").SerializeToString())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_calls_deadline_is_the_requests_and_its_end_takes_the_request_back() -> None:
    with client() as (_, engines, served):
        engines.gate.clear()
        before = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            call(served, good(), timeout=2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert engines.taken[0].deadline is not None
        assert before < engines.taken[0].deadline < time.monotonic() + 2
        with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
            future = channel.unary_unary(INFER).future(good())
            while len(engines.taken) < 2:
                time.sleep(0.002)
            assert engines.taken[1].deadline is None
            future.cancel()
            end = time.monotonic() + 20
            while engines.cancelled < 2:
                assert time.monotonic() < end
                time.sleep(0.002)
        engines.gate.set()
        assert call(served, good())


def test_messages_and_metadata_are_bounded() -> None:
    with client(limits=Limits(body_bytes=2000, header_bytes=2048)) as (_, _, served):
        with pytest.raises(grpc.RpcError) as caught:
            call(served, bytes(3000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as caught:
            call(served, good(), more="x" * 9000)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(served, good())


def test_requests_as_a_stream() -> None:
    with client() as (one, _, _):
        came: list[Any] = []
        all_there = threading.Event()

        def take(result: Any, error: Any) -> None:
            came.append((result, error))
            if len(came) == 20:
                all_there.set()

        one.start_stream(take)
        for number in range(20):
            x = np.full((1, 5 if number == 7 else 4), number, np.float32)
            one.async_stream_infer("sum", [given(x)], request_id=str(number))
        assert all_there.wait(30)
        one.stop_stream()
        for number, (result, error) in enumerate(came):
            if number == 7:
                assert "expected shape [-1,4], got [1,5]" in str(error)
            else:
                assert result.get_response().id == str(number)
                assert result.as_numpy("y") == [[4.0 * number]]
                assert result.get_response().parameters["triton_final_response"].bool_param


@pytest.mark.parametrize("dtype", [np.object_, np.bytes_])
def test_text_with_zeros_in_it(dtype: Any) -> None:
    """As the client's example of strings asks: elements of an object array, and blobs of a fixed size."""
    words = np.array([[b"he\x00llo" if dtype is np.object_ else b"\x00\x01\x02\x03"] * 16], dtype)
    engines = FakeEngines()
    word = tensor("INPUT0", "string", ("n", 16))
    out = tensor("OUTPUT0", "string", ("n", 16))
    engines.add(info("simple_identity", (word,), (out,)), lambda inputs: {"OUTPUT0": inputs["INPUT0"]})
    with serving(engines, grpc=True) as served, triton.InferenceServerClient(f"127.0.0.1:{served.grpc}") as one:
        asked = given(words, "INPUT0", "BYTES")
        got = one.infer("simple_identity", [asked], outputs=[triton.InferRequestedOutput("OUTPUT0")])
        np.testing.assert_array_equal(got.as_numpy("OUTPUT0").astype(np.bytes_), words.astype(np.bytes_))


def test_control_calls_belong_to_the_control_port() -> None:
    with client() as (one, _, served):
        with pytest.raises(InferenceServerException, match=r"belongs to the control port \(start the server with"):
            one.load_model("sum")
        assert served.steady.calls == []
    with client(control=True) as (one, _, served):
        one.load_model("sum")
        one.unload_model("sum")
        assert served.steady.calls == [("load", "sum"), ("unload", "sum")]
        with pytest.raises(InferenceServerException, match="a load takes no parameters"):
            one.load_model("sum", config="{}")
        assert list(one.get_trace_settings().settings["trace_level"].value) == ["OFF"]
        kept = one.update_trace_settings(settings={"trace_rate": "1"})
        assert list(kept.settings["trace_rate"].value) == ["1"]
        assert one.get_log_settings().settings["log_info"].bool_param is True
        with pytest.raises(InferenceServerException, match="cannot be changed at run time"):
            one.update_log_settings({"log_verbose_level": 2})
        with pytest.raises(InferenceServerException, match="CUDA shared memory is not served"):
            one.register_cuda_shared_memory("c", b"eHh4eA==", 0, 8)
        one.unregister_cuda_shared_memory()
        assert not one.get_cuda_shared_memory_status().regions
        questions: tuple[Callable[[], Any], ...] = (
            lambda: one.get_cuda_shared_memory_status("c"),
            lambda: one.get_system_shared_memory_status("c"),
            lambda: one.get_trace_settings("nope"),
        )
        for unknown in questions:
            with pytest.raises(InferenceServerException) as refused:
                unknown()
            assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_the_repositorys_index_as_it_is_asked_for() -> None:
    with client() as (_, _, served), grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        served.steady.missing["late"] = "it is being loaded"
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/RepositoryIndex",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages()["RepositoryIndexResponse"].FromString,
        )
        asked = messages()["RepositoryIndexRequest"]
        assert [row.name for row in call(asked()).models] == ["sum", "late"]
        assert [row.name for row in call(asked(ready=True)).models] == ["sum"]
        with pytest.raises(grpc.RpcError, match="there is one repository, without a name") as refused:
            call(asked(repository_name="other"))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_shared_memory() -> None:
    key = f"/trtops-test-{uuid4().hex}"
    handle = shm.create_shared_memory_region("mine", key, 128)
    try:
        with client(control=True) as (one, _, _):
            one.unregister_system_shared_memory()
            shm.set_shared_memory_region(handle, [ONES])
            one.register_system_shared_memory("both", key, 128)
            assert one.get_system_shared_memory_status().regions["both"].byte_size == 128
            asked = triton.InferInput("x", [1, 4], "FP32")
            asked.set_shared_memory("both", 16)
            wanted = triton.InferRequestedOutput("y")
            wanted.set_shared_memory("both", 4, 64)
            output = one.infer("sum", [asked], outputs=[wanted]).get_output("y")
            assert (list(output.shape), len(output.parameters)) == ([1, 1], 0)  # as Triton answers
            assert shm.get_contents_as_numpy(handle, np.float32, [1, 1], 64)[0][0] == 4.0
            assert one.infer("sum", [asked]).as_numpy("y") == [[4.0]]
            one.unregister_system_shared_memory("both")
            assert not one.get_system_shared_memory_status().regions
    finally:
        shm.destroy_shared_memory_region(handle)


def test_numbers_as_protobuf_writes_them() -> None:
    assert [varint(number) for number in (0, 1, 127, 128, 300)] == [b"\0", b"\1", b"\x7f", b"\x80\1", b"\xac\2"]
