"""The spec against the model, before anything is built: every finding with its fix, and no GPU.

Finds facts; what follows from them is decided by policies (design §4.1). Pure apart from reading the model's file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.model.dimensions import POINTS, dimension_facts
from trtops.model.facts import Fact, Preflight
from trtops.model.formats import format_facts
from trtops.model.graph import graph_facts
from trtops.model.inference import Graph, Inference
from trtops.model.memory import estimate, memory_facts
from trtops.model.operators import fp16_facts, operator_facts, quantization_facts, selector_facts
from trtops.model.read import open_model, uses_external_data
from trtops.model.targets import target_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trtops.model.facts import ModelFacts
    from trtops.model.read import OnnxFile
    from trtops.spec.engine import EngineSpec, Profile
    from trtops.tensor import TensorInfo

_MAX_NODES = 3


def preflight(spec: EngineSpec, model: Path, facts: ModelFacts) -> Preflight:
    """Hold a spec against its model.

    Args:
        spec: the spec.
        model: the ONNX file.
        facts: what :func:`trtops.model.read.read_facts` said of it.

    Returns:
        Everything that was found. ``output_shapes`` has -1 where a size depends on the data.

    Raises:
        InputError: the file is no ONNX model.
    """
    opened = open_model(model)
    found = [
        *_model_facts(opened),
        *graph_facts(opened),
        *target_facts(spec),
        *dimension_facts(spec, facts),
        *format_facts(spec, facts),
        *operator_facts(spec, opened),
        *quantization_facts(spec, opened),
        *fp16_facts(spec, opened),
        *selector_facts(spec, opened),
    ]
    shapes, estimates = _shapes(spec, facts, opened, found)
    found.extend(memory_facts(spec, estimates))
    return Preflight(model=facts, facts=tuple(found), output_shapes=shapes, estimate_bytes=estimates)


def _model_facts(model: OnnxFile) -> Iterator[Fact]:
    """What is wrong with the file itself."""
    external = uses_external_data(model)
    if external:
        yield Fact(
            code="model.external-data",
            severity="error",
            message=f"{len(external)} tensors ({external[0]}, …) have their data in other files, "
            "which `model.sha256` does not cover",
            node=external[0],
            fix="save the model as one file: onnx.save_model(model, path, save_as_external_data=False)",
        )
    for value in model.proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        odd = [axis for axis, dim in enumerate(dims) if dim.WhichOneof("value") == "dim_value" and dim.dim_value <= 0]
        if odd:
            yield Fact(
                code="model.unnamed-dimension",
                severity="repaired",
                message=f"input {value.name!r} writes {dims[odd[0]].dim_value} for dimension {odd[0]}, "
                "meaning any size",
                node=value.name,
                fix="nothing to do: the build gives it a name; better, export the model with a name such as batch",
            )


def _shapes(
    spec: EngineSpec, facts: ModelFacts, model: OnnxFile, found: list[Fact]
) -> tuple[dict[str, dict[str, dict[str, tuple[int, ...]]]], dict[str, dict[str, int]]]:
    """Infer every profile at its three points; note what cannot be."""
    graph = Graph(model)
    broken = graph.infer({})
    found.extend(_invalid_nodes(broken))
    known_bad = {error.node for error in broken.errors}
    shapes: dict[str, dict[str, dict[str, tuple[int, ...]]]] = {}
    estimates: dict[str, dict[str, int]] = {}
    for index, profile in enumerate(spec.profiles):
        if _unfit(index, profile, facts, found):
            continue
        for point in POINTS:
            inference = graph.infer({name: given.shapes()[point] for name, given in profile.inputs.items()})
            found.extend(_infeasible(inference, index, profile, point, known_bad))
            outputs = {tensor.name: _output(inference, tensor) for tensor in facts.outputs}
            shapes.setdefault(profile.name, {})[point] = {
                name: dims for name, dims in outputs.items() if dims is not None
            }
            if point == "max":
                estimates[profile.name] = estimate(spec, facts, inference)
        found.extend(_outputs(spec, facts, index, profile, shapes[profile.name]))
    return shapes, estimates


def _unfit(index: int, profile: Profile, facts: ModelFacts, found: Sequence[Fact]) -> bool:
    """Whether a profile's shapes cannot be given to the model at all."""
    blamed = any(
        fact.severity == "error" and fact.path[:2] == ("profiles", index) and fact.code not in _ORDER for fact in found
    )
    return blamed or not all(tensor.name in profile.inputs or _fixed(tensor) for tensor in facts.inputs)


