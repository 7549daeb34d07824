"""Shapes of every tensor of a graph for given input shapes, and the nodes that cannot take them.

One pass over the nodes in their order, each by ONNX's own inference functions: ONNX Runtime runs the same ones when it
loads a model. Small integer computations on shapes (``Shape -> Slice -> Concat -> Reshape``) are evaluated on the way
by ONNX's reference implementation, which whole-graph inference with data propagation does not do for all operators.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.model.read import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtops.model.read import OnnxFile

FOLD_ELEMENTS = 4096
"""Constants up to this many elements are evaluated."""

# Operators that exporters compute shapes with.
_FOLDED = frozenset(
    re.findall(
        r"\w+",
        """Abs Add And Cast Ceil Concat Constant ConstantOfShape Div Equal Expand Floor Gather Greater GreaterOrEqual
        Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Range ReduceProd ReduceMax ReduceMin ReduceSum Reshape
        Size Slice Split Sqrt Squeeze Sub Tile Transpose Unsqueeze Where""",
    )
)
_TAG = re.compile(r"\[(Shape|Type)InferenceError\] ?")
_SPATIAL = re.compile(r"Conv|.*Pool")

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor.

    Attributes:
        data_type: ``TensorProto.DataType``; 0 if unknown.
        dims: sizes, None where unknown; None for a rank that is unknown.
    """

    data_type: int
    dims: Dims | None

    @property
    def elements(self) -> int | None:
        """Number of elements; None if unknown."""
        if self.dims is None:
            return None
        sizes = [dim for dim in self.dims if dim is not None]
        return math.prod(sizes) if len(sizes) == len(self.dims) else None

    @property
    def known(self) -> bool:
        """Whether every size is known."""
        return self.dims is not None and None not in self.dims

    @property
    def bits(self) -> int:
        """Bits an element."""
        return ELEMENT_TYPES.get(self.data_type, (None, 0))[1]


_NOTHING = Tensor(0, None)


@dataclass(frozen=True, slots=True)
class NodeError:
    """A node that cannot take its inputs."""

    node: str
    operator: str
    message: str


@dataclass(frozen=True)
class Inference:
    """What one pass found.

    Attributes:
        tensors: by name; inputs and constants too.
        errors: nodes that failed, in their order; what depends on one of them is unknown, not wrong.
        order: for each node that ran in order: its inputs and outputs.
        constants: names of tensors whose value does not depend on the inputs.
    """

    tensors: dict[str, Tensor]
    errors: tuple[NodeError, ...]
    order: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = field(repr=False)
    constants: frozenset[str] = field(repr=False)

    def output(self, name: str) -> Tensor:
        """A tensor by its name; wholly unknown if nothing is known of it."""
        return self.tensors.get(name, Tensor(0, None))


