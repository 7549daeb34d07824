"""``governance/runners.yaml``: which runners of CI build and measure which targets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from trtops.digest import Value
from trtops.document import invalid, parse_document
from trtops.errors import InputError
from trtops.spec.engine import BackendName, Capability, Target
from trtops.spec.problems import problems_of

if TYPE_CHECKING:
    from trtops.document import Document

RUNNERS_FILE = "governance/runners.yaml"

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Match(Value):
    """What a target has to have; what is left out may be anything."""

    backend: BackendName | None = None
    """The backend that builds it."""
    version: str | None = None
    """Version of the backend in quotes, such as "8.6"."""
    gpu: str | None = None
    """The GPU's model, such as H200."""
    mig: str | None = None
    """MIG profile, such as 1g.18gb."""
    compute_capability: Capability | None = None
    """Compute capability in quotes, such as "9.0"."""

    def holds(self, target: Target) -> bool:
        """Whether a target has all of it."""
        gpu = target.gpu
        capability = target.compute_capability or (gpu.compute_capability if gpu else None)
        pairs = (
            (self.backend, target.backend),
            (self.version, target.version),
            (self.gpu, gpu.name if gpu else None),
            (self.mig, gpu.mig if gpu else None),
            (self.compute_capability, capability),
        )
        return all(wanted is None or wanted == found for wanted, found in pairs)


class Runner(Value):
    """One kind of runner."""

    match: Match
    """Which targets it takes. At least one key."""
    labels: Annotated[tuple[Label, ...], Field(min_length=1, max_length=16)]
    """Labels for `runs-on`; a runner has to have all of them."""

    @model_validator(mode="after")
    def _says_something(self) -> Runner:
        if self.match == Match():
            raise ValueError("write at least one of backend, version, gpu, mig, compute_capability under match")
        return self


class Runners(Value):
    """A whole ``governance/runners.yaml``."""

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document of this kind
    """Version of this format."""
    kind: Literal["Runners"]
    """What this document is."""
    runners: tuple[Runner, ...]
    """Kinds of runners; the first that matches a target takes it."""

    def labels(self, target: Target) -> tuple[str, ...] | None:
        """Labels of the runners that take a target; None if there are none."""
        return next((runner.labels for runner in self.runners if runner.match.holds(target)), None)


def parse_runners(content: bytes, file: str) -> Runners:
    """Read the file.

    Args:
        content: its bytes.
        file: what errors call it.

    Raises:
        InputError: it is wrong; ``problems`` has every problem with its position.
    """
    document: Document = parse_document(content, file=file)
    try:
        return Runners.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        raise invalid(file, problems_of(error, Runners, document)) from None


def no_runner(target: str, engine: str) -> InputError:
    """The error for a target, by its id, that no runner takes."""
    return InputError(
        f"no runner takes the target {target} of {engine}",
        where=RUNNERS_FILE,
        fix="write an entry whose match it has, with the labels of a runner that can build it",
    )
