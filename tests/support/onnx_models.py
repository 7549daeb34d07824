"""Small ONNX models for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def value(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def linear(rows: str | int = "batch", width: int = 4, classes: int = 3, value_of: float = 0.5) -> Any:
    """``y = x @ w`` with ``x`` [rows, width]."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [width, classes], [value_of] * (width * classes))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")
    return model([node], [value("x", [rows, width])], [value("y", [rows, classes])], [weights])


def save(proto: Any, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path
