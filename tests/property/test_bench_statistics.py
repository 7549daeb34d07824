from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.bench import statistics

TIMES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=200)
Q = st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99])


@given(TIMES, Q)
def test_the_quantile_is_numpys_inverted_cdf_and_inside_its_interval(times: list[float], q: float) -> None:
    interval = statistics.quantile(sorted(times), q)
    assert interval.value == np.quantile(times, q, method="inverted_cdf")
    assert min(times) <= interval.low <= interval.value <= interval.high <= max(times)


@given(st.integers(1, 800), Q)
def test_ranks_cover_95_percent_by_the_exact_binomial_and_are_the_narrowest(n: int, q: float) -> None:
    lower, upper, reached = statistics.quantile_ranks(n, q)
    mass = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    below_lower, from_upper = math.fsum(mass[:lower]), math.fsum(mass[upper:])
    assert 1 <= lower <= upper <= n
    if reached:
        assert below_lower <= 0.025 + 1e-9
        assert from_upper <= 0.025 + 1e-9
        assert math.fsum(mass[: lower + 1]) > 0.025 - 1e-9
        assert math.fsum(mass[upper - 1 :]) > 0.025 - 1e-9
    else:
        assert mass[0] > 0.025 - 1e-9 or mass[n] > 0.025 - 1e-9


def test_p99_needs_368_values() -> None:
    assert not statistics.quantile_ranks(367, 0.99)[2]
    assert statistics.quantile_ranks(368, 0.99)[2]


def test_ranks_of_very_many_values_are_found() -> None:
    lower, upper, reached = statistics.quantile_ranks(1_000_000, 0.99)
    assert reached
    assert 990_000 - lower == pytest.approx(1.96 * math.sqrt(9900), rel=0.02)
    assert upper - 990_000 == pytest.approx(1.96 * math.sqrt(9900), rel=0.02)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_intervals_of_a_skewed_distribution_hold_the_true_quantile(q: float) -> None:
    random = np.random.default_rng(11)
    truth = math.exp(0.5 * _normal_quantile(q))
    held = 0
    for _ in range(400):
        interval = statistics.quantile(np.sort(random.lognormal(0.0, 0.5, 500)).tolist(), q)
        held += interval.low <= truth <= interval.high
    assert held / 400 > 0.92  # 0.95 less three standard errors of the simulation


def _normal_quantile(q: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(q)


@pytest.mark.parametrize(("correlation", "runs"), [(0.0, 600), (0.6, 1500), (0.9, 6000)])
def test_throughput_intervals_bear_autocorrelation(correlation: float, runs: int) -> None:
    random = np.random.default_rng(5)
    held, repeats = 0, 300
    for _ in range(repeats):
        noise = random.normal(0, 1, runs)
        series = np.empty(runs)
        series[0] = noise[0] / math.sqrt(1 - correlation**2)
        for i in range(1, runs):
            series[i] = correlation * series[i - 1] + noise[i]
        interval = statistics.throughput((100 + series).tolist(), 8)
        held += interval.low <= 8e6 / 100 <= interval.high
    assert held / repeats > 0.90


def test_throughput_intervals_of_independent_runs_are_as_narrow_as_the_normal_ones() -> None:
    times = np.random.default_rng(3).normal(100, 10, 3000)
    interval = statistics.throughput(times.tolist(), 1)
    relative = (interval.high - interval.low) / interval.value
    assert relative == pytest.approx(2 * 1.96 * 0.1 / math.sqrt(3000), rel=0.4)


@given(TIMES, st.integers(1, 64))
def test_throughput_is_rows_by_mean_latency_and_inside_its_interval(times: list[float], rows: int) -> None:
    interval = statistics.throughput(times, rows)
    assert interval.value == pytest.approx(rows * 1e6 / np.mean(times))
    assert 0 < interval.low <= interval.value * (1 + 1e-12)
    assert interval.value * (1 - 1e-12) <= interval.high < math.inf


@given(TIMES)
def test_mean_deviation_and_correlation_are_numpys(times: list[float]) -> None:
    assert statistics.mean(times) == pytest.approx(np.mean(times))
    spread = np.std(times, ddof=1) if len(times) > 1 else 0.0
    assert statistics.standard_deviation(times) == pytest.approx(spread, rel=1e-6, abs=1e-6)
    assert -1 <= statistics.autocorrelation(times) <= 1


def test_correlation_tells_alike_neighbours_from_opposite_ones() -> None:
    assert statistics.autocorrelation([1, 1, 1, 1, 5, 5, 5, 5]) > 0.5
    assert statistics.autocorrelation([1, 5] * 20) < -0.9
    assert statistics.autocorrelation([3, 3, 3, 3]) == 0


def test_students_table_is_the_distributions() -> None:
    random = np.random.default_rng(1)
    for freedom in (1, 4, 19, 29):
        drawn = np.abs(random.standard_t(freedom, 200_000))
        assert np.mean(drawn <= statistics._STUDENT_975[freedom - 1]) == pytest.approx(0.95, abs=0.003)


@pytest.mark.parametrize(("n", "q"), [(0, 0.5), (5, 0.0), (5, 1.0)])
def test_impossible_questions_are_refused(n: int, q: float) -> None:
    with pytest.raises(ValueError, match="need n >= 1"):
        statistics.quantile_ranks(n, q)
    with pytest.raises(ValueError, match="no values"):
        statistics.mean([])
