"""What the parts of an execution mean, in words, and the knee of a batch sweep."""

from __future__ import annotations

from typing import Any

import pytest

from trtops.backend.port import DeviceTimes
from trtops.bench.device import advice, knee
from trtops.report.device import device_times


def _times(**changes: Any) -> DeviceTimes:
    calm: dict[str, Any] = {
        "batch": 8,
        "runs": 100,
        "wall": 1000.0,
        "copy_in": 50.0,
        "compute": 800.0,
        "copy_out": 10.0,
        "enqueue": 100.0,
        "plain": 820.0,
        "graph": 810.0,
        "pageable": 900.0,
        "pinned": 880.0,
        "mapped": 870.0,
        "streams": {1: 9000.0, 2: 9100.0, 4: 9000.0},
    }
    return DeviceTimes.model_validate(calm | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graph": 500.0}, "bound by launches: a CUDA graph takes 500 µs where enqueueing takes 820 µs"),
        ({"copy_in": 500.0}, "bound by copies: they take 510 µs beside 800 µs"),
        ({"mapped": 600.0}, "mapped input takes 600 µs where pinned takes 880 µs"),
        ({"wall": 2000.0}, "bound by the host: 1140 of 2000 µs"),
        ({"streams": {1: 9000.0, 2: 15000.0, 4: 15100.0}}, "4 streams reach 1.68 times"),
    ],
)
def test_what_limits_is_said(changes: dict[str, Any], words: str) -> None:
    said = advice([_times(**changes)])
    assert len(said) == 1
    assert said[0].startswith("batch 8: ")
    assert words in said[0]
    assert words in device_times([_times(**changes)])


def test_calm_engine_gets_no_advice() -> None:
    assert advice([_times(), _times(graph=None, streams={})]) == []
    assert " - " in device_times([_times(graph=None)]).replace("  -  ", " - ")


@pytest.mark.parametrize(
    ("rates", "batch"),
    [
        ([], None),
        ([(1, 100.0)], None),
        ([(1, 100.0), (2, 199.0), (4, 395.0)], 4),
        ([(8, 810.0), (1, 100.0), (16, 830.0), (32, 840.0)], 8),
        ([(1, 100.0), (32, 104.0)], 1),
        ([(4, 100.0), (5, 120.0)], 5),
        ([(1, 100.0), (8, 140.0)], 8),  # three doublings, each by 12 %
        ([(1, 100.0), (8, 130.0)], 1),
    ],
)
def test_knee(rates: list[tuple[int, float]], batch: int | None) -> None:
    assert knee(rates) == batch
