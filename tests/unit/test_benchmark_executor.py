"""The benchmark of the executor on a GPU, rehearsed on a CPU: a mistake in it would cost time of a GPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from tests.support.builds import model_of, save, value

FOLDER = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.service


def test_rounds_are_added_until_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    program = importlib.import_module("executor_h200")
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    model = save(model_of(nodes, [value("x", ["N", 3, 224, 224])], [value("y", ["N", 3])]), tmp_path / "m.onnx")
    out = tmp_path / "out.json"
    common = ["run", "--backend", "onnxruntime", "--resnet50", str(model), "--seconds", "0.02", "--rounds", "1"]
    common += ["--work", str(tmp_path / "work"), "--out", str(out)]
    assert program.run(program.parse([*common, "--deadline", "60"])) == 0  # too little for a build at level 3
    assert "resnet50: 1 rounds are still to be done" in capsys.readouterr().out
    assert not out.exists()
    assert program.run(program.parse([*common, "--deadline", "400"])) == 0
    rounds: dict[str, Any] = json.loads(out.read_text())["models"]["resnet50"]
    assert {len(values) for values in rounds.values()} == {1}
    assert "| resnet50 | batch 64, bare loop, rows/s |" in program.table(json.loads(out.read_text()))
    capsys.readouterr()
    assert program.run(program.parse([*common, "--deadline", "400"])) == 0
    assert capsys.readouterr().out == ""  # nothing is left to be done
    assert (tmp_path / "work" / "resnet50" / "sidecar.json").exists()
    elsewhere = program.parse([*common, "--work", str(tmp_path / "none"), "--engines", str(tmp_path)])
    (tmp_path / "work" / "resnet50").rename(tmp_path / "resnet50-fp32-dynamic-1")
    assert program.engine_of("resnet50", elsewhere) == tmp_path / "resnet50-fp32-dynamic-1"
    assert program.engine_of("cls", elsewhere) is None
