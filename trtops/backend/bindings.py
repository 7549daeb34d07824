"""What is the same for the bindings of every backend: reading them off an ONNX file, checking arrays against them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.errors import BuildFailed, InputError
from trtops.spec.bindings import format_problem, unknown_binding
from trtops.tensor import TensorInfo, in_format, stored_elements

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.backend.port import Arrays
    from trtops.spec.bindings import Binding
    from trtops.spec.engine import Profile, ShapeRange
    from trtops.tensor import Dim, MemoryFormat, Shape

# onnx.TensorProto.DataType -> our name of the element type (https://onnx.ai/onnx/api/classes.html#tensorproto).
_ONNX_TYPES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3",
}

# Element types that NumPy lacks travel as integers of the same width.
_CARRIED_AS: Mapping[str, str] = {"bfloat16": "uint16", "float8_e4m3": "uint8"}


def onnx_bindings(model: Any) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:  # noqa: ANN401 - onnx is untyped
    """Inputs and outputs of an ``onnx.ModelProto``. A dynamic dimension without a name is ``""``.

    Raises:
        InputError: one of them is not a tensor of a known element type and rank; names it.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_binding(value) for value in model.graph.input if value.name not in weights)
    return inputs, tuple(_binding(value) for value in model.graph.output)


def _binding(value: Any) -> TensorInfo:  # noqa: ANN401 - onnx is untyped
    tensor = value.type.tensor_type
    dtype = _ONNX_TYPES.get(tensor.elem_type)
    if value.type.WhichOneof("value") != "tensor_type" or dtype is None:
        what = f"the model's binding {value.name!r} is no tensor of an element type that engines take"
        raise InputError(what, fix="export the model with dense tensors as its inputs and outputs")
    if not tensor.HasField("shape"):
        what = f"the model's binding {value.name!r} has no rank"
        raise InputError(what, fix="export the model with the ranks of its inputs and outputs")
    return TensorInfo(name=value.name, dtype=dtype, shape=tuple(_dim(dim) for dim in tensor.shape.dim))


def _dim(dim: Any) -> Dim:  # noqa: ANN401 - onnx is untyped
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else str(dim.dim_param)


def with_formats(
    sides: tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]],
    bindings: Mapping[str, Binding],
    backend: str,
    version: str,
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs of an engine that is to be built, with the formats of the spec.

    Args:
        sides: inputs and outputs as the builder has them.
        bindings: of the spec.
        backend: that builds.
        version: of its library.

    Raises:
        BuildFailed: there is no such tensor, or the library has no such format for it; names the tensor.
    """
    tensors = {info.name: info for side in sides for info in side}
    for name, binding in bindings.items():
        where = f"bindings.{name}"
        if name not in tensors:
            what, fix = unknown_binding(name, tensors.values())
            raise BuildFailed(what, where=where, fix=fix)
        if problem := format_problem(tensors[name], binding.format, backend, version):
            raise BuildFailed(problem[0], where=f"{where}.format", fix=problem[1])
    inputs, outputs = (_formatted(side, {name: one.format for name, one in bindings.items()}) for side in sides)
    return inputs, outputs


def as_loaded(bindings: Iterable[TensorInfo], recorded: Iterable[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Bindings that a library tells, which knows no formats, with those that the sidecar records."""
    return _formatted(bindings, {info.name: info.format for info in recorded})


def _formatted(infos: Iterable[TensorInfo], formats: Mapping[str, MemoryFormat]) -> tuple[TensorInfo, ...]:
    return tuple(
        info
        if (wanted := formats.get(info.name, info.format)) == info.format
        else info.model_copy(update={"format": wanted})
        for info in infos
    )


def laid(array: NDArray[np.generic], info: TensorInfo) -> NDArray[np.generic]:
    """An array that lies as a binding does, the same where that is linear, else a copy, filled up with zeros."""
    if info.format == "linear":
        return array
    import numpy as np

    copy = in_format(np.zeros(stored_elements(array.shape, info.format), array.dtype), array.shape, info.format)
    copy[...] = array
    return copy


