"""What a build's parent and its child process say to each other: JSON, one value on stdin, then one a line back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from trtops.backend.port import BuildResult, Progress
from trtops.build.plan import BuildPlan
from trtops.digest import Value

HEARTBEAT_SECONDS = 0.5

TIMING_FILE = "timings"
"""Name of the timing cache in the child's folder."""

MODEL_FILE = "model.onnx"
"""Name of the model as the builder reads it, in the child's folder."""


class SampleSource(Value):
    """Where calibration data, or samples to measure ranges on, are.

    Attributes:
        uri: ``random``, or ``file:`` with a path.
        folder: that a relative path starts from.
        count: the first so many only; None: all.
    """

    uri: str
    folder: str
    count: int | None = None


class Request(Value):
    """What the child gets on its standard input.

    Attributes:
        plan: what to build.
        model: path of the source ONNX file; its digest is checked against the plan's.
        folder: a folder of the child's own; the engine is written there as ``engine``.
        address_space: bytes that the child may map; None: no limit.
        samples: data that the precision needs; their digest is checked against the plan's.
        converted: steps that made the converted model, which the folder has already; None: it has to be made.
        started: when the parent started the child, on the machine's monotonic clock (``time.monotonic``).
    """

    plan: BuildPlan
    model: str
    folder: str
    address_space: int | None = None
    samples: SampleSource | None = None
    converted: tuple[str, ...] | None = None
    started: float


class Alive(Value):
    """The child's interpreter runs."""

    kind: Literal["alive"] = "alive"


class Advanced(Value):
    """The build got on."""

    kind: Literal["advanced"] = "advanced"
    progress: Progress


class Done(Value):
    """The engine is written. ``seconds``: what the child's phases took, in their order."""

    kind: Literal["done"] = "done"
    result: BuildResult
    steps: tuple[str, ...]
    seconds: dict[str, float]


class Failed(Value):
    """The build ended without an engine; the parts of an error of :mod:`trtops.errors`, by its name."""

    kind: Literal["failed"] = "failed"
    error: str
    what: str
    where: str | None = None
    fix: str | None = None


Message = Alive | Advanced | Done | Failed

MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])
