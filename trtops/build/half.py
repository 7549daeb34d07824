"""FP16 and BF16 as a rewrite of an ONNX graph, the same for every builder.

A node computes in the half type if all its floating-point inputs and outputs may have it by ONNX's own schemas. Casts
stand where the two worlds meet, inputs and outputs of the model stay float32, and weights are converted once. Nodes
that compute shapes, casts, quantization and nodes with graphs inside stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

FLOAT = 1

# Their result's type is an attribute's, or their numbers are indices, scales or seeds.
_LEFT_ALONE = frozenset(
    {
        "Bernoulli",
        "Cast",
        "CastLike",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "EyeLike",
        "Multinomial",
        "NonMaxSuppression",
        "QuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
_SHAPE_SOURCES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class HalfType:
    """A half type.

    Attributes:
        name: ``fp16`` or ``bf16``.
        onnx: ``TensorProto`` element type.
        largest: largest finite magnitude.
        opset: the first one that can cast to it.
    """

    name: str
    onnx: int
    largest: float
    opset: int


FP16 = HalfType("fp16", 10, 65504.0, 7)
BF16 = HalfType("bf16", 16, 3.3895313892515355e38, 13)

# ONNX allows bfloat16 in convolutions from opset 22 on only; TensorRT takes it wherever it takes float16.
_SCHEMA_TYPE = "tensor(float16)"


@dataclass(slots=True)
class Slots:
    """Positions of a node's inputs and outputs that take the half type."""

    inputs: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)


def float_tensors(model: Any) -> set[str]:  # noqa: ANN401 - onnx is untyped
    """Names of the main graph's tensors that are float32, as far as shape inference knows."""
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # noqa: BLE001 - onnx raises many types; what is not known is not converted
        graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {value.name for value in values if value.type.tensor_type.elem_type == FLOAT}
    return found | {tensor.name for tensor in graph.initializer if tensor.data_type == FLOAT}


def convertible(model: Any, floats: Collection[str]) -> dict[int, Slots]:  # noqa: ANN401 - onnx is untyped
    """Nodes of the main graph that may compute in a half type: index -> what of them does."""
    shapes = _shape_nodes(model)
    found = {}
    for index, node in enumerate(model.graph.node):
        if index not in shapes and (slots := _slots(model, node, floats)) is not None:
            found[index] = slots
    return found


def _slots(model: Any, node: Any, floats: Collection[str]) -> Slots | None:  # noqa: ANN401 - onnx is untyped
    import onnx

    if node.op_type in _LEFT_ALONE or node.domain not in {"", "ai.onnx"}:
        return None
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return None
    version = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return None
    allowed = {entry.type_param_str: set(entry.allowed_type_strs) for entry in schema.type_constraints}
    slots = Slots()
    bound = set()
    for place, name in enumerate(node.input):
        text = _type_of(schema.inputs, place)
        if name in floats and text in allowed:
            if _SCHEMA_TYPE not in allowed[text]:
                return None
            slots.inputs.add(place)
            bound.add(text)
    for place, name in enumerate(node.output):
        if name in floats and _type_of(schema.outputs, place) in bound:
            slots.outputs.add(place)
    return slots if slots.inputs else None


def _type_of(parameters: Sequence[Any], place: int) -> str:
    """The type of a node's n-th input or output in its schema; the last one may stand for many."""
    return str(parameters[min(place, len(parameters) - 1)].type_str) if parameters else ""


def _shape_nodes(model: Any) -> set[int]:  # noqa: ANN401 - onnx is untyped
    """Nodes that compute with shapes and constants only: halves would round sizes over 2048."""
    constant = {tensor.name for tensor in model.graph.initializer} | {""}
    sizes: set[str] = set()
    found = set()
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Constant":
            constant.update(node.output)
        elif node.op_type in _SHAPE_SOURCES:
            sizes.update(node.output)
        elif any(name in sizes for name in node.input) and all(name in sizes | constant for name in node.input):
            sizes.update(node.output)
            found.add(index)
    return found


