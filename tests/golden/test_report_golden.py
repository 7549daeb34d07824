"""Every report of fixed values, byte for byte. Set TRTOPS_UPDATE_GOLDEN=1 to write the files anew, then read the diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import records
from trtops.errors import BuildFailed, InputError, Location, Problem
from trtops.report import github, html, jsonout, junit, markdown, running, sarif, text
from trtops.report import plan as plans
from trtops.report import rollout as rollouts
from trtops.report.rows import StageRow

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent / "report"
COLOR = text.Style(color=True, width=100)
VERDICT = records.verdict(
    records.warning(),
    records.denial(),
    records.denial(waived_by="waiver-2026-01", path=("memory", "device_pool"), message="memory.device_pool is not set"),
)
ALLOWED = records.verdict(subject="ppocr-cls/onnxruntime")
ROWS = (
    StageRow(stage="check", result="allowed", seconds=0.412, digest=records.digest("spec")),
    StageRow(stage="build onnxruntime", result="reused", seconds=0.01, digest=records.digest("a"), outcome="reused"),
    StageRow(stage="build tensorrt-8.6-h200", result="skipped: this machine has no GPU", outcome="skipped"),
    StageRow(stage="verify onnxruntime", result="3 of 168 elements outside", seconds=1.5, outcome="failed"),
)
WRONG = InputError(
    "engine.yaml is wrong",
    where="engines/a/engine.yaml",
    fix="mend it and check again",
    problems=[
        Problem(
            "document.duplicate-key", "key 'name' is there twice", Location("engines/a/engine.yaml", 4, 3), "keep one"
        ),
        Problem("spec.unknown-key", "unknown key 'memry'", Location("engines/a/engine.yaml", 9, 1), "write memory"),
    ],
)
FAILED = BuildFailed(
    "the builder ended with code 139", where="onnxruntime", fix="read the log", log="one\ntwo\x1b[0m\n"
)
FIXED = {"spec": records.digest("spec")}  # the spec's own digest moves with its schema
PASSED = records.evidence().model_copy(update=FIXED)
DIFFERS = records.evidence(passed=False).model_copy(update=FIXED)
UNVERIFIED = PASSED.model_copy(update={"accuracy": None, "benchmark": None, "unverified": "this machine has no GPU"})

REPORTS: dict[str, Callable[[], str]] = {
    "verdict.txt": lambda: text.verdict(VERDICT),
    "verdict-color.txt": lambda: text.verdict(VERDICT, COLOR),
    "allowed.txt": lambda: text.verdict(ALLOWED),
    "problems.txt": lambda: text.error(WRONG),
    "build-failed.txt": lambda: text.error(FAILED),
    "evidence.txt": lambda: text.evidence(PASSED),
    "evidence-differs.txt": lambda: text.evidence(DIFFERS),
    "evidence-unverified.txt": lambda: text.evidence(UNVERIFIED),
    "stages.txt": lambda: text.stages(ROWS),
    "stages-color.txt": lambda: text.stages(ROWS, COLOR),
    "status.txt": lambda: text.status(records.bindings(), now=1_772_592_000),
    "history.txt": lambda: text.history(records.bindings()),
    "rollout.txt": lambda: rollouts.rollout(records.rollout(), now=1_770_090_042),
    "plan.txt": lambda: plans.plan(records.plan()),
    "plan.matrix.json": lambda: plans.matrix(records.plan()),
    "running.txt": lambda: text.table(running.pairing_table(records.pairings())),
    "running.json": lambda: jsonout.bindings([records.rollout()], records.pairings()),
    "problems.json": lambda: jsonout.error(WRONG),
    "stages.json": lambda: jsonout.stages(ROWS),
    "verdicts.sarif": lambda: sarif.verdicts([VERDICT, ALLOWED]),
    "problems.sarif": lambda: sarif.error(WRONG),
    "verdicts.xml": lambda: junit.verdicts([VERDICT, ALLOWED]),
    "stages.xml": lambda: junit.stages(ROWS, name="ship ppocr-cls"),
    "problems.xml": lambda: junit.error(WRONG, name="check engines/a"),
    "verdicts.github": lambda: github.verdicts([VERDICT]),
    "problems.github": lambda: github.error(WRONG),
    "verdicts.md": lambda: markdown.verdicts([VERDICT, ALLOWED]),
    "evidence.md": lambda: markdown.evidence([DIFFERS, UNVERIFIED]),
    "evidence.html": lambda: html.page(
        [PASSED, UNVERIFIED], release=records.digest("release"), commit="0123abc", verdicts=[VERDICT]
    ),
}


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_report_is_the_same_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.__version__", "0.0.0")
    written, path = REPORTS[name](), FOLDER / name
    if os.environ.get("TRTOPS_UPDATE_GOLDEN"):
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


def test_every_golden_file_has_its_report() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(REPORTS)
