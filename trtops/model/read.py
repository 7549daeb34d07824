"""Reads an ONNX file: its structure for preflight, and its facts as a value. The weights stay on the disk."""

from __future__ import annotations

import math
import mmap
import re
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from trtops.digest import Digest
from trtops.errors import InputError
from trtops.model.facts import ModelFacts
from trtops.model.wire import RAW_DATA, Malformed, Payload, skim
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_MODEL_BYTES = 2 << 30
"""ONNX files end here: protocol buffers carry no more."""
MAX_STRUCTURE_BYTES = 256 << 20
MAX_NODES = 200_000
"""Every node is inferred at every shape of every profile; models that are unrolled by mistake have more."""
MAX_DIMENSION = (1 << 31) - 1
MAX_RANK = 8
_MAX_NUMBER = (1 << 53) - 1

# TensorProto.DataType -> (name in trtops.tensor.DTYPES or None, bits an element)
ELEMENT_TYPES: Mapping[int, tuple[str | None, int]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: (None, 64),
    15: (None, 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3", 8),
    18: (None, 8),
    19: (None, 8),
    20: (None, 8),
    21: (None, 4),
    22: (None, 4),
    23: (None, 4),
    24: (None, 8),
    25: (None, 2),
    26: (None, 2),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_EXTERNAL = 1


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file that was opened.

    Attributes:
        path: where it is.
        size_bytes: its size.
        proto: the parsed ``onnx.ModelProto``; big tensors have no data.
        payloads: where the data of the big tensors is in the file.
    """

    path: Path
    size_bytes: int
    proto: Any
    payloads: tuple[Payload, ...]

    def nodes(self) -> Iterator[Any]:
        """Every node: of the graph, of graphs inside nodes, of local functions."""
        yield from nodes_of(self.proto.graph)
        for function in self.proto.functions:
            for node in function.node:
                yield from _inside(node)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Every constant tensor with its name: initializers, and values of ``Constant`` nodes."""
        yield from _initializers(self.proto.graph)
        for node in self.nodes():
            for attribute in node.attribute:
                yield from _initializers(attribute.g)
                for graph in attribute.graphs:
                    yield from _initializers(graph)
                held = [attribute.t] if attribute.HasField("t") else []
                for tensor in (*held, *attribute.tensors):
                    yield tensor.name or (node.output[0] if node.output else node.name), tensor


def _initializers(graph: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - protobuf has no types
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse.values


def nodes_of(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - protobuf has no types
    """Nodes of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield from _inside(node)


def _inside(node: Any) -> Iterator[Any]:  # noqa: ANN401 - protobuf has no types
    yield node
    for attribute in node.attribute:
        yield from nodes_of(attribute.g)
        for graph in attribute.graphs:
            yield from nodes_of(graph)


def open_model(path: Path) -> OnnxFile:
    """Parse the structure of an ONNX file.

    Raises:
        InputError: the file is missing, over 2 GiB, truncated, no ONNX file, or points to data outside its folder.
    """
    size = _size(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                structure, payloads = skim(view)
            finally:
                view.release()
    except Malformed as error:
        raise InputError(
            f"this is no ONNX file, or it was cut short: {error}",
            where=str(path),
            fix="fetch or export it again; compare its size and SHA-256 with the original's",
        ) from None
    except OSError as error:
        raise InputError(f"the model cannot be read: {error.strerror}", where=str(path), fix=_PERMISSIONS) from error
    if len(structure) > MAX_STRUCTURE_BYTES:
        raise InputError(
            f"the graph without its weights is over {MAX_STRUCTURE_BYTES >> 20} MiB",
            where=str(path),
            fix="remove embedded texts and unused nodes",
        )
    opened = OnnxFile(path, size, _parse(structure, path), payloads)
    _check(opened)
    return opened


_PERMISSIONS = "check the path and its permissions"


def _size(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the model cannot be read: {reason}", where=str(path), fix=_PERMISSIONS) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError("the model is not a file", where=str(path), fix="give the path of an ONNX file")
    if status.st_size > MAX_MODEL_BYTES:
        raise InputError("the model is over 2 GiB", where=str(path), fix="split it; protocol buffers end at 2 GiB")
    if status.st_size == 0:
        raise InputError("the model is an empty file", where=str(path), fix="fetch or export it again")
    return status.st_size


def _parse(structure: bytes, path: Path) -> Any:  # noqa: ANN401 - protobuf has no types
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(structure)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"this is no ONNX file: {error}", where=str(path), fix="fetch or export it again") from None
    if not proto.HasField("graph") or not proto.graph.output:
        raise InputError(
            "this is no ONNX model: it has no graph with outputs", where=str(path), fix="fetch or export it again"
        )
    return proto


def _check(model: OnnxFile) -> None:
    """Refuse what no later step could take: names that are no text, data outside the folder, sizes that disagree."""
    where = str(model.path)
    graph = model.proto.graph
    names = [value.name for value in (*graph.input, *graph.output)]
    count = 0
    for node in model.nodes():
        count += 1
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    if count > MAX_NODES:
        what = f"the model has {count} nodes, {MAX_NODES} are taken"
        raise InputError(what, where=where, fix="export loops as Loop or Scan instead of unrolling them")
    for name in names:
        if not isinstance(name, str) or _CONTROL.search(name):
            raise InputError(
                f"the name {name!r} in the model is not plain text",
                where=where,
                fix="rename it: names are UTF-8 without control characters",
            )
    left_out: dict[str, set[int]] = {}
    for payload in model.payloads:
        if payload.field == RAW_DATA:
            left_out.setdefault(payload.tensor, set()).add(payload.size)
    for name, tensor in model.tensors():
        if tensor.data_location == _EXTERNAL:
            _external(tensor, where)
            continue
        sizes = {len(tensor.raw_data)} if tensor.raw_data else left_out.get(name, set())
        if sizes and tensor_bytes(tensor) not in sizes:
            raise _disagrees(name, tensor, min(sizes), where)


def _disagrees(name: str, tensor: Any, size: int, where: str) -> InputError:  # noqa: ANN401 - protobuf has no types
    return InputError(
        f"the tensor {name!r} has {size} bytes, its shape {list(tensor.dims)} needs {tensor_bytes(tensor)}",
        where=where,
        fix="the file is damaged: fetch or export it again",
    )


def _external(tensor: Any, where: str) -> None:  # noqa: ANN401 - protobuf has no types
    """Refuse a path that leads out of the model's folder: it would read any file of the builder."""
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    posix = PurePosixPath(location)
    windows = PureWindowsPath(location)
    outside = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts or ".." in posix.parts
    if outside or not location:
        raise InputError(
            f"the tensor {tensor.name!r} keeps its data outside the model's folder: {location!r}",
            where=where,
            fix="save the model as one file: onnx.save_model(model, path, save_as_external_data=False)",
        )


def uses_external_data(model: OnnxFile) -> tuple[str, ...]:
    """Names of tensors whose data is in another file."""
    return tuple(name for name, tensor in model.tensors() if tensor.data_location == _EXTERNAL)


def tensor_bytes(tensor: Any) -> int:  # noqa: ANN401 - protobuf has no types
    """Bytes that a tensor of this type and shape has (0 for text, whose elements have no fixed size)."""
    _, bits = ELEMENT_TYPES.get(tensor.data_type, (None, 0))
    return math.ceil(math.prod(tensor.dims) * bits / 8) if math.prod(tensor.dims) > 0 else 0


def read_facts(path: Path) -> ModelFacts:
    """Read the facts of an ONNX file.

    Raises:
        InputError: the file is no ONNX model that trtops can take; the message names the file and the tensor.
    """
    model = open_model(path)
    return facts_of(model)


def facts_of(model: OnnxFile) -> ModelFacts:
    """Facts of a model that is open already. Raises as :func:`read_facts`."""
    proto = model.proto
    where = str(model.path)
    graph = proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    if any(not value.type.tensor_type.HasField("shape") for value in graph.output):
        _infer_outputs(proto)
    inputs = tuple(_tensor(value, "input", where) for value in graph.input if value.name not in weights)
    outputs = tuple(_tensor(value, "output", where) for value in graph.output)
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        repeated = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
        if repeated:
            raise InputError(f"two {kind} are named {repeated[0]!r}", where=where, fix="rename one of them")
    nodes = list(model.nodes())
    operators = Counter(f"{node.domain}::{node.op_type}" if _named(node.domain) else node.op_type for node in nodes)
    opset = {("" if entry.domain == "ai.onnx" else entry.domain): int(entry.version) for entry in proto.opset_import}
    if not opset:
        raise InputError("the model names no opset", where=where, fix="it was cut short or is damaged: export it again")
    return ModelFacts(
        content=Digest.of_file(model.path),
        size_bytes=model.size_bytes,
        ir_version=int(proto.ir_version),
        opset=opset,
        inputs=inputs,
        outputs=outputs,
        operators=dict(sorted(operators.items())),
        initializer_bytes=min(sum(tensor_bytes(tensor) for _, tensor in model.tensors()), _MAX_NUMBER),
        nodes=len(nodes),
    )


def _named(domain: str) -> bool:
    return domain not in ("", "ai.onnx")


def _infer_outputs(proto: Any) -> None:  # noqa: ANN401 - protobuf has no types
    """Give outputs without a shape the one that inference finds."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except Exception:  # noqa: BLE001 - whatever the library says, the output stays without a shape and is refused by name
        return
    found = {value.name: value for value in inferred.graph.output}
    for value in proto.graph.output:
        if not value.type.tensor_type.HasField("shape") and value.name in found:
            value.CopyFrom(found[value.name])


def _tensor(value: Any, kind: str, where: str) -> TensorInfo:  # noqa: ANN401 - protobuf has no types
    name = value.name
    if not name:
        raise InputError(f"an {kind} has no name", where=where, fix="name it in the export")
    held = value.type.WhichOneof("value")
    if held != "tensor_type":
        what = (held or "nothing").removesuffix("_type")
        raise InputError(
            f"the {kind} {name!r} is a {what}, not a tensor",
            where=where,
            fix="engines take and give dense tensors only",
        )
    tensor = value.type.tensor_type
    dtype, _ = ELEMENT_TYPES.get(tensor.elem_type, (None, 0))
    if dtype is None:
        import onnx

        known = onnx.TensorProto.DataType.values()
        shown = onnx.TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else tensor.elem_type
        raise InputError(
            f"the {kind} {name!r} has the element type {shown}",
            where=where,
            fix="convert it inside the model: clients cannot send or receive this type",
        )
    if not tensor.HasField("shape"):
        raise InputError(
            f"the {kind} {name!r} has no shape, and none can be inferred",
            where=where,
            fix="export it with its rank: TensorRT needs one, sizes may stay open",
        )
    shape = tuple(_dimension(dim, name, where) for dim in tensor.shape.dim)
    if len(shape) > MAX_RANK:
        raise InputError(f"the {kind} {name!r} has {len(shape)} dimensions", where=where, fix=f"use {MAX_RANK} at most")
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def _dimension(dim: Any, name: str, where: str) -> int | str:  # noqa: ANN401 - protobuf has no types
    """A dimension: fixed where it is positive, else dynamic (some exporters write -1 or 0 for "any")."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
        if dim.dim_value > MAX_DIMENSION:
            raise InputError(
                f"the tensor {name!r} has a dimension of {dim.dim_value}",
                where=where,
                fix=f"use {MAX_DIMENSION} at most",
            )
        return int(dim.dim_value)
    text = dim.dim_param
    if not isinstance(text, str) or _CONTROL.search(text):
        raise InputError(f"a dimension of {name!r} has a name that is not plain text", where=where, fix="rename it")
    return text
