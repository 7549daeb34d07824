"""The benchmark of TensorRT, rehearsed: a mistake in it would cost time of a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from onnx import helper

from tests.support.builds import model_of, save, value
from tests.support.cuda import Cudart, Engine, Library
from tests.support.releases import sidecar
from trtops.backend.pinned import PageLocked
from trtops.backend.trt_session import TensorRtSession
from trtops.build.timing import TIMINGS, Timed
from trtops.release.keys import KeyStore
from trtops.spec.engine import Profile
from trtops.store import Store
from trtops.tensor import TensorInfo
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import ModelProto

FOLDER = Path(__file__).parents[2] / "benchmarks"
CASE = "resnet50-fp32-dynamic-3"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The benchmark's modules, importable as for the program itself."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import tensorrt_cases
    import tensorrt_h200
    import tensorrt_steps
    import tensorrt_tables

    yield SimpleNamespace(cases=tensorrt_cases, program=tensorrt_h200, steps=tensorrt_steps, tables=tensorrt_tables)
    for name in ("tensorrt_cases", "tensorrt_h200", "tensorrt_steps", "tensorrt_tables"):
        sys.modules.pop(name, None)


def small() -> ModelProto:
    """Takes what ResNet-50 takes."""
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["logits"])]
    return model_of(nodes, [value("x", ["N", 3, 224, 224])], [value("logits", ["N", 3])])


def finished(step: str, *, seconds: float = 50.0) -> dict[str, Any]:
    build = {"seconds": seconds, "phases": {}}
    return {"first": {"first": build}, "again": {"again": build}}.get(step, {step: {}} if step != "engine" else {})


def go_on(benchmark: SimpleNamespace, rows: dict[str, Any], engines: set[str], deadline: float) -> list[str]:
    """Let the plan run on a clock of its own; what was done, in order."""
    done, now = [], 0.0
    while job := benchmark.program.next_job(
        benchmark.cases.PLAN, rows, deadline - now, lambda case: case.name in engines
    ):
        now += job.seconds
        done.append(f"{job.case.name} {job.step}")
        engines.add(job.case.name)
        rows.setdefault(job.case.name, {}).update(finished(job.step))
    assert now <= deadline
    return done


def test_commands_go_on_where_the_last_one_stopped_and_repeat_nothing(benchmark: SimpleNamespace) -> None:
    rows: dict[str, Any] = {}
    engines: set[str] = set()
    commands = []
    while done := go_on(benchmark, rows, engines, 560.0):
        commands.append(done)
    everything = [step for command in commands for step in command]
    assert len(commands) > 2
    assert len(everything) == len(set(everything)) == 4 * len(benchmark.cases.PLAN) + 1
    assert everything[:5] == [f"{CASE} {step}" for step in ("first", "again", "accuracy", "points", "warm")]


def test_engines_that_the_machine_lost_are_built_once_more(benchmark: SimpleNamespace) -> None:
    (case, *_) = benchmark.cases.PLAN
    row = finished("first") | finished("again") | {"accuracy": {}}
    job = benchmark.program.next_job([case], {case.name: row}, 560.0, lambda _: False)
    assert (job.step, job.seconds) == ("engine", 50.0)
    assert benchmark.program.next_job([case], {case.name: row}, 49.0, lambda _: False) is None


def test_what_failed_is_left_and_what_the_deadline_cut_gets_more_time(benchmark: SimpleNamespace) -> None:
    (case, *_) = benchmark.cases.PLAN
    row: dict[str, Any] = {}
    benchmark.program.note(row, "first", {"failed": "not done", "late": True, "took": 400.0}, cut=True)
    assert benchmark.program.next_job([case], {case.name: row}, 500.0, lambda _: False) is None
    assert benchmark.program.next_job([case], {case.name: row}, 530.0, lambda _: False).step == "first"
    benchmark.program.note(row, "first", {"failed": "no kernel", "late": False, "took": 9.0}, cut=True)
    assert row["failed"] == {"first": "no kernel"}
    assert benchmark.program.steps_of(case, row) == []


def test_a_row_with_fewer_figures_does_not_replace_an_older_one(benchmark: SimpleNamespace) -> None:
    old = {"rows": {"a": {"first": 1, "again": 1}, "b": {"first": 1}}, "machine": "old", "notes": ["kept"]}
    new = {"rows": {"a": {"first": 2}, "b": {"first": 2, "again": 2}, "c": {"failed": {}}}, "machine": "new"}
    assert benchmark.tables.merged([old, new]) == {
        "rows": {"a": {"first": 1, "again": 1}, "b": {"first": 2, "again": 2}, "c": {"failed": {}}},
        "machine": "new",
        "notes": ["kept"],
    }


def test_a_session_of_tensorrt_is_measured_in_every_way(
    benchmark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cudart = Cudart()
    monkeypatch.setattr("trtops.backend.cuda_device.runtime", lambda: cudart)
    monkeypatch.setattr("trtops.backend.trt_session.PAGE_LOCKED", PageLocked())
    monkeypatch.setattr(Library, "engine", Engine(1))
    Library.engine.cudart = cudart  # type: ignore[union-attr]
    monkeypatch.setattr(benchmark.steps, "BLOCKS", 2)
    (tmp_path / "engine").write_bytes(b"engine")
    x = TensorInfo(name="x", dtype="float32", shape=("n", 4))
    span = {"min": [1, 4], "opt": [4, 4], "max": [8, 4]}
    profile = Profile.model_validate({"name": "default", "inputs": {"x": span}})
    known = sidecar(inputs=(x,), outputs=(x.model_copy(update={"name": "y"}),), profiles=(profile,))
    session = TensorRtSession(Library(), tmp_path / "engine", known)
    found = benchmark.steps.measured(session, [(1, 4), (4, 4), (8, 4)], 0.002)
    session.close()
    point = found["8x4"]
    assert point["overhead"]["ratio"] > 0
    assert point["parts"]["streams"].keys() == {"1", "2", "4"}
    assert all(one["graph"]["p50"] > 0 for one in found.values())
    row = {"model": "cls", "mode": "fp32", "shapes": "dynamic", "level": 1, "points": found, "at_once": 1}
    whole = {"first": {"seconds": 2.0, "phases": {"build the engine": 1.0}}, "size_bytes": 1, "name": "cls", **row}
    about = {"device": "none", "driver": None, "backend": "b", "version": "1", "python": "3", "cores": 2}
    text = benchmark.tables.tables({"machine": about, "rows": {"a": whole}})
    assert "| cls | fp32 | dynamic | 1 | 8×4 |" in text  # noqa: RUF001 - of the tables
    assert "- |" in text


@pytest.mark.service
def test_two_commands_over_the_fake_do_all_steps_in_processes(
    benchmark: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = save(small(), tmp_path / "small.onnx")
    common = ["run", "--backend", "fake", "--only", CASE, "--seconds", "0.01", "--resnet50", str(model)]
    common += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.json")]
    assert benchmark.program.run(benchmark.program.parse([*common, "--deadline", "80"])) == 0
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert {"first", "again"} <= rows[CASE].keys(), capfd.readouterr()
    begun = dict(rows[CASE]["took"])
    assert benchmark.program.run(benchmark.program.parse([*common, "--deadline", "300"])) == 0
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    row = results["rows"][CASE]
    assert "failed" not in row, row["failed"]
    assert {name: row["took"][name] for name in begun} == begun
    assert row["points"].keys() == {"1x3x224x224", "16x3x224x224", "64x3x224x224"}
    assert row["accuracy"]["passed"] is False  # the fake adds up rows
    assert len(row["warm"]) == 2
    (timings,) = Store(tmp_path / "work" / CASE).records(TIMINGS).values()
    KeyVoucher(KeyStore(tmp_path / "work" / CASE)).opened(timings, "here", Timed)  # what the second build started from
    text = benchmark.tables.tables(results)
    assert "| resnet50 | fp32 | dynamic | 3 | 1 |" in text
    assert "still to be done" not in capfd.readouterr().out.splitlines()[-1]
