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
    told = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    # 11 has the newer name only; 8.6 the older one only.
    scratch = getattr(engine, "device_memory_size_v2", None)
    if scratch is None:
        scratch = getattr(engine, "device_memory_size", None)
    return Inspection(layers=layers_of(told), scratch_bytes=None if scratch is None else int(scratch))


def layers_of(told: str) -> tuple[Layer, ...]:
    """Layers that an inspector's JSON tells: objects where the engine was built with details, else names."""
    try:
        listed = json.loads(told).get("Layers", [])
    except (ValueError, AttributeError):
        return ()
    return tuple(_layer(layer) for layer in listed)


def _layer(told: Any) -> Layer:  # noqa: ANN401 - JSON of the library
    if not isinstance(told, dict):
        return Layer(name=str(told), kind="?")
    types = {str(output.get("Format/Datatype", "?")) for output in told.get("Outputs", ()) if isinstance(output, dict)}
    return Layer(
        name=str(told.get("Name", "?")), kind=str(told.get("LayerType", "?")), precision=", ".join(sorted(types)) or "?"
    )
