"""What metrics say of a candidate: read, added up, held against bounds; and when they say nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest

from tests.support.releases import CHANNEL, NOW, digest
from trtops.errors import InputError
from trtops.release.analysis import Sample, judge, samples, since, total
from trtops.release.assemble import next_binding
from trtops.release.rollout import Pair, released
from trtops.spec.engine import RolloutPlan

if TYPE_CHECKING:
    from trtops.release.documents import Binding

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def binding(**bounds: Any) -> Binding:
    plan = RolloutPlan.model_validate({"steps": [{"analysis": {"requests": 100} | bounds}]})
    first = released(None, Pair(digest("e1"), digest("c1")), None, NOW)
    assert first is not None
    begun = released(first, Pair(digest("e2"), digest("c2")), plan, NOW)
    assert begun is not None
    return next_binding(None, CHANNEL, begun, reason="r", actor="k", now=NOW)


class Service:
    """A service's metrics, by the library that services use."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ["engine", "channel", "code"]
        self.duration = Histogram("trtops_request_duration_seconds", "t", names, buckets=BOUNDS, registry=self.registry)
        self.compared = Counter("trtops_shadow_compared", "t", names[:2], registry=self.registry)
        self.differences = Counter("trtops_shadow_differences", "t", names[:2], registry=self.registry)
        self.failures = Counter("trtops_shadow_failures", "t", names[:2], registry=self.registry)
        self.info = Info("trtops_channel", "t", names[:2], registry=self.registry)

    def answers(self, channel: str, count: int, seconds: float = 0.005, code: str = "200") -> None:
        for _ in range(count):
            self.duration.labels("cls", channel, code).observe(seconds)

    def runs(self, channel: str, engine: str, config: str) -> None:
        about = {"engine_release": str(digest(engine)), "config_release": str(digest(config))}
        self.info.labels("cls", channel).info(about)

    def look(self) -> dict[str, Sample]:
        return dict(samples(generate_latest(self.registry).decode(), "cls", where="here"))


def verdict(found: dict[str, Sample], **bounds: Any) -> tuple[bool | None, str]:
    judgement = judge(binding(**bounds), found)
    assert judgement is not None
    assert judgement.generation == 1
    return judgement.passed, "; ".join(judgement.reasons)


def test_errors_are_the_servers_own() -> None:
    service = Service()
    service.answers("canary", 199)
    service.answers("canary", 50, code="400")
    service.answers("canary", 1, code="503")
    assert verdict(service.look(), error_rate=0.005) == (True, "errors 1 of 250, 0.005 allowed")
    assert verdict(service.look(), error_rate=0.001) == (False, "errors 1 of 250, 0.001 allowed")


def test_with_too_few_requests_only_what_nothing_can_mend_is_decided() -> None:
    service = Service()
    service.answers("canary", 98)
    assert verdict(service.look(), error_rate=0.01) == (None, "errors 0 of 98, 0.01 allowed (100 are needed)")
    service.answers("canary", 1, code="500")
    assert verdict(service.look(), error_rate=0.01)[0] is None  # 1 of 100 would be good enough
    service.answers("canary", 1, code="500")
    assert verdict(service.look(), error_rate=0.01) == (False, "errors 2 of 100, 0.01 allowed")
    assert verdict(service.look(), error_rate=0.01, requests=150)[0] is False


def test_p99_is_that_of_good_answers() -> None:
    service = Service()
    service.answers("canary", 100, 0.05)
    service.answers("canary", 100, 0.0001, code="500")  # to fail at once is not to be fast
    assert verdict(service.look(), p99="100ms") == (True, "p99 99.1 ms, 100 ms allowed")
    assert verdict(service.look(), p99="99ms") == (False, "p99 99.1 ms, 99 ms allowed")
    assert verdict(service.look(), p99="1s", requests=101) == (None, "p99 is not known: 100 of 101 good answers")
    slow = Service()
    slow.answers("canary", 100, 7.0)
    assert verdict(slow.look(), p99="500ms") == (False, "p99 over 1 s, 500 ms allowed")
    assert verdict(slow.look(), p99="5s") == (None, "p99 is not known: over 1 s, where the buckets end")


def test_p99_against_the_stable_release() -> None:
    service = Service()
    service.answers("stable", 100, 0.005)
    service.answers("canary", 100, 0.005)
    assert verdict(service.look(), p99_ratio=1.0)[0] is True
    service.answers("canary", 10, 0.05)
    passed, words = verdict(service.look(), p99_ratio=2.0)
    assert passed is False
    assert words == "p99 9.09 times the stable release's 9.91 ms, 2 allowed"
    lonely = Service()
    lonely.answers("canary", 100)
    assert verdict(lonely.look(), p99_ratio=2.0)[0] is None
    service.answers("canary", 1000, 7.0)
    assert verdict(service.look(), p99_ratio=2.0)[0] is False  # more than 1 s against 10 ms
    assert verdict(service.look(), p99_ratio=500.0)[0] is None


