"""Where a device's time goes: measured once, kept signed, told again by ``trtops bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trtops.backend.onnxruntime import OnnxRuntimeSession
from trtops.backend.port import DeviceTimes
from trtops.bench.device import DeviceTimeline
from trtops.release.keys import KeyRing, KeyStore
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Repository


@pytest.fixture
def probed(shipped: Repository, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backend that can tell, as TensorRT's can; and the record of what it told."""

    def probe(_: OnnxRuntimeSession, __: Any, *, batch: int, seconds: float) -> DeviceTimes:
        del seconds
        parts = {"wall": 1000.0, "copy_in": 50.0, "compute": 800.0, "copy_out": 10.0, "enqueue": 100.0}
        ways = {"plain": 4321.0, "graph": 810.0, "pageable": 900.0, "pinned": 880.0, "mapped": 870.0}
        return DeviceTimes(batch=batch, runs=100, streams={1: 9000.0, 2: 9100.0}, **parts, **ways)

    monkeypatch.setattr(OnnxRuntimeSession, "probe", probe, raising=False)
    shipped.call("bench", "tiny", "--fresh").says(0, "4321")
    (record,) = (shipped.home / "store" / "records" / "device-times").iterdir()
    return record


def test_it_is_told_again_as_it_was_measured(shipped: Repository, probed: Path) -> None:
    before = probed.read_bytes()
    shipped.call("bench", "tiny").says(0, "4321", "bound by launches")
    assert probed.read_bytes() == before


@pytest.mark.parametrize("how", ["garbled", "unsigned", "stranger", "moved"])
def test_what_no_builder_key_vouches_for_is_in_no_report(shipped: Repository, probed: Path, how: str) -> None:
    """Whoever can write to a store could have people set what slows an engine down."""
    own, strange = KeyVoucher(KeyStore(shipped.home)), KeyVoucher(KeyRing())
    honest = own.opened(probed.read_bytes(), "here", DeviceTimeline)
    forged = {
        "garbled": b"{",
        "unsigned": honest.canonical_bytes(),
        "stranger": strange.sign(honest),
        "moved": own.sign(honest.model_copy(update={"key": "sha256:" + "0" * 64})),
    }[how]
    probed.write_bytes(forged)
    done = shipped.call("bench", "tiny").says(0, "device times of before are left out")
    assert "4321" not in done.out
    shipped.call("bench", "tiny", "--fresh").says(0, "4321")
    shipped.call("bench", "tiny").says(0, "4321")
