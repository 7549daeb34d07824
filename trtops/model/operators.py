"""Operators, precision and quantization: what a backend would refuse or misread, seen in the ONNX file."""

from __future__ import annotations

import fnmatch
import mmap
from typing import TYPE_CHECKING, Any

from trtops.model.facts import Fact
from trtops.model.plugins import brings
from trtops.model.wire import DOUBLE_DATA, FLOAT_DATA, RAW_DATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.model.read import OnnxFile
    from trtops.spec.engine import EngineSpec, Precision, Target

FP16_MAX = 65504.0
"""Largest finite IEEE 754 half: (2 - 2**-10) * 2**15."""

_FLOAT, _UINT8, _INT32, _DOUBLE, _BFLOAT16 = 1, 2, 6, 11, 16
_NUMPY_TYPES: Mapping[int, str] = {_FLOAT: "<f4", _DOUBLE: "<f8"}
_STEP = 16 << 20
_MEANS = frozenset({"ReduceMean", "ReduceSum", "GlobalAveragePool"})
# Domains whose operators ONNX Runtime brings along.
_ONNXRUNTIME_DOMAINS = frozenset(
    {"com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc"}
)
_SHOWN = 3


def operator_facts(spec: EngineSpec, model: OnnxFile) -> Iterator[Fact]:
    """Operators that a target's backend does not know."""
    import onnx

    opset = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if opset.get("", 0) > newest:
        yield Fact(
            code="model.opset-unknown",
            severity="warning",
            message=f"the model uses opset {opset['']}; the installed onnx {onnx.__version__} knows up to {newest}",
            fix="export it with an older opset, or `pip install -U onnx`",
        )
    local = {(function.domain, function.name) for function in model.proto.functions}
    seen: dict[tuple[str, str], list[str]] = {}
    for node in model.nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        key = (domain, node.op_type)
        if (node.domain, node.op_type) in local or _known(domain, node.op_type, opset):
            continue
        seen.setdefault(key, []).append(node.name or (node.output[0] if node.output else ""))
    for (domain, operator), nodes in seen.items():
        # A parser looks for a plugin of this name where ONNX has no such operator: also without a domain.
        if domain == "" and not any(_plugged(spec, target, operator) for target in spec.targets):
            yield _unknown(operator, nodes, opset.get("", 0))
        else:
            yield from _custom(spec, domain, operator, nodes)


def _known(domain: str, operator: str, opset: Mapping[str, int]) -> bool:
    import onnx

    version = opset.get(domain)
    if domain == "" and version is not None and version > onnx.defs.onnx_opset_version():
        return bool(onnx.defs.has(operator, domain))
    return version is not None and bool(onnx.defs.has(operator, version, domain))


def _unknown(operator: str, nodes: list[str], version: int) -> Fact:
    return Fact(
        code="model.unknown-operator",
        severity="error",
        message=f"ONNX opset {version} has no operator {operator!r} ({_listed(nodes)})",
        node=nodes[0],
        fix="export the model again with the opset that has it, or give the node its own domain",
    )


def _custom(spec: EngineSpec, domain: str, operator: str, nodes: list[str]) -> Iterator[Fact]:
    refusing = [target.id for target in spec.targets if not _takes(spec, target, domain, operator)]
    severity = "error" if len(refusing) == len(spec.targets) else "warning"
    if not refusing:
        return
    yield Fact(
        code="model.custom-operator",
        severity=severity,
        message=f"the operator {f'{domain}::' if domain else ''}{operator} ({_listed(nodes)}) is not ONNX's own; "
        f"no engine for {', '.join(refusing)}",
        path=("builder", "plugins"),
        node=nodes[0],
        fix=f"name its plugin: `builder: {{plugins: [{{name: {operator}}}]}}`, export the model without it, "
        "or drop these targets",
    )


def _takes(spec: EngineSpec, target: Target, domain: str, operator: str) -> bool:
    if target.backend == "onnxruntime":
        return domain in _ONNXRUNTIME_DOMAINS
    return target.backend == "fake" or _plugged(spec, target, operator)


def _plugged(spec: EngineSpec, target: Target, operator: str) -> bool:
    """Whether a target's backend has a plugin of this name, or the spec names one."""
    if not target.backend.startswith("tensorrt"):
        return False
    named = any(plugin.name == operator or plugin.library for plugin in spec.builder.plugins)
    return named or brings(target.backend, operator)


