"""Building with any TensorRT: what is the same in 8.6, 10, 11 and TensorRT for RTX.

Names that came and went between the versions are looked up with ``getattr``; what a version lacks and a spec asks
for is refused with the reason, never left out in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtops.backend.bindings import onnx_bindings, with_formats
from trtops.backend.laps import Laps
from trtops.backend.port import Progress
from trtops.backend.trt_cache import attach, detach
from trtops.backend.trt_log import INFO, known_meaning, logger, meaning, trimmed
from trtops.backend.trt_plugins import load_for_build
from trtops.errors import BuildFailed
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtops.backend.port import BuildRequest
    from trtops.spec.engine import Builder, Memory, Precision, Profile

FORMAT = "application/vnd.nvidia.tensorrt.engine"

# Name of trt.DataType -> our name of the element type.
DATA_TYPES: Mapping[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3",
}
# Layers of 8.6 that compute with numbers: what moves or casts them has no precision to hold.
_COMPUTING = (
    "ACTIVATION",
    "CONVOLUTION",
    "DECONVOLUTION",
    "EINSUM",
    "ELEMENTWISE",
    "MATRIX_MULTIPLY",
    "NORMALIZATION",
    "POOLING",
    "REDUCE",
    "RESIZE",
    "SCALE",
    "SOFTMAX",
    "UNARY",
)
Bindings = tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]


class Made(NamedTuple):
    """An engine that was written: its bindings, and seconds of the phases of its build."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    seconds: dict[str, float]


def precision_refusal(library: str, precision: Precision, version: str | None) -> str | None:
    """Why a precision cannot be built; None if it can.

    The precision is written in the model file before the build (:mod:`trtops.build.precision`).

    Args:
        library: name for people.
        precision: of the spec.
        version: of the library, or the one that the target asks for; None: not known.
    """
    if precision.mode == "fp8":
        return f"no pass converts a model to fp8 for {library}"
    if precision.mode == "bf16" and (version or "").partition(".")[0] == "8":
        return f"{library} {version} has no bf16: its ONNX parser knows no such type"
    return None


def build_engine(
    trt: Any,  # noqa: ANN401 - TensorRT has no types
    request: BuildRequest,
    progress: Callable[[Progress], None],
    configure: Callable[[Any], None],
) -> Made:
    """Parse, configure, build and write an engine.

    Args:
        trt: the library's module.
        request: what to build.
        progress: told each phase.
        configure: sets what only one of the libraries has on the builder's config.

    Returns:
        the engine's inputs and outputs, and what each phase took.

    Raises:
        IntegrityError: a plugin library's bytes are not those of its digest.
        BuildFailed: names the node or the tensor, the reason in plain words, the fix.
    """
    log = logger(trt)
    log.errors = []
    log.shown = INFO
    load_for_build(trt, log, request.builder.plugins)
    laps = Laps()
    builder = trt.Builder(log)
    network = builder.create_network(network_flags(trt))
    laps.done("start the builder")
    progress(Progress(phase="parse the model"))
    model = _parse(trt, network, log, Path(request.model))
    check_profiles(network, request.profiles)
    sides = with_formats(_bindings(network, model), request.bindings, request.target.backend, str(trt.__version__))
    _set_formats(trt, network, {info.name: info.format for side in sides for info in side})
    laps.done("parse the model")
    config = builder.create_builder_config()
    _set_memory(trt, builder, config, request.memory)
    _set_flags(trt, config, request.precision, request.builder)
    _hold_types(trt, network, config, request.precision, half_names(model))
    configure(config)
    for profile in request.profiles:
        _add_profile(builder, config, profile, log, _dynamic_inputs(network))
    # The config holds references of its own neither to the monitor nor to the timings.
    held = (attach(config, request.timing_cache), _monitor(trt, config, progress))
    progress(Progress(phase="build the engine"))
    serialized = builder.build_serialized_network(network, config)
    laps.done("build the engine")
    if serialized is None:
        what, fix = meaning(log.errors)
        raise BuildFailed(f"TensorRT built no engine: {what}", fix=fix, log="\n".join(log.errors))
    progress(Progress(phase="write the engine"))
    detach(config, request.timing_cache)
    del held
    with Path(request.output).open("wb") as file:
        file.write(memoryview(serialized))
    laps.done("write the engine")
    return Made(*sides, laps.seconds)


