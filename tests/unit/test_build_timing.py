"""Timing caches: kept by version and device, merged when builds run at once, never the reason that a build fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.builds import engine_spec, linear, plan_for, save
from trtops.backend.fake import FakeBackend
from trtops.build.runner import build
from trtops.build.timing import TIMINGS, fetch_timings, keep_timings, timing_key
from trtops.device import Device
from trtops.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from trtops.build.plan import BuildPlan

H200 = Device(kind="gpu", name="NVIDIA H200", compute_capability="9.0", sm_count=132, driver="570.86.15")


def _model(number: int) -> onnx.ModelProto:
    made = linear()
    made.producer_name = f"model {number}"
    return made


def _plan(path: Path, device: Device | None = H200, **changes: Any) -> BuildPlan:
    return plan_for(path, spec=engine_spec(**changes)).model_copy(update={"device": device})


def test_key_is_of_version_and_device(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    key = timing_key(_plan(path))
    assert key is not None
    assert key.startswith("fake-1.0.0-")
    assert timing_key(_plan(path, H200.model_copy(update={"driver": "570.99"}))) == key
    for change in ({"driver": "580.1"}, {"sm_count": 16}, {"mig": "1g.18gb"}, {"name": "NVIDIA H100"}):
        assert timing_key(_plan(path, H200.model_copy(update=change))) != key
    assert timing_key(_plan(path, None)) is None
    assert timing_key(_plan(path, builder={"timing_cache": False})) is None
    assert timing_key(_plan(path).model_copy(update={"target": engine_spec("onnxruntime").targets[0]})) is None


@pytest.mark.service
def test_builds_at_once_keep_all_timings(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    models = [save(_model(number), tmp_path / f"{number}.onnx") for number in range(4)]
    device = FakeBackend().device()
    with ThreadPoolExecutor(4) as pool:
        plans = [_plan(path, device) for path in models]
        list(pool.map(lambda pair: build(pair[0], model=pair[1], store=store), zip(plans, models, strict=True)))
    key = timing_key(plans[0])
    assert key is not None
    kept = store.record(TIMINGS, key)
    assert kept is not None
    assert len(kept.split(b"\n")) == 4


@pytest.mark.service
def test_cache_of_another_build_is_merged(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = tmp_path / "timings"
    assert fetch_timings(store, "fake-1-x", path) is None
    path.write_bytes(b"ours")
    store.keep(TIMINGS, "fake-1-x", b"theirs")
    assert keep_timings(store, "fake-1-x", path, None) is None
    assert store.record(TIMINGS, "fake-1-x") == b"ours\ntheirs"
    assert fetch_timings(store, "fake-1-x", path) == b"ours\ntheirs"
    path.write_bytes(b"more\nours\ntheirs")
    assert keep_timings(store, "fake-1-x", path, b"ours\ntheirs") is None
    assert store.record(TIMINGS, "fake-1-x") == b"more\nours\ntheirs"


@pytest.mark.service
def test_what_cannot_be_merged_is_told_and_the_old_cache_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = tmp_path / "timings"
    path.write_bytes(b"ours")
    store.keep(TIMINGS, "onnxruntime-1-x", b"theirs")
    assert "was not kept" in str(keep_timings(store, "onnxruntime-1-x", path, None))
    assert store.record(TIMINGS, "onnxruntime-1-x") == b"theirs"
    assert "was not kept" in str(keep_timings(store, "fake-1-x", tmp_path / "absent", None))
