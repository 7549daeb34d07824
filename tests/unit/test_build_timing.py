"""Timing caches: kept by version and device, merged when builds run at once, never the reason that a build fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.builds import engine_spec, linear, plan_for, save
from trtops.backend.fake import FakeBackend
from trtops.build.runner import Built, build
from trtops.build.timing import TIMINGS, Timed, Timings, timing_key
from trtops.device import Device
from trtops.errors import StorageError, TrustError
from trtops.release.keys import KeyRing
from trtops.store import Store
from trtops.workflow.timings import KeyVoucher

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
    assert timing_key(_plan(path, builder={"optimization_level": 0})) is None
    assert timing_key(_plan(path).model_copy(update={"target": engine_spec("onnxruntime").targets[0]})) is None


def _voucher() -> KeyVoucher:
    return KeyVoucher(KeyRing())


def _kept(store: Store, key: str, voucher: KeyVoucher) -> bytes:
    body = store.record(TIMINGS, key)
    assert body is not None
    return store.read(voucher.opened(body, "here", Timed).cache, 1 << 20)


@pytest.mark.service
def test_builds_at_once_keep_all_timings(tmp_path: Path) -> None:
    store, voucher = Store(tmp_path / "store"), _voucher()
    models = [save(_model(number), tmp_path / f"{number}.onnx") for number in range(4)]
    device = FakeBackend().device()
    plans = [_plan(path, device) for path in models]

    def one(pair: tuple[BuildPlan, Path]) -> Built:
        return build(pair[0], model=pair[1], store=store, voucher=voucher)

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(one, zip(plans, models, strict=True)))
    key = timing_key(plans[0])
    assert key is not None
    assert len(_kept(store, key, voucher).split(b"\n")) == 4
    kept = {made.sidecar.artifact for made in built}
    assert len(set(store.digests()) - kept) == 1  # the caches that were replaced are gone


@pytest.mark.service
def test_build_without_keys_keeps_and_takes_no_timings(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = save(linear(), tmp_path / "m.onnx")
    plan = _plan(path, FakeBackend().device())
    build(plan, model=path, store=store)
    assert store.records(TIMINGS) == {}


@pytest.mark.service
def test_cache_of_another_build_is_merged(tmp_path: Path) -> None:
    timings = Timings(Store(tmp_path / "store"), "fake-1-x", _voucher())
    path = tmp_path / "timings"
    assert timings.fetch(path) is None
    path.write_bytes(b"theirs")
    assert timings.keep(path, None) is None
    path.write_bytes(b"ours")
    assert timings.keep(path, None) is None
    began = timings.fetch(path)
    assert path.read_bytes() == b"ours\ntheirs"
    path.write_bytes(b"more\nours\ntheirs")
    assert timings.keep(path, began) is None
    timings.fetch(path)
    assert path.read_bytes() == b"more\nours\ntheirs"
    assert len(timings.store.digests()) == 1


@pytest.mark.service
def test_what_cannot_be_merged_is_told_and_the_newer_cache_stays(tmp_path: Path) -> None:
    voucher = _voucher()
    timings = Timings(Store(tmp_path / "store"), "onnxruntime-1-x", voucher)
    path = tmp_path / "timings"
    path.write_bytes(b"theirs")
    assert timings.keep(path, None) is None
    path.write_bytes(b"ours")
    assert timings.keep(path, None) == (
        "timings of another build are replaced, not merged: onnxruntime times no kernels"
    )
    assert _kept(timings.store, timings.key, voucher) == b"ours"
    assert len(timings.store.digests()) == 1
    assert "was not kept" in str(timings.keep(tmp_path / "absent", None))


@pytest.mark.parametrize("how", ["nobody", "stranger", "changed", "moved"])
def test_cache_that_no_trusted_builder_signed_is_left_out_and_replaced(how: str, tmp_path: Path) -> None:
    store, voucher = Store(tmp_path / "store"), _voucher()
    timings = Timings(store, "fake-1-x", voucher)
    path = tmp_path / "timings"
    digest = store.put_bytes(b"evil")
    statement = Timed(key="fake-1-x", cache=digest, size_bytes=4)
    body = {
        "nobody": b"evil",
        "stranger": _voucher().sign(statement),
        "changed": voucher.sign(statement).replace(b"sig", b"gis"),
        "moved": voucher.sign(statement.model_copy(update={"key": "fake-1-y"})),
    }[how]
    store.keep(TIMINGS, timings.key, body)
    with pytest.raises((TrustError, StorageError)):
        timings.fetch(path)
    assert not path.exists()
    path.write_bytes(b"good")
    assert timings.keep(path, None) is None
    assert _kept(store, timings.key, voucher) == b"good"


@pytest.mark.service
def test_forged_cache_never_reaches_the_builder(tmp_path: Path) -> None:
    store, voucher = Store(tmp_path / "store"), _voucher()
    path = save(linear(), tmp_path / "m.onnx")
    plan = _plan(path, FakeBackend().device())
    key = str(timing_key(plan))
    store.keep(TIMINGS, key, _voucher().sign(Timed(key=key, cache=store.put_bytes(b"evil"), size_bytes=4)))
    seen: list[str] = []
    build(plan, model=path, store=store, voucher=voucher, on_progress=lambda step: seen.append(step.phase))
    assert any("timing cache of an earlier build is left out" in phase for phase in seen)
    assert b"evil" not in _kept(store, key, voucher)
