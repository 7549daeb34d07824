"""Converted models: made once for all targets and rebuilds, vouched for, never the reason that a build fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.builds import engine_spec, linear, plan_for, save
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.build.conversions import CONVERSIONS, Conversion, Conversions, conversion_key
from trtops.build.precision import read_samples
from trtops.build.protocol import MODEL_FILE, SampleSource
from trtops.build.runner import Built, build
from trtops.build.timing import Timed
from trtops.digest import Digest
from trtops.errors import StorageError, TrustError
from trtops.release.keys import KeyRing
from trtops.spec.engine import Target
from trtops.store import Store
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from trtops.build.plan import BuildPlan

INT8: dict[str, Any] = {"mode": "int8", "calibration": {"source": "random"}}


def _plan(path: Path, **changes: Any) -> BuildPlan:
    spec = engine_spec("onnxruntime", **{"precision": INT8, **changes})
    source = SampleSource(uri="random", folder=str(path.parent))
    version = OnnxRuntimeBackend().status(spec.targets[0]).version
    digest = read_samples(source, path.read_bytes()).digest
    return plan_for(path, spec=spec).model_copy(update={"calibration": digest, "backend_version": version})


def test_key_is_of_what_makes_the_file_and_not_of_who_builds_it(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    plan = _plan(path)
    key = conversion_key(plan)
    assert key is not None
    other = Target(backend="tensorrt_rtx", compute_capability="8.6")
    for same in (
        {"target": other},
        {"backend_version": "9"},
        {"builder": plan.builder.model_copy(update={"optimization_level": 0})},
        {"precision": plan.precision.model_copy(update={"tf32": True})},
    ):
        assert conversion_key(plan.model_copy(update=same)) == key
    for change in (
        {"model": Digest.of_bytes(b"other")},
        {"calibration": None},
        {"converters": {"onnx": "0"}},
        {"precision": plan.precision.model_copy(update={"keep_fp32": ("op:MatMul",)})},
        {"precision": plan.precision.model_copy(update={"mode": "fp16"})},
        {"profiles": ()},
        {"repairs": ()},
    ):
        assert conversion_key(plan.model_copy(update=change)) != key
    assert conversion_key(plan.model_copy(update={"target": Target(backend="fake")})) is None
    assert conversion_key(_plan(path, precision={"mode": "tf32"})) is None


def _build(folder: Path, voucher: KeyVoucher | None, seen: list[str], **changes: Any) -> Built:
    path = folder / "m.onnx"
    samples = SampleSource(uri="random", folder=str(folder))
    return build(
        _plan(path, **changes),
        model=path,
        store=Store(folder / "store"),
        samples=samples,
        rebuild=True,
        voucher=voucher,
        on_progress=lambda step: seen.append(step.phase),
    )


@pytest.mark.service
def test_second_build_converts_nothing_and_gives_the_same_engine(tmp_path: Path) -> None:
    save(linear(), tmp_path / "m.onnx")
    voucher = KeyVoucher(KeyRing())
    first: list[str] = []
    again: list[str] = []
    one, two = _build(tmp_path, voucher, first), _build(tmp_path, voucher, again)
    assert "convert the model to int8" in first
    assert "convert the model to int8" not in again
    assert one.sidecar == two.sidecar
    assert any(step.startswith("int8: ") for step in two.sidecar.steps)
    kept: list[str] = []
    _build(tmp_path, voucher, kept, precision={**INT8, "keep_fp32": ["op:Relu"]})
    assert "convert the model to int8" in kept


@pytest.mark.service
def test_build_without_keys_keeps_and_takes_nothing(tmp_path: Path) -> None:
    save(linear(), tmp_path / "m.onnx")
    seen: list[str] = []
    _build(tmp_path, KeyVoucher(KeyRing()), [])
    _build(tmp_path, None, seen)
    assert "convert the model to int8" in seen


@pytest.mark.parametrize("how", ["nobody", "stranger", "moved", "other"])
def test_file_that_no_trusted_builder_signed_is_not_taken(how: str, tmp_path: Path) -> None:
    store, voucher = Store(tmp_path / "store"), KeyVoucher(KeyRing())
    conversions = Conversions(store, "sha256:aa", voucher)
    statement = Conversion(key="sha256:aa", model=store.put_bytes(b"evil"), steps=())
    body = {
        "nobody": b"evil",
        "stranger": KeyVoucher(KeyRing()).sign(statement),
        "moved": voucher.sign(statement.model_copy(update={"key": "sha256:bb"})),
        "other": voucher.sign(Timed(key="sha256:aa", cache=statement.model, size_bytes=4)),
    }[how]
    store.keep(CONVERSIONS, conversions.key, body)
    path = tmp_path / "model.onnx"
    with pytest.raises((TrustError, StorageError)):
        conversions.fetch(path)
    assert not path.exists()
    path.write_bytes(b"good")
    assert conversions.keep(path, ("int8: good",)) is None
    path.unlink()
    assert conversions.fetch(path) == ("int8: good",)
    assert path.read_bytes() == b"good"


@pytest.mark.service
def test_forged_file_never_reaches_the_builder(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    store, key = Store(tmp_path / "store"), str(conversion_key(_plan(path)))
    evil = Conversion(key=key, model=store.put_bytes(b"evil"), steps=("evil",))
    store.keep(CONVERSIONS, key, KeyVoucher(KeyRing()).sign(evil))
    seen: list[str] = []
    sidecar = _build(tmp_path, KeyVoucher(KeyRing()), seen).sidecar
    assert any("converted model of an earlier build is left out" in phase for phase in seen)
    assert "evil" not in sidecar.steps


@pytest.mark.service
def test_disk_too_full_for_what_is_there_converts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(linear(), tmp_path / "m.onnx")
    voucher = KeyVoucher(KeyRing())
    first = _build(tmp_path, voucher, [])
    write = Path.write_bytes
    left: list[Path] = []

    def full(path: Path, data: bytes) -> int:
        if path.name != MODEL_FILE:
            return write(path, data)
        left.append(path)
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    class Told(list[str]):
        def append(self, phase: str) -> None:
            super().append(f"{phase}; half a file: {bool(left) and left[0].exists()}")

    seen = Told()
    monkeypatch.setattr(Path, "write_bytes", full)
    again = _build(tmp_path, voucher, seen)
    told = next(phase for phase in seen if "converted model of an earlier build is left out" in phase)
    assert "No space left on device" in told
    assert told.endswith("half a file: False")
    assert any("convert the model to int8" in phase for phase in seen)
    assert again.sidecar == first.sidecar


def test_file_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    conversions = Conversions(Store(tmp_path / "store"), "sha256:aa", KeyVoucher(KeyRing()))
    assert "the converted model was not kept" in str(conversions.keep(tmp_path / "absent", ()))
