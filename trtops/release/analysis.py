"""What a candidate's metrics say about it, held against the bounds of a rollout's step. Pure: text in, judgement out.

Reads Prometheus' text format, as a service's control port writes it, with these series::

    trtops_request_duration_seconds{engine, channel, code}     histogram of answers by HTTP status
    trtops_shadow_compared_total{engine, channel}              copied requests whose outputs were compared
    trtops_shadow_differences_total{engine, channel}           of these, the ones whose outputs differ
    trtops_shadow_failures_total{engine, channel}              copied requests that the candidate failed to answer
    trtops_channel_info{engine, channel, engine_release, config_release}   what runs in the channel

``channel`` is the arm's name; a series without it is the stable release's. Where ``trtops_channel_info`` tells of
another release than the candidate's, nothing is decided: the numbers are somebody else's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.errors import InputError
from trtops.release.documents import STABLE
from trtops.release.rollout import Judgement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.samples import Sample as Line

    from trtops.release.documents import Arm, Binding
    from trtops.spec.engine import Analysis

DURATION = "trtops_request_duration_seconds"
COMPARED = "trtops_shadow_compared_total"
DIFFERENT = "trtops_shadow_differences_total"
UNANSWERED = "trtops_shadow_failures_total"
INFO = "trtops_channel_info"

_SERVER_ERROR = 500
_ERROR = 400
_P99 = 0.99
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What one arm did, counted.

    Attributes:
        answers: requests that were answered, with whatever status.
        errors: of these, with status 500 and above.
        buckets: upper bound in seconds -> good answers (status below 400) that took at most as long.
        compared, differing: shadowed requests, and those whose outputs differ or were never given.
        releases: (engine release, config release) that were seen to run, by their digests as text.
    """

    answers: float = 0.0
    errors: float = 0.0
    buckets: tuple[tuple[float, float], ...] = ()
    compared: float = 0.0
    differing: float = 0.0
    releases: frozenset[tuple[str, str]] = frozenset()

    def __add__(self, other: Sample) -> Sample:
        """Both together: of two services, whose buckets have to be the same (else there are none)."""
        return self._with(other, 1)

    def __sub__(self, before: Sample) -> Sample:
        """What was counted since an earlier look."""
        return self._with(before, -1)

    def _with(self, other: Sample, sign: int) -> Sample:
        mine, theirs = dict(self.buckets), dict(other.buckets)
        if not theirs or not mine:
            buckets = self.buckets or tuple((bound, sign * count) for bound, count in other.buckets)
        elif mine.keys() != theirs.keys():
            buckets = ()
        else:
            buckets = tuple((bound, count + sign * theirs[bound]) for bound, count in self.buckets)
        return Sample(
            self.answers + sign * other.answers,
            self.errors + sign * other.errors,
            buckets,
            self.compared + sign * other.compared,
            self.differing + sign * other.differing,
            self.releases | other.releases,
        )

    @property
    def whole(self) -> bool:
        """Whether these can be counts: finite, none below zero (a service that began anew between two looks)."""
        counts = (self.answers, self.errors, self.compared, self.differing, *(count for _, count in self.buckets))
        return all(math.isfinite(count) and count >= 0 for count in counts)

    @property
    def p99(self) -> float | None:
        """Seconds that 99 % of the good answers took at most; None if there is none, or it is over the last bound.

        Linear inside a bucket, as Prometheus' ``histogram_quantile``
        (https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile).
        """
        if not self.buckets or self.buckets[-1][1] <= 0:
            return None
        rank, low, below = _P99 * self.buckets[-1][1], 0.0, 0.0
        for bound, count in self.buckets:
            if count >= rank:
                inside = count - below
                return None if math.isinf(bound) else low + (bound - low) * ((rank - below) / inside if inside else 1.0)
            low, below = bound, count
        return None


def samples(text: str, engine: str, *, where: str) -> Mapping[str, Sample]:
    """Channel -> what it did, of one engine.

    Args:
        text: metrics in Prometheus' text format.
        engine: name.
        where: who said so, for messages.

    Raises:
        InputError: this is not the text of metrics.
    """
    from prometheus_client.parser import text_string_to_metric_families

    counts: dict[str, dict[str, float]] = {}
    buckets: dict[str, dict[float, float]] = {}
    releases: dict[str, set[tuple[str, str]]] = {}
    try:
        families = list(text_string_to_metric_families(text))
        for line in (line for family in families for line in family.samples if line.labels.get("engine") == engine):
            channel = line.labels.get("channel", STABLE)
            if line.name == f"{DURATION}_bucket" and int(line.labels.get("code", 0)) < _ERROR:
                bound = float(line.labels["le"])
                found = buckets.setdefault(channel, {})
                found[bound] = found.get(bound, 0.0) + line.value
            elif line.name == INFO:
                pair = line.labels["engine_release"], line.labels["config_release"]
                releases.setdefault(channel, set()).add(pair)
            for key in _counted(line):
                at = counts.setdefault(channel, {})
                at[key] = at.get(key, 0.0) + line.value
    except (ValueError, KeyError) as error:
        fix = "give the /metrics of a service's control port, or a file with its text"
        raise InputError(f"these are no metrics: {str(error)[:200]}", where=where, fix=fix) from None
    return {
        channel: Sample(
            buckets=tuple(sorted(buckets.get(channel, {}).items())),
            releases=frozenset(releases.get(channel, ())),
            **counts.get(channel, {}),
        )
        for channel in counts.keys() | buckets.keys() | releases.keys()
    }


