"""The policy gate beside conftest: 200 specs by every rule, whole checks, one cold check, one change among 1,000.

    python benchmarks/policy_gate.py --conftest ~/.cache/trtops/tools/conftest/conftest --write

Engines, each with an ONNX model of its own (19 nodes, 68 KB), are made in a temporary repository with this checkout's
policies. ``--conftest`` is a conftest 0.60 or newer (``go install github.com/open-policy-agent/conftest@latest``); left
out, OPA's own ``opa exec`` is the anchor. Both are given the very input documents that trtops makes, and every package
of the stage; neither makes documents, reads YAML or looks at a model.

Every round runs every candidate once, in an order that turns; a ratio is taken within its round, so that what else the
machine does falls on both of its sides. CPU is the user and system time of the process and its children, OPA included.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

from trtops.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtops.policy.port import PolicyEngine, PolicySet
    from trtops.policy.verdict import Stage

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "policy_gate.md"
STAGES: tuple[Stage, ...] = ("source", "spec")
SPEC = """\
apiVersion: trtops/v1
kind: Engine
metadata: {{name: {name}, owner: team-{number}, labels: {{tier: {tier}}}}}
model: {{source: file:model.onnx, sha256: {sha256}}}
targets:
  - backend: onnxruntime
  - backend: tensorrt
    version: "8.6"
    gpu: {{name: H200, compute_capability: "9.0"}}
    slo: {{p99: 5ms, throughput: 2000}}
precision: {{mode: fp32}}
profiles:
  - name: default
    inputs: {{x: {{min: [1, 3, 32, 32], opt: [8, 3, 32, 32], max: [{batch}, 3, 32, 32]}}}}
batching:
  max_batch: {batch}
  preferred: [8, {batch}]
  max_queue_delay: 2ms
  queue: {{max_size: 512, timeout: 100ms, on_timeout: reject}}
memory: {{workspace: 256MiB, device_pool: 64MiB, pinned_pool: 16MiB}}
interface: {{version: 1.{number}.0}}
builder: {{optimization_level: 3}}
benchmark: {{batch_sizes: [1, {batch}], duration: 1s}}
"""
RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
server: {{host: 127.0.0.1, port: {port}}}
database: {{url: "postgresql://db.internal:5432/ocr", user: ocr, password: "secret:db/password"}}
features: {{scores: true, threshold: 0.9}}
"""


def network(seed: int, blocks: int = 8, width: int = 16) -> bytes:
    """A small convolutional classifier."""
    rng = np.random.default_rng(seed)
    nodes, weights, last, channels = [], [], "x", 3
    for block in range(blocks):
        kernel = rng.standard_normal((width, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{block}"))
        nodes.append(
            helper.make_node("Conv", [last, f"w{block}"], [f"c{block}"], name=f"conv{block}", pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"c{block}"], [f"r{block}"], name=f"relu{block}"))
        last, channels = f"r{block}", width
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], name="flat"))
    nodes.append(helper.make_node("Softmax", ["flat"], ["y"], name="softmax"))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def repository(root: Path, engines: int) -> Path:
    """A git repository of engines, committed on ``main``."""
    root.mkdir(parents=True)
    for name in ("policies", "governance"):
        shutil.copytree(ROOT / name, root / name)
    (root / "trtops.toml").touch()
    (root / ".gitignore").write_text(".trtops/\n", encoding="utf-8")
    for number in range(engines):
        folder = root / "engines" / f"engine-{number:04d}"
        folder.mkdir(parents=True)
        model = network(number)
        (folder / "model.onnx").write_bytes(model)
        values = {
            "name": folder.name,
            "number": number,
            "tier": ("bronze", "silver")[number % 2],
            "batch": (16, 32, 64)[number % 3],
            "sha256": Digest.of_bytes(model).value,
            "port": 8000 + number,
        }
        (folder / "engine.yaml").write_text(SPEC.format(**values), encoding="utf-8")
        (folder / "runtime.yaml").write_text(RUNTIME.format(**values), encoding="utf-8")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "engines"]):
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]
        subprocess.run(["git", *identity, *words], cwd=root, check=True)
    return root


@dataclass
class Candidate:
    """Something to measure, and what was measured of it: seconds and CPU seconds, by round."""

    name: str
    run: Callable[[], None]
    goal: float | None = None
    before: Callable[[], None] = lambda: None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Run once."""
        self.before()
        cpu, start = _cpu(), time.perf_counter()
        self.run()
        self.wall.append(time.perf_counter() - start)
        self.cpu.append(_cpu() - cpu)


def _cpu() -> float:
    """Of this process, of children that have ended, and of those that still run (the OPA server)."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = sum(each.ru_utime + each.ru_stime for each in used)
    running = (child.cpu_times() for child in psutil.Process().children())
    return ended + sum(each.user + each.system for each in running)