def to_half(model: Any, kind: HalfType, chosen: Mapping[int, Slots]) -> None:  # noqa: ANN401 - onnx is untyped
    """Rewrite a model in place so that the chosen nodes compute in a half type.

    Args:
        model: an ``onnx.ModelProto``.
        kind: the half type.
        chosen: from :func:`convertible`, without what has to stay in FP32.
    """
    if chosen:
        _Rewrite(model, kind).run(chosen)


class _Rewrite:
    def __init__(self, model: Any, kind: HalfType) -> None:  # noqa: ANN401 - onnx is untyped
        self._graph = model.graph
        self._kind = kind
        inputs = {value.name for value in model.graph.input}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in inputs}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._weights[node.output[0]] = node.attribute[0].t
        self._taken = {name for node in model.graph.node for name in (*node.input, *node.output)} | set(self._weights)
        self._halves: dict[str, str] = {}
        self._single: set[str] = set()
        self._nodes: list[Any] = []
        self._made: list[Any] = []

    def run(self, chosen: Mapping[int, Slots]) -> None:
        for index, node in enumerate(self._graph.node):
            slots = chosen.get(index) or Slots()
            for place, name in enumerate(node.input):
                if place in slots.inputs:
                    node.input[place] = self._half(name)
                else:
                    self._restore(name)
            for name in _outer_names(node):
                self._restore(name)
            for place in slots.outputs:
                made = self._name(node.output[place])
                self._halves[node.output[place]] = made
                self._single.add(node.output[place])
                node.output[place] = made
            self._nodes.append(node)
        for value in self._graph.output:
            self._restore(value.name)
        self._finish()

    def _half(self, name: str) -> str:
        """The half version of a float32 tensor, made where it does not exist yet."""
        if name not in self._halves:
            self._halves[name] = self._name(name)
            if name in self._weights:
                self._made.append(self._converted(self._weights[name], self._halves[name]))
            else:
                self._cast(name, self._halves[name], self._kind.onnx)
        return self._halves[name]

    def _restore(self, name: str) -> None:
        """Have the float32 version of a tensor that only exists as half."""
        if name in self._single:
            self._single.discard(name)
            self._cast(self._halves[name], name, FLOAT)

    def _cast(self, source: str, target: str, to: int) -> None:
        import onnx

        self._nodes.append(onnx.helper.make_node("Cast", [source], [target], name=f"{target}/cast", to=to))

    def _name(self, name: str) -> str:
        made = f"{name}__{self._kind.name}"
        while made in self._taken:
            made += "_"
        self._taken.add(made)
        return made

    def _converted(self, tensor: Any, name: str) -> Any:  # noqa: ANN401 - onnx is untyped
        import onnx

        values = onnx.numpy_helper.to_array(tensor)
        return onnx.helper.make_tensor(
            name, self._kind.onnx, tensor.dims, half_bytes(values, self._kind).tobytes(), raw=True
        )

    def _finish(self) -> None:
        used = {name for node in self._nodes for name in (*node.input, *_outer_names(node))}
        used |= {value.name for value in (*self._graph.input, *self._graph.output)}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in used]
        nodes = [node for node in self._nodes if node.op_type != "Constant" or node.output[0] in used]
        for field_, values in (("node", nodes), ("initializer", [*kept, *self._made]), ("value_info", [])):
            self._graph.ClearField(field_)
            getattr(self._graph, field_).extend(values)


def half_bytes(values: NDArray[np.generic], kind: HalfType) -> NDArray[np.generic]:
    """Numbers rounded to the nearest half, ties to even, as NumPy's float16 or as the 16 bits of a bfloat16."""
    import numpy as np

    from trtops.accuracy.elements import encode

    with np.errstate(over="ignore"):
        return (
            values.astype(np.float16) if kind is FP16 else encode("bfloat16", np.atleast_1d(values.astype(np.float32)))
        )


def _outer_names(node: Any) -> Iterator[str]:  # noqa: ANN401 - onnx is untyped
    """Names that graphs inside a node read."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from _outer_names(inner)
            yield from (value.name for value in graph.output)
