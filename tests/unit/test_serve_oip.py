"""What the codec tells a client that is wrong: the tensor, what was expected, what came."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.serving import info, request_json, tensor
from trtops.errors import InputError, Retryable
from trtops.executor.port import Outcome
from trtops.serve.oip import Codec, NotAcceptable

DEEP = b"[" * 200_000 + b"]" * 200_000


def sum_codec() -> Codec:
    return Codec(info())


def two() -> Codec:
    return Codec(info("two", (tensor("a"), tensor("b", "int8", ("n",))), (tensor("y"),)))


def two_inputs(*inputs: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": list(inputs)}).encode()


A = {"name": "a", "shape": [2, 4], "datatype": "FP32", "data": [0] * 8}
B = {"name": "b", "shape": [2], "datatype": "INT8", "data": [1, 2]}

WRONG: list[tuple[str, bytes, str]] = [
    ("empty", b"", "body is empty"),
    ("not json", b"{", "not JSON"),
    ("not utf-8", b'{"inputs": [{"name": "\xff"}]}', "not JSON"),
    ("a list", b"[]", "Expected `object`"),
    ("no inputs", b"{}", "inputs"),
    ("inputs is no list", b'{"inputs": 3}', "Expected `array`"),
    ("no input at all", b'{"inputs": []}', "missing input 'x' (FP32 [-1,4])"),
    ("nested deeply", b'{"inputs": ' + DEEP + b"}", ""),
    ("nested deeply in data", request_json().replace(b"[1, 2, 3, 4]", DEEP), "nested too deeply"),
    ("unknown input", request_json(name="z"), "unknown input 'z': engine 'sum' takes 'x'"),
    ("a name of a million", request_json(name="z" * 1_000_000), "unknown input"),
    (
        "shape of strings",
        request_json(shape=["1", 4]),
        "input 'x': not an inference request: Expected `int`, got `str`",
    ),
    ("shape of floats", request_json(shape=[1.5, 4]), "input 'x'"),
    ("negative", request_json(shape=[-1, 4]), "input 'x': [-1,4] is no shape"),
    ("no shape", request_json(shape=[]), "input 'x': expected shape [-1,4], got []"),
    ("rank", request_json(shape=[4]), "input 'x': expected shape [-1,4], got [4]"),
    ("fixed size", request_json(shape=[1, 5]), "input 'x': expected shape [-1,4], got [1,5]"),
    ("no rows", request_json(shape=[0, 4], data=[]), "input 'x': expected 1 to 16 rows, got 0"),
    ("too many rows", request_json(shape=[17, 4]), "input 'x': expected 1 to 16 rows, got 17"),
    ("over 64 bits", request_json(shape=[2**64, 4]), "input 'x'"),
    ("product overflows", request_json(shape=[2**62, 2**62]), "input 'x'"),
    ("rank of a thousand", request_json(shape=[1] * 1000), "input 'x'"),
    ("datatype", request_json(datatype="INT32"), "input 'x': expected datatype FP32, got 'INT32'"),
    ("no such datatype", request_json(datatype="FLOAT"), "input 'x': expected datatype FP32, got 'FLOAT'"),
    ("too few", request_json(data=[1, 2, 3]), "input 'x': shape [1, 4] needs 4 elements, got data of 3 elements"),
    (
        "too many",
        request_json(data=[1, 2, 3, 4, 5]),
        "input 'x': shape [1, 4] needs 4 elements, got data of 5 elements",
    ),
    (
        "far too few",
        request_json(data=[]),
        "input 'x': shape [1, 4] needs 4 elements, got data of 0 elements",
    ),
    (
        "nested otherwise",
        request_json(data=[[1, 2], [3, 4]]),
        "input 'x': shape [1, 4] needs 4 elements, got data of shape [2, 2]",
    ),
    ("ragged", request_json(data=[[1, 2], [3]]), "input 'x': expected FP32 data of shape [1, 4]"),
    ("strings", request_json(data=["1", "2", "3", "4"]), "input 'x': data is not an array of FP32"),
    ("null", request_json(data=[None] * 4), "input 'x': data is not an array of FP32"),
    ("NaN", request_json(data=[float("nan")] * 4), "not JSON"),
    ("infinity", request_json(data=[float("inf")] * 4), "not JSON"),
    ("over the type's range", request_json(data=[1e39] * 4), "input 'x': data is not an array of FP32"),
    ("an object", request_json(data={"0": 1}), "input 'x'"),
    ("a number", request_json(data=3), "input 'x'"),
    ("no data", two_inputs({"name": "x", "shape": [1, 4], "datatype": "FP32"}), "input 'x': has no data"),
    (
        "shared memory",
        request_json(parameters={}).replace(b'"data": [1, 2, 3, 4]', b'"parameters": {"shared_memory_region": "r"}'),
        "input 'x': shared memory",
    ),
    ("sequence", request_json(parameters={"sequence_id": 3}), "parameter 'sequence_id'"),
    ("priority", request_json(parameters={"priority": -1}), "parameter 'priority'"),
    ("priority as text", request_json(parameters={"priority": "1"}), "parameter 'priority'"),
    ("timeout", request_json(parameters={"timeout": 1e99}), "parameter 'timeout'"),
    ("timeout true", request_json(parameters={"timeout": True}), "parameter 'timeout'"),
    ("flag", request_json(parameters={"binary_data_output": 1}), "parameter 'binary_data_output'"),
    ("unknown output", request_json(outputs=[{"name": "z"}]), "unknown output 'z': engine 'sum' gives 'y'"),
    ("output twice", request_json(outputs=[{"name": "y"}, {"name": "y"}]), "output 'y': is asked for twice"),
    (
        "classification",
        request_json(outputs=[{"name": "y", "parameters": {"classification": 3}}]),
        "output 'y': classification",
    ),
    (
        "output flag",
        request_json(outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]),
        "output 'y': parameter 'binary_data'",
    ),
    ("id of a megabyte", request_json(id="i" * 1_000_000), "id has 1000000 characters"),
    ("id as number", request_json(id=3), "Expected `str`"),
]


@pytest.mark.parametrize(("body", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_request_is_told_why(body: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        sum_codec().decode(body, None, 0.0)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([A], "missing input 'b' (INT8 [-1])"),
        ([A, A, B], "input 'a' is given twice"),
        ([A, {**B, "shape": [1], "data": [1]}], "input 'b': expected 2 rows like the inputs before it, got 1"),
        ([A, {**B, "data": [1, 300]}], "input 'b': data is not an array of INT8"),
        ([A, {**B, "data": [1, 1.5]}], "input 'b': data is not an array of INT8"),
        ([A, {**B, "data": [True, 1]}], "input 'b': data is not an array of INT8"),
        ([A, {**B, "shape": "2"}], "input 'b': not an inference request"),
        ([A, {**B, "parameters": None}], "input 'b': not an inference request"),
    ],
)
def test_each_input_is_named(inputs: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        two().decode(two_inputs(*inputs), None, 0.0)
    assert message in str(caught.value)


def binary(size: Any, tail: bytes = bytes(16), **more: Any) -> tuple[bytes, int]:
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": size}, **more}
    text = json.dumps({"inputs": [entry]}).encode()
    return text + tail, len(text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (binary(16, bytes(15)), "input 'x': binary_data_size is 16, and 15 bytes are left in the body"),
        (binary(16, bytes(17)), "17 bytes follow the JSON, and the inputs' binary_data_size add up to 16"),
        (binary(12, bytes(12)), "input 'x': FP32 of shape [1, 4] needs 16 bytes, binary_data_size is 12"),
        (binary(-1), "input 'x': parameter 'binary_data_size'"),
        (binary(2**70), "input 'x': parameter 'binary_data_size'"),
        (binary("16"), "input 'x': parameter 'binary_data_size'"),
        (binary(16, data=[1]), "input 'x': has both data and binary_data_size"),
    ],
)
def test_binary_sizes_have_to_fit(body: tuple[bytes, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        sum_codec().decode(body[0], body[1], 0.0)
    assert message in str(caught.value)


@pytest.mark.parametrize("header", [0, 10_000])
def test_the_header_length_has_to_lie_in_the_body(header: int) -> None:
    with pytest.raises(InputError, match="Inference-Header-Content-Length"):
        sum_codec().decode(binary(16)[0], header, 0.0)


def test_a_remembered_header_does_not_let_another_length_through() -> None:
    codec = sum_codec()
    body, header = binary(16)
    codec.decode(body, header, 0.0)
    assert len(codec._plans) == 1
    for wrong in (body[:-1], body + b"x"):
        with pytest.raises(InputError):
            codec.decode(wrong, header, 0.0)


def test_remembered_headers_are_bounded() -> None:
    codec = sum_codec()
    for count in range(1000):
        text = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [1, 4],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": 16, "n": count},
                    }
                ]
            }
        )
        codec.decode(text.encode() + bytes(16), len(text), 0.0)
    assert 0 < len(codec._plans) <= 256


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x05\0\0\0abcd", "BYTES element 0 says 5 bytes, and 4 are left"),
        (b"\x04\0\0\0abcd\x01\0", "BYTES element 1 of 2 has no length"),
        (b"\x01\0\0\0a\0\0\0\0z", "1 byte left over after 2 BYTES elements"),
        (b"\xff\xff\xff\xff" * 2, "says 4294967295 bytes"),
        (b"", "need 8 bytes at least, got 0"),
        (b"\x01\0\0\0a\x01\0\0\0\xff", "BYTES element 1 is no UTF-8 text"),
    ],
)
def test_bytes_elements_are_bounded_by_the_data(data: bytes, message: str) -> None:
    codec = Codec(info("text", (tensor("t", "string", ("n",)),), (tensor("y"),)))
    entry = {"name": "t", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(InputError) as caught:
        codec.decode(text + data, len(text), 0.0)
    assert "input 't'" in str(caught.value)
    assert message in str(caught.value)


def test_a_huge_shape_with_little_data_is_refused_before_anything_is_made() -> None:
    codec = Codec(info("wide", (tensor("x", shape=("n", "w")),), (tensor("y"),)))
    with pytest.raises(InputError, match="needs 4611686018427387904 elements"):
        codec.decode(request_json(shape=[1, 2**62]), None, 0.0)
    text = request_json(shape=[1, 2**62], parameters={}).replace(
        b'"data": [1, 2, 3, 4]', b'"parameters": {"binary_data_size": 4}'
    )
    with pytest.raises(InputError, match="binary_data_size is 4"):
        codec.decode(text + bytes(4), len(text), 0.0)


def test_booleans_of_other_bytes_are_made_true() -> None:
    codec = Codec(info("flags", (tensor("x", "bool", ("n", 4)),), (tensor("y"),)))
    text = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "BOOL", "parameters": {"binary_data_size": 4}}]}
    ).encode()
    decoded = codec.decode(text + b"\0\1\2\xff", len(text), 0.0)
    assert decoded.request.inputs["x"].view(np.uint8).tolist() == [[0, 1, 1, 1]]


def test_bf16_travels_in_binary_only() -> None:
    codec = Codec(info("half", (tensor("x", "bfloat16"),), (tensor("y", "bfloat16"),)))
    with pytest.raises(InputError, match="input 'x': BF16 has no JSON form"):
        codec.decode(request_json(datatype="BF16"), None, 0.0)
    text = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "BF16", "parameters": {"binary_data_size": 8}}]}
    ).encode()
    decoded = codec.decode(text + bytes(range(8)), len(text), 0.0)
    assert decoded.request.inputs["x"].tolist() == [[0x0100, 0x0302, 0x0504, 0x0706]]
    with pytest.raises(NotAcceptable, match="output 'y'"):
        codec.encode(decoded, Outcome({"y": decoded.request.inputs["x"]}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_that_json_cannot_carry_is_refused_and_binary_takes_it(value: float) -> None:
    codec = sum_codec()
    outcome = Outcome({"y": np.array([[value]], np.float32)})
    decoded = codec.decode(request_json(), None, 0.0)
    with pytest.raises(NotAcceptable, match="output 'y'"):
        codec.encode(decoded, outcome)
    decoded = codec.decode(request_json(outputs=[{"name": "y", "parameters": {"binary_data": True}}]), None, 0.0)
    assert codec.encode(decoded, outcome).parts[1] == np.float32(value).tobytes()


def test_an_output_that_is_gone_after_a_swap_is_retryable() -> None:
    codec = sum_codec()
    with pytest.raises(Retryable, match="'y'"):
        codec.encode(codec.decode(request_json(), None, 0.0), Outcome({"z": np.zeros((1, 1), np.float32)}))


def test_the_largest_uint64_and_only_it_fits() -> None:
    codec = Codec(info("big", (tensor("x", "uint64"),), (tensor("y"),)))
    decoded = codec.decode(request_json(datatype="UINT64", data=[0, 1, 2**63, 2**64 - 1]), None, 0.0)
    assert decoded.request.inputs["x"].tolist() == [[0, 1, 2**63, 2**64 - 1]]
    for wrong in (-1, 2**64):
        with pytest.raises(InputError, match="input 'x'"):
            codec.decode(request_json(datatype="UINT64", data=[0, 1, 2, wrong]), None, 0.0)


def test_an_engine_without_a_batch_axis_takes_its_own_shapes() -> None:
    inputs = (tensor("x", shape=(4,)), tensor("t", shape=()), tensor("w", "int32", (2, "k")))
    codec = Codec(info("alone", inputs, (tensor("y", shape=(4,)),), max_batch=1))
    x = {"name": "x", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    t = {"name": "t", "shape": [], "datatype": "FP32", "data": [0.5]}
    w = {"name": "w", "shape": [2, 3], "datatype": "INT32", "data": [[1, 2, 3], [4, 5, 6]]}
    for _ in range(2):
        decoded = codec.decode(two_inputs(x, t, w), None, 0.0)
        assert decoded.request.rows == 1
        assert {name: array.shape for name, array in decoded.request.inputs.items()} == {
            "x": (4,),
            "t": (),
            "w": (2, 3),
        }
    with pytest.raises(InputError, match=r"input 'x': expected shape \[4\], got \[3\]"):
        codec.decode(two_inputs({**x, "shape": [3]}, t, w), None, 0.0)
