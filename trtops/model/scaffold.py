"""Writes a first ``engine.yaml`` from an ONNX file, with comments that say what to decide."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.spec.engine import (
    Batching,
    Benchmark,
    EngineSpec,
    Metadata,
    ModelSource,
    Profile,
    ShapeRange,
    Target,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtops.model.facts import ModelFacts, Preflight
    from trtops.tensor import TensorInfo

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_PLAIN_URI = re.compile(r"[a-z][a-z0-9+.-]*:[A-Za-z0-9_./=+~-]+")
_CONSTANTS = {"true", "false", "null"}
_BATCH = (1, 8, 32)
# Sizes that are tried for a dimension that the model leaves open, until shape inference agrees.
_IMAGE_SIZES = (224, 32, 48, 64, 128, 256, 320, 512, 640)
_OTHER_SIZES = (128, 16, 32, 64, 256, 512, 8, 4, 1)
_IMAGE_RANK = 4
_COLOURS = 4
_MIN_WORKSPACE = 256 << 20


def scaffold(name: str, facts: ModelFacts, source: str, *, model: Path | None = None, owner: str | None = None) -> str:
    """Write a spec for a model.

    Args:
        name: the engine's name.
        facts: of the ONNX file; its digest becomes ``model.sha256``.
        source: its URI, as it shall stand in the spec.
        model: the file itself. With it, sizes that the model leaves open are chosen so that every node can take them.
        owner: the owning team; without it, a commented line asks for one.

    Returns:
        The text of an ``engine.yaml`` that :func:`trtops.spec.load.load_engine` reads.

    Raises:
        InputError: the name is no engine name, or the model has no inputs.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name for an engine",
            fix="write lower-case letters, digits and dashes, 63 at most, such as text-classifier",
        )
    if not facts.inputs:
        raise InputError(
            "the model has no inputs", where=source, fix="export it with the inputs that it is served with"
        )
    spec, found = _fitting(name, facts, source, model)
    return "".join(f"{line}\n" for line in _lines(spec, facts, found, owner))


def _fitting(name: str, facts: ModelFacts, source: str, model: Path | None) -> tuple[EngineSpec, Preflight | None]:
    """The first candidate that the model can take; the first of all where none can, or the file is not at hand."""
    from trtops.model.preflight import preflight

    first: tuple[EngineSpec, Preflight | None] | None = None
    for attempt in range(len(_IMAGE_SIZES) if model else 1):
        spec = _spec(name, facts, source, attempt)
        found = preflight(spec, model, facts) if model else None
        first = first or (spec, found)
        if found is not None and not any(fact.code == "profile.infeasible-shape" for fact in found.facts):
            return _without_batches(spec, found), found
    return first or (_spec(name, facts, source, 0), None)


def _without_batches(spec: EngineSpec, found: Preflight) -> EngineSpec:
    """The spec with batching off where the model's answers or inputs cannot be told apart by rows."""
    unbatched = {"model.output-not-batched", "batching.no-batch-dimension"}
    if not any(fact.code in unbatched for fact in found.facts):
        return spec
    one = {
        tensor: ShapeRange(min=shapes.min, opt=shapes.min, max=shapes.min)
        for tensor, shapes in spec.profiles[0].inputs.items()
    }
    return spec.model_copy(
        update={
            "profiles": (Profile(inputs=one),),
            "batching": Batching(),
            "benchmark": Benchmark(batch_sizes=(1,)),
        }
    )


def _spec(name: str, facts: ModelFacts, source: str, attempt: int) -> EngineSpec:
    firsts = {tensor.shape[0] for tensor in facts.inputs if tensor.shape}
    fixed = {first for first in firsts if isinstance(first, int)}
    # Rows are the first dimension of every input: where one of them fixes it, all have that size.
    rows = _BATCH if not fixed else (min(fixed),) * 3
    if not firsts or len(fixed) > 1:
        rows = (1, 1, 1)
    inputs = {tensor.name: _range(tensor, rows, attempt) for tensor in facts.inputs}
    sizes = tuple(sorted(set(rows)))
    return EngineSpec(
        apiVersion="trtops/v1",
        kind="Engine",
        metadata=Metadata(name=name, labels={"tier": "bronze"}),
        model=ModelSource(source=source, sha256=facts.content.value),
        targets=(Target(backend="onnxruntime"),),
        profiles=(Profile(inputs=inputs),),
        batching=Batching(max_batch=rows[-1], preferred=sizes[1:]),
        benchmark=Benchmark(batch_sizes=sizes),
    )


def _range(tensor: TensorInfo, rows: tuple[int, ...], attempt: int) -> ShapeRange:
    low, middle, high = (tuple(_size(tensor, axis, row, attempt) for axis in range(len(tensor.shape))) for row in rows)
    return ShapeRange(min=low, opt=middle, max=high)


