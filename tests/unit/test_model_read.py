from __future__ import annotations

import hashlib
import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import linear, model, save, value
from trtops.errors import InputError
from trtops.model import wire
from trtops.model.read import ELEMENT_TYPES, MAX_NODES, open_model, read_facts
from trtops.model.wire import RAW_DATA, Malformed, skim
from trtops.tensor import DTYPES

if TYPE_CHECKING:
    from pathlib import Path


def refused(path: Path, words: str) -> InputError:
    with pytest.raises(InputError, match=words) as caught:
        read_facts(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix
    return caught.value


def bytes_at(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


class TestFacts:
    def test_what_a_file_says_of_itself(self, tmp_path: Path) -> None:
        facts = read_facts(save(linear(), tmp_path / "m.onnx"))
        assert [(t.name, t.dtype, t.shape) for t in facts.inputs] == [("x", "float32", ("batch", 4))]
        assert [(t.name, t.dtype, t.shape) for t in facts.outputs] == [("y", "float32", ("batch", 3))]
        assert facts.opset == {"": 17}
        assert facts.operators == {"MatMul": 1}
        assert facts.nodes == 1
        assert facts.initializer_bytes == 4 * 3 * 4
        assert facts.size_bytes == (tmp_path / "m.onnx").stat().st_size
        assert facts.content.value == hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()

    def test_initializers_that_are_inputs_are_weights(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.input.append(value("w", [4, 3]))
        assert [t.name for t in read_facts(save(proto, tmp_path / "m.onnx")).inputs] == ["x"]

    @pytest.mark.parametrize("size", [-1, 0])
    def test_sizes_that_mean_any_are_dynamic(self, tmp_path: Path, size: int) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
        assert read_facts(save(proto, tmp_path / "m.onnx")).inputs[0].shape == ("", 4)

    def test_an_output_without_a_shape_gets_the_inferred_one(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        assert read_facts(save(proto, tmp_path / "m.onnx")).outputs[0].shape == ("batch", 3)

    def test_operators_of_other_domains_and_inner_graphs_are_counted(self, tmp_path: Path) -> None:
        inner = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "inner", [], [value("n", ["batch", 4])])
        nodes = [
            helper.make_node("If", ["c"], ["a"], then_branch=inner, else_branch=inner),
            helper.make_node("Mine", ["a"], ["y"], domain="my.domain"),
        ]
        inputs = [value("x", ["batch", 4]), value("c", [], TensorProto.BOOL)]
        proto = model(nodes, inputs, [value("y", ["batch", 4])], domains=["my.domain"])
        assert read_facts(save(proto, tmp_path / "m.onnx")).operators == {"If": 1, "Neg": 2, "my.domain::Mine": 1}

    def test_weights_in_constant_nodes_are_weights(self, tmp_path: Path) -> None:
        weights = helper.make_tensor("", TensorProto.FLOAT16, [4, 3], np.ones(12, np.float16))
        nodes = [
            helper.make_node("Constant", [], ["w"], value=weights),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        proto = model(nodes, [value("x", ["n", 4], TensorProto.FLOAT16)], [value("y", ["n", 3], TensorProto.FLOAT16)])
        assert read_facts(save(proto, tmp_path / "m.onnx")).initializer_bytes == 24

    def test_every_type_that_clients_can_send_is_known(self) -> None:
        named = {name for name, _ in ELEMENT_TYPES.values() if name}
        assert named == set(DTYPES)
        for number, (name, bits) in ELEMENT_TYPES.items():
            if name and name != "string":
                assert bits == DTYPES[name][1] * 8, TensorProto.DataType.Name(number)


class TestRefused:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        refused(tmp_path / "none.onnx", "No such file")

    def test_a_folder_and_a_pipe(self, tmp_path: Path) -> None:
        refused(tmp_path, "not a file")
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "not a file")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        refused(bytes_at(tmp_path / "m.onnx", b""), "empty")

    def test_a_web_page(self, tmp_path: Path) -> None:
        refused(bytes_at(tmp_path / "m.onnx", b"<!DOCTYPE html><html>Not found</html>"), "no ONNX file")

    def test_a_file_over_two_gibibytes_is_not_read(self, tmp_path: Path) -> None:
        with (tmp_path / "m.onnx").open("wb") as file:
            file.truncate((2 << 30) + 1)
        refused(tmp_path / "m.onnx", "over 2 GiB")

    def test_protocol_buffers_that_are_no_model(self, tmp_path: Path) -> None:
        refused(bytes_at(tmp_path / "m.onnx", onnx.ModelProto(ir_version=8).SerializeToString()), "no graph")

    def test_every_truncation_is_refused(self, tmp_path: Path) -> None:
        whole = linear(width=64, classes=256).SerializeToString()
        for length in range(1, len(whole) - 1, max(1, len(whole) // 97)):
            refused(bytes_at(tmp_path / "m.onnx", whole[:length]), "no ONNX|cut short|names no opset")

    def test_damaged_bytes_are_refused_or_read_and_never_crash(self, tmp_path: Path) -> None:
        whole = linear(width=8).SerializeToString()
        draw = random.Random(7)
        for _ in range(300):
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            with suppress(InputError):
                assert read_facts(bytes_at(tmp_path / "m.onnx", bytes(damaged))).size_bytes == len(whole)

    def test_a_model_of_too_many_nodes(self, tmp_path: Path) -> None:
        count = MAX_NODES + 1
        nodes = [helper.make_node("Relu", ["x"], [f"t{index}"]) for index in range(count)]
        path = save(model(nodes, [value("x", ["n", 4])], [value("t0", ["n", 4])]), tmp_path / "m.onnx")
        refused(path, f"the model has {count} nodes, {MAX_NODES} are taken")

    def test_a_name_that_is_no_utf_8(self, tmp_path: Path) -> None:
        whole = linear().SerializeToString()
        refused(bytes_at(tmp_path / "m.onnx", whole.replace(b"matmul", b"mat\xff\xfel")), "not plain text")

    def test_a_name_that_would_colour_the_terminal(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.node[0].name = "a\x1b[31m"
        refused(save(proto, tmp_path / "m.onnx"), "not plain text")

    @pytest.mark.parametrize(
        "location", ["../weights", "/etc/passwd", "C:\\weights", "a/../../b", "\\\\host\\share", ""]
    )
    def test_data_outside_the_folder(self, tmp_path: Path, location: str) -> None:
        proto = linear()
        tensor = proto.graph.initializer[0]
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        error = refused(bytes_at(tmp_path / "m.onnx", proto.SerializeToString()), "outside the model's folder")
        assert "'w'" in str(error)

    def test_a_tensor_with_fewer_bytes_than_its_shape(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
        proto.graph.initializer[0].dims[0] = 1 << 40
        refused(bytes_at(tmp_path / "m.onnx", proto.SerializeToString()), "'w' has 48 bytes")

    def test_a_big_tensor_with_fewer_bytes_than_its_shape(self, tmp_path: Path) -> None:
        proto = linear(width=100, classes=200)
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((100, 200), np.float32), "w"))
        proto.graph.initializer[0].dims[0] = 101
        refused(bytes_at(tmp_path / "m.onnx", proto.SerializeToString()), "'w' has 80000 bytes")

    @pytest.mark.parametrize("dtype", [TensorProto.COMPLEX64, TensorProto.INT4, TensorProto.FLOAT8E5M2, 99])
    def test_a_type_that_no_client_can_send(self, tmp_path: Path, dtype: int) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.elem_type = dtype
        refused(save(proto, tmp_path / "m.onnx"), "'x' has the element type")

    def test_an_input_that_is_no_tensor(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1]))
        refused(save(proto, tmp_path / "m.onnx"), "'s' is a sequence")

    def test_an_input_without_a_rank(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.ClearField("shape")
        refused(save(proto, tmp_path / "m.onnx"), "'x' has no shape")

    def test_two_inputs_of_one_name(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.input.append(proto.graph.input[0])
        refused(save(proto, tmp_path / "m.onnx"), "two inputs are named 'x'")

    def test_a_dimension_beyond_every_index(self, tmp_path: Path) -> None:
        proto = linear()
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 60
        refused(save(proto, tmp_path / "m.onnx"), "dimension of")


class TestSkim:
    def big(self) -> Any:
        proto = linear(width=200, classes=300)
        proto.graph.initializer[0].CopyFrom(
            numpy_helper.from_array(np.arange(60000, dtype=np.float32).reshape(200, 300), "w")
        )
        return proto

    def test_weights_are_left_out_and_found_again(self) -> None:
        whole = self.big().SerializeToString()
        structure, payloads = skim(memoryview(whole))
        assert len(structure) < 1000
        (payload,) = payloads
        assert (payload.tensor, payload.data_type, payload.field) == ("w", TensorProto.FLOAT, RAW_DATA)
        there = np.frombuffer(whole[payload.offset : payload.offset + payload.size], np.float32)
        assert (there == np.arange(60000)).all()
        skeleton = onnx.ModelProto.FromString(structure)
        assert list(skeleton.graph.initializer[0].dims) == [200, 300]
        assert skeleton.graph.node[0].op_type == "MatMul"

    def test_constants_are_named_after_the_node_s_output(self, tmp_path: Path) -> None:
        tensor = numpy_helper.from_array(np.ones((100, 100), np.float32))
        node = helper.make_node("Constant", [], ["weights"], value=tensor)
        proto = model([node], [value("x", [1])], [value("weights", [100, 100])])
        opened = open_model(save(proto, tmp_path / "m.onnx"))
        assert [payload.tensor for payload in opened.payloads] == ["weights"]

    def test_nothing_is_left_out_of_a_small_file(self) -> None:
        whole = linear().SerializeToString()
        assert skim(memoryview(whole)) == (whole, ())

    def test_nesting_is_bounded(self) -> None:
        content = b"\x00" * wire.KEEP_BYTES
        for _ in range(wire.MAX_DEPTH):
            for tag in (0x32, 0x2A, 0x0A):  # attribute.g, node.attribute, graph.node
                content = bytes([tag]) + wire._varint(len(content)) + content
        with pytest.raises(Malformed, match="nested"):
            skim(memoryview(b"\x3a" + wire._varint(len(content)) + content))

    def test_a_tensor_in_a_thousand_pieces_is_refused(self) -> None:
        piece = b"\x22" + wire._varint(wire.KEEP_BYTES + 4) + b"\0" * (wire.KEEP_BYTES + 4)
        tensor = piece * 17
        graph = b"\x2a" + wire._varint(len(tensor)) + tensor
        with pytest.raises(Malformed, match="more than 16 parts"):
            skim(memoryview(b"\x3a" + wire._varint(len(graph)) + graph))
