"""What is inside an engine, as values: layers with their types, and memory. Backends fill them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trtops.digest import Value
from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Sidecar


class Layer(Value):
    """One layer of an engine.

    Attributes:
        name: as the builder calls it; a fused layer has the names of its parts.
        kind: operator or type of layer.
        precision: element types of its outputs, ``?`` where they are not known.
    """

    name: str
    kind: str
    precision: str = "?"


class Inspection(Value):
    """What an engine consists of.

    Attributes:
        layers: in the order of execution.
        weights_bytes: constants in the file; None where it does not tell.
        scratch_bytes: device memory that one context needs beside bindings; None where it does not tell.
    """

    layers: tuple[Layer, ...]
    weights_bytes: int | None = None
    scratch_bytes: int | None = None


@runtime_checkable
class Inspectable(Protocol):
    """A backend that can look into its engines."""

    def inspect(self, artifact: Path, sidecar: Sidecar) -> Inspection:
        """Look into an engine whose digest was verified and whose builder is trusted.

        Raises:
            NotLoadable: the file cannot be read here; says why.
        """


def inspect_onnx(artifact: Path) -> Inspection:
    """Look into an artifact that is an ONNX file.

    Raises:
        NotLoadable: it is none.
    """
    import onnx

    try:
        model = onnx.load(str(artifact), load_external_data=False)
    except Exception as error:
        raise NotLoadable(
            f"the artifact is no ONNX file: {error}", where=str(artifact), fix="build it again"
        ) from error
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # noqa: BLE001 - onnx raises many types; what is not inferred is shown as not known
        graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    _spread(model, kinds)
    layers = tuple(
        Layer(
            name=node.name or node.output[0],
            kind=f"{node.domain}::{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type,
            precision=_types(kinds, node),
        )
        for node in model.graph.node
    )
    return Inspection(layers=layers, weights_bytes=sum(_bytes(tensor) for tensor in model.graph.initializer))


_NAMES = {"float": "float32", "double": "float64"}


def _spread(model: Any, kinds: dict[str, int]) -> None:  # noqa: ANN401 - onnx is untyped
    """Element types behind operators that ONNX does not know, where its shape inference ends.

    An operator of ONNX's own follows its schema. One of another domain makes what it takes, if that is one type, as
    those do that ONNX Runtime fuses; of a mixture nothing is said.
    """
    versions = {entry.domain.replace("ai.onnx", ""): entry.version for entry in model.opset_import}
    for node in model.graph.node:
        taken = {kinds[name] for name in node.input if kinds.get(name)}
        standard = node.domain in {"", "ai.onnx"}
        for place, name in enumerate(node.output):
            if kinds.get(name):
                continue
            if standard:
                kinds[name] = _by_schema(node, place, kinds, versions.get("", 0))
            elif len(taken) == 1:
                kinds[name] = min(taken)


def _by_schema(node: Any, place: int, kinds: dict[str, int], version: int) -> int:  # noqa: ANN401 - onnx is untyped
    """Element type of a node's output whose schema says that an input has the same; 0 where it does not."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return 0
    if not schema.outputs or not schema.inputs:
        return 0
    wanted = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
    for number, name in enumerate(node.input):
        if schema.inputs[min(number, len(schema.inputs) - 1)].type_str == wanted and kinds.get(name):
            return kinds[name]
    return 0


def _types(kinds: dict[str, int], node: Any) -> str:  # noqa: ANN401 - onnx is untyped
    import onnx

    found = {kinds.get(name, 0) for name in node.output if name}
    names = (onnx.TensorProto.DataType.Name(kind).lower() if kind else "?" for kind in found)
    return ", ".join(sorted(_NAMES.get(name, name) for name in names)) or "?"


def _bytes(tensor: Any) -> int:  # noqa: ANN401 - onnx is untyped
    import onnx

    return int(onnx.numpy_helper.to_array(tensor).nbytes)
