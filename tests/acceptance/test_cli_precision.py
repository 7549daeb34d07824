"""``trtops precision``: precisions of one engine side by side, on a CPU, and layers by error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.repository import Repository

pytestmark = pytest.mark.service


def _row(out: str, mode: str) -> str:
    return next(line for line in out.splitlines() if line.startswith(f"{mode} "))


def test_precisions_stand_side_by_side(repo: Repository) -> None:
    repo.edit("  mode: fp32\n", "  mode: fp32\n  calibration: {source: 'file:samples.npz', method: minmax}\n")
    done = repo.call("precision", "tiny", "--modes", "int8,fp32,fp16,bf16", "--layers", "2").says(0)
    modes = [line.split()[0] for line in done.out.splitlines()[1:5]]
    assert modes == ["fp32", "fp16", "bf16", "int8"]
    assert _row(done.out, "fp32").endswith("passed")
    assert "0 of " in _row(done.out, "fp32")
    assert "skipped: ONNX Runtime builds fp32, fp16, int8 on a CPU, not bf16" in _row(done.out, "bf16")
    assert _row(done.out, "int8").endswith("FAILED")  # the tolerance is that of fp32
    assert "fp16: layers by error, worst first" in done.out
    assert "int8: layers by error, worst first" in done.out
    assert "MatMul" in done.out


def test_int8_without_calibration_takes_the_samples_of_accuracy_and_says_so(repo: Repository) -> None:
    done = repo.call("precision", "tiny", "--modes", "fp32,int8").says(0)
    assert _row(done.out, "int8").split()[-1] in {"passed", "FAILED"}
    assert "int8: calibrated on the samples of accuracy that it is compared on, too" in done.out
    repo.call("build", "tiny").says(0, "reused")  # the spec's own precision is untouched


def test_int8_without_any_samples_is_skipped_with_the_reason(repo: Repository) -> None:
    repo.edit("file:samples.npz", "random")
    done = repo.call("precision", "tiny", "--modes", "fp32,int8").says(0)
    assert "skipped: int8 needs calibration data" in _row(done.out, "int8")


def test_no_precision_that_could_be_built_is_no_success(repo: Repository) -> None:
    repo.edit("file:samples.npz", "random")
    done = repo.call("precision", "tiny", "--modes", "bf16,int8").says(2, "none of bf16, int8 was built: ")
    assert "skipped: int8 needs calibration data" in _row(done.out, "int8")


def test_wrong_options_are_told(repo: Repository) -> None:
    repo.call("precision", "tiny", "--modes", "fp32,fp12").says(2, "there is no precision 'fp12'", "choose from fp32")
    repo.call("precision", "tiny", "--modes", ",").says(2, "no precision is named")
    repo.call("precision", "tiny", "--target", "tensorrt-99").says(2, "tiny has no target 'tensorrt-99'")
    gpu = '  - backend: tensorrt\n    version: "8.6"\n    gpu: {name: H200, compute_capability: "9.0"}'
    repo.edit("  - backend: onnxruntime", gpu)
    repo.call("precision", "tiny").says(2, "this machine can load no target of tiny: tensorrt-8.6-h200")
