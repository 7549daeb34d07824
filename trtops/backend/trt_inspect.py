"""Looking into a TensorRT engine with the library's own inspector."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trtops.backend.inspect import Inspection, Layer
from trtops.backend.trt_log import logger, meaning
from trtops.backend.trt_plugins import load_for_session
from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Sidecar

_NOT_KNOWN = "N/A"  # "N/A due to dynamic shapes"
_WEIGHTS = {"Float": "fp32", "Half": "fp16", "BFloat16": "bf16"}


def inspect_engine(trt: Any, artifact: Path, sidecar: Sidecar) -> Inspection:  # noqa: ANN401 - TensorRT has no types
    """Look into an engine whose version and device were checked.

    Raises:
        NotLoadable: TensorRT refuses the file, or a plugin library that it needs is not there.
        IntegrityError: a plugin library's bytes are not those of its digest.
    """
    log = logger(trt)
    log.errors = []
    load_for_session(trt, log, artifact, sidecar)
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(artifact.read_bytes())
    if engine is None:
        reason, fix = meaning(log.errors)
        raise NotLoadable(
            f"TensorRT cannot load the engine: {reason}", where=str(artifact), fix=fix or "build it again"
        )
    inspector = engine.create_engine_inspector()
    if (context := _with_shapes(engine, sidecar)) is not None:
        inspector.execution_context = context
    told = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    # 11 has the newer name only; 8.6 the older one only.
    scratch = getattr(engine, "device_memory_size_v2", None)
    if scratch is None:
        scratch = getattr(engine, "device_memory_size", None)
    return Inspection(layers=layers_of(told), scratch_bytes=None if scratch is None else int(scratch))


def _with_shapes(engine: Any, sidecar: Sidecar) -> Any | None:  # noqa: ANN401 - TensorRT has no types
    """A context at the optimum of the first profile: without shapes, an inspector tells no formats of dynamic tensors.

    None where the device has no memory for it, or the engine takes no such shapes.
    """
    context = engine.create_execution_context()
    if context is None:
        return None
    inputs = sidecar.profiles[0].inputs if sidecar.profiles else {}
    return context if all(context.set_input_shape(name, limits.opt) for name, limits in inputs.items()) else None


def layers_of(told: str) -> tuple[Layer, ...]:
    """Layers that an inspector's JSON tells: objects where the engine was built with details, else names.

    8.6 parts the names in a layer's ``Metadata`` by control characters that it does not escape, which strict JSON does
    not allow.
    """
    try:
        listed = json.loads(told, strict=False).get("Layers", [])
    except (ValueError, AttributeError):
        return ()
    return tuple(_layer(layer) for layer in listed)


def _layer(told: Any) -> Layer:  # noqa: ANN401 - JSON of the library
    if not isinstance(told, dict):
        return Layer(name=str(told), kind="?")
    formats = (output.get("Format/Datatype") for output in told.get("Outputs", ()) if isinstance(output, dict))
    types = {str(one) for one in formats if one and not str(one).startswith(_NOT_KNOWN)}
    weights = told.get("Weights")
    if not types and isinstance(weights, dict) and weights.get("Type"):
        types = {f"{_WEIGHTS.get(str(weights['Type']), weights['Type'])} weights"}
    return Layer(
        name=str(told.get("Name", "?")), kind=str(told.get("LayerType", "?")), precision=", ".join(sorted(types)) or "?"
    )