def test_shadowed_outputs() -> None:
    service = Service()
    service.compared.labels("cls", "canary").inc(200)
    service.differences.labels("cls", "canary").inc(2)
    assert verdict(service.look(), shadow_difference=0.01) == (True, "differences 2 of 200, 0.01 allowed")
    assert verdict(service.look(), shadow_difference=0.0)[0] is False
    assert verdict(service.look(), shadow_difference=0.01, error_rate=0.01)[0] is None  # no answers of its own
    assert verdict(service.look(), shadow_difference=0.0, error_rate=0.01)[0] is False  # what fails decides
    service.failures.labels("cls", "canary").inc(50)  # no answer is not the same answer
    assert verdict(service.look(), shadow_difference=0.1) == (False, "differences 52 of 250, 0.1 allowed")


def test_what_runs_has_to_be_the_candidate() -> None:
    service = Service()
    service.answers("canary", 100)
    service.runs("canary", "e2", "c2")
    assert verdict(service.look(), error_rate=0.01)[0] is True
    other = Service()
    other.runs("canary", "e2", "c1")
    both = total([service.look(), other.look()])
    assert verdict(both, error_rate=0.01) == (None, "the services do not run this candidate in canary yet")
    assert verdict({}, error_rate=0.01) == (None, "the metrics say nothing of the channel canary")


def test_services_add_up_and_a_window_is_a_difference() -> None:
    one, two = Service(), Service()
    one.answers("canary", 60)
    two.answers("canary", 60)
    two.answers("canary", 60, code="500")
    assert verdict(total([one.look(), two.look()]), error_rate=0.5) == (True, "errors 60 of 180, 0.5 allowed")
    before = total([one.look(), two.look()])
    one.answers("canary", 100)
    assert verdict(since(before, total([one.look(), two.look()])), error_rate=0.0) == (
        True,
        "errors 0 of 100, 0 allowed",
    )
    assert verdict(since(total([one.look(), two.look()]), before), error_rate=0.0) == (
        None,
        "the counts of canary went back: its service began anew",
    )


def test_a_series_without_a_channel_is_the_stable_releases() -> None:
    text = 'trtops_request_duration_seconds_count{engine="cls",code="200"} 7\n'
    assert samples(f"# TYPE trtops_request_duration_seconds histogram\n{text}", "cls", where="x")["stable"].answers == 7
    assert samples(text, "other", where="x") == {}


@pytest.mark.parametrize("text", ["{", "a b c d e", 'trtops_request_duration_seconds_count{engine="cls",code="x"} 1\n'])
def test_what_is_no_metrics_is_said(text: str) -> None:
    with pytest.raises(InputError, match=r"here: these are no metrics: .*control port"):
        samples(text, "cls", where="here")


def test_a_step_that_is_no_analysis_is_not_judged() -> None:
    plan = RolloutPlan.model_validate({"steps": [{"weight": 5}]})
    begun = released(
        binding(p99="1s").bound.model_copy(update={"rollout": None}), Pair(digest("e3"), digest("c")), plan, 0
    )
    assert begun is not None
    assert judge(next_binding(None, CHANNEL, begun, reason="r", actor="k", now=NOW), {}) is None


counts = st.lists(st.integers(0, 50), min_size=5, max_size=5)


@given(counts)
def test_p99_lies_in_the_bucket_of_that_rank(seen: list[int]) -> None:
    edges = [*BOUNDS, math.inf]
    cumulative = tuple((edge, float(sum(seen[: number + 1]))) for number, edge in enumerate(edges))
    found, count = Sample(buckets=cumulative).p99, sum(seen)
    if count == 0:
        assert found is None
        return
    at = next(number for number, (_, below) in enumerate(cumulative) if below >= 0.99 * count)
    if at == len(BOUNDS):
        assert found is None
    else:
        assert found is not None
        assert ([0.0, *BOUNDS][at]) <= found <= BOUNDS[at]


@given(st.lists(st.tuples(counts, st.integers(0, 9)), min_size=1, max_size=4))
def test_to_add_and_to_take_away_again_is_nothing(parts: list[tuple[list[int], int]]) -> None:
    made = [
        Sample(
            answers=float(sum(seen)),
            errors=float(bad),
            buckets=tuple(zip((*BOUNDS, math.inf), map(float, seen), strict=True)),
        )
        for seen, bad in parts
    ]
    whole = made[0]
    for one in made[1:]:
        whole = whole + one
    for one in made[1:]:
        whole = whole - one
    assert whole == made[0]