class Graph:
    """A model's graph, ready to be inferred at any input shapes.

    Attributes:
        proto: the graph, local functions inlined.
        opset: version by domain.
        types, tensors, constants: of the initializers, by name; what every pass begins with.
    """

    def __init__(self, model: OnnxFile) -> None:
        """Inline local functions and gather the constants."""
        self.proto = _inlined(model.proto)
        self.opset = {
            ("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in self.proto.opset_import
        }
        self.opset_imports = list(self.proto.opset_import)
        self._schemas: dict[tuple[str, str], Any] = {}
        self.types: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        for tensor in self.proto.graph.initializer:
            self.types[tensor.name] = _type(tensor.data_type, tuple(tensor.dims))
            if _complete(tensor):
                self.constants[tensor.name] = tensor
        self.tensors = {name: _read(value) for name, value in self.types.items()}

    def schema(self, operator: str, domain: str) -> Any:  # noqa: ANN401 - onnx has no types
        """What onnx knows of an operator in the model's opset; None where it knows nothing."""
        key = (operator, domain)
        if key not in self._schemas:
            import onnx

            version = self.opset.get(domain)
            if version is None or not onnx.defs.has(operator, version, domain):
                self._schemas[key] = None
            else:
                self._schemas[key] = onnx.defs.get_schema(operator, version, domain)
        return self._schemas[key]

    def infer(self, shapes: Mapping[str, tuple[int, ...]]) -> Inference:
        """Infer every tensor.

        Args:
            shapes: input name -> shape; inputs that are not here keep the sizes that the file gives them.
        """
        walk = _Pass(self, shapes)
        for node in self.proto.graph.node:
            walk.node(node)
        return walk.result()


def _inlined(proto: Any) -> Any:  # noqa: ANN401 - protobuf has no types
    if not proto.functions:
        return proto
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception:  # noqa: BLE001 - a function that cannot be inlined is an operator of unknown shape
        return proto


def _type(data_type: int, dims: tuple[int, ...]) -> Any:  # noqa: ANN401 - protobuf has no types
    from onnx import helper

    return helper.make_tensor_type_proto(data_type, dims)


def _complete(tensor: Any) -> bool:  # noqa: ANN401 - protobuf has no types
    """Whether a tensor is small and its data is in the parsed file."""
    if tensor.data_location or math.prod(tensor.dims) > FOLD_ELEMENTS or any(dim < 0 for dim in tensor.dims):
        return False
    held = (tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
    return any(held) or bool(tensor.string_data or tensor.uint64_data) or math.prod(tensor.dims) == 0


def _read(value: Any) -> Tensor:  # noqa: ANN401 - protobuf has no types
    """A tensor from its ``TypeProto``."""
    held = value.tensor_type
    if not held.HasField("shape"):
        return Tensor(held.elem_type, None)
    return Tensor(held.elem_type, tuple(_known(dim) for dim in held.shape.dim))


def _known(dim: Any) -> int | None:  # noqa: ANN401 - protobuf has no types
    return int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else None


class _Pass:
    """One pass over the nodes."""

    def __init__(self, graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._graph = graph
        self._types = dict(graph.types)
        self._tensors = dict(graph.tensors)  # of each type, read once
        self._constants = dict(graph.constants)
        self._fixed = set(self._types)
        self._errors: list[NodeError] = []
        self._order: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for value in graph.proto.graph.input:
            if value.name in self._types:
                continue
            elem_type = value.type.tensor_type.elem_type
            if value.name in shapes:
                self._learn(value.name, _type(elem_type, shapes[value.name]))
            else:
                self._learn(value.name, _open(value.type))

    def _learn(self, name: str, value: Any) -> None:  # noqa: ANN401 - protobuf has no types
        self._types[name] = value
        self._tensors[name] = _read(value)

    def result(self) -> Inference:
        return Inference(dict(self._tensors), tuple(self._errors), tuple(self._order), frozenset(self._fixed))

    def node(self, node: Any) -> None:  # noqa: ANN401 - protobuf has no types
        inputs = tuple(name for name in node.input if name)
        outputs = tuple(name for name in node.output if name)
        self._order.append((inputs, outputs))
        if all(name in self._fixed for name in inputs) and not _graphs(node):
            self._fixed.update(outputs)
        if any(name not in self._types for name in inputs):
            return
        try:
            found = self._infer(node, inputs)
        except _Unknown:
            return
        except Exception as error:  # noqa: BLE001 - the library raises several types that it does not export
            self._error(node, _TAG.sub("", str(error)).strip().splitlines()[0] if str(error) else repr(error))
            return
        for name, value in found.items():
            self._learn(name, value)
        if problem := _impossible(
            node, [self._seen(name) for name in node.input], [self._seen(name) for name in outputs]
        ):
            self._error(node, problem)
            for name in outputs:
                self._types.pop(name, None)
                self._tensors.pop(name, None)
            return
        self._fold(node, inputs, outputs)

    def _seen(self, name: str) -> Tensor:
        return self._tensors.get(name, _NOTHING)

    def _error(self, node: Any, message: str) -> None:  # noqa: ANN401 - protobuf has no types
        name = node.name or (node.output[0] if node.output else "")
        self._errors.append(NodeError(name, node.op_type, message))

    def _infer(self, node: Any, inputs: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401 - protobuf has no types
        import onnx

        schema = self._graph.schema(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
        if schema is None:
            raise _Unknown
        # What is around is in scope of a graph inside the node.
        types = self._types if _graphs(node) else {name: self._types[name] for name in inputs}
        data = {name: self._constants[name] for name in inputs if name in self._constants}
        found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            types,
            data,
            opset_imports=self._graph.opset_imports,
            ir_version=self._graph.proto.ir_version,
        )
        return found

    def _fold(self, node: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:  # noqa: ANN401 - no types
        """Evaluate a node on constants, so that a reshape further down knows its target."""
        if node.domain not in ("", "ai.onnx") or _graphs(node):
            return
        from onnx import numpy_helper

        if node.op_type == "Shape" and self._seen(inputs[0]).known and not node.attribute:
            import numpy as np

            dims = self._seen(inputs[0]).dims
            self._constants[outputs[0]] = numpy_helper.from_array(np.array(dims, dtype=np.int64))
            return
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        if node.op_type == "Constant" and values:
            if _complete(values[0]):
                self._constants[outputs[0]] = values[0]
            return
        if node.op_type not in _FOLDED or not all(name in self._constants for name in inputs):
            return
        sizes = [self._seen(name).elements for name in outputs]
        if all(size is not None and size <= FOLD_ELEMENTS for size in sizes):
            self._constants.update(self._evaluate(node, inputs, outputs))

    def _evaluate(self, node: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
        import numpy as np
        from onnx import helper, numpy_helper
        from onnx.reference import ReferenceEvaluator

        given = [helper.make_value_info(name, self._types[name]) for name in inputs]
        wanted = [helper.make_value_info(name, self._types[name]) for name in outputs]
        proto = helper.make_model(
            helper.make_graph([node], "fold", given, wanted),
            opset_imports=[helper.make_opsetid("", self._graph.opset[""])],
        )
        feeds = {name: numpy_helper.to_array(self._constants[name]) for name in inputs}
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(proto).run(None, feeds)
            return {
                name: numpy_helper.from_array(np.asarray(value)) for name, value in zip(outputs, results, strict=True)
            }
        except Exception:  # noqa: BLE001 - a constant that cannot be evaluated stays unknown
            return {}


class _Unknown(Exception):
    """An operator without inference."""


def _graphs(node: Any) -> bool:  # noqa: ANN401 - protobuf has no types
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _open(value: Any) -> Any:  # noqa: ANN401 - protobuf has no types
    """A copy of a type whose sizes that are not fixed have no names: equal names would mean equal sizes."""
    import onnx

    copy = onnx.TypeProto()
    copy.CopyFrom(value)
    for dim in copy.tensor_type.shape.dim:
        if dim.WhichOneof("value") != "dim_value" or dim.dim_value <= 0:
            dim.Clear()
    return copy


def _impossible(node: Any, inputs: list[Tensor], outputs: list[Tensor]) -> str | None:  # noqa: ANN401 - no types
    """What ONNX's inference lets pass and no runtime does."""
    return next(_impossibilities(node, inputs, outputs), None)


def _impossibilities(node: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Iterator[str]:  # noqa: ANN401 - no types
    if not inputs or not outputs:
        return
    given, made = inputs[0], outputs[0]
    if node.op_type == "Reshape" and given.known and made.known and given.elements != made.elements:
        yield f"{given.elements} elements {list(given.dims or ())} cannot be reshaped to {list(made.dims or ())}"
    if _SPATIAL.fullmatch(node.op_type) and given.elements and made.known and not made.elements:
        yield f"nothing is left of {list(given.dims or ())}: the window is larger than the input"
    if node.op_type == "Conv" and len(inputs) > 1 and given.known and inputs[1].known:
        group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        have, want = (given.dims or (0, 0))[1], (inputs[1].dims or (0, 0))[1]
        if have is not None and want is not None and have != want * group:
            yield f"{have} channels come in, the weights take {want * group}"