def _listed(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"node {', '.join(nodes[:_SHOWN])}{more}"


def uses_tensorrt(spec: EngineSpec) -> tuple[str, ...]:
    """Ids of the targets that TensorRT or TensorRT-RTX builds."""
    return tuple(target.id for target in spec.targets if target.backend.startswith("tensorrt"))


def quantization_facts(spec: EngineSpec, model: OnnxFile) -> Iterator[Fact]:
    """Quantize and dequantize nodes that TensorRT refuses or misreads (design §7), and INT8 without ranges."""
    nodes = [node for node in model.nodes() if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if spec.precision.mode == "int8" and not nodes and spec.precision.calibration is None:
        yield Fact(
            code="precision.int8-without-ranges",
            severity="error",
            message="precision is int8, but the model has no QuantizeLinear nodes and the spec no calibration",
            path=("precision", "mode"),
            fix="add `precision.calibration`, or quantize the model (QDQ) before",
        )
    targets = uses_tensorrt(spec)
    if not targets or not nodes:
        return
    tensors = dict(model.tensors())
    for node in nodes:
        yield from _quantized(node, tensors, ", ".join(targets))


def _quantized(node: Any, tensors: Mapping[str, Any], targets: str) -> Iterator[Fact]:  # noqa: ANN401 - no types
    name = node.name or node.output[0]
    zero = tensors.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None  # noqa: PLR2004
    chosen = next((attribute.i for attribute in node.attribute if attribute.name == "output_dtype"), 0)
    # Without a zero point, QuantizeLinear makes uint8.
    default = _UINT8 if node.op_type == "QuantizeLinear" and not chosen and len(node.input) <= 2 else chosen  # noqa: PLR2004
    data_type = zero.data_type if zero is not None else default
    if data_type == _UINT8:
        yield Fact(
            code="model.qdq-uint8",
            severity="error",
            message=f"{node.op_type} quantizes to uint8, which TensorRT reads as int8 without a word ({targets})",
            node=name,
            fix="quantize with int8: quantize_static(..., activation_type=QuantType.QInt8, "
            "extra_options={'ActivationSymmetric': True})",
        )
    elif zero is not None and any(_values(zero)):
        yield Fact(
            code="model.qdq-zero-point",
            severity="error",
            message=f"{node.op_type} has a zero point that is not 0, which TensorRT refuses ({targets})",
            node=name,
            fix="quantize symmetrically: extra_options={'ActivationSymmetric': True, 'WeightSymmetric': True}",
        )
    held = tensors.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
    if held is not None and held.data_type == _INT32:
        yield Fact(
            code="model.qdq-int32-bias",
            severity="error",
            message=f"DequantizeLinear of the int32 bias {node.input[0]!r}, which TensorRT refuses ({targets})",
            node=name,
            fix="leave biases in float: extra_options={'QuantizeBias': False}",
        )


def _values(tensor: Any) -> NDArray[np.generic]:  # noqa: ANN401 - protobuf has no types
    from onnx import numpy_helper

    array: NDArray[np.generic] = numpy_helper.to_array(tensor)
    return array.reshape(-1)


def selects(selector: str, name: str, operator: str) -> bool:
    """Whether a selector of ``keep_fp32`` means a node: ``op:TYPE``, ``node:NAME`` (that one name), or a glob."""
    kind, colon, rest = selector.partition(":")
    if colon and kind == "op":
        return operator == rest
    if colon and kind == "node":
        return name == rest
    return fnmatch.fnmatchcase(name, selector)


def node_names(graph: Any) -> list[str]:  # noqa: ANN401 - protobuf has no types
    """A name for each node of a graph: its own where it has one that no node before it has, else ``TYPE_INDEX``."""
    seen: set[str] = set()
    names = []
    for index, node in enumerate(graph.node):
        name = node.name if node.name and node.name not in seen else f"{node.op_type}_{index}"
        seen.add(name)
        names.append(name)
    return names


def selector_facts(spec: EngineSpec, model: OnnxFile) -> Iterator[Fact]:
    """Selectors of ``keep_fp32`` that no node of the main graph fits; the build refuses them."""
    if spec.precision.mode not in {"fp16", "bf16", "int8"}:
        return
    graph = model.proto.graph
    nodes = list(zip(node_names(graph), graph.node, strict=True))
    for index, selector in enumerate(spec.precision.keep_fp32):
        if not any(selects(selector, name, node.op_type) for name, node in nodes):
            yield Fact(
                code="precision.selector-unused",
                severity="error",
                message=f"no node of the model fits {selector!r}",
                path=("precision", "keep_fp32", index),
                fix="write op:TYPE, node:NAME (exactly that name), or a glob over names of nodes",
            )


def fp16_facts(spec: EngineSpec, model: OnnxFile) -> Iterator[Fact]:
    """Weights that a half cannot hold."""
    if spec.precision.mode != "fp16":
        return
    kept = _kept_fp32(spec.precision, model)
    for name, largest in _largest(model):
        if largest > FP16_MAX and name not in kept:
            yield Fact(
                code="precision.fp16-overflow",
                severity="repaired",
                message=f"the constant {name!r} reaches {largest:g}; FP16 ends at {FP16_MAX:g}: "
                "the build keeps the nodes that read it in FP32",
                path=("precision", "keep_fp32"),
                node=name,
                fix="nothing to do; faster: use bf16, or clip the constant (attention masks: -10000)",
            )
    yield from _squares(spec.precision, model)


def _squares(precision: Precision, model: OnnxFile) -> Iterator[Fact]:
    """Squares whose mean is taken, as layer normalisation does that was exported in parts: 256 squared is no half."""
    nodes = list(model.nodes())
    averaged = {name for node in nodes if node.op_type in _MEANS for name in node.input[:1]}
    constants: dict[str, Any] | None = None
    found = []
    for node in nodes:
        if not averaged.intersection(node.output) or node.op_type not in {"Pow", "Mul"} or _selected(precision, node):
            continue
        if node.op_type == "Pow":
            constants = dict(model.tensors()) if constants is None else constants
            exponent = constants.get(node.input[1])
            square = exponent is not None and _values(exponent).tolist() == [2]
        else:
            square = len(set(node.input)) == 1
        if square:
            found.append(node.name or node.output[0])
    if found:
        yield Fact(
            code="precision.fp16-square",
            severity="warning",
            message=f"{_listed(found)} squares what a mean is taken of, as in a layer normalisation in parts: in FP16 "
            "it overflows where a value is beyond 256",
            path=("precision", "keep_fp32"),
            node=found[0],
            fix="export with opset 17 or later, which has LayerNormalization; or keep them, such as "
            f"`keep_fp32: ['node:{found[0]}']`; what overflows on the samples, the build keeps in FP32 by itself",
        )


def _kept_fp32(precision: Precision, model: OnnxFile) -> set[str]:
    """Constants that only nodes kept in FP32 read."""
    kept: set[str] = set()
    used: set[str] = set()
    for node in model.nodes():
        (kept if _selected(precision, node) else used).update(node.input)
    return kept - used


def _selected(precision: Precision, node: Any) -> bool:  # noqa: ANN401 - protobuf has no types
    return any(selects(selector, node.name, node.op_type) for selector in precision.keep_fp32)


def _largest(model: OnnxFile) -> Iterator[tuple[str, float]]:
    """The largest finite magnitude of every floating-point constant, big ones read from the file piece by piece."""
    for name, tensor in model.tensors():
        held = tensor.raw_data or tensor.float_data or tensor.double_data
        if tensor.data_type in _NUMPY_TYPES and held and not tensor.data_location:
            yield name, _magnitude(_values(tensor))
    wanted = [payload for payload in model.payloads if _element(payload.field, payload.data_type)]
    if not wanted:
        return
    with model.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        import numpy as np

        for payload in wanted:
            largest = 0.0
            for begin in range(payload.offset, payload.offset + payload.size, _STEP):
                piece = mapped[begin : min(begin + _STEP, payload.offset + payload.size)]
                element = np.dtype(_element(payload.field, payload.data_type))
                whole = len(piece) // element.itemsize * element.itemsize
                largest = max(largest, _magnitude(np.frombuffer(piece[:whole], element)))
            yield payload.tensor, largest


def _element(field: int, data_type: int) -> str | None:
    """NumPy's name of the elements of a payload, where they are floating-point numbers."""
    if field in (RAW_DATA, FLOAT_DATA, DOUBLE_DATA):
        return _NUMPY_TYPES.get(data_type)
    return None


def _magnitude(array: NDArray[Any]) -> float:
    import numpy as np

    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
