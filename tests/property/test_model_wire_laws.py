from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.support.onnx_models import model, value
from trtops.model.wire import Malformed, skim


def tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [*proto.graph.initializer, *(node.attribute[0].t for node in proto.graph.node)]


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=6), st.integers(0, 600))
def test_structure_and_payloads_together_are_the_file(sizes: list[tuple[int, bool]], keep: int) -> None:
    weights = [numpy_helper.from_array(np.full(size, size, np.float32), f"t{n}") for n, (size, _) in enumerate(sizes)]
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor, (_, constant) in zip(weights, sizes, strict=True)
        if constant
    ]
    kept = [tensor for tensor, (_, constant) in zip(weights, sizes, strict=True) if not constant]
    whole = model(nodes, [value("x", [1])], [value("x", [1])], kept).SerializeToString()
    structure, payloads = skim(memoryview(whole), keep)
    skeleton = onnx.ModelProto.FromString(structure)
    left_out = {payload.tensor: payload for payload in payloads}
    for tensor in tensors(skeleton):
        if tensor.name in left_out:
            assert not tensor.raw_data
            payload = left_out[tensor.name]
            assert payload.size > keep
            tensor.raw_data = whole[payload.offset : payload.offset + payload.size]
    assert skeleton == onnx.ModelProto.FromString(whole)


@given(st.binary(max_size=200), st.integers(0, 64))
def test_no_bytes_make_it_crash(content: bytes, keep: int) -> None:
    try:
        structure, _ = skim(memoryview(content), keep)
    except Malformed:
        return
    assert len(structure) <= len(content)


@given(st.binary(max_size=200))
def test_what_is_kept_whole_comes_back_as_it_is(content: bytes) -> None:
    try:
        assert skim(memoryview(content), len(content)) == (content, ())
    except Malformed:
        return
