"""Dynamic batching against static, decided by the planner in virtual time: the same arrivals, no clock, no noise."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trtops.executor.state import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / "benchmarks"
STATIC = {
    "fixed": Policy(max_batch=16, delay=5.0, max_size=10**9),
    "window": Policy(max_batch=16, delay=0.02, max_size=10**9),
}
DYNAMIC = Policy(max_batch=16, max_size=10**9)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("executor_virtual")


@pytest.mark.parametrize(
    "cost", [lambda _: 5e-3, lambda rows: 4e-3 + 0.25e-3 * rows], ids=["whatever its size", "by its rows"]
)
@pytest.mark.parametrize(("load", "most"), [(0.1, 0.5), (0.6, 0.7), (0.9, 1.05), (1.2, 1.01)])
def test_dynamic_batching_is_never_worse_at_p99(
    virtual: Any, load: float, most: float, cost: Callable[[int], float]
) -> None:
    ratios = []
    for seed in range(3):
        times = virtual.arrivals(load * 16 / cost(16), 2.0, seed)
        static = {name: virtual.play(policy, times, cost) for name, policy in STATIC.items()}
        dynamic = virtual.play(DYNAMIC, times, cost)
        assert static["fixed"].rows == 16
        assert set(static["fixed"].reasons) == {"full"}
        ratios.append(dynamic.p99 / min(one.p99 for one in static.values()))
    assert statistics.median(ratios) <= most
