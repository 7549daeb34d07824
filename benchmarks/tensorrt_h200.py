"""TensorRT on a GPU: build time, latency, accuracy of each precision, and what the adapter costs over a bare script.

    python benchmarks/tensorrt_h200.py run --deadline 560 --cls cls.onnx --det det.onnx --resnet50 r.onnx \
        --known earlier.json --out results.json
    python benchmarks/tensorrt_h200.py table --known benchmarks/results/tensorrt_h200.json --out results.json

``run`` goes through the cases of ``tensorrt_cases.PLAN``, what is worth most first, and through the steps of each: a
first build with no timings, a second one with those of the first, comparison with ONNX Runtime, measurement; one at a
time, alone on the machine. It begins no step that the deadline would cut, ends in time, and writes the results after
every step. The next ``run`` goes on where it stopped: what stands in ``--known`` or ``--out`` is never done again, nor
what failed; what a deadline cut is tried again where there is more time. Where the machine has lost an engine that is
still to be measured, it is built once more, uncounted.

Each step is a process of its own, so that what kills one costs no other. ``--backend onnxruntime`` (or ``fake``)
rehearses all of it with no GPU; ``--backend tensorrt_rtx`` the builds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorrt_cases import MODELS, PLAN, Case, first_seconds, target_of
from tensorrt_steps import STEPS, here
from tensorrt_tables import merged, tables

from trtops.backend.select import backend
from trtops.errors import TrtopsError
from trtops.spec.engine import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Options = argparse.Namespace
    Rows = dict[str, dict[str, Any]]

ORDER = ("first", "again", "accuracy", "points")
_SECONDS = {"accuracy": 30.0, "points": 40.0}
_LONGEST = 530.0  # what may take longer is begun where this is left
_CUT = 1.3  # a step that a deadline cut gets so many times what it had
_SPARE = 3.0  # seconds to write results and leave


class Job(NamedTuple):
    """A step of a case, and about how many seconds it takes."""

    case: Case
    step: str
    seconds: float


def next_job(
    plan: Sequence[Case],
    rows: Rows,
    left: float,
    present: Callable[[Case], bool],
    wanted: Sequence[str] = (*ORDER, "warm"),
) -> Job | None:
    """The first step that is still to be done and fits into the time that is left. Pure.

    Args:
        plan: cases, what is worth most first.
        rows: what is known of them, by name.
        left: seconds.
        present: whether a case's engine is on this machine.
        wanted: steps.
    """
    for case in plan:
        row = rows.get(case.name, {})
        for step in steps_of(case, row, wanted):
            job = _job(case, step, row, here=present(case))
            if job.seconds <= left:
                return job
            if job.step in {"first", "engine"}:  # nothing of this case goes on without
                break
    return None


def steps_of(case: Case, row: dict[str, Any], wanted: Sequence[str] = (*ORDER, "warm")) -> list[str]:
    """Steps that are still to be done, of those that are wanted."""
    failed = row.get("failed", {})
    if failed.keys() & {"first", "engine"}:
        return []
    steps = (*ORDER, "warm") if case == PLAN[0] else ORDER
    return [step for step in steps if step in wanted and step not in row and step not in failed]


def _job(case: Case, step: str, row: dict[str, Any], *, here: bool) -> Job:
    build = row["first"]["seconds"] if "first" in row else first_seconds(case)
    if step != "first" and not here:
        step = "engine"
    seconds = {"again": build / 2 + 10, "warm": build + 10}.get(step, _SECONDS.get(step, build))
    return Job(case, step, min(_LONGEST, max(seconds, _CUT * row.get("cut", {}).get(step, 0.0))))


def run(options: Options) -> int:
    """Do what fits into the deadline."""
    end = time.monotonic() + options.deadline - _SPARE
    out = Path(options.out)
    results = known(options)
    try:
        results["machine"] = machine(options.backend)
    except TrtopsError as error:
        print(f"{options.backend} is not here: {error}", flush=True)
        return 2
    rows: Rows = results.setdefault("rows", {})
    wanted = [case for case in PLAN if not options.only or case.name in options.only.split(",")]
    wanted = [case for case in wanted if Path(getattr(options, case.model)).exists()]
    steps = options.steps.split(",")
    while job := next_job(wanted, rows, end - time.monotonic(), lambda case: here(case, options), steps):
        limit = min(options.most, end - time.monotonic())
        row = rows.setdefault(job.case.name, about(job.case))
        if job.step in {"first", "again"}:
            row["at_once"] = max(options.at_once, row["at_once"])
        note(row, job.step, in_a_process(job, options, limit), cut=limit < options.most)
        write(out, results)
        print(f"{job.case.name}: {told(job.step, row)} ({row['took'][job.step]:.0f} s)", flush=True)
    write(out, results)
    for case in wanted:
        if undone := steps_of(case, rows.get(case.name, {}), steps):
            print(f"still to be done: {case.name}: {', '.join(undone)}")
    return 0


def known(options: Options) -> dict[str, Any]:
    """What was done before: all files that are there, later ones over earlier ones."""
    files = [*map(Path, options.known), Path(options.out)]
    return merged([json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()])


def about(case: Case) -> dict[str, Any]:
    """What a row says of its case."""
    facts = {"model": case.model, "mode": case.mode, "shapes": case.shapes, "level": case.level}
    return {"name": case.name, **facts, "at_once": 1}


def note(row: dict[str, Any], step: str, found: dict[str, Any], *, cut: bool) -> None:
    """Add what a step found to its row; ``cut``: the command's deadline, not the step's own, was over."""
    row.setdefault("took", {})[step] = found.pop("took")
    row.get("cut", {}).pop(step, None)
    reason = found.pop("failed", None)
    if reason is None:
        row |= found
    elif cut and found.get("late"):
        row.setdefault("cut", {})[step] = row["took"][step]
    else:
        row.setdefault("failed", {})[step] = reason


def write(path: Path, results: dict[str, Any]) -> None:
    """Replace the results; whoever reads them while this is killed sees the old or the new ones."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def in_a_process(job: Job, options: Options, limit: float) -> dict[str, Any]:
    """Run one step in a process of its own; what it found, or ``failed`` with the reason."""
    command = [sys.executable, __file__, "step", *options.given, "--one", job.case.name, "--step", job.step]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--most", str(limit)], capture_output=True, text=True, timeout=limit, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = {"failed": f"not done within {limit:.0f} s", "late": True}
    except (ValueError, IndexError):
        found = {"failed": f"status {done.returncode}: {done.stderr.strip()[-600:]}"}
    return found | {"took": time.monotonic() - begin}


