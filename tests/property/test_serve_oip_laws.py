"""Laws of the protocol's codec: what goes out comes back, and no bytes at all bring it down."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.serving import info, tensor
from trtops.errors import InputError
from trtops.executor.port import Outcome
from trtops.serve import elements
from trtops.serve.oip import Codec, NotAcceptable
from trtops.tensor import DTYPES

NUMERIC = sorted(name for name in DTYPES if name != "string")
JSON_NUMERIC = [name for name in NUMERIC if name not in {"bfloat16", "float8_e4m3"}]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)


def finite(dtype: str) -> Any:
    kind = elements.NUMPY[dtype]
    if kind.kind == "f":
        return hnp.from_dtype(kind, allow_nan=False, allow_infinity=False)
    return hnp.from_dtype(kind)


@st.composite
def arrays(draw: Any, dtypes: list[str], *, anything: bool = False) -> tuple[str, np.ndarray[Any, Any]]:
    dtype = draw(st.sampled_from(dtypes))
    kind = elements.NUMPY[dtype]
    values = hnp.from_dtype(kind) if anything else finite(dtype)
    return dtype, draw(hnp.arrays(kind, draw(SHAPES), elements=values))


@st.composite
def texts(draw: Any) -> np.ndarray[Any, Any]:
    shape = draw(SHAPES)
    count = elements.count_of(shape)
    flat = np.empty(count, object)
    flat[:] = draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=count, max_size=count)
    )
    return flat.reshape(shape)


@given(arrays(NUMERIC, anything=True), st.integers(0, 9))
def test_binary_comes_back_bit_by_bit(given_: tuple[str, np.ndarray[Any, Any]], offset: int) -> None:
    dtype, array = given_
    data = elements.to_binary(array, dtype)
    body = b"\xaa" * offset + data + b"\xbb"
    back = elements.from_binary(body, offset, len(data), dtype, array.shape, "x")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.aligned


@given(arrays(JSON_NUMERIC), st.booleans())
def test_json_comes_back_exactly_flat_and_nested(given_: tuple[str, np.ndarray[Any, Any]], nested: bool) -> None:
    dtype, array = given_
    text = json.dumps(array.tolist()).encode() if nested else elements.to_json(array, dtype)
    assert text is not None
    back = elements.from_json(msgspec.Raw(text), dtype, array.shape, "x")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


@given(texts())
def test_bytes_come_back(array: np.ndarray[Any, Any]) -> None:
    data = elements.to_binary(array, "string")
    back = elements.from_binary(data, 0, len(data), "string", array.shape, "x")
    assert back.tolist() == array.tolist()
    text = elements.to_json(array, "string")
    assert text is not None
    assert elements.from_json(msgspec.Raw(text), "string", array.shape, "x").tolist() == array.tolist()


@given(arrays(["float16", "float32", "float64"], anything=True))
def test_what_json_cannot_carry_is_never_written(given_: tuple[str, np.ndarray[Any, Any]]) -> None:
    dtype, array = given_
    text = elements.to_json(array, dtype)
    assert (text is None) == (not np.isfinite(array).all())


@pytest.fixture(scope="module")
def codec() -> Codec:
    inputs = (tensor("a", "float32", ("n", "k")), tensor("b", "int64", ("n", 2)), tensor("c", "string", ("n",)))
    return Codec(info("mixed", inputs, (tensor("y", "float32", ("n", "k")), tensor("s", "string", ("n",)))))


def document(rows: int, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    a = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    b = np.arange(rows * 2, dtype=np.int64).reshape(rows, 2)
    c = np.array([f"t{row}" for row in range(rows)], object)
    described, tail = [], []
    for name, dtype, array in (("a", "float32", a), ("b", "int64", b), ("c", "string", c)):
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": DTYPES[dtype][0]}
        if binary:
            tail.append(elements.to_binary(array, dtype))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = array.tolist()
        described.append(entry)
    return {"inputs": described}, b"".join(tail)


@given(st.integers(1, 16), st.booleans(), st.booleans(), st.text(max_size=20))
def test_a_request_means_the_same_in_both_forms(
    codec: Codec, rows: int, binary: bool, out: bool, identity: str
) -> None:
    whole, tail = document(rows, binary=binary)
    whole |= {"id": identity, "parameters": {"binary_data_output": out, "timeout": 5000, "priority": 2}}
    text = json.dumps(whole).encode()
    for _ in range(2):  # the second time from the plan that the first one left
        decoded = codec.decode(text + tail, len(text) if binary else None, 100.0)
        assert decoded.request.rows == rows
        assert decoded.request.deadline == pytest.approx(100.005)
        assert decoded.request.priority == 1
        assert decoded.request.inputs["a"].tolist() == np.arange(rows * 3).reshape(rows, 3).tolist()
        assert decoded.request.inputs["b"].tolist() == np.arange(rows * 2).reshape(rows, 2).tolist()
        assert decoded.request.inputs["c"].tolist() == [f"t{row}" for row in range(rows)]
    outputs = {"y": decoded.request.inputs["a"] * 2, "s": decoded.request.inputs["c"]}
    answer = codec.encode(decoded, Outcome(outputs, generation=1))
    body = b"".join(answer.parts)
    head = json.loads(body[: answer.json_bytes])
    assert head.get("id", "") == identity
    assert [output["name"] for output in head["outputs"]] == ["y", "s"]
    if not out:
        assert answer.json_bytes is None
        assert head["outputs"][0]["data"] == (np.arange(rows * 3) * 2.0).tolist()
    else:
        size = head["outputs"][0]["parameters"]["binary_data_size"]
        assert body[answer.json_bytes :][:size] == outputs["y"].tobytes()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["FP32", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["inputs", "name", "shape", "datatype", "data", "parameters", "outputs", "id", "binary_data_size"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


def survives(codec: Codec, body: bytes, header: int | None) -> None:
    """A body is read, or refused with a message; nothing else."""
    with suppress(InputError, NotAcceptable):
        decoded = codec.decode(body, header, 0.0)
        outputs = {"y": decoded.request.inputs["a"], "s": decoded.request.inputs["c"]}
        codec.encode(decoded, Outcome(outputs, generation=1))


@given(JSON, st.none() | st.integers(-5, 200), st.binary(max_size=40))
def test_any_json_is_read_or_refused(codec: Codec, value: Any, header: int | None, tail: bytes) -> None:
    survives(codec, json.dumps(value).encode() + tail, header)


@given(st.binary(max_size=200), st.none() | st.integers(-5, 250))
def test_any_bytes_are_read_or_refused(codec: Codec, body: bytes, header: int | None) -> None:
    survives(codec, body, header)


@given(st.integers(1, 4), st.booleans(), st.data())
def test_a_good_request_with_one_thing_changed_is_read_or_refused(
    codec: Codec, rows: int, binary: bool, data: st.DataObject
) -> None:
    whole, tail = document(rows, binary=binary)
    which = data.draw(st.integers(0, 2))
    field = data.draw(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]))
    whole["inputs"][which][field] = data.draw(JSON)
    text = json.dumps(whole).encode()
    survives(codec, text + tail, len(text) if binary else None)


@given(st.integers(1, 4), st.booleans(), st.data())
def test_a_good_request_with_one_byte_changed_is_read_or_refused(
    codec: Codec, rows: int, binary: bool, data: st.DataObject
) -> None:
    whole, tail = document(rows, binary=binary)
    text = json.dumps(whole).encode()
    body = bytearray(text + tail)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(codec, bytes(body), len(text) if binary else None)


@given(
    arrays(JSON_NUMERIC),
    st.booleans(),
    st.sampled_from(["", "data", "shape", "datatype", "more", "parameters"]),
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from(["", "r1", "i" * 1025]),
            "parameters": st.sampled_from(
                [
                    {},
                    {"priority": 2, "timeout": 5000},
                    {"timeout": "soon"},
                    {"binary_data_output": True},
                    {"routing_key": "k"},
                ]
            ),
            "outputs": st.sampled_from([[], [{"name": "y"}], [{"name": "z"}], [{"name": "y"}, {"name": "y"}], [1]]),
        },
    ),
)
def test_the_common_request_is_read_as_every_other(
    given_: tuple[str, np.ndarray[Any, Any]], nested: bool, fault: str, about_it: dict[str, Any]
) -> None:
    """One pass or two, the same arrays come, and the same words of complaint."""
    dtype, array = given_
    about = info(inputs=(tensor("x", dtype, ("n", *array.shape[1:])),), outputs=(tensor("y", dtype),), max_batch=16)
    document: dict[str, Any] = {"name": "x", "shape": list(array.shape), "datatype": DTYPES[dtype][0]}
    document["data"] = (array if nested else array.ravel()).tolist()
    wrong = {"data": [*array.ravel().tolist(), 1], "shape": [1, *array.shape], "datatype": "BOO", "more": 1}
    document |= {fault: wrong.get(fault, {})} if fault else {}
    body = msgspec.json.encode({"inputs": [document], **about_it})

    def read(codec: Codec) -> Any:
        try:
            decoded = codec.decode(body, None, 1.0)
        except InputError as error:
            return str(error)
        x = decoded.request.inputs["x"]
        request = decoded.request
        return (
            x.dtype,
            x.shape,
            x.tobytes(),
            request.rows,
            request.deadline,
            request.priority,
            decoded.id,
            decoded.wanted,
        )

    slow = Codec(about)
    slow._quick._decoder = None
    quick = Codec(about)
    assert read(quick) == read(slow)
    assert read(quick) == read(slow), "the second time, from what it remembers"
