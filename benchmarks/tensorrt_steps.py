# ruff: noqa: SLF001, ANN401 - a bare script runs on the very context and buffers of the adapter beside it
"""The steps of ``tensorrt_h200.py``, each run in a process of its own: build, build again, compare, measure."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorrt_cases import MODELS, Case, spec_of, write_samples

from trtops.accuracy import load_samples, verify
from trtops.backend.onnxruntime import OnnxRuntimeBackend
from trtops.backend.port import Arranges, BuildRequest, Probed, Sidecar
from trtops.backend.select import backend
from trtops.bench.device import advice
from trtops.bench.measure import summarise, time_runs
from trtops.bench.workload import Work
from trtops.build.passes import converters, prepare
from trtops.build.plan import BuildPlan, plan
from trtops.build.precision import read_samples
from trtops.build.protocol import SampleSource
from trtops.build.runner import Limits, build
from trtops.build.timing import Timings, timing_key
from trtops.digest import Digest
from trtops.errors import TrtopsError
from trtops.release.keys import KeyStore
from trtops.spec.engine import Execution, Memory
from trtops.store import Store
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from trtops.accuracy import Samples
    from trtops.spec.engine import EngineSpec

    Options = argparse.Namespace

BLOCKS = 40


def folder_of(case: Case, options: Options) -> Path:
    """Where a case has its store."""
    return Path(options.work) / case.name


def here(case: Case, options: Options) -> bool:
    """Whether the engine of a case lies in this machine's work folder."""
    return (folder_of(case, options) / "sidecar.json").exists()


def _sidecar(folder: Path) -> Sidecar:
    return Sidecar.model_validate_json((folder / "sidecar.json").read_bytes())


# -- build -------------------------------------------------------------------------------------------------------------


class Planned:
    """What a build of a case takes."""

    def __init__(self, case: Case, options: Options) -> None:
        """Plan it; writes its samples."""
        self.folder = folder_of(case, options)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = Path(getattr(options, case.model)).absolute()
        samples = write_samples(self.folder, case.model)
        self.spec = spec_of(case, options.backend, samples)
        self.source = None
        if case.mode in {"fp16", "int8"}:
            self.source = SampleSource(uri=samples, folder=str(self.folder), count=MODELS[case.model].samples)
        self.plan = self._plan()
        self.store = Store(self.folder)
        self.voucher = KeyVoucher(KeyStore(self.folder))

    def _plan(self) -> BuildPlan:
        target = self.spec.targets[0]
        adapter = backend(target.backend)
        return plan(
            self.spec,
            target,
            model=Digest.of_file(self.path),
            backend_version=str(adapter.status(target).version),
            device=None if target.backend == "tensorrt_rtx" else adapter.device(),
            calibration=read_samples(self.source, self.path.read_bytes()).digest if self.source else None,
            converters=converters(self.spec.precision.mode),
        )

    def build(self, options: Options, *, rebuild: bool) -> dict[str, Any]:
        """Build once, in the child process that every build has; keep the sidecar."""
        done = build(
            self.plan,
            model=self.path,
            store=self.store,
            limits=Limits(deadline_s=options.most, silence_s=options.most),
            samples=self.source,
            rebuild=rebuild,
            voucher=self.voucher,
        )
        (self.folder / "sidecar.json").write_bytes(done.sidecar.canonical_bytes())
        size, steps = done.sidecar.size_bytes, list(done.sidecar.steps)
        return {"build": {"seconds": done.seconds, "phases": done.phases}, "size_bytes": size, "steps": steps}


def first(case: Case, options: Options) -> dict[str, Any]:
    """A build with no timings."""
    shutil.rmtree(folder_of(case, options), ignore_errors=True)
    made = Planned(case, options).build(options, rebuild=True)
    return {"first": made.pop("build"), **made}


def engine(case: Case, options: Options) -> dict[str, Any]:
    """The same for a machine that has lost the engine; its time is no result."""
    first(case, options)
    return {}


def again(case: Case, options: Options) -> dict[str, Any]:
    """A build with the timings of the first."""
    made = Planned(case, options).build(options, rebuild=True)
    return {"again": made.pop("build"), **made}


