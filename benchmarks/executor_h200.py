"""The executor on a GPU: what shared memory, planner and device thread cost over a bare loop on the same engine.

    python benchmarks/executor_h200.py run --deadline 560 --cls cls.onnx --resnet50 r.onnx --engines DIR --out o.json
    python benchmarks/executor_h200.py table --out o.json

``run`` takes the FP32 engines of ``tensorrt_h200.py`` out of its work folder (``--engines``), or builds them. It
measures, in processes of their own and interleaved round by round on a machine that does nothing else:

- ``bare``: TensorRT and the CUDA runtime alone, in one loop: copy in from page-locked memory, CUDA graph of execution
  and copy out, wait. Nothing can be faster on one stream;
- ``on``: the executor with page-locked slots, two streams, CUDA graphs, asked through shared memory by other processes;
- ``off``: the same with none of the three.

It begins no build and no round that the deadline would cut, and writes the results after every round; the next ``run``
adds the rounds that lack. Inputs are written in the slots beforehand, as a producer would; the first 64 bytes are
written anew each time. ``--torch URL`` adds a peer that listens there, one row a request
(``benchmarks/peers/mosec_torch.py``). With ``--backend onnxruntime`` all of it runs with no GPU, to rehearse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from executor_processes import (
    Group,
    answer,
    bare_process,
    client_process,
    executor_process,
    http_load,
    opened,
    together,
)

from trtops.backend.select import backend
from trtops.build.plan import plan
from trtops.build.runner import Limits, build
from trtops.digest import Digest
from trtops.spec.engine import EngineSpec
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    Rounds = dict[str, list[float]]

MODELS: dict[str, dict[str, Any]] = {
    "cls": {"row": [3, 48, 192], "opt": 8, "max": 32, "rows": 8, "in_flight": 16, "build": (12, 35, 45, 110)},
    "resnet50": {"row": [3, 224, 224], "opt": 16, "max": 64, "rows": 16, "in_flight": 12, "build": (20, 40, 45, 60)},
}
"""Shape of a row, the profile's rows, rows of a request under load, how many requests are in flight then, and about how
many seconds a build takes at each level."""

_BASE = "1, bare p50"  # every round has one
_PEER = "64 in flight, torch rows/s"
_START = 30.0  # seconds that all processes take to load, about
_SPARE = 5.0


# -- engines -----------------------------------------------------------------------------------------------------------


def spec_of(name: str, backend_name: str, level: int) -> EngineSpec:
    """The spec of a model's engine."""
    model = MODELS[name]
    limits = {key: [rows, *model["row"]] for key, rows in (("min", 1), ("opt", model["opt"]), ("max", model["max"]))}
    return EngineSpec.model_validate(
        {
            "apiVersion": "trtops/v1",
            "kind": "Engine",
            "metadata": {"name": name, "owner": "benchmark"},
            "model": {"source": f"file:{name}.onnx", "sha256": "0" * 64},
            "targets": [{"backend": backend_name}],
            "profiles": [{"name": "default", "inputs": {"x": limits}}],
            "memory": {"workspace": "2GiB"},
            "builder": {"optimization_level": level},
            "batching": {"max_batch": model["max"]},
        }
    )


def engine_of(name: str, options: argparse.Namespace) -> Path | None:
    """The folder with a model's engine, if it was built: by this program, or by ``tensorrt_h200.py``."""
    folders = [options.work / name]
    if options.engines is not None:
        folders += [options.engines / f"{name}-fp32-dynamic-{level}" for level in (3, 2, 1, 0)]
    return next((folder for folder in folders if (folder / "sidecar.json").exists()), None)


def build_one(name: str, options: argparse.Namespace, seconds: float) -> Path:
    """Build a model's engine; its folder.

    Raises:
        TrtopsError: it was not built.
    """
    path, folder = Path(getattr(options, name)), options.work / name
    spec, adapter = spec_of(name, options.backend, options.level), backend(options.backend)
    target = spec.targets[0]
    version = str(adapter.status(target).version)
    wanted = plan(spec, target, model=Digest.of_file(path), backend_version=version, device=adapter.device())
    done = build(wanted, model=path, store=Store(folder), limits=Limits(deadline_s=seconds, silence_s=seconds))
    (folder / "sidecar.json").write_bytes(done.sidecar.canonical_bytes())
    print(f"{name}: built at level {options.level} in {done.seconds:.0f} s", flush=True)
    return Path(folder)


# -- measure -----------------------------------------------------------------------------------------------------------


