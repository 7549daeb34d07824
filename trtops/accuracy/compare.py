"""Running two sessions on the same samples and comparing what comes out.

Tolerance has the meaning of ``numpy.allclose(actual, expected, rtol, atol, equal_nan=True)``: an element is within it
if ``|actual - expected| <= atol + rtol * |expected|``. NaN equals only NaN, an infinity only one of the same sign.
Integers and truth values must be equal. Temporaries stay bounded: a mebi-element of float64 at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.accuracy.elements import decode, encode, is_integer, numpy_name
from trtops.accuracy.values import AccuracyReport, WorstElement
from trtops.backend.port import Progress
from trtops.errors import BuildFailed, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trtops.accuracy.samples import Samples
    from trtops.backend.port import Session
    from trtops.spec.engine import Accuracy, Profile
    from trtops.tensor import Shape, TensorInfo

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]

_CHUNK = 1 << 20
_TOP = {"top1": 1, "top5": 5}


@dataclass(frozen=True, slots=True)
class Point:
    """One of the shapes that a profile names: where outputs are compared."""

    profile: str
    name: str
    shapes: Mapping[str, Shape]


def points(profiles: Sequence[Profile], inputs: Sequence[TensorInfo]) -> tuple[Point, ...]:
    """Min, opt and max of every profile, each set of shapes once. Inputs that a profile leaves out have fixed shapes.

    Raises:
        InputError: a profile says nothing of an input whose shape is dynamic (the spec's author; preflight names it).
    """
    found: dict[tuple[tuple[str, Shape], ...], Point] = {}
    for profile in profiles:
        for name in ("min", "opt", "max"):
            shapes = {info.name: _shape_at(profile, info, name) for info in inputs}
            found.setdefault(tuple(sorted(shapes.items())), Point(profile.name, name, shapes))
    return tuple(found.values())


def _shape_at(profile: Profile, info: TensorInfo, name: str) -> Shape:
    if info.name in profile.inputs:
        return profile.inputs[info.name].shapes()[name]
    fixed = tuple(dim for dim in info.shape if isinstance(dim, int))
    if len(fixed) != len(info.shape):
        raise InputError(
            f"profile {profile.name!r} has no shapes for the dynamic input {info.name!r}",
            where=f"profiles.{profile.name}.inputs",
            fix=f"add min, opt and max for {info.name}",
        )
    return fixed


@dataclass(slots=True)
class Tally:
    """Running totals of a comparison. Feed it outputs with :meth:`add`, then ask for :meth:`report`.

    Attributes:
        atol, rtol: tolerances.
        bounds: metric name -> lower bound; only these metrics are computed.
    """

    atol: float
    rtol: float
    bounds: Mapping[str, float] = field(default_factory=dict)
    elements: int = 0
    outside: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    worst: WorstElement | None = None
    _hits: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _cosine: dict[str, float] = field(default_factory=dict)

    def add(self, info: TensorInfo, expected: Array, actual: Array, *, profile: str = "", point: str = "") -> None:
        """Compare one output of one execution. Both arrays have the element type of ``info`` and the same shape.

        Raises:
            ValueError: the shapes differ; a broadcast would hide it.
        """
        if expected.shape != actual.shape:
            message = f"shapes differ: expected {expected.shape}, got {actual.shape}"
            raise ValueError(message)
        flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)
        for start in range(0, flat_expected.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            at, excess = self._add_chunk(info, flat_expected[part], flat_actual[part])
            if self.worst is None or excess > self.worst.excess:
                self.worst = _element(info, expected, actual, start + at, excess, (profile, point))
        for metric in self.bounds:
            self._add_metric(metric, info, expected, actual)

    def _add_chunk(self, info: TensorInfo, expected: Array, actual: Array) -> tuple[int, float]:
        """Count; return position and excess of the chunk's worst element."""
        difference, relative, excess, outside = _differences(info.dtype, expected, actual, self.atol, self.rtol)
        self.elements += expected.size
        self.outside += int(outside.sum())
        self.max_abs = max(self.max_abs, float(difference.max()))
        self.max_rel = max(self.max_rel, float(relative.max()))
        at = int(excess.argmax())
        return at, float(excess[at])

    def _add_metric(self, metric: str, info: TensorInfo, expected: Array, actual: Array) -> None:
        if is_integer(info.dtype) or not expected.ndim or not expected.size:
            return
        if metric == "cosine":
            lowest = _lowest_cosine(info.dtype, expected, actual)
            self._cosine[info.name] = min(lowest, self._cosine.get(info.name, 1.0))
        elif expected.shape[-1] > _TOP[metric]:
            hits, rows = _top_hits(info.dtype, expected, actual, _TOP[metric])
            total = self._hits.setdefault((metric, info.name), [0, 0])
            total[0] += hits
            total[1] += rows

    def metrics(self) -> dict[str, float]:
        """Every metric that was asked for and that some output has: the lowest over the outputs."""
        values: dict[str, float] = {}
        for metric in self.bounds:
            found = [hits / rows for (name, _), (hits, rows) in self._hits.items() if name == metric]
            if metric == "cosine":
                found = list(self._cosine.values())
            if found:
                values[metric] = min(found)
        return values

    def report(self, reference: str, samples: Samples) -> AccuracyReport:
        """The totals as a value.

        Raises:
            InputError: the spec asks for a metric that no output can have, e.g. ``top1`` of a single number.
        """
        metrics = self.metrics()
        for missing in sorted(set(self.bounds) - set(metrics)):
            need = f"more than {_TOP[missing]} values on its last axis" if missing in _TOP else "floating numbers"
            raise InputError(
                f"metric {missing} cannot be computed: no output has {need}",
                where=f"accuracy.metric.{missing}",
                fix="leave the metric out",
            )
        reached = all(metrics[name] >= bound for name, bound in self.bounds.items())
        return AccuracyReport(
            reference=reference,
            samples=samples.digest,
            count=samples.count,
            atol=self.atol,
            rtol=self.rtol,
            elements=self.elements,
            outside=self.outside,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            metrics=metrics,
            required=dict(self.bounds),
            worst=self.worst,
            passed=self.elements > 0 and not self.outside and reached,
        )


def _element(
    info: TensorInfo, expected: Array, actual: Array, at: int, excess: float, where: tuple[str, str]
) -> WorstElement:
    import numpy as np

    index = tuple(int(i) for i in np.unravel_index(at, expected.shape)) if expected.ndim else ()
    wanted, got = (decode(info.dtype, array.reshape(-1)[at : at + 1]).item() for array in (expected, actual))
    return WorstElement(
        output=info.name,
        profile=where[0],
        point=where[1],
        index=index,
        expected=wanted,
        actual=got,
        excess=excess,
    )


def _differences(
    dtype: str, expected: Array, actual: Array, atol: float, rtol: float
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Absolute and relative difference, excess over the tolerance, and which elements are outside. All of one shape."""
    import numpy as np

    want, have = decode(dtype, expected), decode(dtype, actual)
    if is_integer(dtype):  # compared as integers: float64 cannot tell 2**53 from 2**53 + 1
        outside = expected != actual
        difference = np.where(outside, np.maximum(np.abs(have - want), 1.0), 0.0)
        excess = np.where(outside, math.inf, 0.0)
    else:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            same = (want == have) | (np.isnan(want) & np.isnan(have))
            broken = ~same & ~(np.isfinite(want) & np.isfinite(have))
            difference = np.where(same, 0.0, np.where(broken, math.inf, np.abs(have - want)))
            tolerance = atol + rtol * np.abs(want)
            outside = broken | (~same & (difference > tolerance))
            excess = np.where(same, 0.0, np.where(broken, math.inf, difference / tolerance))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        known = (difference == 0) | (want == 0)
        relative = np.where(known, 0.0, np.where(np.isinf(difference), math.inf, difference / np.abs(want)))
    return difference, relative, excess, outside


def _top_hits(dtype: str, expected: Array, actual: Array, k: int) -> tuple[int, int]:
    """Rows (all axes but the last) whose reference argmax is among the ``k`` largest of the engine; and all rows.

    Equal values rank by their index, so that an engine whose outputs are all the same agrees only by chance. A row with
    NaN never agrees.
    """
    import numpy as np

    classes = expected.shape[-1]
    wanted, given = expected.reshape(-1, classes), actual.reshape(-1, classes)
    step, hits = max(1, _CHUNK // classes), 0
    for start in range(0, len(wanted), step):
        want, have = decode(dtype, wanted[start : start + step]), decode(dtype, given[start : start + step])
        best = want.argmax(axis=1)[:, None]
        value = np.take_along_axis(have, best, axis=1)
        before = (have > value) | ((have == value) & (np.arange(classes) < best))
        whole = ~(np.isnan(want).any(axis=1) | np.isnan(have).any(axis=1))
        hits += int((whole & (before.sum(axis=1) < k)).sum())
    return hits, len(wanted)


def _lowest_cosine(dtype: str, expected: Array, actual: Array) -> float:
    """Lowest cosine similarity over rows (first axis), a row flattened.

    Two zero rows are alike (1); a zero row against another, or a row with NaN or infinity, is 0.
    """
    import numpy as np

    wanted, given = expected.reshape(len(expected), -1), actual.reshape(len(actual), -1)
    step, lowest = max(1, _CHUNK // wanted.shape[1]), 1.0
    for start in range(0, len(wanted), step):
        want, have = decode(dtype, wanted[start : start + step]), decode(dtype, given[start : start + step])
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            lengths = np.linalg.norm(want, axis=1) * np.linalg.norm(have, axis=1)
            similarity = (want * have).sum(axis=1) / lengths
        both_zero = ~want.any(axis=1) & ~have.any(axis=1)
        similarity = np.where(both_zero, 1.0, np.where(np.isfinite(similarity), similarity, 0.0))
        lowest = min(lowest, float(similarity.min()))
    return lowest


def verify(
    reference: Session,
    candidate: Session,
    profiles: Sequence[Profile],
    samples: Samples,
    accuracy: Accuracy,
    *,
    reference_name: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> AccuracyReport:
    """Run every sample through both at min, opt and max of every profile, and compare all outputs.

    Args:
        reference: computes the expected outputs: the original file with optimisations off.
        candidate: the engine.
        profiles: shapes; sets of shapes that repeat are compared once.
        samples: inputs, cropped or tiled to each shape (:class:`~trtops.accuracy.samples.Samples`).
        accuracy: tolerances and lower bounds of metrics from the spec.
        reference_name: what the reference is, with its version and settings; None: its name in the spec.
        progress: told of each shape.

    Raises:
        BuildFailed: the engine has other bindings than the model, or its outputs have other shapes.
        InputError: the spec's author: a metric that no output can have, or a dynamic input without shapes.
        Retryable: a device failed.
    """
    outputs = _matched_outputs(reference, candidate)
    tally = Tally(accuracy.atol, accuracy.rtol, {str(name): bound for name, bound in accuracy.metric.items()})
    todo = points(profiles, reference.inputs)
    for number, point in enumerate(todo):
        progress(Progress(phase=f"{point.profile}/{point.name}", done=number, total=len(todo)))
        for batch in samples.batches(point.shapes):
            expected = reference.run(batch)
            actual = candidate.run(_converted(batch, reference.inputs, candidate.inputs))
            for info, theirs in outputs:
                have = _same_type(actual[info.name], theirs, info)
                _require_shape(info, expected[info.name], have, point)
                tally.add(info, expected[info.name], have, profile=point.profile, point=point.name)
    progress(Progress(phase="compared", done=len(todo), total=len(todo)))
    return tally.report(reference_name or accuracy.reference, samples)


def _matched_outputs(reference: Session, candidate: Session) -> list[tuple[TensorInfo, TensorInfo]]:
    """Outputs of the reference, each with the engine's of the same name."""
    for kind, ours, theirs in (
        ("inputs", reference.inputs, candidate.inputs),
        ("outputs", reference.outputs, candidate.outputs),
    ):
        wanted, given = sorted(info.name for info in ours), sorted(info.name for info in theirs)
        if wanted != given:
            raise BuildFailed(
                f"the engine's {kind} are {', '.join(given)}; the model's are {', '.join(wanted)}",
                fix="rebuild it from this model",
            )
    if unsupported := [info.name for info in reference.outputs if info.dtype == "string"]:
        raise InputError(
            f"output {unsupported[0]!r} holds strings, which cannot be compared by number",
            where="accuracy",
            fix="leave that output out of the model",
        )
    by_name = {info.name: info for info in candidate.outputs}
    return [(info, by_name[info.name]) for info in reference.outputs]


def _converted(
    batch: Mapping[str, Array], ours: Sequence[TensorInfo], theirs: Sequence[TensorInfo]
) -> dict[str, Array]:
    """The batch in the engine's element types, where a precision pass changed them."""
    wanted = {info.name: info for info in theirs}
    return {info.name: _same_type(batch[info.name], info, wanted[info.name]) for info in ours}


def _same_type(array: Array, have: TensorInfo, want: TensorInfo) -> Array:
    """The array's numbers in another element type; the array itself where the types agree."""
    if have.dtype == want.dtype:
        return array
    if is_integer(have.dtype) and is_integer(want.dtype):
        return array.astype(numpy_name(want))
    return encode(want.dtype, decode(have.dtype, array))


def _require_shape(info: TensorInfo, expected: Array, actual: Array, point: Point) -> None:
    if expected.shape != actual.shape:
        raise BuildFailed(
            f"output {info.name!r} has shape {actual.shape} where the reference gives {expected.shape}",
            where=f"profile {point.profile}, {point.name}",
            fix="check the steps of the build that changed the model's shapes",
        )
