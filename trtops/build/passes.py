"""Repairs of an ONNX model before a build. Each is a named step that says in words what it changed.

Why they are needed: PaddlePaddle's exporter names every unknown dimension ``?`` (TensorRT takes equal names for equal
sizes and refuses the model, or builds nothing), a dimension that no profile lets vary builds better as a fixed one,
and TensorRT 8.6 refuses a convolution of dequantized weights that does not say its kernel's shape. A repair that finds
nothing to do changes no byte and records no step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops.backend.versions import installed
from trtops.durable import write_durably
from trtops.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtops.spec.engine import Profile

PASSES_VERSION = "1"
"""Counts up when a repair writes other bytes for the same model: part of every cache key."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.+*/ ()-]*")


def converters(mode: str = "fp32") -> dict[str, str]:
    """Versions of what rewrites models, for :func:`trtops.build.plan.plan`. Reads package metadata, imports nothing.

    Args:
        mode: of the precision. ONNX Runtime measures ranges for ``fp16`` and quantizes for ``int8``.
    """
    from importlib.metadata import version

    found = {"onnx": version("onnx"), "trtops-passes": PASSES_VERSION}
    if mode in {"fp16", "int8"}:
        found["onnxruntime"] = installed("onnxruntime", "onnxruntime-gpu") or ""
    return found


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A dynamic dimension of an input, and the sizes that profiles give it (empty: no profile names it)."""

    tensor: str
    axis: int
    proto: Any
    sizes: frozenset[int]
    points: tuple[int, ...]

    @property
    def name(self) -> str:
        return str(self.proto.dim_param)

    def __str__(self) -> str:
        return f"axis {self.axis} of {self.tensor!r}"


def prepare(data: bytes, output: Path, *, repairs: Sequence[str], profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Write the repaired model; the same bytes where nothing has to be repaired.

    Args:
        data: the ONNX file.
        output: where the repaired one is written.
        repairs: names of repairs, applied in this order.
        profiles: shapes that the engine will take.

    Returns:
        the steps that changed something, each ``name: what``.

    Raises:
        BuildFailed: the file is no ONNX model, keeps weights in other files, or a repair is not known.
        StorageError: the model could not be written.
    """
    import onnx

    unknown = [name for name in repairs if name not in REPAIRS]
    if unknown:
        raise BuildFailed(f"there is no repair {unknown[0]!r}", fix=f"known ones: {', '.join(REPAIRS)}")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise BuildFailed(f"the file is no ONNX model: {error}", fix="export it again") from error
    _refuse_external_data(model)
    steps = tuple(f"{name}: {what}" for name in repairs if (what := REPAIRS[name](model, profiles)))
    write_durably(output, [model.SerializeToString(deterministic=True) if steps else data])
    return steps


def _refuse_external_data(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    from onnx.external_data_helper import uses_external_data

    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            what = f"the weight {tensor.name!r} is kept in another file, which no digest of the spec covers"
            raise BuildFailed(what, fix="save the model as one file: onnx.save(model, path)")


def unique_dimension_names(model: Any, profiles: Sequence[Profile]) -> str | None:  # noqa: ANN401 - onnx is untyped
    """Name the dynamic dimensions of the inputs so that equal names mean equal sizes.

    A dimension gets a name of its own if it has none, if its name is a placeholder (``?``) that another one has too,
    or if a profile gives dimensions of that name different sizes. Dimensions that share a proper name and agree in
    every profile keep it: their equality is a fact about the model.
    """
    dimensions = list(_dynamic(model, profiles))
    by_name: dict[str, list[_Dimension]] = {}
    for dimension in dimensions:
        by_name.setdefault(dimension.name, []).append(dimension)
    wrong = [
        dimension
        for name, same in by_name.items()
        for dimension in same
        if not name or (len(same) > 1 and (not _IDENTIFIER.fullmatch(name) or _disagree(same)))
    ]
    taken = set(by_name)
    changes = []
    stale = set()
    for dimension in wrong:
        name = _free_name(f"{re.sub(r'[^A-Za-z0-9_]', '_', dimension.tensor)}_{dimension.axis}", taken)
        taken.add(name)
        changes.append(f"{dimension} {repr(dimension.name) if dimension.name else 'without a name'} is now {name!r}")
        stale.add(dimension.name)
        dimension.proto.dim_param = name
    _forget(model, stale - {""})
    return "; ".join(changes) or None


def fixed_dimensions(model: Any, profiles: Sequence[Profile]) -> str | None:  # noqa: ANN401 - onnx is untyped
    """Fix the dynamic dimensions of the inputs that every profile holds at one size."""
    changes = []
    stale = set()
    for dimension in _dynamic(model, profiles):
        if len(dimension.sizes) == 1:
            size = next(iter(dimension.sizes))
            changes.append(f"{dimension} is fixed at {size}")
            stale.add(dimension.name)
            dimension.proto.dim_value = size
    _forget(model, stale - {dimension.name for dimension in _dynamic(model, profiles)} - {""})
    return "; ".join(changes) or None


def output_shapes(model: Any, profiles: Sequence[Profile]) -> str | None:  # noqa: ANN401 - onnx is untyped
    """Infer the outputs' shapes anew from the inputs', and name what stays dynamic. Keeps what cannot be inferred."""
    import onnx

    del profiles
    before = [_shape(value) for value in model.graph.output]
    blank = onnx.ModelProto()
    blank.CopyFrom(model)
    for value in blank.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param or dim.dim_value < 0:
                dim.Clear()
    try:
        inferred = onnx.shape_inference.infer_shapes(blank, data_prop=True)
    except Exception:  # noqa: BLE001 - onnx raises many types; a model it cannot infer keeps its own shapes
        inferred = blank
    known = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim} - {""}
    for value, guess in zip(model.graph.output, inferred.graph.output, strict=True):
        _take_shape(value, guess, known)
    after = [_shape(value) for value in model.graph.output]
    changes = [
        f"{value.name!r} is {list(new)}"
        for value, old, new in zip(model.graph.output, before, after, strict=True)
        if old != new
    ]
    return "; ".join(changes) or None


