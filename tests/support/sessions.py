"""Sessions for tests: a plain function behind the port, and ONNX Runtime without the backend around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.generic]


def assert_close(actual: Any, expected: Any, **tolerance: Any) -> None:
    """``numpy.testing.assert_allclose`` for tensors of any type: numpy's annotation takes those of numbers only."""
    np.testing.assert_allclose(actual, expected, **tolerance)


class FunctionSession:
    """A session whose outputs a function computes. ``runs`` keeps the shapes of every call."""

    def __init__(
        self,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        function: Callable[[Mapping[str, Array]], dict[str, Array]],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.function = function
        self.runs: list[dict[str, tuple[int, ...]]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.runs.append({name: array.shape for name, array in inputs.items()})
        return self.function(inputs)

    def close(self) -> None:
        self.runs.clear()


class OnnxSession:
    """ONNX Runtime with optimisations off."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = tuple(
            TensorInfo(name=i.name, dtype="float32", shape=tuple(i.shape)) for i in self._session.get_inputs()
        )
        self.outputs = tuple(
            TensorInfo(name=o.name, dtype="float32", shape=tuple(o.shape)) for o in self._session.get_outputs()
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [info.name for info in self.outputs]
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))

    def close(self) -> None:
        del self._session


def small_classifier(seed: int = 7) -> onnx.ModelProto:
    """``x`` float32 [N, 3, 4, 4] -> convolution, mean over the image, dense, softmax -> ``y`` float32 [N, 8]."""
    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.standard_normal((6, 3, 3, 3)),
        "dense": random.standard_normal((6, 8)),
        "bias": random.standard_normal(8),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "dense", "bias"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def with_initializer(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> onnx.ModelProto:
    """A copy of the model with one initialiser changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
            return copy
    raise KeyError(name)