def _size(tensor: TensorInfo, axis: int, row: int, attempt: int) -> int:
    dim = tensor.shape[axis]
    if isinstance(dim, int):
        return dim
    if axis == 0:
        return row
    choices = _IMAGE_SIZES if _is_image(tensor) else _OTHER_SIZES
    return choices[attempt % len(choices)]


def _is_image(tensor: TensorInfo) -> bool:
    """Rank 4 with few channels, first (NCHW) or last (NHWC)."""
    if len(tensor.shape) != _IMAGE_RANK:
        return False
    return any(isinstance(channels, int) and channels <= _COLOURS for channels in (tensor.shape[1], tensor.shape[3]))


def _lines(spec: EngineSpec, facts: ModelFacts, found: Preflight | None, owner: str | None) -> Iterator[str]:
    yield "# Every key of this file: `trtops schema Engine`. What is allowed: `trtops check " + spec.name + "`."
    yield "apiVersion: trtops/v1"
    yield "kind: Engine"
    yield ""
    yield "metadata:"
    yield f"  name: {_text(spec.name)}"
    yield (
        f"  owner: {_text(owner)}"
        if owner
        else "  # owner: YOUR-TEAM           # who is asked when it breaks; a policy demands one"
    )
    yield "  labels:"
    yield "    tier: bronze               # gold: p99 and throughput have to be proved before a release"
    yield ""
    yield "model:"
    yield f"  source: {_uri(spec.model.source)}"
    yield f"  sha256: {spec.model.sha256}"
    yield ""
    yield "# One artifact each."
    yield "targets:"
    yield "  - backend: onnxruntime       # CPU, everywhere"
    yield "  # - backend: tensorrt"
    yield '  #   version: "8.6"'
    yield '  #   gpu: {name: H200, compute_capability: "9.0"}'
    yield "  #   slo: {p99: 5ms, throughput: 2000}"
    yield ""
    yield "precision:"
    yield "  mode: fp32                   # anything else needs samples that mean something, see `accuracy`"
    yield ""
    yield from _profile(spec, facts)
    yield ""
    yield from _sizes(spec, found)


def _profile(spec: EngineSpec, facts: ModelFacts) -> Iterator[str]:
    yield "# Shapes that the engine takes: kernels are chosen for opt, memory is sized for max."
    yield "profiles:"
    for profile in spec.profiles:
        yield f"  - name: {profile.name}"
        yield "    inputs:"
        for tensor in facts.inputs:
            shapes = profile.inputs[tensor.name]
            yield f"      {_text(tensor.name)}:  # {tensor.dtype} {_shown(tensor)}"
            open_axes = [axis for axis, dim in enumerate(tensor.shape) if isinstance(dim, str) and axis]
            if open_axes:
                axes = ", ".join(map(str, open_axes))
                yield f"        # The model leaves dimension {axes} open: write the sizes that your clients send."
            for point, shape in shapes.shapes().items():
                yield f"        {point}: {list(shape)}"


def _sizes(spec: EngineSpec, found: Preflight | None) -> Iterator[str]:
    estimate = max((sizes["activations"] for sizes in found.estimate_bytes.values()), default=0) if found else 0
    workspace = _MIN_WORKSPACE
    while workspace < estimate:
        workspace *= 2
    yield "batching:"
    yield f"  max_batch: {spec.batching.max_batch:<16} # rows in one execution; inside the profile"
    yield f"  preferred: {list(spec.batching.preferred)}"
    yield "  max_queue_delay: 0ms         # how long a request may wait for others"
    yield ""
    yield "memory:"
    yield f"  workspace: {f'{workspace >> 20}MiB':<16} # activations included; TensorRT has no sane default"
    yield ""
    yield "interface:"
    yield "  version: 1.0.0               # a change that breaks clients needs a new major"
    yield ""
    yield "accuracy:"
    yield "  samples: random              # better: file:samples.npz, arrays named after the inputs"
    yield "  atol: 1e-4"
    yield "  rtol: 1e-3"
    yield ""
    yield "benchmark:"
    yield f"  batch_sizes: {list(spec.benchmark.batch_sizes)}"
    yield "  warmup: 200ms"
    yield "  duration: 1s"


def _shown(tensor: TensorInfo) -> str:
    """A shape for a comment: one line whatever the names are."""
    return "[" + ", ".join(str(dim) if isinstance(dim, int) else dim[:40] or "?" for dim in tensor.shape) + "]"


def _text(text: str) -> str:
    """Text as YAML, quoted where it would read as something else."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _CONSTANTS else json.dumps(text)


def _uri(uri: str) -> str:
    return uri if _PLAIN_URI.fullmatch(uri) else json.dumps(uri)