_ORDER = {"profile.min-above-opt", "profile.opt-above-max"}


def _fixed(tensor: TensorInfo) -> bool:
    return all(isinstance(dim, int) for dim in tensor.shape)


def _invalid_nodes(inference: Inference) -> Iterator[Fact]:
    """Nodes that are wrong whatever the shapes: ONNX Runtime would refuse to load them too."""
    for error in inference.errors[:_MAX_NODES]:
        yield Fact(
            code="model.invalid-node",
            severity="error",
            message=f"node {error.node} ({error.operator}) is wrong for every shape: {error.message}",
            node=error.node,
            fix="export the model again; check it with onnx.checker.check_model(path, full_check=True)",
        )


def _infeasible(inference: Inference, index: int, profile: Profile, point: str, known_bad: set[str]) -> Iterator[Fact]:
    given = ", ".join(f"{name} {list(shapes.shapes()[point])}" for name, shapes in profile.inputs.items())
    errors = [error for error in inference.errors if error.node not in known_bad]
    for error in errors[:_MAX_NODES]:
        name = next(iter(profile.inputs))
        yield Fact(
            code="profile.infeasible-shape",
            severity="error",
            message=f"profile {profile.name!r}, {point} ({given}): "
            f"node {error.node} ({error.operator}) cannot take it: {error.message}",
            path=("profiles", index, "inputs", name, point),
            node=error.node,
            fix="write sizes that the model was made for",
        )


def _output(inference: Inference, tensor: TensorInfo) -> tuple[int, ...] | None:
    """An output's shape: inferred, with what the file declares where inference does not know; None: no rank."""
    dims = inference.output(tensor.name).dims
    declared = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)
    if dims is None or len(dims) != len(declared):
        return declared
    return tuple(have if have is not None else want for have, want in zip(dims, declared, strict=True))


def _outputs(
    spec: EngineSpec,
    facts: ModelFacts,
    index: int,
    profile: Profile,
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]],
) -> Iterator[Fact]:
    """Outputs that a batch cannot be split by, and outputs that the file declares otherwise."""
    for tensor in facts.outputs:
        seen = {point: shapes[point][tensor.name] for point in POINTS}
        wrong = [
            (axis, dim, dims[axis])
            for dims in seen.values()
            for axis, dim in enumerate(tensor.shape)
            if isinstance(dim, int) and len(dims) == len(tensor.shape) and dims[axis] not in (-1, dim)
        ]
        if wrong:
            axis, declared, inferred = wrong[0]
            yield Fact(
                code="model.output-shape-differs",
                severity="warning",
                message=f"output {tensor.name!r} is declared with {declared} in dimension {axis} and has {inferred}",
                path=("profiles", index, "inputs"),
                node=tensor.name,
                fix="export the model with this dimension open",
            )
        rows = _rows(profile, facts)
        if spec.batching.max_batch > 1 and any(
            rows[point] is not None and (not dims or dims[0] not in (-1, rows[point])) for point, dims in seen.items()
        ):
            yield Fact(
                code="model.output-not-batched",
                severity="error",
                message=f"output {tensor.name!r} has the shape {list(seen['max'])} for a batch of {rows['max']} rows: "
                "its first dimension is not the batch, so that answers cannot be told apart",
                path=("batching", "max_batch"),
                node=tensor.name,
                fix="set `batching.max_batch: 1`, or export the model with the batch first in every output",
            )


def _rows(profile: Profile, facts: ModelFacts) -> dict[str, int | None]:
    """Rows of a profile's inputs at each point; None where inputs disagree or have no first dimension."""
    rows: dict[str, int | None] = {}
    for point in POINTS:
        sizes = set()
        for tensor in facts.inputs:
            given = profile.inputs.get(tensor.name)
            shape = given.shapes()[point] if given else tensor.shape
            sizes.add(shape[0] if shape else None)
        size = next(iter(sizes)) if len(sizes) == 1 else None
        rows[point] = size if isinstance(size, int) else None
    return rows
