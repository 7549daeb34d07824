"""Profiles against the model's inputs: names, ranks, fixed sizes, min to max, sizes that must be equal, batches."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from trtops.model.facts import Fact
from trtops.spec.problems import closest, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trtops.model.facts import ModelFacts
    from trtops.spec.engine import EngineSpec, Profile, ShapeRange
    from trtops.tensor import TensorInfo

POINTS = ("min", "opt", "max")

# A name that says which size it is. Exporters write "?", "None", "unk__12" and the like where they know none, and
# repeat them; TensorRT reads equal names as equal sizes.
_PLACEHOLDER = re.compile(r"[^A-Za-z_]*|none|any|unk(nown)?(_*\d*)?|dyn(amic)?(_*\d*)?|-?\d+", re.IGNORECASE)


def is_placeholder(dimension: str) -> bool:
    """Whether a dimension's name says nothing: empty, ``?``, ``None``, ``unk__12``."""
    return _PLACEHOLDER.fullmatch(dimension) is not None


def dimension_facts(spec: EngineSpec, model: ModelFacts) -> Iterator[Fact]:
    """Everything that is wrong between profiles and inputs, without looking at the graph."""
    yield from _dimension_names(model.inputs)
    for index, profile in enumerate(spec.profiles):
        yield from _profile(("profiles", index, "inputs"), profile, model)
    yield from _batch_sizes(spec, model)


def _dimension_names(inputs: Iterable[TensorInfo]) -> Iterator[Fact]:
    """Placeholder names that stand for several sizes. The build gives each a name of its own."""
    seen: Counter[str] = Counter()
    for tensor in inputs:
        names = [dim for dim in tensor.shape if isinstance(dim, str) and is_placeholder(dim)]
        repeated = [name for name, count in Counter(names).items() if count > 1 or (name and seen[name])]
        seen.update(names)
        for name in repeated:
            axes = [axis for axis, dim in enumerate(tensor.shape) if dim == name]
            shown = f"named {name!r}" if name else "not named"
            which = f"dimensions {', '.join(map(str, axes))}" if len(axes) > 1 else f"dimension {axes[0]}"
            elsewhere = "" if len(axes) > 1 else ", as one of another input"
            yield Fact(
                code="model.duplicate-dimension-name",
                severity="repaired",
                message=f"input {tensor.name!r}: {which} of {_shape(tensor.shape)} {_be(axes)} {shown}{elsewhere}, "
                "which TensorRT reads as equal sizes",
                node=tensor.name,
                fix="nothing to do: the build gives each a name of its own, or its size where the profile fixes it; "
                "better, export the model with names such as batch, height, width",
            )


def _be(axes: list[int]) -> str:
    return "are" if len(axes) > 1 else "is"


def _shape(shape: Iterable[int | str]) -> str:
    return "[" + ",".join(str(dim) if dim != "" else "?" for dim in shape) + "]"


def _profile(path: tuple[str | int, ...], profile: Profile, model: ModelFacts) -> Iterator[Fact]:
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for name, given in profile.inputs.items():
        tensor = inputs.get(name)
        if tensor is None:
            meant = suggestion(name, inputs)
            listed = ", ".join(closest(name, inputs)) or "none"
            yield Fact(
                code="profile.unknown-input",
                severity="error",
                message=f"profile {profile.name!r}: the model has no input {name!r}",
                path=(*path, name),
                fix=(f"did you mean {meant!r}? " if meant else "") + f"Inputs of the model: {listed}",
            )
            continue
        yield from _range((*path, name), profile.name, tensor, given)
    for name, tensor in inputs.items():
        if name not in profile.inputs and any(isinstance(dim, str) for dim in tensor.shape):
            yield Fact(
                code="profile.missing-input",
                severity="error",
                message=f"profile {profile.name!r} gives no shapes for the input {name!r} {_shape(tensor.shape)}",
                path=path,
                node=name,
                fix=f"add `{name}: {{min: …, opt: …, max: …}}` with {len(tensor.shape)} sizes each",
            )
    yield from _equal_names(path, profile, inputs)


def _range(path: tuple[str | int, ...], profile: str, tensor: TensorInfo, given: ShapeRange) -> Iterator[Fact]:
    fitting = True
    for point, shape in given.shapes().items():
        head = f"profile {profile!r}, {point} of {tensor.name!r}: {_shape(shape)}"
        if len(shape) != len(tensor.shape):
            fitting = False
            yield Fact(
                code="profile.rank",
                severity="error",
                message=f"{head} has {len(shape)} dimensions, "
                f"the model's {_shape(tensor.shape)} has {len(tensor.shape)}",
                path=(*path, point),
                node=tensor.name,
                fix=f"write {len(tensor.shape)} sizes",
            )
            continue
        for axis, (size, dim) in enumerate(zip(shape, tensor.shape, strict=True)):
            if isinstance(dim, int) and size != dim:
                yield Fact(
                    code="profile.fixed-dimension",
                    severity="error",
                    message=f"{head} has {size} in dimension {axis}, the model fixes it to {dim}",
                    path=(*path, point, axis),
                    node=tensor.name,
                    fix=f"write {dim}, or export the model with this dimension open",
                )
            elif size == 0:
                yield Fact(
                    code="profile.empty-shape",
                    severity="error",
                    message=f"{head} has no elements: dimension {axis} is 0",
                    path=(*path, point, axis),
                    node=tensor.name,
                    fix="write 1 or more",
                )
    if fitting:
        yield from _ordered(path, profile, tensor, given)