def warm(case: Case, options: Options) -> dict[str, Any]:
    """Two builds of FP32 in one process, both with the timings of the first: what a builder that stays would save."""
    made = Planned(case, options)
    key = timing_key(made.plan)
    work = made.folder / "warm"
    work.mkdir(exist_ok=True)
    prepare(made.path.read_bytes(), work / "model.onnx", repairs=made.plan.repairs, profiles=made.plan.profiles)
    if key is not None:
        Timings(made.store, key, made.voucher).fetch(work / "timings")
    request = BuildRequest(
        target=made.plan.target,
        model=str(work / "model.onnx"),
        output=str(work / "engine"),
        precision=made.plan.precision,
        profiles=made.plan.profiles,
        memory=made.plan.memory,
        builder=made.plan.builder,
        timing_cache=None if key is None else str(work / "timings"),
    )
    adapter, found = backend(options.backend), []
    for _ in range(2):
        begin = time.monotonic()
        result = adapter.build(request, lambda _: None)
        found.append({"seconds": time.monotonic() - begin, "phases": result.seconds})
    return {"warm": found}


def accuracy(case: Case, options: Options) -> dict[str, Any]:
    """What ``verify`` says of an engine."""
    made = Planned(case, options)
    assert made.spec.accuracy is not None
    sidecar = _sidecar(made.folder)
    session = backend(sidecar.backend).load(made.store.path(sidecar.artifact), sidecar)
    count = MODELS[case.model].samples
    samples = load_samples(made.spec.accuracy.samples, base=Path.cwd(), inputs=session.inputs, count=count)
    reference = OnnxRuntimeBackend().reference(made.path)
    report = verify(reference, session, made.spec.profiles, samples, made.spec.accuracy)
    session.close()
    return {"accuracy": report.model_dump(mode="json", exclude={"reference", "samples", "count"})}


# -- measure -----------------------------------------------------------------------------------------------------------


def points(case: Case, options: Options) -> dict[str, Any]:
    """Latency of a case at every batch size."""
    folder = folder_of(case, options)
    sidecar = _sidecar(folder)
    spec = spec_of(case, options.backend, "random")
    session = backend(sidecar.backend).load(Store(folder).path(sidecar.artifact), sidecar)
    try:
        return {"points": measured(session, shapes_of(case, spec), options.seconds)}
    finally:
        session.close()


def shapes_of(case: Case, spec: EngineSpec) -> list[tuple[int, ...]]:
    """Shapes of the input that are measured: min, opt and max."""
    if case.shapes == "profiles":  # beside the same batch sizes of the one profile
        return [tuple(MODELS[case.model].limits[point]) for point in ("min", "opt", "max")]
    return [*dict.fromkeys(shape for profile in spec.profiles for shape in profile.inputs["x"].shapes().values())]


def measured(session: Any, shapes: list[tuple[int, ...]], seconds: float) -> dict[str, Any]:
    """Latency of a session at shapes of its input ``x``: alone, in its parts, by CUDA graph, beside a bare script."""
    samples = load_samples("random", base=Path.cwd(), inputs=session.inputs, count=8)
    found: dict[str, Any] = {}
    for shape in shapes:
        feed = samples.batch({"x": shape})
        point = {"shape": list(shape), **timed(session, shape, feed, seconds)}
        if isinstance(session, Probed):
            parts = session.probe(feed, batch=shape[0], seconds=seconds * 2)
            point |= {"parts": json.loads(parts.model_dump_json()), "advice": advice([parts])}
            point["overhead"] = overhead(session, feed, point["p50"])
        found["x".join(map(str, shape))] = point
    if isinstance(session, Arranges):
        try:
            by_graph(session, found, samples, seconds)
        except TrtopsError as error:  # the other figures stand
            next(iter(found.values()))["advice"].append(f"no graphs: {error}")
    return found


def timed(session: Any, shape: tuple[int, ...], feed: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Percentiles of ``Session.run``, in microseconds."""
    nanoseconds = int(seconds * 1e9)
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


def by_graph(session: Any, found: dict[str, Any], samples: Samples, seconds: float) -> None:
    """The same with a CUDA graph for each batch size, as ``execution.cuda_graphs`` sets it up."""
    sizes = tuple(sorted({point["shape"][0] for point in found.values()}))
    (arranged,) = session.arrange(Execution(cuda_graphs=True), Memory(), sizes)
    for point in found.values():
        shape = tuple(point["shape"])
        if (shape,) in arranged._graphs:
            point["graph"] = timed(arranged, shape, samples.batch({"x": shape}), seconds)


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


STEPS: dict[str, Callable[[Case, Options], dict[str, Any]]] = {
    "first": first,
    "again": again,
    "accuracy": accuracy,
    "points": points,
    "warm": warm,
    "engine": engine,
}
"""What a step of this name does; a row that has its key is done with it."""