def _counted(line: Line) -> Iterator[str]:
    if line.name == f"{DURATION}_count":
        yield "answers"
        if int(line.labels.get("code", 0)) >= _SERVER_ERROR:
            yield "errors"
    elif line.name == COMPARED:
        yield "compared"
    elif line.name == DIFFERENT:
        yield "differing"
    elif line.name == UNANSWERED:  # no answer is not the same answer
        yield from ("compared", "differing")


def total(looks: Iterable[Mapping[str, Sample]]) -> dict[str, Sample]:
    """What several services did together, by channel."""
    found: dict[str, Sample] = {}
    for look in looks:
        for channel, sample in look.items():
            found[channel] = found[channel] + sample if channel in found else sample
    return found


def since(before: Mapping[str, Sample], after: Mapping[str, Sample]) -> dict[str, Sample]:
    """What was done between two looks, by channel."""
    return {channel: sample - before.get(channel, Sample()) for channel, sample in after.items()}


def judge(binding: Binding, found: Mapping[str, Sample]) -> Judgement | None:
    """What the metrics say to the step that an open rollout is in; None if it is no analysis.

    Each bound passes, fails or cannot be told. One that fails decides; else one that cannot be told leaves it open.
    """
    rollout = binding.rollout
    if rollout is None or not rollout.open or (analysis := rollout.plan.steps[rollout.step].analysis) is None:
        return None
    stable, arm = binding.arms
    candidate = found.get(arm.channel)
    problem = _unusable(candidate, arm)
    if problem is not None or candidate is None:
        return Judgement(binding.generation, None, (problem or "",))
    answers = [_bound(name, analysis, candidate, found.get(stable.channel, Sample())) for name in analysis.bounds]
    verdicts = [passed for passed, _ in answers]
    passed = False if False in verdicts else None if None in verdicts else True
    return Judgement(binding.generation, passed, tuple(words for _, words in answers))


def _unusable(candidate: Sample | None, arm: Arm) -> str | None:
    if candidate is None:
        return f"the metrics say nothing of the channel {arm.channel}"
    if not candidate.whole:
        return f"the counts of {arm.channel} went back: its service began anew"
    running = (str(arm.engine_release), str(arm.config_release))
    if candidate.releases and candidate.releases != {running}:
        return f"the services do not run this candidate in {arm.channel} yet"
    return None


def _bound(name: str, analysis: Analysis, candidate: Sample, stable: Sample) -> tuple[bool | None, str]:
    need = analysis.requests
    if name == "error_rate":
        assert analysis.error_rate is not None  # noqa: S101 - it is one of the bounds
        return _share("errors", candidate.errors, candidate.answers, analysis.error_rate, need)
    if name == "shadow_difference":
        assert analysis.shadow_difference is not None  # noqa: S101 - it is one of the bounds
        return _share("differences", candidate.differing, candidate.compared, analysis.shadow_difference, need)
    good = candidate.buckets[-1][1] if candidate.buckets else 0.0
    if good < need:
        return None, f"p99 is not known: {good:g} of {need} good answers"
    found = candidate.p99
    shown = f"over {_last(candidate):g} s" if found is None else f"{found * 1000:.4g} ms"
    if name == "p99":
        assert analysis.p99 is not None  # noqa: S101 - it is one of the bounds
        limit = analysis.p99 / _MICROSECONDS
        if found is None and limit > _last(candidate):
            return None, f"p99 is not known: {shown}, where the buckets end"
        return found is not None and found <= limit, f"p99 {shown}, {limit * 1000:g} ms allowed"
    assert analysis.p99_ratio is not None  # noqa: S101 - it is the last of the bounds
    others = stable.buckets[-1][1] if stable.buckets and stable.whole else 0.0
    base = stable.p99
    if others < need or not base or (found is None and _last(candidate) <= analysis.p99_ratio * base):
        return None, f"p99 cannot be compared: {others:g} of {need} good answers of the stable release, p99 {shown}"
    ratio = f"{_last(candidate) / base:.3g} or more" if found is None else f"{found / base:.3g}"
    words = f"p99 {ratio} times the stable release's {base * 1000:.4g} ms, {analysis.p99_ratio:g} allowed"
    return found is not None and found <= analysis.p99_ratio * base, words


def _share(what: str, bad: float, of: float, limit: float, need: int) -> tuple[bool | None, str]:
    """With too few requests, only what no further good answer could mend is decided."""
    words = f"{what} {bad:g} of {of:g}, {limit:.3g} allowed"
    if of < need:
        return (False if bad > limit * need else None), f"{words} ({need} are needed)"
    return bad <= limit * of, words


def _last(sample: Sample) -> float:
    """The last finite bound of the buckets, in seconds."""
    return max((bound for bound, _ in sample.buckets if math.isfinite(bound)), default=0.0)