def _ordered(path: tuple[str | int, ...], profile: str, tensor: TensorInfo, given: ShapeRange) -> Iterator[Fact]:
    """TensorRT takes min > opt without a word and then refuses the profile (design §7)."""
    for axis, (low, middle, high) in enumerate(zip(given.min, given.opt, given.max, strict=True)):
        for code, first, second, point, above in (
            ("profile.min-above-opt", low, middle, "min", "opt"),
            ("profile.opt-above-max", middle, high, "opt", "max"),
        ):
            if first > second:
                yield Fact(
                    code=code,
                    severity="error",
                    message=f"profile {profile!r}, {tensor.name!r}: dimension {axis} is {first} in {point} "
                    f"and {second} in {above}",
                    path=(*path, point, axis),
                    node=tensor.name,
                    fix=f"write min <= opt <= max in every dimension: {second} or less here",
                )


def _equal_names(path: tuple[str | int, ...], profile: Profile, inputs: Mapping[str, TensorInfo]) -> Iterator[Fact]:
    """Dimensions with one name have one size at each point (placeholders are no names)."""
    for point in POINTS:
        first: dict[str, tuple[str, int, int]] = {}
        for name, given in profile.inputs.items():
            shape = given.shapes()[point]
            if name not in inputs or len(shape) != len(inputs[name].shape):
                continue
            for axis, (size, dim) in enumerate(zip(shape, inputs[name].shape, strict=True)):
                if not isinstance(dim, str) or is_placeholder(dim):
                    continue
                other, other_axis, other_size = first.setdefault(dim, (name, axis, size))
                if other_size != size:
                    yield Fact(
                        code="profile.unequal-dimension",
                        severity="error",
                        message=f"profile {profile.name!r}, {point}: the model names dimension {axis} of {name!r} and "
                        f"dimension {other_axis} of {other!r} both {dim!r}, but they are {size} and {other_size}",
                        path=(*path, name, point, axis),
                        node=name,
                        fix=f"write {other_size}, or export the model with two names",
                    )


def _batch_sizes(spec: EngineSpec, model: ModelFacts) -> Iterator[Fact]:
    """Every batch size that is used has to be inside a profile."""
    batching, benchmark = spec.batching, spec.benchmark
    if batching.max_batch > 1 and (odd := _disagreeing(spec, model)):
        yield Fact(
            code="batching.no-batch-dimension",
            severity="error",
            message=f"inputs have different first dimensions ({odd}), so that rows cannot be put together",
            path=("batching", "max_batch"),
            fix="set `batching.max_batch: 1`, or export the model with the batch first in every input",
        )
    yield from _outside(spec, model, "batching.outside-profile", batching.max_batch, ("batching", "max_batch"))
    for index, size in enumerate(batching.preferred):
        path: tuple[str | int, ...] = ("batching", "preferred", index)
        if size > batching.max_batch:
            yield Fact(
                code="batching.preferred-above-max",
                severity="error",
                message=f"the preferred batch size {size} is above max_batch {batching.max_batch}",
                path=path,
                fix=f"write {batching.max_batch} or less, or raise `batching.max_batch`",
            )
        else:
            yield from _outside(spec, model, "batching.outside-profile", size, path)
    for index, size in enumerate(benchmark.batch_sizes):
        yield from _outside(spec, model, "benchmark.outside-profile", size, ("benchmark", "batch_sizes", index))


def _outside(spec: EngineSpec, model: ModelFacts, code: str, size: int, path: tuple[str | int, ...]) -> Iterator[Fact]:
    ranges = [rows for profile in spec.profiles if (rows := batch_range(profile, model)) is not None]
    if not ranges or any(low <= size <= high for low, high in ranges):
        return  # a profile without rows has facts of its own
    covered = ", ".join(f"{low}..{high}" for low, high in ranges)
    yield Fact(
        code=code,
        severity="error",
        message=f"the batch size {size} is outside every profile (rows: {covered})",
        path=path,
        fix="write a size inside, or widen the first dimension of a profile's shapes",
    )


def batch_range(profile: Profile, model: ModelFacts) -> tuple[int, int] | None:
    """Rows that a profile takes, at least and at most: what the first dimension of every input allows.

    None if its shapes do not say, or if inputs disagree: such a model can run, but not in batches.
    """
    low, high = 1, 1 << 31
    for tensor in model.inputs:
        if not tensor.shape:
            continue
        given = profile.inputs.get(tensor.name)
        fixed = tensor.shape[0]
        if given is not None:
            if not given.min or not given.max:
                return None
            low, high = max(low, given.min[0]), min(high, given.max[0])
        elif isinstance(fixed, int):
            low, high = max(low, fixed), min(high, fixed)
        else:
            return None
    return (low, high) if low <= high else None


def _disagreeing(spec: EngineSpec, model: ModelFacts) -> str:
    """Inputs whose first dimensions differ at a profile's maximum, in words; empty if none do."""
    for profile in spec.profiles:
        sizes = {}
        for tensor in model.inputs:
            given = profile.inputs.get(tensor.name)
            shape = given.max if given else tensor.shape
            if shape and isinstance(shape[0], int):
                sizes[tensor.name] = shape[0]
        if len(set(sizes.values())) > 1:
            return ", ".join(f"{name}: {size}" for name, size in sizes.items())
    return ""
