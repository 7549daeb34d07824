"""The command line with an engine of TensorRT on the GPU of this machine: what a user sees of it."""

from __future__ import annotations

import re

import pytest

from tests.support.repository import Repository, make_repository
from trtops.backend.tensorrt import TensorRtBackend
from trtops.spec.engine import Target

pytestmark = [pytest.mark.gpu, pytest.mark.service, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The small engine, built for this machine's GPU."""
    backend = TensorRtBackend()
    status = backend.status(Target(backend="tensorrt"))
    if not status.can_load:
        pytest.skip(str(status.reason))
    made = make_repository(tmp_path_factory.mktemp("cli") / "repo")
    version, capability = ".".join(str(status.version).split(".")[:2]), backend.device().compute_capability
    target = f'  - backend: tensorrt\n    version: "{version}"\n    compute_capability: "{capability}"'
    made.edit("  - backend: onnxruntime", target)
    made.call("build", "tiny").says(0, "built", "start the builder", "build the engine")
    return made


def test_a_second_build_is_no_build(repo: Repository) -> None:
    repo.call("build", "tiny").says(0, "reused")


def test_outputs_are_compared(repo: Repository) -> None:
    repo.call("verify", "tiny").says(0, "accuracy: equal within tolerance")


def test_where_the_time_goes_is_told(repo: Repository) -> None:
    done = repo.call("bench", "tiny").says(0, "95 % intervals", "rows/s by batch", "knee: ")
    assert "where the time goes (medians; copies and computation by CUDA events)" in done.out
    ways = next(line for line in done.out.splitlines() if "pageable" in line)
    assert " ".join(ways.split()) == "batch enqueue graph pageable pinned mapped 1 stream 2 streams 4 streams"
    assert "not measured" not in done.out


def test_layers_are_shown_and_two_engines_compared(repo: Repository) -> None:
    shown = repo.call("inspect", "tiny").says(0, "layers (", "scratch memory", "default")
    artifact = re.search(r"artifact ([0-9a-f]+)", shown.out)
    assert artifact is not None
    repo.call("inspect", "--diff", artifact[1], artifact[1]).says(0, "the artifacts do not differ")


def test_precisions_stand_side_by_side(repo: Repository) -> None:
    done = repo.call("precision", "tiny", "--modes", "fp32,tf32,fp16,int8,bf16").says(0)
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:6]}
    assert list(rows) == ["fp32", "tf32", "fp16", "bf16", "int8"]
    assert rows["fp32"].endswith("passed")
    assert "fp16: layers by error, worst first" in done.out
    assert "int8: calibrated on the samples of accuracy" in done.out
