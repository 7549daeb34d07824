"""Facts read off an ONNX file, and what preflight found, as values."""

from __future__ import annotations

from pydantic import Field

from trtops.digest import Digest, Value
from trtops.tensor import TensorInfo


class ModelFacts(Value):
    """What an ONNX file says of itself.

    Attributes:
        content: SHA-256 of the file.
        size_bytes: its size.
        ir_version, opset: versions; opset by domain (``""`` is ``ai.onnx``).
        inputs, outputs: tensors; a dimension's name is the file's own, ``""`` where it has none.
        operators: how many nodes of each ``domain::type`` (``ai.onnx`` without its domain).
        initializer_bytes: bytes of the weights.
        nodes: number of nodes.
    """

    content: Digest
    size_bytes: int
    ir_version: int
    opset: dict[str, int]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: dict[str, int]
    initializer_bytes: int
    nodes: int


class Fact(Value):
    """One thing that preflight found. A rule decides what follows from it (design §4.1).

    Attributes:
        code: stable identifier, e.g. ``profile.min-above-opt`` or ``model.duplicate-dimension-name``.
        severity: ``error`` (no engine can come of it), ``warning``, or ``repaired`` (the build mends it, noted).
        message: what was found, with values.
        path: where in the spec, e.g. ``("profiles", 0, "inputs", "x", "min")``; empty for the model itself.
        node: name of the ONNX node or tensor, where there is one.
        fix: what to do.
    """

    code: str
    severity: str
    message: str
    path: tuple[str | int, ...] = ()
    node: str | None = None
    fix: str


class Preflight(Value):
    """Everything that preflight found, and numbers that rules judge.

    Attributes:
        model: facts of the file.
        facts: what was found.
        output_shapes: inferred output shapes by profile, point (``min``, ``opt``, ``max``) and output.
        estimate_bytes: estimated memory by profile: ``weights``, ``activations`` (at the maximum shapes).
    """

    model: ModelFacts
    facts: tuple[Fact, ...] = ()
    output_shapes: dict[str, dict[str, dict[str, tuple[int, ...]]]] = Field(default_factory=dict)
    estimate_bytes: dict[str, dict[str, int]] = Field(default_factory=dict)