def measure_model(
    name: str, options: argparse.Namespace, work: Path, end: float, rounds: Rounds, *, keep: Callable[[], None]
) -> None:
    """Add the rounds that lack, as many as fit before ``end`` (``time.monotonic``).

    Args:
        name: of the model.
        options: of the command line.
        work: folder of its engine.
        end: when the command has to leave.
        rounds: what was measured, a number a round.
        keep: called after every round.
    """
    model, group = {"name": name, **MODELS[name]}, Group()
    with tempfile.TemporaryDirectory() as folder:
        try:
            bare = group.start(bare_process, work, model)
            sockets = {way: f"{folder}/{way}" for way in ("on", "off")}
            ways = [
                group.start(executor_process, work, model, path, everything=way == "on")
                for way, path in sockets.items()
            ]
            clients = {
                way: [group.start(client_process, model, path) for _ in range(2)] for way, path in sockets.items()
            }
            for pipe in (bare, *ways, *(pipe for pipes in clients.values() for pipe in pipes)):
                print(f"{name}: {answer(pipe, 120)}", flush=True)
            took = estimate(options)
            while len(rounds[_BASE]) < options.rounds and time.monotonic() + took < end:
                begin = time.monotonic()
                one_round(model, bare, clients, options.seconds, rounds)
                if name == "resnet50" and options.torch:
                    against_torch(model, clients["on"], options.torch, rounds)
                took = time.monotonic() - begin
                keep()
                print(f"{name}: round {len(rounds[_BASE])} ({took:.0f} s)", flush=True)
        finally:
            group.stop()


def estimate(options: argparse.Namespace) -> float:
    """About how many seconds a round takes."""
    return float(12 * options.seconds + 8 + (12 if options.torch else 0))


