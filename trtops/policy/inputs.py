"""What policies see: one frozen document a stage, with every fact that a rule needs computed beforehand (design §4).

Rules stay simple because the arithmetic is done here: sizes are bytes, durations microseconds, measured times
nanoseconds, instants epoch seconds, versions lists of integers. Every field is always present, ``null`` where there is
nothing, so that no rule can be undefined because a key is missing. No plain text secret is ever part of an input.

The documents are versioned: ``schema`` names the stage and a major version (``trtops.spec/v1``). A field may be added
within a version; taking one away, renaming it or changing its meaning makes the next (docs/concepts/policy-inputs.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from trtops.digest import Value, canonical

if TYPE_CHECKING:
    from trtops.policy.verdict import Stage

Numbers = tuple[int, ...]
"""A version as integers: ``8.6.1`` is ``(8, 6, 1)``."""

_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}")


class StageInput(Value):
    """Base of the four documents.

    Attributes:
        environment: whose rules hold, e.g. ``local`` or ``prod``.
        engine: the engine's name.
        tier: its label ``tier``; ``bronze`` where it has none.
    """

    model_config = ConfigDict(populate_by_name=True, json_schema_serialization_defaults_required=True)

    environment: str
    engine: str
    tier: str

    def to_json(self) -> dict[str, Any]:
        """The document as engines get it: JSON types only, ``schema`` under its own name."""
        return self.model_dump(mode="json", by_alias=True)

    def canonical_bytes(self) -> bytes:
        """Canonical JSON of :meth:`to_json`."""
        return canonical(self.to_json())


def version_numbers(text: str | None) -> Numbers | None:
    """Read the leading numbers of a version: ``"8.6.1.post1"`` -> ``(8, 6, 1)``; None where it starts with none."""
    match = _NUMBERS.match(text or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None


def input_model(stage: Stage) -> type[StageInput]:
    """The model of a stage's document; its module is imported here, so that a check never pays for the others."""
    if stage == "source":
        from trtops.policy.inputs_source import SourceInput

        return SourceInput
    if stage == "spec":
        from trtops.policy.inputs_spec import SpecInput

        return SpecInput
    if stage == "evidence":
        from trtops.policy.inputs_evidence import EvidenceInput

        return EvidenceInput
    from trtops.policy.inputs_release import ReleaseInput

    return ReleaseInput
