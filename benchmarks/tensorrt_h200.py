# ruff: noqa: RUF001, E501, ISC004 - tables for people, in their own signs and as wide as they are
"""TensorRT on a GPU: build time, latency, accuracy of each precision, and what the adapter costs over a bare script.

    python benchmarks/tensorrt_h200.py --models cls,det,resnet50 --cls cls.onnx --det det.onnx --resnet50 r.onnx \
        --level 1 --out results.json

Each case has a store of its own: the first build starts with no timings, the second one with those of the first. Rows
are added to the results file as they come, a row of the same case replaces the older one. ``--table results.json``
prints the tables of what is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.accuracy import load_samples, verify
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.tensorrt import TensorRtBackend
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
from trtops.spec.engine import EngineSpec
from trtops.store import Store

if TYPE_CHECKING:
    from trtops.accuracy.samples import Samples

BACKEND = TensorRtBackend()
MODELS: dict[str, dict[str, Any]] = {
    "cls": {
        "x": {"min": [1, 3, 48, 192], "opt": [8, 3, 48, 192], "max": [32, 3, 48, 192]},
        "tolerance": {"atol": 1e-2, "rtol": 1e-2, "metric": {"top1": 1.0}},
        "workspace": "1GiB",
    },
    "det": {
        "x": {"min": [1, 3, 320, 320], "opt": [1, 3, 640, 640], "max": [1, 3, 960, 960]},
        "tolerance": {"atol": 5e-2, "rtol": 1e-2, "metric": {"cosine": 0.99}},
        "workspace": "2GiB",
    },
    "resnet50": {
        "x": {"min": [1, 3, 224, 224], "opt": [16, 3, 224, 224], "max": [64, 3, 224, 224]},
        "tolerance": {"atol": 5e-2, "rtol": 5e-2, "metric": {"cosine": 0.99}},
        "workspace": "2GiB",
    },
}
SAMPLES = {"cls": 32, "det": 2, "resnet50": 16}


def spec_of(name: str, mode: str, arguments: argparse.Namespace, **changes: Any) -> EngineSpec:  # noqa: ANN401 - parts of a document
    """The spec of a case; ``static`` in its changes fixes the profile at its optimum."""
    model = MODELS[name]
    limits = model["x"] if not changes.pop("static", False) else dict.fromkeys(("min", "opt", "max"), model["x"]["opt"])
    document: dict[str, Any] = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": name, "owner": "benchmark"},
        "model": {"source": f"file:{name}.onnx", "sha256": "0" * 64},
        "targets": [{"backend": "tensorrt"}],
        "profiles": [{"inputs": {"x": limits}}],
        "memory": {"workspace": model["workspace"]},
        "builder": {"optimization_level": arguments.level},
        "precision": {"mode": mode},
        "accuracy": model["tolerance"],
    }
    if mode == "int8":
        document["precision"]["calibration"] = {"source": source_of(name, arguments), "samples": SAMPLES[name]}
    return EngineSpec.model_validate(document | changes)


def source_of(name: str, arguments: argparse.Namespace) -> str:
    return f"file:{arguments.samples}" if name == "cls" and arguments.samples else "random"


def planned(spec: EngineSpec, path: Path, source: SampleSource | None) -> BuildPlan:
    digest = read_samples(source, path.read_bytes()).digest if source else None
    return plan(
        spec,
        spec.targets[0],
        model=Digest.of_file(path),
        backend_version=str(BACKEND.status(spec.targets[0]).version),
        device=BACKEND.device(),
        calibration=digest,
        converters=converters(spec.precision.mode),
    )


def built(spec: EngineSpec, path: Path, store: Store, arguments: argparse.Namespace, *, rebuild: bool = False) -> Built:
    source = None
    if spec.precision.mode in {"fp16", "int8"}:
        uri = spec.precision.calibration.source if spec.precision.calibration else source_of(spec.name, arguments)
        source = SampleSource(uri=uri, folder=str(Path.cwd()), count=SAMPLES.get(spec.name))
    return build(
        planned(spec, path, source),
        model=path,
        store=store,
        limits=Limits(silence_s=600),
        samples=source,
        rebuild=rebuild,
    )


def case(name: str, mode: str, path: Path, arguments: argparse.Namespace, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """One model in one precision: a row of results."""
    label = "static" if changes.get("static") else "dynamic"
    folder = Path(arguments.work) / f"{name}-{mode}-{label}-{arguments.level}"
    shutil.rmtree(folder, ignore_errors=True)
    store = Store(folder)
    spec = spec_of(name, mode, arguments, **changes)
    first = built(spec, path, store, arguments)
    second = built(spec, path, store, arguments, rebuild=True) if mode in arguments.warm.split(",") else None
    sidecar = (second or first).sidecar
    row: dict[str, Any] = {
        "model": name,
        "mode": mode,
        "shapes": label,
        "level": arguments.level,
        "build_s": first.seconds,
        "build_with_timings_s": second.seconds if second else None,
        "size_bytes": sidecar.size_bytes,
        "steps": list(sidecar.steps),
    }
    session = BACKEND.load(store.path(sidecar.artifact), sidecar)
    samples = load_samples(source_of(name, arguments), base=Path.cwd(), inputs=session.inputs, count=SAMPLES[name])
    reference = OnnxRuntimeBackend().reference(path)
    report = verify(reference, session, spec.profiles, samples, spec.accuracy)  # type: ignore[arg-type]
    row["accuracy"] = {"max_abs": report.max_abs, "outside": report.outside, "elements": report.elements}
    row["accuracy"] |= {"metrics": report.metrics, "passed": report.passed}
    row["points"] = points(session, spec, samples, arguments)
    session.close()
    return row


def points(
    session: Any,  # noqa: ANN401 - a TensorRT session with its internals
    spec: EngineSpec,
    samples: Samples,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Latency at min, opt and max of the profile, its parts, and what the adapter adds to a bare script."""
    found: dict[str, Any] = {}
    for point, shape in spec.profiles[0].inputs["x"].shapes().items():
        feed = samples.batch({"x": shape})
        if any(one["shape"] == list(shape) for one in found.values()):
            continue
        nanoseconds = int(arguments.seconds * 1e9)
        work = Work(shape[0], "default", {"x": shape}, (feed,))
        timing = time_runs(session, work, time.perf_counter_ns, warmup=nanoseconds // 4, duration=nanoseconds)
        summary = summarise(work, timing)
        parts = session.probe(feed, batch=shape[0], seconds=arguments.seconds * 2)
        found[point] = {
            "shape": list(shape),
            "p50": summary.p50.value,
            "p99": summary.p99.value,
            "stddev": summary.stddev,
            "runs": summary.runs,
            "rows_a_second": summary.throughput.value,
            "parts": json.loads(parts.model_dump_json()),
            "advice": advice([parts]),
            "overhead": overhead(session, feed),
        }
    return found


def overhead(session: Any, feed: dict[str, Any]) -> dict[str, float]:  # noqa: ANN401 - as in points
    """``Session.run`` beside a bare script on the same context, interleaved: medians of blocks, and their ratio.

    The bare script does the same work: it copies the input to pinned memory and to the device, executes, copies the
    output back, waits, and hands out a copy.
    """
    prepared = session.prepare(feed)
    cudart, context, stream = session._cudart, session._context, session._stream  # noqa: SLF001 - the same engine
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

    blocks: dict[str, list[float]] = {"bare": [], "adapter": []}
    for turn in range(40):
        order = (("bare", bare), ("adapter", lambda: session.run(feed)))
        for name, work in order if turn % 2 else order[::-1]:
            taken = []
            for _ in range(25):
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


def bad_precision(arguments: argparse.Namespace) -> dict[str, Any]:
    """INT8 of the classifier with ranges that leave half of what was seen outside: ``verify`` has to catch it."""
    spec = spec_of("cls", "int8", arguments)
    harsh = spec.precision.calibration.model_copy(update={"method": "percentile", "percentile": 51.0})  # type: ignore[union-attr]
    spec = spec.model_copy(update={"precision": spec.precision.model_copy(update={"calibration": harsh})})
    store = Store(Path(arguments.work) / "bad")
    made = built(spec, Path(arguments.cls), store, arguments).sidecar
    session = BACKEND.load(store.path(made.artifact), made)
    samples = load_samples(source_of("cls", arguments), base=Path.cwd(), inputs=session.inputs, count=SAMPLES["cls"])
    reference = OnnxRuntimeBackend().reference(Path(arguments.cls))
    report = verify(reference, session, spec.profiles, samples, spec.accuracy)  # type: ignore[arg-type]
    worst = report.worst.model_dump(mode="json") if report.worst else None
    return {"model": "cls", "mode": "int8, percentile 51", "passed": report.passed, "max_abs": report.max_abs} | {
        "outside": report.outside,
        "elements": report.elements,
        "metrics": report.metrics,
        "worst": worst,
    }


def machine() -> dict[str, Any]:
    device = BACKEND.device()
    status = BACKEND.status(spec_of("cls", "fp32", argparse.Namespace(level=1, samples=None)).targets[0])
    return {
        "device": device.name,
        "driver": device.driver,
        "tensorrt": status.version,
        "python": sys.version.split()[0],
    }


def write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def table(results: dict[str, Any]) -> str:
    """The tables of a results file, as Markdown."""
    about = results["machine"]
    lines = [
        "# TensorRT on a GPU",
        "",
        f"{about['device']}, driver {about['driver']}, TensorRT {about['tensorrt']}, CPython {about['python']}. "
        "Printed by `benchmarks/tensorrt_h200.py`; latencies in µs, one caller, closed loop, copies in and out counted.",
        "",
        "## Build and accuracy",
        "",
        "| model | precision | shapes | level | build s | with timings s | × | engine MiB | max. abs. error | within tolerance |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        again = row["build_with_timings_s"]
        second = f"{again:.1f} | {row['build_s'] / again:.1f}" if again else "- | -"
        accuracy = row["accuracy"]
        lines.append(
            f"| {row['model']} | {row['mode']} | {row['shapes']} | {row['level']} | {row['build_s']:.1f} | "
            f"{second} | {row['size_bytes'] / (1 << 20):.1f} | "
            f"{accuracy['max_abs']:.2g} | {'yes' if accuracy['passed'] else 'no'} |"
        )
    lines += [
        "",
        "## Latency",
        "",
        "`run` is `Session.run`; `compute` and copies are between CUDA events; `enqueue` and `graph` execute alone and wait.",
        "",
        "| model | precision | shape | run p50 | p99 | σ | rows/s | copy in | compute | copy out | enqueue | graph "
        "| pageable | pinned | mapped | 2 streams × | 4 streams × | adapter / bare (10–90 %) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        for one in row["points"].values():
            parts, over = one["parts"], one["overhead"]
            graph = "-" if parts["graph"] is None else f"{parts['graph']:.0f}"
            rates = {int(count): rate for count, rate in parts["streams"].items()}
            gains = [f"{rates[count] / rates[1]:.2f}" if count in rates and 1 in rates else "-" for count in (2, 4)]
            times = " | ".join(f"{parts[name]:.0f}" for name in ("copy_in", "compute", "copy_out", "plain"))
            inputs = " | ".join(f"{parts[name]:.0f}" for name in ("pageable", "pinned", "mapped"))
            lines.append(
                f"| {row['model']}{'' if row['shapes'] == 'dynamic' else ' (static)'} | {row['mode']} | "
                f"{'×'.join(map(str, one['shape']))} | {one['p50']:.0f} | {one['p99']:.0f} | {one['stddev']:.1f} | "
                f"{one['rows_a_second']:.0f} | {times} | {graph} | {inputs} | {gains[0]} | {gains[1]} | "
                f"{over['ratio']:.3f} ({over['ratio_low']:.3f}–{over['ratio_high']:.3f}) |"
            )
    said = [
        f"{row['model']} {row['mode']}, {text}"
        for row in results["rows"]
        for one in row["points"].values()
        for text in one["advice"]
    ]
    lines += ["", "## What `trtops bench` says of them", "", *(f"- {text}" for text in said)]
    if bad := results.get("bad"):
        lines += [
            "",
            "## A precision that is wrong",
            "",
            f"{bad['model']}, {bad['mode']}: `verify` {'passed it' if bad['passed'] else 'refuses it'}: "
            f"{bad['outside']} of {bad['elements']} elements out of tolerance, largest error {bad['max_abs']:.3g}, "
            f"{bad['metrics']}.",
        ]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cls,det,resnet50")
    parser.add_argument("--modes", default="fp32,tf32,fp16,int8")
    for name in MODELS:
        parser.add_argument(f"--{name}", default=f"{name}.onnx", help="path of the model")
    parser.add_argument("--samples", help=".npz of the classifier's inputs")
    parser.add_argument("--warm", default="fp32,tf32,fp16,int8", help="modes that are built again, with timings")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--static", action="store_true", help="also the classifier with fixed shapes")
    parser.add_argument("--bad", action="store_true", help="also a precision that verify has to refuse")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir()) / "trtops-benchmark"))
    parser.add_argument("--out", default="tensorrt.json")
    parser.add_argument("--table", metavar="FILE", help="print the tables of a results file, and stop")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.table:
        print(table(json.loads(Path(arguments.table).read_text(encoding="utf-8"))), end="")
        return 0
    out = Path(arguments.out)
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": []}
    results["machine"] = machine()
    cases = [(name, mode, {}) for name in arguments.models.split(",") for mode in arguments.modes.split(",") if name]
    cases += [("cls", "fp32", {"static": True})] if arguments.static else []
    for name, mode, changes in cases:
        begin = time.monotonic()
        try:
            row = case(name, mode, Path(getattr(arguments, name)).absolute(), arguments, **changes)
        except TrtopsError as error:
            print(f"{name} {mode}: {error}\n{getattr(error, 'log', '')[-1500:]}", flush=True)
            continue
        same = {key: row[key] for key in ("model", "mode", "shapes")}
        results["rows"] = [old for old in results["rows"] if any(old[key] != same[key] for key in same)] + [row]
        write(out, results)
        first = next(iter(row["points"].values()))
        built_in = f"built in {row['build_s']:.0f} and {row['build_with_timings_s'] or 0:.0f} s"
        ratio = first["overhead"]["ratio"]
        passed = row["accuracy"]["passed"]
        print(f"{name} {mode} {built_in}: p50 {first['p50']:.0f} µs, adapter × {ratio:.3f}, passed {passed}", end=", ")
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
    if arguments.bad:
        results["bad"] = bad_precision(arguments)
        write(out, results)
    print(table(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
