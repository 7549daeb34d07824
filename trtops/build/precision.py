"""Precision as passes on the ONNX file: what comes out means the same to every builder.

TensorRT 11 and TensorRT for RTX know no other way, and a file that says its types can be run by ONNX Runtime, so that
its accuracy is known before a GPU is used.

- ``fp16``, ``bf16``: :mod:`trtops.build.half`. What would overflow stays in FP32: weights beyond the type's largest
  number, and nodes whose inputs or outputs come within a factor of two of it on the samples.
- ``int8``: quantize and dequantize nodes around operators with weights. A model that has them already is kept.
- ``fp32``, ``tf32``: no change; TF32 is a flag of the builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.build.half import BF16, FLOAT, FP16, HalfType, convertible, float_tensors, to_half
from trtops.errors import BuildFailed
from trtops.model.operators import node_names, selects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.accuracy.samples import Samples
    from trtops.build.protocol import SampleSource
    from trtops.spec.engine import Precision, Profile

    Feeds = Sequence[Mapping[str, NDArray[np.generic]]]

MOST_RANGE_SAMPLES = 32
"""Executions that ranges are measured on for FP16, at most."""

HEADROOM = 2.0
"""Samples are not all inputs: a value may grow by so much before it overflows."""

_HALVES: Mapping[str, HalfType] = {"fp16": FP16, "bf16": BF16}
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SHOWN = 4
_PER_CHANNEL_OPSET = 13  # the first whose DequantizeLinear has an axis


@dataclass(frozen=True, slots=True)
class Converted:
    """A model in its precision.

    Attributes:
        data: the ONNX file.
        steps: what was done, in words; empty: nothing.
    """

    data: bytes
    steps: tuple[str, ...] = ()


def needs_samples(precision: Precision) -> bool:
    """Whether data decides what a precision does to a model: their digest is then part of the cache key."""
    return precision.mode in {"fp16", "int8"}


def read_samples(source: SampleSource, model: bytes) -> Samples:
    """The samples that a model is calibrated or measured with.

    Raises:
        InputError: there are none, or they do not fit the model's inputs; names all that does not.
    """
    import onnx

    from trtops.accuracy.samples import load_samples
    from trtops.backend.bindings import onnx_bindings

    inputs, _ = onnx_bindings(onnx.load_model_from_string(model))
    return load_samples(source.uri, base=Path(source.folder), inputs=inputs, count=source.count)


def feeds_of(samples: Samples, profiles: Sequence[Profile], *, most: int | None = None) -> list[dict[str, Any]]:
    """Samples in the shapes of the first profile's optimum, every sample once; ``most`` executions at most."""
    shapes = {}
    for info in samples.inputs:
        given = profiles[0].inputs.get(info.name)
        shapes[info.name] = given.opt if given else tuple(dim for dim in info.shape if isinstance(dim, int))
    found: list[dict[str, Any]] = []
    for batch in samples.batches(shapes):
        if most is not None and len(found) >= most:
            break
        found.append(batch)
    return found


def convert(data: bytes, precision: Precision, feeds: Feeds) -> Converted:
    """Bring a model into a precision.

    Args:
        data: the repaired ONNX file.
        precision: of the spec.
        feeds: calibration data for ``int8``, samples to measure ranges on for ``fp16``; others need none.

    Raises:
        BuildFailed: a selector is wrong, there is no data to calibrate with, or ONNX Runtime refuses the model.
    """
    if precision.mode in {"fp32", "tf32"}:
        return Converted(data)
    import onnx

    model = onnx.load_model_from_string(data)
    _name_nodes(model)
    kept = _kept(model, precision.keep_fp32)
    if precision.mode in _HALVES:
        return _half(model, _HALVES[precision.mode], kept, feeds)
    if precision.mode == "int8":
        return _int8(data, model, kept, precision, feeds)
    what = f"no pass makes {precision.mode}"
    raise BuildFailed(what, where="precision.mode", fix="choose fp16, bf16 or int8, or quantize the model itself")