def one_round(
    model: dict[str, Any],
    bare: Connection,
    clients: dict[str, list[Connection]],
    seconds: float,
    rounds: Rounds,
) -> None:
    """Everything once."""

    def note(key: str, times: list[float]) -> None:
        times = sorted(times)
        rounds[f"{key} p50"].append(times[len(times) // 2])
        rounds[f"{key} p99"].append(times[len(times) * 99 // 100])

    bare.send((1, seconds))
    note("1, bare", answer(bare))
    for key, way, spin, copy in (
        ("1, eventfd", "on", 0.0, False),
        ("1, eventfd, copied", "on", 0.0, True),
        ("1, spinning", "on", 1e-2, False),
        ("1, off", "off", 0.0, False),
    ):
        note(key, together(clients[way][:1], (1, 1, seconds, spin, copy))[0])
    bare.send((model["max"], seconds))
    times = answer(bare)
    note("best, bare", times)
    rounds["best, bare rows/s"].append(model["max"] / statistics.fmean(times) * 1e6)
    for key, way, copy in (("best, on", "on", False), ("best, copied", "on", True), ("best, off", "off", False)):
        order = (model["rows"], model["in_flight"] // 2, 2 * seconds, 0.0, copy)
        times, rate = together(clients[way], order)
        note(key, times)
        rounds[f"{key} rows/s"].append(rate * model["rows"])


def against_torch(model: dict[str, Any], clients: list[Connection], url: str, rounds: Rounds) -> None:
    """64 requests of one row in flight, by torch behind mosec and by the executor in turn."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = np.zeros((1, *model["row"]), np.float32).tobytes()
    group = Group()
    try:
        pipes = [group.start(http_load, (host, int(port)), body, 2.5, 8) for _ in range(8)]
        found = [answer(pipe) for pipe in pipes]
    finally:
        group.stop()
    times = sorted(value for part, _ in found for value in part)
    rounds[_PEER].append(sum(len(part) / spent for part, spent in found))
    rounds["64 in flight, torch p99"].append(times[len(times) * 99 // 100])
    times, rate = together(clients, (1, 32, 2.5, 0.0, True))
    rounds["64 in flight, ours rows/s"].append(rate)
    rounds["64 in flight, ours p99"].append(times[len(times) * 99 // 100])


def machine() -> dict[str, Any]:
    found: dict[str, Any] = {"cpus": os.cpu_count(), "python": sys.version.split()[0]}
    try:
        device = backend("tensorrt").device()
        found["gpu"] = f"{device.name}, compute capability {device.compute_capability}, driver {device.driver}"
    except Exception as error:  # noqa: BLE001 - a rehearsal has none
        found["gpu"] = f"none ({error})"
    return found


def run(options: argparse.Namespace) -> int:
    """Build what lacks and measure the rounds that lack, until the deadline."""
    end = time.monotonic() + options.deadline - _SPARE
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"models": {}}
    results["machine"] = machine()
    for name in MODELS:
        rounds: Rounds = defaultdict(list, results["models"].get(name, {}))
        lacking = options.rounds - len(rounds[_BASE])
        if lacking <= 0 or not (engine_of(name, options) or getattr(options, name)):
            continue
        work = engine_of(name, options)
        left = end - time.monotonic()
        needed = _START + estimate(options) + (0 if work else MODELS[name]["build"][min(options.level, 3)])
        if needed > left:
            print(f"{name}: {lacking} rounds are still to be done: {needed:.0f} s are needed, {left:.0f} s are left")
            continue
        work = work or build_one(name, options, left - _START)
        sidecar = opened(work)[1]
        results["backend"] = f"{sidecar.backend} {sidecar.backend_version}"
        results.setdefault("levels", {})[name] = work.name.rpartition("-")[2] if work.name != name else options.level

        def keep(name: str = name, rounds: Rounds = rounds) -> None:
            results["models"][name] = rounds
            options.out.write_text(json.dumps(results, indent=1) + "\n")

        measure_model(name, options, work, end, rounds, keep=keep)
        print(f"{name}: {len(rounds[_BASE])} of {options.rounds} rounds", flush=True)
    return 0


# -- the table ---------------------------------------------------------------------------------------------------------


def spread(values: list[float], form: str = ".2f") -> str:
    values = sorted(values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}} to {values[-1]:{form}})"


def table(results: dict[str, Any]) -> str:
    about = results["machine"]
    levels = "".join(f"; {name} built at level {level}" for name, level in results.get("levels", {}).items())
    lines = [f"{about['gpu']}; {results.get('backend')}{levels}; {about['cpus']} CPUs, CPython {about['python']}", ""]
    lines += ["| model | what | median (smallest to largest round) | goal |", "|---|---|---|---|"]
    for name, rounds in results["models"].items():
        lines += [f"| {name} | {what} | {value} | {goal} |" for what, value, goal in rows_of(name, rounds)]
    return "\n".join(lines) + "\n"


def rows_of(name: str, rounds: dict[str, list[float]]) -> list[tuple[str, str, str]]:
    model = MODELS[name]
    bare, best = rounds["1, bare p50"], rounds["best, bare rows/s"]

    def over(key: str) -> str:
        return spread([value - base for value, base in zip(rounds[key], bare, strict=True)], "+.0f")

    def share(key: str) -> str:
        return spread([value / base for value, base in zip(rounds[key], best, strict=True)])

    load_of = f"{model['in_flight']} requests of {model['rows']} rows in flight, 2 clients"
    found = [
        ("batch 1, bare loop, p50 us", spread(bare, ".0f"), ""),
        ("batch 1 by eventfd, p50 us over bare", over("1, eventfd p50"), "<= +60"),
        ("the same, the client copies its input", over("1, eventfd, copied p50"), ""),
        ("batch 1, a lone client that spins, p50 us over bare", over("1, spinning p50"), "<= +25"),
        ("batch 1, pinned, streams and graphs off, p50 us over bare", over("1, off p50"), ""),
        (f"batch {model['max']}, bare loop, rows/s", spread(best, ".0f"), ""),
        (f"{load_of}: rows/s over bare", share("best, on rows/s"), ">= 0.95"),
        ("the same, the clients copy their inputs", share("best, copied rows/s"), ""),
        ("the same, pinned, streams and graphs off", share("best, off rows/s"), ""),
    ]
    if _PEER in rounds:
        pairs = zip(rounds["64 in flight, ours rows/s"], rounds["64 in flight, torch rows/s"], strict=True)
        late = zip(rounds["64 in flight, ours p99"], rounds["64 in flight, torch p99"], strict=True)
        found += [
            (
                "64 rows in flight, one a request: rows/s over torch behind mosec",
                spread([a / b for a, b in pairs]),
                ">= 1.3",
            ),
            ("p99 of the same over torch's", spread([a / b for a, b in late]), "<= 1"),
            ("torch behind mosec, rows/s", spread(rounds["64 in flight, torch rows/s"], ".0f"), ""),
        ]
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "table"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "executor-h200")
    parser.add_argument("--engines", type=Path, metavar="DIR", help="work folder of tensorrt_h200.py")
    parser.add_argument("--out", type=Path, default=Path("executor_h200.json"))
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--level", type=int, default=3, help="of engines that are built here")
    parser.add_argument("--deadline", type=float, default=560, help="seconds of this command")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each measurement")
    parser.add_argument("--torch", metavar="URL")
    for name in MODELS:
        parser.add_argument(f"--{name}", metavar="ONNX")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, or print the table."""
    options = parse()
    if options.verb == "table":
        print(table(json.loads(options.out.read_text())), end="")
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