def rounds(candidates: Sequence[Candidate], count: int) -> None:
    """Run every candidate in every round, in an order that turns."""
    for number in range(count):
        turned = [*candidates[number % len(candidates) :], *candidates[: number % len(candidates)]]
        for candidate in turned:
            candidate.measure()
        print(f"round {number + 1} of {count}", file=sys.stderr)


@dataclass(frozen=True)
class Documents:
    """Input documents of every engine by stage, and the policies that judge them."""

    policies: PolicySet
    by_stage: dict[str, list[dict[str, Any]]]


def documents(root: Path) -> Documents:
    """What trtops makes of every engine."""
    from trtops.policy.loader import load_policies
    from trtops.workflow.check import check_all, folders_of, subject_of
    from trtops.workflow.judge import open_gate
    from trtops.workflow.workspace import open_workspace

    here = open_workspace({"engine": "embedded"}, start=root)
    with open_gate(here) as gate:
        outcomes = check_all(here, folders_of(here, ()), gate)
    checked = []
    for one in outcomes:
        if isinstance(one, Exception):
            raise one
        assert not one.denied, [finding.message for verdict in one.verdicts for finding in verdict.findings]
        checked.append(one)
    return Documents(
        load_policies(root),
        {stage: [dict(subject_of(one, stage, gate).document) for one in checked] for stage in STAGES},
    )


def evaluation(found: Documents, engine: PolicyEngine) -> Callable[[], None]:
    """Evaluate every document by every rule; the engine is warm."""

    def run() -> None:
        for stage in STAGES:
            answers = engine.evaluate(stage, found.by_stage[stage])
            assert len(answers) == len(found.by_stage[stage])
            assert all(values == ([],) for answer in answers for values in answer.values())

    for stage in STAGES:
        engine.evaluate(stage, found.by_stage[stage][:1])
    return run


