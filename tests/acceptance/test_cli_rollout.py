"""A release beside the stable one, as its users drive it: words, exit codes, history."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trtops.serve.client import infer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.repository import Done, Repository

PLAN = """
rollout:
  steps:
    - shadow: 10
    - weight: 5
    - analysis: {requests: 20, error_rate: 0.01}
    - pause: manual
    - weight: 50
"""


def metrics(good: int, bad: int) -> str:
    lines = ["# TYPE trtops_request_duration_seconds histogram"]
    for code, count in (("200", good), ("500", bad)):
        labels = f'engine="tiny",channel="canary",code="{code}"'
        lines += [f'trtops_request_duration_seconds_bucket{{{labels},le="{edge}"}} {count}' for edge in ("0.1", "+Inf")]
        lines += [f"trtops_request_duration_seconds_{name}{{{labels}}} {count}" for name in ("count", "sum")]
    return "\n".join(lines) + "\n"


@pytest.fixture
def begun(shipped: Repository) -> Repository:
    """Generation 2: a release of another interface version runs beside the first."""
    runtime = shipped.engine / "runtime.yaml"
    runtime.write_text(runtime.read_text() + PLAN)
    shipped.edit("version: 1.0.0", "version: 1.1.0")
    shipped.call("ship", "tiny", "--smoke").says(0, "generation 2 signed", "runs beside", "skipped: the candidate")
    return shipped


@pytest.fixture
def control() -> Iterator[tuple[str, list[str]]]:
    """A control port; it answers with the texts of the list, the last one again and again."""
    texts: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (texts.pop(0) if len(texts) > 1 else texts[0]).encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            del words

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", texts
        server.shutdown()
        thread.join()


def generation(repo: Repository) -> int:
    return int(repo.generations()[0])


def file(folder: Path, text: str) -> str:
    path = folder / "metrics.txt"
    path.write_text(text)
    return str(path)


def advance(repo: Repository, *arguments: str) -> Done:
    return repo.call("rollout", "advance", "tiny", *arguments)


def test_from_the_first_step_to_the_stable_release(begun: Repository, folder: Path) -> None:
    begun.call("rollout", "status", "tiny").says(0, "canary 0 % (shadow 10 %)", "1  shadow 10 %", "now for")
    advance(begun).says(2, "step 2 of 5 (weight 5 %)", "stable 95 %, canary 5 %", "needs metrics")
    good = file(folder, metrics(200, 0))
    advance(begun, "--metrics", good).says(0, "errors 0 of 200, 0.01 allowed", "it is paused at step 4 of 5")
    advance(begun, "--metrics", good).says(0, "it is paused")
    begun.call("rollout", "status", "tiny").says(
        0, "manual pause", "paused by its plan, which asks for a person here", "rollout resume tiny --env local"
    )
    begun.call("rollout", "resume", "tiny", "--reason", "looks good").says(0, "resumed at step 4 of 5", "looks good")
    begun.call("rollout", "pause", "tiny", "--reason", "lunch: back at 2").says(0, "paused at step 4 of 5")
    begun.call("rollout", "status", "tiny").says(0, "paused by key ", "generation 7: lunch: back at 2", "to end it")
    begun.call("rollout", "resume", "tiny").says(0)
    advance(begun).says(0, "canary 50 %", "promoted after step 5 of 5", "stable 100 %", "it has ended: promoted")
    told = begun.call("history", "tiny", "--json").says(0)
    reasons = [one["reason"] for one in json.loads(told.out)["bindings"]][::-1]
    assert reasons[1] == "release: rollout at step 1 of 5 (shadow 10 %)"
    assert [reason.split(" (")[0] for reason in reasons[2:]] == [
        "rollout: step 2 of 5",
        "rollout: step 3 of 5",
        "rollout: step 4 of 5",
        "rollout: resumed at step 4 of 5",
        "rollout: paused at step 4 of 5",
        "rollout: resumed at step 4 of 5",
        "rollout: step 5 of 5",
        "rollout: promoted after step 5 of 5",
    ]
    begun.call("release", "tiny").says(0, "nothing new: generation 10 says the same")
    begun.call("verify-release", "tiny").says(0, "10 generations, each names the last")


def test_metrics_that_fail_abort_and_what_was_aborted_stays_out(begun: Repository, folder: Path) -> None:
    advance(begun).says(2)
    bad = file(folder, metrics(15, 5))
    advance(begun, "--metrics", bad).says(1, "aborted at step 3 of 5 (analysis)", "errors 5 of 20", "stable 100 %")
    assert generation(begun) == 5
    advance(begun, "--metrics", bad).says(1, "the rollout was aborted")
    begun.call("rollout", "status", "tiny").says(0, "aborted here", "in quarantine")
    for arguments in (["release", "tiny"], ["ship", "tiny"], ["ship", "tiny", "--rebuild"]):
        begun.call(*arguments).says(1, "was aborted before", "trtops rollout readmit tiny sha256:")
    begun.call("rollout", "readmit", "tiny", "ffffffffffff").says(2, "0 digests in the quarantine")
    told = json.loads(begun.call("rollout", "status", "tiny", "--json").says(0).out)["bindings"][0]
    begun.call("rollout", "readmit", "tiny", told["rejected"][0], "--reason", "wrong metrics").says(0, "wrong metrics")
    begun.call("release", "tiny").says(0, "runs beside the stable release")


def test_abort_rollback_and_promote_know_the_quarantine(begun: Repository) -> None:
    begun.call("release", "tiny").says(0, "nothing new: generation 2 says the same, runs beside")
    begun.call("verify-release", "tiny").says(0, "canary: engine release", "canary: onnxruntime: artifact")
    begun.edit("version: 1.1.0", "version: 1.2.0")
    begun.call("release", "tiny").says(2, "a rollout of", "is at step 1 of 5", "trtops rollout abort")
    begun.call("rollout", "abort", "tiny", "--reason", "slow").says(0, "aborted at step 1 of 5 (shadow 10 %): slow")
    begun.call("rollout", "abort", "tiny").says(0, "it was aborted already")
    begun.call("rollout", "pause", "tiny").says(2, "has ended: aborted")
    begun.call("release", "tiny").says(0, "generation 4 signed")
    begun.call("rollback", "tiny").says(0, "generation 5 in local (rollback to the stable release)")
    begun.call("release", "tiny").says(1, "was aborted before")


def test_the_metrics_of_a_control_port(begun: Repository, control: tuple[str, list[str]]) -> None:
    url, texts = control
    advance(begun).says(2)
    texts[:] = [metrics(1000, 900), metrics(1100, 900)]
    # What was before the two looks does not count: another candidate may have done it.
    advance(begun, "--metrics", f"{url}/metrics", "--window", "0.01").says(0, "errors 0 of 100")


def test_moves_are_told_also_where_a_later_step_cannot_be_taken(begun: Repository) -> None:
    done = advance(begun, "--metrics", "http://127.0.0.1:1").says(2, "cannot talk to the server")
    assert [line.split(" (")[0] for line in done.out.splitlines()] == [
        "tiny: generation 3 in local",
        "tiny: generation 4 in local",
    ]
    assert generation(begun) == 4


def test_mistakes_are_told(begun: Repository, folder: Path) -> None:
    advance(begun).says(2)
    (folder / "words.txt").write_text("hello there, metrics")
    for source, words in (
        (str(folder / "none"), "there is no such file"),
        (str(folder / "words.txt"), "these are no metrics"),
        ("http://127.0.0.1:1", "cannot talk to the server"),
        ("ftp://x", "is no address of a server"),
        ("", "an empty source"),
        (file(folder, metrics(19, 0)), "errors 0 of 19, 0.01 allowed (20 are needed)"),
    ):
        advance(begun, "--metrics", source).says(2, words)
    (folder / "metrics.txt").write_bytes(b"\xff\xfe")
    advance(begun, "--metrics", str(folder / "metrics.txt")).says(2, "it is no text")
    advance(begun, "--generation", "2").says(3, "is at generation 4", "not at 2")
    begun.call("rollout", "status", "other").says(2, "other is not released", "released here: tiny")
    begun.call("rollout", "abort", "other").says(2, "other is not released")
    assert generation(begun) == 4


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("steps: []", "rollout.steps"),
        ("steps: [{weight: 50}, {weight: 20}]", "weights must not go down"),
        ("steps: [{weight: 5, pause: 1s}]", "exactly one of weight, shadow, pause, analysis"),
        ("steps: [{pause: 10}]", "has no unit"),
        ("steps: [{pause: 400h}]", "longer than two weeks"),
        ("steps: [{analysis: {requests: 5}}]", "at least one of error_rate"),
        ("{channel: stable, steps: [{weight: 5}]}", "cannot be called stable"),
        ("steps: [{wait: 5}]", "wait"),
    ],
)
def test_a_plan_that_makes_no_sense_names_its_line(shipped: Repository, written: str, words: str) -> None:
    runtime = shipped.engine / "runtime.yaml"
    runtime.write_text(runtime.read_text() + f"rollout:\n  {written}\n")
    shipped.call("check", "tiny").says(2, "runtime.yaml:", words)


def _until(repo: Repository, url: str, states: dict[str, str]) -> list[dict[str, Any]]:
    """Wait until the service is where the registry is; what `trtops status` shows of it then."""
    deadline = time.monotonic() + 60
    while True:
        told = json.loads(repo.call("status", "--service", url, "--json").says(0).out)["services"]
        if {one["channel"]: one["state"] for one in told} == states:
            return list(told)
        assert time.monotonic() < deadline, told
        time.sleep(0.1)


@pytest.mark.service
def test_a_service_runs_the_candidate_and_its_metrics_promote_it(shipped: Repository) -> None:
    x = np.ones((1, 4), np.float32)
    with shipped.serve("tiny") as server:
        control = server.ready["control_url"]
        (stable,) = _until(shipped, control, {"stable": "in step"})
        assert stable["running"] == {
            **stable["registry"],
            **{key: stable["running"][key] for key in ("device", "artifact")},
        }
        runtime = shipped.engine / "runtime.yaml"
        steps = "[{weight: 50}, {analysis: {requests: 20, error_rate: 0.0}}]"
        runtime.write_text(runtime.read_text() + f"rollout: {{steps: {steps}}}\n")
        shipped.edit("version: 1.0.0", "version: 1.1.0")
        shipped.call("release", "tiny").says(0, "runs beside the stable release")
        _, canary = _until(shipped, control, {"stable": "in step", "canary": "in step"})
        assert canary["running"]["engine_release"] != stable["running"]["engine_release"]
        assert canary["running"]["device"] == stable["running"]["device"]
        advance(shipped, "--metrics", control).says(2, "cannot be decided", "20 are needed")
        for _ in range(200):
            infer(server.url, "tiny", {"x": x})
        advance(shipped, "--metrics", control).says(0, "promoted after step 2 of 2", "errors 0 of ")
        (promoted,) = _until(shipped, control, {"stable": "in step"})
        assert promoted["running"]["engine_release"] == canary["running"]["engine_release"]
        shipped.call("status", "--service", control).says(0, "in step", promoted["running"]["device"])
        shipped.call("status", "--env", "dev", "--service", control).says(2, "is of the environment local, not of dev")
        shipped.call("status", "--service", server.url).says(2, "control port")
        shipped.call("status", "other", "--service", control).says(2, "other is not released")
        assert server.stop() == 0
    shipped.call("status", "--service", control).says(2, "cannot talk to the server", "is it running?")
