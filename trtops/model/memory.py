"""What an engine will need, estimated from shapes, against the pools of the spec."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtops.model.facts import Fact
from trtops.model.operators import uses_tensorrt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtops.model.facts import ModelFacts
    from trtops.model.inference import Inference, Tensor
    from trtops.spec.engine import EngineSpec, PrecisionMode

# Share of its 32 bits that a float32 element keeps in each precision.
_SHARE: Mapping[PrecisionMode, float] = {"fp32": 1, "tf32": 1, "fp16": 0.5, "bf16": 0.5, "int8": 0.25, "fp8": 0.25}
_FLOAT = 1
_LIMIT = (1 << 53) - 1


def estimate(spec: EngineSpec, model: ModelFacts, inference: Inference) -> dict[str, int]:
    """Bytes that an engine needs at the shapes of an inference.

    ``weights``: all constants in the spec's precision. ``activations``: the peak of what is alive at once when nodes
    run in the file's order, without fusion; a builder usually needs less, and some kernels add scratch memory.
    ``bindings``: inputs and outputs as clients see them. Tensors of unknown size count nothing.
    """
    share = _SHARE[spec.precision.mode]
    inputs = [tensor.name for tensor in model.inputs]
    outputs = [tensor.name for tensor in model.outputs]
    bindings = sum(_bytes(inference.output(name), 1) for name in (*inputs, *outputs))
    found = {
        "weights": math.ceil(model.initializer_bytes * share),
        "activations": _peak(inference, outputs, share),
        "bindings": bindings,
    }
    return {name: min(size, _LIMIT) for name, size in found.items()}


def _bytes(tensor: Tensor, share: float) -> int:
    elements = tensor.elements or 0
    return math.ceil(elements * tensor.bits / 8 * (share if tensor.data_type == _FLOAT else 1))


def _peak(inference: Inference, outputs: list[str], share: float) -> int:
    """The largest sum of tensors that are alive at once."""
    last: dict[str, int] = {}
    for step, (read, _) in enumerate(inference.order):
        last.update(dict.fromkeys(read, step))
    last.update(dict.fromkeys(outputs, len(inference.order)))
    ending: dict[int, list[str]] = {}
    for name, step in last.items():
        ending.setdefault(step, []).append(name)
    alive: dict[str, int] = {}
    now = peak = 0
    for step, (_, made) in enumerate(inference.order):
        for name in made:
            if name in inference.constants or name in alive:
                continue
            alive[name] = _bytes(inference.output(name), share)
            now += alive[name]
        peak = max(peak, now)
        for name in (*ending.get(step, ()), *(name for name in made if name not in last)):
            now -= alive.pop(name, 0)
    return peak


def memory_facts(spec: EngineSpec, estimates: Mapping[str, Mapping[str, int]]) -> Iterator[Fact]:
    """Pools that are absent or cannot hold what the largest profile needs."""
    memory = spec.memory
    targets = uses_tensorrt(spec)
    largest = {
        kind: max((sizes[kind] for sizes in estimates.values()), default=0) for kind in ("activations", "bindings")
    }
    if targets and memory.workspace is None:
        yield Fact(
            code="memory.workspace-absent",
            severity="warning",
            message=f"no workspace is set: TensorRT may take all of the GPU's memory ({', '.join(targets)})",
            path=("memory", "workspace"),
            fix="set `memory.workspace`, such as 256MiB"
            + (f"; activations need about {_shown(largest['activations'])}" if largest["activations"] else ""),
        )
    elif targets and memory.workspace is not None and memory.workspace < largest["activations"]:
        yield Fact(
            code="memory.workspace-below-activations",
            severity="warning",
            message=f"the workspace of {_shown(memory.workspace)} is below the {_shown(largest['activations'])} that "
            "activations need at the largest shapes (estimated without fusion)",
            path=("memory", "workspace"),
            fix="raise `memory.workspace`, or lower the profile's max",
        )
    for name in ("device_pool", "pinned_pool"):
        pool = getattr(memory, name)
        if pool is not None and pool < largest["bindings"] * spec.execution.instances:
            yield Fact(
                code="memory.pool-below-bindings",
                severity="warning",
                message=f"{name} of {_shown(pool)} is below the {_shown(largest['bindings'])} that inputs and outputs "
                f"need at the largest shapes, for each of {spec.execution.instances} instances",
                path=("memory", name),
                fix=f"raise `memory.{name}`, or lower the profile's max",
            )


def _shown(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"
