"""``trtops bench``: what it prints beside the table, on a machine with no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def test_throughput_is_drawn_and_what_a_cpu_has_not_is_said(repo: Repository) -> None:
    done = repo.call("bench", "tiny").says(0, "95 % intervals in brackets", "rows/s by batch", "knee: ")
    lines = done.out.splitlines()
    start = lines.index("rows/s by batch")
    bars = [line for line in lines[start + 1 :] if "█" in line]
    assert [int(line.split()[0]) for line in bars] == [1, 8]
    assert max(line.count("█") for line in bars) == 32
    assert all(line.count("█") for line in bars)
    assert sum("<- knee" in line for line in bars) <= 1
    assert "not measured: copies to a device, CUDA graphs, streams, pinned and mapped input: onnxruntime on" in done.out
    assert "where the time goes (" not in done.out