def kernel_shapes(model: Any, profiles: Sequence[Profile]) -> str | None:  # noqa: ANN401 - onnx is untyped
    """Write ``kernel_shape`` where convolutions leave it to the shape of their weights, as ONNX allows."""
    import onnx

    del profiles
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    makers = {output: node for node in model.graph.node for output in node.output}
    count = 0
    for node in model.graph.node:
        told = any(attribute.name == "kernel_shape" for attribute in node.attribute)
        if node.op_type not in _CONVOLUTIONS or told or len(node.input) < 2:  # noqa: PLR2004 - data and weights
            continue
        shape = _weight_shape(node.input[1], weights, makers)
        if shape is not None and len(shape) > 2:  # noqa: PLR2004 - output and input channels
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", shape[2:]))
            count += 1
    return f"{count} convolutions say the shape of their kernel" if count else None


_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_KEEPING = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "Identity"})


def _weight_shape(name: str, weights: Mapping[str, tuple[int, ...]], makers: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Shape of a constant, seen through what keeps its shape; None if it is none."""
    seen = set()
    while name not in weights and name in makers and name not in seen:
        seen.add(name)
        node = makers[name]
        if node.op_type == "Constant":
            return next((tuple(one.t.dims) for one in node.attribute if one.name == "value"), None)
        if node.op_type not in _KEEPING:
            return None
        name = node.input[0]
    return weights.get(name)


REPAIRS: Mapping[str, Callable[[Any, Sequence[Profile]], str | None]] = {
    "unique-dimension-names": unique_dimension_names,
    "fixed-dimensions": fixed_dimensions,
    "output-shapes": output_shapes,
    "kernel-shapes": kernel_shapes,
}
"""Every repair by name: changes a model in place, returns what it changed in words, None for nothing."""


def _dynamic(model: Any, profiles: Sequence[Profile]) -> Iterator[_Dimension]:  # noqa: ANN401 - onnx is untyped
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        ranges = [profile.inputs[value.name] for profile in profiles if value.name in profile.inputs]
        dims = value.type.tensor_type.shape.dim
        shapes = [shape for limits in ranges for shape in limits.shapes().values()]
        fits = all(len(shape) == len(dims) for shape in shapes)
        for axis, dim in enumerate(dims):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            points = tuple(shape[axis] for shape in shapes) if fits else ()
            yield _Dimension(value.name, axis, dim, frozenset(points), points)


def _disagree(same: Sequence[_Dimension]) -> bool:
    return len({dimension.points for dimension in same if dimension.points}) > 1


def _free_name(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _forget(model: Any, names: set[str]) -> None:  # noqa: ANN401 - onnx is untyped
    """Clear dimensions of inner tensors and outputs that carry names which mean nothing any more."""
    if not names:
        return
    for value in [*model.graph.value_info, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.Clear()


def _shape(value: Any) -> tuple[int | str, ...]:  # noqa: ANN401 - onnx is untyped
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim
    )


def _take_shape(value: Any, guess: Any, known: set[str]) -> None:  # noqa: ANN401 - onnx is untyped
    if not value.type.tensor_type.HasField("shape") and guess.type.tensor_type.HasField("shape"):
        for _ in guess.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim.add()
    have, want = value.type.tensor_type.shape.dim, guess.type.tensor_type.shape.dim
    if len(have) != len(want):
        return
    for axis, (dim, new) in enumerate(zip(have, want, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            continue
        if new.HasField("dim_value") and new.dim_value >= 0:
            dim.dim_value = new.dim_value
        elif new.dim_param in known:
            dim.dim_param = new.dim_param
        elif not dim.dim_param:
            # A name of shape inference (unk__0) would not be stable; the output's own is.
            dim.dim_param = f"{re.sub(r'[^A-Za-z0-9_]', '_', value.name)}_{axis}"