def _written(found: Documents, folder: Path) -> tuple[Path, Path, Path]:
    """Policies as plain Rego, data as files, documents as JSON: what conftest and opa read."""
    policy, data, inputs = folder / "policy", folder / "data", folder / "inputs"
    for file in {file.path: file for stage in STAGES for file in found.policies.modules(stage)}.values():
        path = policy / file.path.replace("/", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
    data.mkdir()
    for name, value in found.policies.data.items():
        (data / f"{name}.json").write_text(json.dumps({name: value}), encoding="utf-8")
    for stage in STAGES:
        (inputs / stage).mkdir(parents=True)
        for number, document in enumerate(found.by_stage[stage]):
            (inputs / stage / f"{number:04d}.json").write_text(json.dumps(document), encoding="utf-8")
    return policy, data, inputs


def conftest(found: Documents, binary: Path, folder: Path) -> Callable[[], None]:
    """``conftest test`` over the documents: one process a stage.

    conftest reads ``deny`` rules: a module asks each of our packages, as our own question does.
    """
    policy, data, inputs = _written(found, folder)
    for stage in STAGES:
        asked = "\n".join(
            f"deny contains f.message if some f in data.{rule.package}.findings"
            for rule in found.policies.of_stage(stage)
        )
        (policy / f"conftest_{stage}.rego").write_text(f"package asked.{stage}\n\n{asked}\n", encoding="utf-8")

    def run() -> None:
        for stage in STAGES:
            words = ["test", "--policy", str(policy), "--data", str(data), "--namespace", f"asked.{stage}"]
            done = subprocess.run(
                [str(binary), *words, "--output", "json", str(inputs / stage)], capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr or done.stdout[:2000]
            assert len(json.loads(done.stdout)) == len(found.by_stage[stage])

    return run


def opa_exec(found: Documents, binary: Path, folder: Path) -> Callable[[], None]:
    """``opa exec`` over the documents: one process a stage, one decision that asks every rule."""
    from trtops.policy.bundle import bundle

    _, _, inputs = _written(found, folder)
    packed = folder / "bundle.tar.gz"
    packed.write_bytes(bundle(found.policies))

    def run() -> None:
        for stage in STAGES:
            words = ["exec", "--decision", f"trtops/gate/{stage}", "--bundle", str(packed), str(inputs / stage)]
            done = subprocess.run([str(binary), *words], capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
            assert len(json.loads(done.stdout)["result"]) == len(found.by_stage[stage])

    return run


def command(root: Path, *words: str) -> Callable[[], None]:
    """A ``trtops check`` from a cold process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRTOPS_")}

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "trtops", "check", *words],
            cwd=root,
            env={**environment, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def forget(root: Path) -> Callable[[], None]:
    """Have nothing remembered: neither models nor what preflight found."""
    return lambda: shutil.rmtree(root / ".trtops", ignore_errors=True)


def candidates(folder: Path, opa: Path | None, conftest_binary: Path | None, engines: list[Any]) -> list[Candidate]:
    """Everything that is measured."""
    from trtops.policy.embedded import EmbeddedEngine

    small, large = repository(folder / "small", 200), repository(folder / "large", 1000)
    with (large / "engines" / "engine-0500" / "runtime.yaml").open("a") as file:
        file.write("sections: {edited: true}\n")
    found = documents(small)
    embedded = EmbeddedEngine(found.policies)
    listed = [Candidate("evaluate 200 specs, embedded", evaluation(found, embedded), 0.5)]
    if opa is not None:
        from trtops.policy.opa import start

        server = start(found.policies, opa)
        engines.append(server)
        listed.append(Candidate("evaluate 200 specs, OPA (started)", evaluation(found, server), 2.0))
        listed.append(Candidate("opa exec, 200 documents", opa_exec(found, opa, folder / "exec")))
    if conftest_binary is not None:
        listed.append(Candidate("conftest, 200 documents", conftest(found, conftest_binary, folder / "conftest")))
    listed += [
        Candidate("check 200 engines, nothing remembered", command(small, "--engine", "embedded"), 4.0, forget(small)),
        Candidate("check 200 engines again", command(small, "--engine", "embedded"), 4.0),
        Candidate("check one engine, cold process", command(small, "engine-0007", "--engine", "embedded"), 1.0),
        Candidate(
            "check 1 changed of 1,000",
            command(large, "--changed-since", "main", "--policies-from", "main", "--engine", "embedded"),
            2.0,
        ),
    ]
    if opa is not None:
        listed.append(Candidate("check 200 engines again, OPA", command(small, "--engine", "opa")))
    return listed


def _spread(values: Sequence[float], digits: int = 2) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(listed: Sequence[Candidate], anchor: Candidate) -> str:
    """Median and range of seconds and CPU seconds, and the ratio to the anchor within each round."""
    lines = [
        "| | seconds | CPU seconds | goal | seconds ÷ anchor's | CPU ÷ anchor's |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in listed:
        ratios = [mine / theirs for mine, theirs in zip(one.wall, anchor.wall, strict=True)]
        costs = [mine / theirs for mine, theirs in zip(one.cpu, anchor.cpu, strict=True)]
        goal = f"{one.goal:g}" if one.goal is not None else ""
        ratio = ("anchor", "anchor") if one is anchor else (_spread(ratios), _spread(costs))
        lines.append(f"| {one.name} | {_spread(one.wall)} | {_spread(one.cpu)} | {goal} | {ratio[0]} | {ratio[1]} |")
    return "\n".join(lines)


def machine(count: int, binaries: Sequence[Path]) -> str:
    """What it ran on."""
    model = "unknown CPU"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = []
    for binary in binaries:
        words = "--version" if binary.name == "conftest" else "version"
        done = subprocess.run([str(binary), words], capture_output=True, text=True, check=False)
        versions.append(f"{binary.name} {done.stdout.split()[1] if done.stdout else '?'}")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    day = dt.datetime.now(tz=dt.timezone.utc).date()
    return (
        f"{os.cpu_count()} CPUs ({model}), {platform.system()} {platform.release()}, CPython "
        f"{platform.python_version()}, {', '.join(versions) or 'no OPA'}; load average at the end {load}; "
        f"{count} rounds; commit {commit}, {day}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--opa", type=Path, help="the opa binary (default: TRTOPS_OPA or the one on PATH)")
    parser.add_argument("--conftest", type=Path, help="the conftest binary")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args()
    from trtops.policy.engines import find_opa

    opa = arguments.opa or find_opa(os.environ)
    if opa is not None:
        os.environ["PATH"] = f"{opa.parent}{os.pathsep}{os.environ['PATH']}"
    started: list[Any] = []
    try:
        with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
            listed = candidates(Path(folder), opa, arguments.conftest, started)
            rounds(listed, arguments.rounds)
    finally:
        for engine in started:
            engine.close()
    anchors = [one for one in listed if one.name.startswith(("conftest", "opa exec"))]
    anchor = anchors[-1] if anchors else listed[0]
    text = table(listed, anchor)
    where = machine(arguments.rounds, [binary for binary in (opa, arguments.conftest) if binary is not None])
    print(f"{text}\n\n{where}")
    if arguments.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(
            "# The policy gate\n\n`python benchmarks/policy_gate.py`: median (lowest to highest) of "
            f"{arguments.rounds} rounds, interleaved.\nRatios are taken within a round, to {anchor.name}.\n\n"
            f"{text}\n\n{where}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