def check_inputs(
    inputs: Arrays, bindings: Sequence[TensorInfo], profiles: Sequence[Profile] = (), *, equal_names: bool = True
) -> None:
    """Tell whether an engine takes these arrays.

    Args:
        inputs: name -> array.
        bindings: the engine's inputs.
        profiles: shape ranges, one of which has to cover all inputs; empty: any shape that the bindings accept.
        equal_names: whether dimensions of one name have to be equal; a model that was not repaired may misname them.

    Raises:
        InputError: names the tensor, what was expected and what came.
    """
    if inputs.keys() != {binding.name for binding in bindings}:
        raise _wrong_names(inputs, bindings)
    named: dict[str, tuple[int, str]] = {}
    for binding in bindings:
        array = inputs[binding.name]
        _check_dtype(binding, array)
        shape = array.shape
        if not binding.accepts(shape):
            what = f"input {binding.name!r} has shape {_show(shape)}, expected {_show(binding.shape)}"
            raise InputError(what, where=binding.name)
        for want, have in zip(binding.shape, shape, strict=True):
            if equal_names and isinstance(want, str) and want:
                first, owner = named.setdefault(want, (have, binding.name))
                if first != have:
                    what = f"dimension {want!r} is {first} in {owner!r} and {have} in {binding.name!r}"
                    raise InputError(what, where=binding.name, fix="send one size for it in all inputs")
    if profiles:
        shapes = {name: array.shape for name, array in inputs.items()}
        if tightest(shapes, profiles) is None:
            raise _outside(shapes, profiles)


def tightest(shapes: Mapping[str, Shape], profiles: Sequence[Profile]) -> int | None:
    """Index of the profile that covers these shapes and whose largest shapes have the fewest elements; None: none does.

    Inputs that a profile does not name are of fixed shape and fit every profile.
    """
    covering = [
        (sum(_elements(limits.max) for limits in profile.inputs.values()), index)
        for index, profile in enumerate(profiles)
        if all(_covers(limits, shapes[name]) for name, limits in profile.inputs.items() if name in shapes)
    ]
    return min(covering)[1] if covering else None


def _covers(limits: ShapeRange, shape: Shape) -> bool:
    return len(shape) == len(limits.min) and all(
        low <= size <= high for low, size, high in zip(limits.min, shape, limits.max, strict=True)
    )


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _check_dtype(binding: TensorInfo, array: Any) -> None:  # noqa: ANN401 - whatever the caller passed
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        what = f"input {binding.name!r} is a {type(array).__name__}, expected a NumPy array of {binding.dtype}"
        raise InputError(what, where=binding.name)
    fits = dtype.kind in "OUS" if binding.dtype == "string" else dtype.name == carrier(binding.dtype)
    if not fits:
        what = f"input {binding.name!r} has element type {dtype.name}, expected {binding.dtype}"
        raise InputError(what, where=binding.name)


def carrier(dtype: str) -> str:
    """Name of the NumPy type that carries an element type, e.g. ``uint16`` for ``bfloat16``."""
    return _CARRIED_AS.get(dtype, dtype)


def _wrong_names(inputs: Arrays, bindings: Sequence[TensorInfo]) -> InputError:
    wanted = [binding.name for binding in bindings]
    unknown = sorted(set(inputs) - set(wanted))
    missing = [name for name in wanted if name not in inputs]
    parts = [f"unknown input {', '.join(map(repr, unknown))}"] if unknown else []
    parts += [f"input {', '.join(map(repr, missing))} is missing"] if missing else []
    where = (unknown or missing)[0]
    return InputError("; ".join(parts), where=where, fix=f"the engine takes {', '.join(map(repr, wanted))}")


def _outside(shapes: Mapping[str, Shape], profiles: Sequence[Profile]) -> InputError:
    for profile in profiles:
        for name, limits in profile.inputs.items():
            if name in shapes and not _covers(limits, shapes[name]):
                what = (
                    f"input {name!r} has shape {_show(shapes[name])}, "
                    f"outside of profile {profile.name!r}: {_show(limits.min)} to {_show(limits.max)}"
                )
                others = len(profiles) - 1
                fix = f"none of the {others} other profiles covers it either" if others else None
                return InputError(what, where=name, fix=fix)
    return InputError("the inputs are outside of every profile")


def _show(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(str(dim) or '?' for dim in shape)}]"
