"""What a target leaves open that decides where its engine can be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.model.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.spec.engine import EngineSpec


def target_facts(spec: EngineSpec) -> Iterator[Fact]:
    """Targets of TensorRT that name no version; whether they name a GPU, a policy asks."""
    if spec.builder.version_compatible:
        return
    for index, target in enumerate(spec.targets):
        if target.backend == "tensorrt" and target.version is None:
            yield Fact(
                code="target.version-open",
                severity="warning",
                message=f"{target.id} names no version of TensorRT: an engine is loaded by the version that built it "
                "and by no other, and whoever builds decides which that is",
                path=("targets", index),
                fix='write the version that services have, such as `version: "8.6"`',
            )
