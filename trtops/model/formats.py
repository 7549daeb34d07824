"""Memory formats of the spec against the model's inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.model.facts import Fact
from trtops.spec.bindings import format_problem, unknown_binding
from trtops.spec.problems import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.model.facts import ModelFacts
    from trtops.spec.engine import EngineSpec


def format_facts(spec: EngineSpec, model: ModelFacts) -> Iterator[Fact]:
    """Names that the model does not have, and formats that a target does not have for such a tensor."""
    tensors = {tensor.name: tensor for tensor in (*model.inputs, *model.outputs)}
    for name, binding in spec.bindings.items():
        tensor = tensors.get(name)
        if tensor is None:
            what, fix = unknown_binding(name, tensors.values())
            meant = suggestion(name, tensors)
            yield Fact(
                code="bindings.unknown-name",
                severity="error",
                message=what,
                path=("bindings", name),
                fix=f"did you mean {meant!r}? {fix[0].upper()}{fix[1:]}" if meant else fix,
            )
            continue
        problems = (format_problem(tensor, binding.format, target.backend, target.version) for target in spec.targets)
        for what, fix in dict.fromkeys(problem for problem in problems if problem is not None):
            yield Fact(
                code="bindings.format",
                severity="error",
                message=what,
                path=("bindings", name, "format"),
                node=name,
                fix=fix,
            )