def network_flags(trt: Any) -> int:  # noqa: ANN401 - TensorRT has no types
    """Flags of a network: explicit batch where the version still asks for it, strong types where it has them."""
    known = trt.NetworkDefinitionCreationFlag
    wanted = (getattr(known, name, None) for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED"))
    flags = 0
    for flag in wanted:
        flags |= 0 if flag is None else 1 << int(flag)
    return flags


def _parse(trt: Any, network: Any, log: Any, path: Path) -> Any:  # noqa: ANN401 - TensorRT and onnx have no types
    import onnx

    data = path.read_bytes()
    model = onnx.load_model_from_string(data)
    parser = trt.OnnxParser(network, log)
    if parser.parse(data) and not parser.num_errors:
        return model
    if not parser.num_errors:
        what, fix = meaning(log.errors)
        raise BuildFailed(f"TensorRT cannot read the model: {what}", fix=fix, log="\n".join(log.errors))
    raise _parser_failure(parser.get_error(0), model, log.errors)


def _parser_failure(error: Any, model: Any, said: Sequence[str]) -> BuildFailed:  # noqa: ANN401 - no types
    index = int(error.node())
    nodes = model.graph.node
    node = nodes[index] if 0 <= index < len(nodes) else None
    # 8.6 gives the number only; the name is in the model.
    name = _called(error, "node_name") or (node.name if node is not None else "")
    operator = _called(error, "node_operator") or (node.op_type if node is not None else "")
    code = str(error.code()).rpartition(".")[2]
    words = f"{code}: {error.desc()}"
    if known := known_meaning([words]):
        what, fix = known
    elif operator and code.startswith("UNSUPPORTED_NODE"):
        detail = "" if error.desc() in {"", "false"} else f": {trimmed(error.desc())}"
        what, fix = f"it does not implement {operator} as it is used here{detail}", "replace it in the model"
    else:
        what, fix = trimmed(words), "check the node in the model"
    where = f"node {name!r} ({operator})" if operator else name or None
    if where is None and error.func() == "importInput":
        where = f"input {error.file()!r}"  # the parser gives the tensor's name there
    return BuildFailed(f"TensorRT cannot read the model: {what}", where=where, fix=fix, log="\n".join(said))


def _called(error: Any, method: str) -> str:  # noqa: ANN401 - TensorRT has no types
    function = getattr(error, method, None)
    return str(function()) if function is not None else ""


def _inputs(network: Any) -> Iterator[Any]:  # noqa: ANN401 - TensorRT has no types
    return (network.get_input(index) for index in range(network.num_inputs))


def _set_formats(trt: Any, network: Any, formats: Mapping[str, str]) -> None:  # noqa: ANN401 - no types
    """Have bindings in other formats than the linear one, which is TensorRT's own choice where nothing is set."""
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    for tensor in (*_inputs(network), *outputs):
        if formats[tensor.name] != "linear":
            tensor.allowed_formats = 1 << int(getattr(trt.TensorFormat, formats[tensor.name].upper()))


def _dynamic_inputs(network: Any) -> set[str]:  # noqa: ANN401 - TensorRT has no types
    return {tensor.name for tensor in _inputs(network) if -1 in tuple(tensor.shape)}


def check_profiles(network: Any, profiles: Sequence[Profile]) -> None:  # noqa: ANN401 - TensorRT has no types
    """Hold profiles against a network's inputs. TensorRT takes wrong names and orders in silence, or fails later.

    Raises:
        BuildFailed: names the profile, the tensor, what it has and what is wrong.
    """
    shapes = {tensor.name: tuple(tensor.shape) for tensor in _inputs(network)}
    for tensor in _inputs(network):
        if tensor.is_shape_tensor:
            what = f"the input {tensor.name!r} is read as a shape: its values would have to be in the profile"
            raise BuildFailed(what, where=tensor.name, fix="make the sizes that it carries part of another input")
    for profile in profiles:
        where = f"profile {profile.name!r}"
        for name in sorted(shapes.keys() - profile.inputs.keys()):
            if -1 in shapes[name]:
                raise BuildFailed(f"there are no shapes for the dynamic input {name!r}", where=where, fix="add them")
        for name, limits in profile.inputs.items():
            if name not in shapes:
                known = ", ".join(map(repr, sorted(shapes)))
                raise BuildFailed(f"the model has no input {name!r}", where=where, fix=f"its inputs are {known}")
            for point, shape in limits.shapes().items():
                if len(shape) != len(shapes[name]) or any(
                    fixed not in {-1, size} for fixed, size in zip(shapes[name], shape, strict=True)
                ):
                    what = f"{point} {list(shape)} does not fit the input {name!r} of shape {list(shapes[name])}"
                    raise BuildFailed(what, where=where, fix="give it the rank and the fixed sizes of the model")
            if any(not low <= best <= high for low, best, high in zip(limits.min, limits.opt, limits.max, strict=True)):
                what = f"min ≤ opt ≤ max does not hold for {name!r}"
                raise BuildFailed(what, where=where, fix="put the three shapes in order")


def _add_profile(builder: Any, config: Any, profile: Profile, log: Any, dynamic: set[str]) -> None:  # noqa: ANN401
    made = builder.create_optimization_profile()
    for name, limits in profile.inputs.items():
        if name in dynamic:
            made.set_shape(name, limits.min, limits.opt, limits.max)
    if config.add_optimization_profile(made) < 0:
        what, fix = meaning(log.errors)
        raise BuildFailed(f"TensorRT refuses the profile: {what}", where=f"profile {profile.name!r}", fix=fix)


def _set_memory(trt: Any, builder: Any, config: Any, memory: Memory) -> None:  # noqa: ANN401 - no types
    if memory.workspace is None:
        what = "memory.workspace is not set: TensorRT's default is all memory of the device"
        raise BuildFailed(what, where="memory.workspace", fix="set it, e.g. 1GiB; it also holds activations")
    _set_pool(trt, config, "WORKSPACE", "memory.workspace", memory.workspace)
    if memory.tactic_shared_memory is not None:
        _set_pool(trt, config, "TACTIC_SHARED_MEMORY", "memory.tactic_shared_memory", memory.tactic_shared_memory)
    if memory.dla is not None:
        if not builder.num_DLA_cores:
            raise BuildFailed("the device has no DLA", where="memory.dla", fix="take memory.dla out for this target")
        _set_pool(trt, config, "DLA_GLOBAL_DRAM", "memory.dla", memory.dla)


def _set_pool(trt: Any, config: Any, pool: str, field: str, size: int) -> None:  # noqa: ANN401 - no types
    kind = getattr(trt.MemoryPoolType, pool, None)
    if kind is None:
        what = f"TensorRT {trt.__version__} has no pool {pool}"
        raise BuildFailed(what, where=field, fix=f"take {field} out for this target")
    config.set_memory_pool_limit(kind, size)
    taken = config.get_memory_pool_limit(kind)
    if taken != size:
        what = f"TensorRT does not take {size} bytes for {pool}: it keeps {taken}"
        raise BuildFailed(
            what, where=field, fix="take a size that the device allows (a power of two for shared memory)"
        )


def _set_flags(trt: Any, config: Any, precision: Precision, builder: Builder) -> None:  # noqa: ANN401 - no types
    tf32 = trt.BuilderFlag.TF32
    (config.set_flag if precision.tf32 or precision.mode == "tf32" else config.clear_flag)(tf32)
    config.builder_optimization_level = builder.optimization_level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # what `trtops inspect` reads; costs no time
    if builder.version_compatible:
        config.set_flag(_required(trt, trt.BuilderFlag, "VERSION_COMPATIBLE", "builder.version_compatible"))
    if not builder.timing_cache:
        config.set_flag(_required(trt, trt.BuilderFlag, "DISABLE_TIMING_CACHE", "builder.timing_cache"))


def half_names(model: Any) -> frozenset[str]:  # noqa: ANN401 - onnx is untyped
    """Names of a model's tensors that are float16 by ONNX's own rules."""
    import onnx

    half = onnx.TensorProto.FLOAT16
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # noqa: BLE001 - onnx raises many types; the builder then says what is wrong
        graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    named = {value.name for value in values if value.type.tensor_type.elem_type == half}
    return frozenset(named | {tensor.name for tensor in graph.initializer if tensor.data_type == half})


def _hold_types(trt: Any, network: Any, config: Any, precision: Precision, half: frozenset[str]) -> None:  # noqa: ANN401
    """Have a version that picks types by speed (8.6) keep those of the model; strongly typed networks do so anyway.

    A layer is held in FP32 where its outputs are FP32 to TensorRT and are no halves in the file: 8.6 does not say of
    every layer which type it takes from its inputs.
    """
    if hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        return
    if precision.mode == "int8":
        config.set_flag(trt.BuilderFlag.INT8)
    if precision.mode != "fp16":
        return
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    computing = {getattr(trt.LayerType, name, None) for name in _COMPUTING}
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        outputs = [layer.get_output(place) for place in range(layer.num_outputs)]
        single = all(tensor.dtype == trt.DataType.FLOAT and tensor.name not in half for tensor in outputs)
        if layer.type in computing and single:
            layer.precision = trt.DataType.FLOAT
            for place in range(layer.num_outputs):
                layer.set_output_type(place, trt.DataType.FLOAT)


def _required(trt: Any, owner: Any, name: str, field: str) -> Any:  # noqa: ANN401 - TensorRT has no types
    found = getattr(owner, name, None)
    if found is None:
        what = f"TensorRT {trt.__version__} has no {name}"
        raise BuildFailed(what, where=field, fix=f"take {field} out for this target")
    return found


def _monitor(trt: Any, config: Any, progress: Callable[[Progress], None]) -> Any:  # noqa: ANN401 - no types
    """Report the builder's own phases, where the version tells them (10 and later)."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Reports phases that have steps; a short inner one is shown in place of its parent."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, count: int) -> None:
            del parent
            self.steps[phase] = count
            progress(Progress(phase=phase, total=count))

        def step_complete(self, phase: str, step: int) -> bool:
            progress(Progress(phase=phase, done=step + 1, total=self.steps.get(phase, 0)))
            return True

        def phase_finish(self, phase: str) -> None:
            self.steps.pop(phase, None)

    monitor = Monitor()
    config.progress_monitor = monitor
    return monitor


def _bindings(network: Any, model: Any) -> Bindings:  # noqa: ANN401 - TensorRT and onnx have no types
    """Types as TensorRT has them (8.6 reads int64 as int32), names of dimensions as the model has them."""
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    named = {info.name: info.shape for side in onnx_bindings(model) for info in side}
    return (
        tuple(_info(tensor, named[tensor.name]) for tensor in _inputs(network)),
        tuple(_info(tensor, named[tensor.name]) for tensor in outputs),
    )


def _info(tensor: Any, named: tuple[int | str, ...]) -> TensorInfo:  # noqa: ANN401 - TensorRT has no types
    dtype = DATA_TYPES.get(tensor.dtype.name)
    if dtype is None:
        what = f"the binding {tensor.name!r} has the element type {tensor.dtype.name}, which no client can send"
        raise BuildFailed(what, where=tensor.name, fix="cast it in the model")
    shape = tuple(
        int(size) if size >= 0 else name if isinstance(name, str) and name else f"{tensor.name}_{axis}"
        for axis, (size, name) in enumerate(zip(tuple(tensor.shape), named, strict=True))
    )
    return TensorInfo(name=tensor.name, dtype=dtype, shape=shape)
