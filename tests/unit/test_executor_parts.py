"""The executor's small parts: cost, memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.errors import NotLoadable
from trtops.executor.cost import Cost
from trtops.executor.memory import ALIGNMENT, Budget, Pool, aligned_bytes, readable


@given(st.floats(1e-6, 1e-3), st.floats(0, 1e-2))
def test_cost_finds_the_line(a: float, b: float) -> None:
    cost = Cost()
    for rows in (1, 8, 16, 32) * 12:
        cost.observe(rows, a * rows + b)
    assert cost.estimate(24) == pytest.approx(a * 24 + b, rel=0.05)
    assert cost.bound(24) >= cost.estimate(24)


def test_cost_follows_a_device_that_gets_slower() -> None:
    cost = Cost()
    for factor in (1.0, 3.0):
        for rows in (1, 16) * 40:
            cost.observe(rows, factor * (0.001 * rows + 0.002))
    assert cost.estimate(16) == pytest.approx(3 * 0.018, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10)), max_size=30))
def test_cost_is_never_negative_and_never_falls_with_rows(seen: list[tuple[int, float]]) -> None:
    cost = Cost()
    for rows, seconds in seen:
        cost.observe(rows, seconds)
    estimates = [cost.estimate(rows) for rows in range(1, 65)]
    assert min(estimates) >= 0
    assert estimates == sorted(estimates)
    assert "us/row" in repr(cost)


@given(st.integers(1, 10_000))
def test_memory_is_aligned(size: int) -> None:
    piece = aligned_bytes(size)
    assert piece.shape == (size,)
    assert piece.dtype == np.uint8
    assert piece.ctypes.data % ALIGNMENT == 0


@given(st.lists(st.integers(1, 300), max_size=10))
def test_a_pool_gives_disjoint_pieces_and_never_more_than_it_has(sizes: list[int]) -> None:
    pool = Pool("pool", 1024, setting="memory.pinned_pool")
    pieces = []
    for index, size in enumerate(sizes):
        try:
            piece = pool.take(size, f"input {index}")
        except NotLoadable as error:
            assert pool.used + size > 1024 - ALIGNMENT
            assert f"input {index} needs {readable(size)}" in str(error)  # noqa: PT017 - not every size is refused
            continue
        assert piece.ctypes.data % ALIGNMENT == 0
        piece[:] = index
        pieces.append((index, piece))
    assert all((piece == index).all() for index, piece in pieces)
    assert pool.used <= 1024


def test_a_budget_counts_all_holders() -> None:
    budget = Budget("host memory", 1 << 20)
    budget.hold("engine a", 600 << 10)
    budget.hold("engine a", 100 << 10)
    with pytest.raises(
        NotLoadable, match=r"engine b needs 400 KiB of host memory, 324 KiB of 1 MiB are free .*engine a 700 KiB"
    ):
        budget.hold("engine b", 400 << 10)
    budget.release("engine a")
    budget.release("engine a")
    budget.hold("engine b", 1 << 20)
    assert repr(budget) == "Budget(host memory: 1 MiB of 1 MiB)"
    Budget("device memory", None).hold("anybody", 1 << 50)