def _name_nodes(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Give every node a name of its own: selectors, reports and the quantizer go by names."""
    for node, name in zip(model.graph.node, node_names(model.graph), strict=True):
        node.name = name


def _at_least(model: Any, opset: int) -> Any:  # noqa: ANN401 - onnx is untyped
    """The model itself, or converted to an opset that it is older than."""
    import onnx

    have = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    if have >= opset:
        return model
    try:
        newer = onnx.version_converter.convert_version(model, opset)
    except Exception as error:
        what = f"the model's opset {have} is older than {opset}, which this precision needs: {error}"
        raise BuildFailed(what, fix=f"export the model with opset {opset} or later") from error
    _name_nodes(newer)
    return newer


def _kept(model: Any, selectors: Sequence[str]) -> set[str]:  # noqa: ANN401 - onnx is untyped
    kept: set[str] = set()
    for selector in selectors:
        found = {node.name for node in model.graph.node if selects(selector, node.name, node.op_type)}
        if not found:
            what = f"precision.keep_fp32 has {selector!r}, which no node of the model fits"
            raise BuildFailed(what, where="precision.keep_fp32", fix="write op:TYPE, node:NAME, or a glob over names")
        kept |= found
    return kept


def _half(model: Any, kind: HalfType, kept: Collection[str], feeds: Feeds) -> Converted:  # noqa: ANN401 - untyped
    model = _at_least(model, kind.opset)
    floats = float_tensors(model)
    possible = convertible(model, floats)
    limit = kind.largest / HEADROOM
    peaks = _weight_peaks(model)
    if kind is FP16:
        peaks |= _peaks(model, floats - peaks.keys(), feeds)
    nodes = model.graph.node
    hot = {
        index: max(peaks.get(name, 0.0) for name in (*nodes[index].input, *nodes[index].output))
        for index in possible
        if any(peaks.get(name, 0.0) > limit for name in (*nodes[index].input, *nodes[index].output))
    }
    chosen = {index: slots for index, slots in possible.items() if index not in hot and nodes[index].name not in kept}
    if not chosen:
        what = f"no node of the model can compute in {kind.name}"
        raise BuildFailed(what, where="precision.mode", fix="choose fp32, or keep less in precision.keep_fp32")
    words = [f"{len(chosen)} of {len(possible)} nodes that can compute in {kind.name}"]
    if selected := [node.name for node in nodes if node.name in kept]:
        words.append(f"{_listed(selected)} stay in fp32 as keep_fp32 says")
    if hot:
        worst = max(hot.values())
        names = [nodes[index].name for index in sorted(hot, key=lambda index: -hot[index])]
        words.append(
            f"{_listed(names)} stay in fp32: values reach {worst:.3g} on {len(feeds)} batches of samples, "
            f"{kind.name} ends at {kind.largest:.5g}"
        )
    to_half(model, kind, chosen)
    return Converted(model.SerializeToString(deterministic=True), (f"{kind.name}: {'; '.join(words)}",))


def _weight_peaks(model: Any) -> dict[str, float]:  # noqa: ANN401 - onnx is untyped
    import onnx

    found = {}
    held = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            held += [(node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value"]
    for name, tensor in held:
        if tensor.data_type == FLOAT:
            found[name] = _peak(onnx.numpy_helper.to_array(tensor))
    return found


def _peaks(model: Any, floats: Collection[str], feeds: Feeds) -> dict[str, float]:  # noqa: ANN401 - untyped
    """Largest finite magnitude of every float32 tensor that a node makes, and of the inputs."""
    from trtops.backend.observe import observed
    from trtops.backend.observe import peaks as reduced

    made = {name: FLOAT for node in model.graph.node for name in node.output if name in floats}
    peaks = reduced(model, made, feeds)
    for feed in feeds:
        for name, array in feed.items():
            peaks[name] = max(peaks.get(name, 0.0), _peak(array))
    # What holds infinities, or cannot be reduced, is looked at itself.
    for seen in observed(model, {name: kind for name, kind in made.items() if name not in peaks}, feeds):
        for name, array in seen.items():
            peaks[name] = max(peaks.get(name, 0.0), _peak(array))
    return peaks


def _peak(array: Any) -> float:  # noqa: ANN401 - arrays of any type
    import numpy as np

    if array.dtype.kind != "f" or not array.size:
        return 0.0
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _int8(data: bytes, model: Any, selected: Collection[str], precision: Precision, feeds: Feeds) -> Converted:  # noqa: ANN401
    from trtops.backend.observe import QUANTIZED_OPERATORS, folded, quantized

    if any(node.op_type in _QUANTIZING for node in model.graph.node):
        told = f"{_scales(model)}; {_quantized(model)}"
        return Converted(data, (f"int8: the model comes quantized and is kept as it is: {told}",))
    if precision.calibration is None or not feeds:
        what = "int8 needs calibration data: the model has no QuantizeLinear nodes and the spec no calibration"
        raise BuildFailed(what, where="precision.calibration", fix="add precision.calibration.source, an .npz")
    import onnx

    merged = _at_least(onnx.load_model_from_string(folded(model.SerializeToString())), _PER_CHANNEL_OPSET)
    _name_nodes(merged)
    kept = _kept_after_merging(model, merged, selected)
    made = quantized(merged.SerializeToString(), feeds, precision.calibration, exclude=kept)
    result = onnx.load_model_from_string(made)
    # The quantizer writes its version and the time into the model; equal inputs have to give equal bytes.
    result.producer_name, result.producer_version = "trtops", ""
    able = [node.name for node in merged.graph.node if node.op_type in QUANTIZED_OPERATORS]
    method = precision.calibration.method
    count = f"{len(able) - len(set(kept) & set(able))} of {len(able)} nodes with weights compute in int8"
    words = [f"{count}, ranges by {method} of {len(feeds)} batches", _scales(result)]
    if kept:
        words.append(f"{_listed(kept)} stay in fp32 as keep_fp32 says")
    return Converted(result.SerializeToString(deterministic=True), (f"int8: {'; '.join(words)}",))


def _kept_after_merging(before: Any, after: Any, selected: Collection[str]) -> list[str]:  # noqa: ANN401 - untyped
    """Nodes of the folded model that stand for selected ones: of the same name, or with the same weights.

    A convolution keeps its name when a batch normalisation is merged into it; a product that becomes a Gemm with the
    addition after it does not, but reads the same weights.
    """
    held = {tensor.name for tensor in before.graph.initializer}
    weights = {name for node in before.graph.node if node.name in selected for name in node.input if name in held}
    return [node.name for node in after.graph.node if node.name in selected or weights.intersection(node.input)]


def _scales(model: Any) -> str:  # noqa: ANN401 - onnx is untyped
    """Scales and zero points of a quantized model, in words."""
    import numpy as np

    held = _constants(model)
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    weights = [node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in held]
    scales = [held[node.input[1]] for node in nodes if node.input[1] in held]
    points = [held[node.input[2]] for node in (*nodes, *weights) if _has_point(node) and node.input[2] in held]
    zero = all(not np.any(point) for point in points)
    flat = np.concatenate([scale.reshape(-1) for scale in scales]) if scales else np.zeros(0)
    span = f"scales {flat.min():.3g} to {flat.max():.3g}" if flat.size else "no constant scales"
    return (
        f"{len(nodes)} QuantizeLinear ({span}), {len(weights)} quantized weights, "
        f"zero points {'all 0' if zero else 'not all 0'}"
    )


def _quantized(model: Any) -> str:  # noqa: ANN401 - onnx is untyped
    """Scale and zero point of the first tensors that a model quantizes, in words."""
    held = _constants(model)

    def span(name: str) -> str:
        values = held.get(name)
        if values is None or not values.size:
            return "computed"
        low, high = f"{values.min():.3g}", f"{values.max():.3g}"
        return low if low == high else f"{low} to {high}"

    return _listed(
        [
            f"{node.input[0]}: scale {span(node.input[1])}, zero point {span(node.input[2]) if _has_point(node) else 0}"
            for node in model.graph.node
            if node.op_type == "QuantizeLinear"
        ],
        "; ",
    )


def _has_point(node: Any) -> bool:  # noqa: ANN401 - onnx is untyped
    return len(node.input) > 2 and bool(node.input[2])  # noqa: PLR2004 - the third input is the zero point


def _constants(model: Any) -> dict[str, Any]:  # noqa: ANN401 - onnx is untyped
    """Arrays of a model's constants: initializers, and the Constant nodes that exporters write for scales."""
    import onnx

    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = onnx.numpy_helper.to_array(attribute.t)
    return found


def _listed(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{between.join(names[:_SHOWN])}{more}"


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far a node's output is from FP32.

    Attributes:
        node, operator: of the original model.
        relative: ``|converted - original| / |original|`` of the output (Euclidean norms over all samples).
        added: ``relative`` minus the largest of the node's inputs: what this node made worse.
    """

    node: str
    operator: str
    relative: float
    added: float


def layer_errors(original: bytes, converted: bytes, feeds: Feeds) -> tuple[LayerError, ...]:
    """Errors of inner tensors, the node that adds most first.

    Both models run in ONNX Runtime with optimisations off, on the same feeds. What this tells is the error of the
    converted *file*, layer by layer: a GPU's kernels sum in another order and may fuse nodes whose inner tensors then
    never exist, and a CPU rounds tensors to FP16 but computes between them in FP32, so that errors add up less.
    Tensors that the conversion merged away are left out: what was added there counts for the next that is there. An
    output's error holds what came in with its inputs; ``added`` is the growth at the node.
    """
    import onnx

    before, after = onnx.load_model_from_string(original), onnx.load_model_from_string(converted)
    _name_nodes(before)
    pairs = _pairs(before, after)
    relative = _relative(before, after, pairs, feeds)
    found = []
    reaching: dict[
        str, float
    ] = {}  # of every tensor; one that the conversion merged away has that of its node's inputs
    for node in before.graph.node:
        came = max((reaching.get(name, 0.0) for name in node.input), default=0.0)
        reaching |= {name: relative.get(name, came) for name in node.output}
        outputs = [relative[name] for name in node.output if name in relative]
        if outputs:
            added = 0.0 if came == float("inf") else max(outputs) - came
            found.append(LayerError(node.name, node.op_type, max(outputs), added))
    return tuple(sorted(found, key=lambda error: (-error.added, -error.relative, error.node)))


def _pairs(before: Any, after: Any) -> dict[str, tuple[str, int]]:  # noqa: ANN401 - onnx is untyped
    """Float tensors of the original -> the tensor of the converted model that stands for it, with its type."""
    made = {name for node in after.graph.node for name in node.output}
    floats = float_tensors(before)
    pairs = {}
    for node in before.graph.node:
        for name in node.output:
            if name not in floats:
                continue
            for kind in (FP16, BF16):
                if f"{name}__{kind.name}" in made:
                    pairs[name] = (f"{name}__{kind.name}", kind.onnx)
            if name not in pairs and name in made:
                pairs[name] = (name, FLOAT)
    return pairs


def _relative(before: Any, after: Any, pairs: Mapping[str, tuple[str, int]], feeds: Feeds) -> dict[str, float]:  # noqa: ANN401
    import numpy as np

    from trtops.backend.observe import observed

    # Pairs have the order of the nodes on both sides, so that the two iterators stay in step.
    theirs = dict(pairs.values())
    back = {name: ours for ours, (name, _) in pairs.items()}
    squares: dict[str, float] = dict.fromkeys(pairs, 0.0)
    norms = dict(squares)
    for one, other in _in_step(observed(before, dict.fromkeys(pairs, FLOAT), feeds), observed(after, theirs, feeds)):
        for name, array in other.items():
            want = one[back[name]].astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                squares[back[name]] += float(np.square(array.astype(np.float64) - want).sum())
                norms[back[name]] += float(np.square(want).sum())
    return {name: _ratio(squares[name], norms[name]) for name in pairs}


def _in_step(one: Iterator[Any], other: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(one, other, strict=True)


def _ratio(square: float, norm: float) -> float:
    import math

    if not math.isfinite(square):
        return math.inf
    return math.sqrt(square / norm) if norm > 0 else 0.0 if square == 0 else math.inf
