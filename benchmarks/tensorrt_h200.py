# ruff: noqa: SLF001, ANN401 - a bare script runs on the very context and buffers of the adapter beside it
"""TensorRT on a GPU: build time, latency, accuracy of each precision, and what the adapter costs over a bare script.

    python benchmarks/tensorrt_h200.py build --cls cls.onnx --det det.onnx --resnet50 r.onnx --level 3 --jobs 3
    python benchmarks/tensorrt_h200.py measure --cls cls.onnx ...
    python benchmarks/tensorrt_h200.py table

``build`` builds every case twice, into a store of its own: first with no timings, then with those of the first; then
it compares outputs with ONNX Runtime's. ``measure`` times what was built, alone on the machine. Each case is a process
of its own, so that what kills one costs no other; results are in ``--out`` after every case.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorrt_cases import MODELS, MODES, Case, cases, spec_of, write_samples
from tensorrt_tables import tables

from trtops.accuracy import load_samples, verify
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.port import Arranges, Probed, Sidecar
from trtops.backend.select import backend
from trtops.bench.device import advice
from trtops.bench.measure import summarise, time_runs
from trtops.bench.workload import Work
from trtops.build.passes import converters
from trtops.build.plan import BuildPlan, plan
from trtops.build.precision import read_samples
from trtops.build.protocol import SampleSource
from trtops.build.runner import Built, Limits, build
from trtops.digest import Digest
from trtops.errors import TrtopsError
from trtops.release.keys import KeyRing
from trtops.spec.engine import EngineSpec, Execution, Memory, Target
from trtops.store import Store
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.accuracy import Samples

    Options = argparse.Namespace

BLOCKS = 40


def folder_of(case: Case, options: Options) -> Path:
    return Path(options.work) / f"{case.name}-{options.level}"


def model_of(case: Case, options: Options) -> Path:
    return Path(getattr(options, case.model)).absolute()


# -- build -------------------------------------------------------------------------------------------------------------


def planned(spec: EngineSpec, path: Path, source: SampleSource | None) -> BuildPlan:
    adapter = backend(spec.targets[0].backend)
    return plan(
        spec,
        spec.targets[0],
        model=Digest.of_file(path),
        backend_version=str(adapter.status(spec.targets[0]).version),
        device=adapter.device(),
        calibration=read_samples(source, path.read_bytes()).digest if source else None,
        converters=converters(spec.precision.mode),
    )


def build_case(case: Case, options: Options) -> dict[str, Any]:
    """Build a case twice and compare it with ONNX Runtime: the row but for its measurements."""
    path, folder = model_of(case, options), folder_of(case, options)
    shutil.rmtree(folder, ignore_errors=True)
    store = Store(folder)
    folder.mkdir(parents=True, exist_ok=True)
    samples = write_samples(folder, case.model)
    spec = spec_of(case, options.backend, options.level, samples)
    source = None
    if case.mode in {"fp16", "int8"}:
        source = SampleSource(uri=samples, folder=str(folder), count=MODELS[case.model].samples)
    wanted, voucher = planned(spec, path, source), KeyVoucher(KeyRing())

    def once(*, rebuild: bool) -> Built:
        limits = Limits(deadline_s=options.deadline, silence_s=options.deadline)
        return build(wanted, model=path, store=store, limits=limits, samples=source, rebuild=rebuild, voucher=voucher)

    first, again = once(rebuild=False), once(rebuild=True)
    sidecar = again.sidecar
    (folder / "sidecar.json").write_bytes(sidecar.canonical_bytes())
    row = {
        "name": case.name,
        "model": case.model,
        "mode": case.mode,
        "shapes": "harsh" if case.harsh else case.shapes,
        "level": options.level,
        "at_once": options.jobs,
        "first": {"seconds": first.seconds, "phases": first.phases},
        "again": {"seconds": again.seconds, "phases": again.phases},
        "size_bytes": sidecar.size_bytes,
        "steps": list(sidecar.steps),
    }
    return row | {"accuracy": compared(case, spec, sidecar, store, path)}


def compared(case: Case, spec: EngineSpec, sidecar: Sidecar, store: Store, path: Path) -> dict[str, Any]:
    """What ``verify`` says of an engine."""
    assert spec.accuracy is not None
    session = backend(sidecar.backend).load(store.path(sidecar.artifact), sidecar)
    count = MODELS[case.model].samples
    samples = load_samples(spec.accuracy.samples, base=Path.cwd(), inputs=session.inputs, count=count)
    report = verify(OnnxRuntimeBackend().reference(path), session, spec.profiles, samples, spec.accuracy)
    session.close()
    return report.model_dump(mode="json", exclude={"reference", "samples", "count"})


# -- measure -----------------------------------------------------------------------------------------------------------


def measure_case(case: Case, options: Options) -> dict[str, Any]:
    """Latency of a case at every batch size: by itself, in its parts, by CUDA graph, and beside a bare script."""
    folder = folder_of(case, options)
    sidecar = Sidecar.model_validate_json((folder / "sidecar.json").read_bytes())
    spec = spec_of(case, options.backend, options.level, "random")
    artifact = Store(folder).path(sidecar.artifact)
    session = backend(sidecar.backend).load(artifact, sidecar)
    samples = load_samples("random", base=folder, inputs=session.inputs, count=8)
    shapes = [shape for profile in spec.profiles for shape in profile.inputs["x"].shapes().values()]
    limits = MODELS[case.model].limits
    if case.shapes == "profiles":  # beside the same batch sizes of the one profile
        shapes = [tuple(limits[point]) for point in ("min", "opt", "max")]
    found: dict[str, Any] = {}
    for shape in dict.fromkeys(shapes):
        feed = samples.batch({"x": shape})
        point = {"shape": list(shape), **timed(session, shape, feed, options)}
        if isinstance(session, Probed):
            parts = session.probe(feed, batch=shape[0], seconds=options.seconds * 2)
            point |= {"parts": json.loads(parts.model_dump_json()), "advice": advice([parts])}
            point["overhead"] = overhead(session, feed, point["p50"])
        found["x".join(map(str, shape))] = point
    if isinstance(session, Arranges):
        try:
            by_graph(session, found, samples, options)
        except TrtopsError as error:  # the other figures stand
            next(iter(found.values()))["advice"].append(f"no graphs: {error}")
    session.close()
    return found


def timed(session: Any, shape: tuple[int, ...], feed: dict[str, Any], options: Options) -> dict[str, Any]:
    """Percentiles of ``Session.run``, in microseconds."""
    nanoseconds = int(options.seconds * 1e9)
    work = Work(shape[0], "default", {"x": shape}, (feed,))
    timing = time_runs(session, work, time.perf_counter_ns, warmup=nanoseconds // 4, duration=nanoseconds)
    summary = summarise(work, timing)
    return {
        "p50": summary.p50.value,
        "p99": summary.p99.value,
        "stddev": summary.stddev,
        "runs": summary.runs,
        "rows_a_second": summary.throughput.value,
    }


def by_graph(session: Any, found: dict[str, Any], samples: Samples, options: Options) -> None:
    """The same with a CUDA graph for each batch size, as ``execution.cuda_graphs`` sets it up."""
    sizes = tuple(sorted({point["shape"][0] for point in found.values()}))
    (arranged,) = session.arrange(Execution(cuda_graphs=True), Memory(), sizes)
    for point in found.values():
        shape = tuple(point["shape"])
        if (shape,) in arranged._graphs:
            point["graph"] = timed(arranged, shape, samples.batch({"x": shape}), options)


def overhead(session: Any, feed: dict[str, Any], expected: float) -> dict[str, float]:
    """``Session.run`` beside a bare script on the same context, interleaved: medians of blocks, and their ratio.

    The bare script does the same work: it copies the input to pinned memory and to the device, executes, copies the
    output back, waits, and hands out a copy.
    """
    prepared = session.prepare(feed)
    cudart, context, stream = session._cudart, session._context, session._stream.handle
    (view, device, host, size), (_, out, out_device, out_host, out_size) = prepared.sources[0], prepared.results[0]
    array = feed["x"]
    to_device = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
    to_host = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost

    def bare() -> object:
        np.copyto(view, array)
        cudart.cudaMemcpyAsync(device, host, size, to_device, stream)
        context.execute_async_v3(int(stream))
        cudart.cudaMemcpyAsync(out_host, out_device, out_size, to_host, stream)
        cudart.cudaStreamSynchronize(stream)
        return out.copy()

    runs = max(3, min(25, int(1e6 / (2 * BLOCKS * expected))))
    blocks: dict[str, list[float]] = {"bare": [], "adapter": []}
    for turn in range(BLOCKS):
        order: tuple[tuple[str, Callable[[], object]], ...]
        order = (("bare", bare), ("adapter", lambda: session.run(feed)))
        for name, work in order if turn % 2 else order[::-1]:
            taken = []
            for _ in range(runs):
                begin = time.perf_counter_ns()
                work()
                taken.append(time.perf_counter_ns() - begin)
            blocks[name].append(statistics.median(taken) / 1000)
    ratios = sorted(two / one for one, two in zip(blocks["bare"], blocks["adapter"], strict=True))
    return {
        "bare_us": statistics.median(blocks["bare"]),
        "adapter_us": statistics.median(blocks["adapter"]),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 10],
        "ratio_high": ratios[-len(ratios) // 10],
    }


# -- processes ---------------------------------------------------------------------------------------------------------


def machine(options: Options) -> dict[str, Any]:
    adapter = backend(options.backend)
    device, status = adapter.device(), adapter.status(Target(backend=options.backend))
    about = {"device": device.name, "driver": device.driver, "backend": status.backend, "version": status.version}
    return about | {"cores": device.cores, "python": sys.version.split()[0]}


def in_a_process(verb: str, case: Case, options: Options) -> dict[str, Any]:
    """Run one case in a process of its own; its row, or ``failed`` with the reason."""
    command = [sys.executable, __file__, verb, *sys.argv[2:], "--one", case.name]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.deadline, check=False)
        row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        row = {"failed": f"not done within {options.deadline:g} s"}
    except (ValueError, IndexError):
        row = {"failed": f"status {done.returncode}: {done.stderr.strip()[-600:]}"}
    return row | {"took": time.monotonic() - begin}


def run_all(verb: str, options: Options) -> int:
    """Run every case that is not done yet, and keep what comes."""
    out = Path(options.out)
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": {}}
    results["machine"] = machine(options)
    end = time.monotonic() + options.budget
    rows = results["rows"]
    wanted = cases(options.models.split(","), options.modes.split(","))
    if options.only:
        wanted = [case for case in wanted if case.name in options.only.split(",")]
    if verb == "build":
        wanted = [case for case in wanted if case.name not in rows or "failed" in rows[case.name]]
    else:
        wanted = [case for case in wanted if _built(rows.get(case.name, {}))]
    with ThreadPoolExecutor(options.jobs if verb == "build" else 1) as pool:

        def work(case: Case) -> tuple[Case, dict[str, Any]]:
            late = time.monotonic() > end
            return case, {} if late else in_a_process(verb, case, options)

        for future in as_completed([pool.submit(work, case) for case in wanted]):
            case, row = future.result()
            if row:
                if verb == "measure":
                    row = rows[case.name] | ({"unmeasured": row["failed"]} if "failed" in row else row)
                rows[case.name] = {"name": case.name} | row
                out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(told(case, row), flush=True)
    return 0


def _built(row: dict[str, Any]) -> bool:
    return "first" in row and "points" not in row and "unmeasured" not in row


def told(case: Case, row: dict[str, Any]) -> str:
    """One short line of a case."""
    if not row:
        return f"{case.name}: left out, the time is over"
    if failed := row.get("unmeasured", row.get("failed")):
        return f"{case.name}: FAILED after {row['took']:.0f} s: {failed[-400:]}"
    if "points" not in row:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["first"]["phases"].items())
        again = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["again"]["phases"].items())
        accuracy = row["accuracy"]
        return (
            f"{case.name}: {row['first']['seconds']:.1f} s ({parts}), again {row['again']['seconds']:.1f} s ({again}), "
            f"max error {accuracy['max_abs']}, passed {accuracy['passed']}"
        )
    points = row.get("points", {})
    parts = "; ".join(
        f"{shape} p50 {one['p50']:.0f} p99 {one['p99']:.0f}"
        + (f" graph {one['graph']['p50']:.0f}" if "graph" in one else "")
        + (f" adapter {one['overhead']['ratio']:.3f}" if "overhead" in one else "")
        for shape, one in points.items()
    )
    return f"{case.name}: {parts} ({row['took']:.0f} s)"


def run_one(verb: str, options: Options) -> int:
    """One case in this process; its row as JSON on the last line of standard output."""
    known = {case.name: case for case in cases(list(MODELS), MODES)}
    try:
        case = known[options.one]
        row = build_case(case, options) if verb == "build" else {"points": measure_case(case, options)}
    except TrtopsError as error:
        row = {"failed": f"{error}\n{getattr(error, 'log', '')[-1500:]}"}
    print(json.dumps(row))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("build", "measure", "table"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--modes", default=",".join(MODES))
    for name in MODELS:
        parser.add_argument(f"--{name}", default=f"{name}.onnx", help="path of the model")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="builds at once")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measurement")
    parser.add_argument("--deadline", type=float, default=580, help="seconds of one case")
    parser.add_argument("--budget", type=float, default=3600, help="seconds after which no further case is begun")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir()) / "trtops-benchmark"))
    parser.add_argument("--out", default="tensorrt.json")
    parser.add_argument("--only", metavar="CASES", help="names of cases, separated by commas")
    parser.add_argument("--one", metavar="CASE", help="run this case alone, in this process")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.verb == "table":
        print(tables(json.loads(Path(options.out).read_text(encoding="utf-8"))), end="")
        return 0
    return run_one(options.verb, options) if options.one else run_all(options.verb, options)


if __name__ == "__main__":
    sys.exit(main())