def one_step(options: Options) -> int:
    """One step of one case in this process; what it found as JSON on the last line of standard output."""
    (case,) = (case for case in PLAN if case.name == options.one)
    try:
        found = STEPS[options.step](case, options)
    except TrtopsError as error:
        late = "was not done within" in error.what
        found = {"failed": f"{error}\n{getattr(error, 'log', '')[-1500:]}".strip(), "late": late}
    print(json.dumps(found))
    return 0


def told(step: str, row: dict[str, Any]) -> str:
    """A step's outcome in a few words."""
    if reason := row.get("failed", {}).get(step):
        return f"{step} FAILED: {reason[-400:]}"
    if step in row.get("cut", {}):
        return f"{step} was cut by the deadline"
    if step in {"first", "again"}:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row[step]["phases"].items())
        return f"{step} build {row[step]['seconds']:.1f} s ({parts})"
    if step == "warm":
        return "warm: " + ", then ".join(f"{one['seconds']:.1f} s" for one in row["warm"])
    if step == "accuracy":
        return f"max error {row['accuracy']['max_abs']}, passed {row['accuracy']['passed']}"
    if step == "points":
        return "; ".join(_latencies(shape, one) for shape, one in row["points"].items())
    return "built again, uncounted"


def _latencies(shape: str, one: dict[str, Any]) -> str:
    graph = f" graph {one['graph']['p50']:.0f}" if "graph" in one else ""
    over = f" adapter {one['overhead']['ratio']:.3f}" if "overhead" in one else ""
    return f"{shape} p50 {one['p50']:.0f} p99 {one['p99']:.0f}{graph}{over}"


def machine(name: str) -> dict[str, Any]:
    """What the figures are of."""
    adapter = backend(name)
    status = adapter.status(Target.model_validate(target_of(name)))
    found: dict[str, Any] = {"device": "none", "driver": None, "cores": os.cpu_count()}
    if name != "tensorrt_rtx":  # which builds with no device
        device = adapter.device()
        found = {"device": device.name, "driver": device.driver, "cores": device.cores}
    return found | {"backend": status.backend, "version": status.version, "python": sys.version.split()[0]}


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "table", "step"))
    for name in MODELS:
        parser.add_argument(f"--{name}", default=f"{name}.onnx", help="path of the model; left out where it is not")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--deadline", type=float, default=560, help="seconds of this command")
    parser.add_argument("--most", type=float, default=540, help="seconds of one step")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measurement")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir()) / "trtops-benchmark"))
    parser.add_argument("--known", action="append", default=[], metavar="FILE", help="what was done before")
    parser.add_argument("--out", default="tensorrt.json", help="results; counts as known, too")
    parser.add_argument("--only", metavar="CASES", help="names of cases, separated by commas")
    every = ",".join((*ORDER, "warm"))
    parser.add_argument("--steps", default=every, help=f"some of {every}")
    parser.add_argument(
        "--at-once", type=int, default=1, help="commands that build on this machine meanwhile, this one counted"
    )
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    options.given = given[1:]
    return options


def main() -> int:
    """Run, or print the tables."""
    options = parse()
    if options.verb == "table":
        print(tables(known(options)), end="")
        return 0
    return one_step(options) if options.verb == "step" else run(options)


if __name__ == "__main__":
    sys.exit(main())
