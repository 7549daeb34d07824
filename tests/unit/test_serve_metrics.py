"""Metrics: by stage, of all front ends together; and the dashboard, which may ask for nothing that is not there."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import FakeEngines, add_up, exchange, info, post, request_json, serving
from trtops.executor.executor import Executor
from trtops.executor.port import Outcome
from trtops.release.analysis import Sample, samples
from trtops.report.load import USED
from trtops.serve.fleet_metrics import channel_metrics, fleet_metrics
from trtops.serve.frontends import pause_before
from trtops.serve.measure import Meters
from trtops.serve.metrics import Exposition
from trtops.serve.observe import ExecutorMeter
from trtops.spec.engine import Batching

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "serving.json"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "info": ("_info",), "gauge": ("",)}


class Fleet:
    def workers(self) -> tuple[Any, ...]:
        return ()

    def units(self) -> tuple[Any, ...]:
        return ()


class Processes:
    serving = 2
    restarts = 1


class Doubler:
    inputs = info().inputs
    outputs = info().outputs

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"].sum(axis=1, keepdims=True)}

    def close(self) -> None: ...


def everything() -> str:
    """The text of all metrics, of an executor that ran a batch and a front end that answered well and badly."""
    meter = ExecutorMeter()
    executor = Executor(observer=meter)
    executor.load(
        "sum",
        generation=3,
        version="1.0.0",
        digest="sha256:" + "0" * 64,
        backend="fake",
        batching=Batching.model_validate({"max_batch": 4}),
        instances=1,
        open_session=Doubler,
    )
    meters = Meters()
    with serving(executor) as served:  # type: ignore[arg-type]  # the real one
        assert [reply.status for reply in exchange(served, post("/v2/models/sum/infer", request_json()))] == [200]
        assert [reply.status for reply in exchange(served, post("/v2/models/sum/infer", b"{"))] == [400]
        meters.add(served.server.snapshot())
    exposition = Exposition(lambda: (info(generation=3),), lambda: {("sum", "done"): 1}, meter)
    exposition.front_ends = Processes()
    exposition.more = [lambda: channel_metrics(lambda: (("sum", "stable", "a", "b"),)), lambda: fleet_metrics(Fleet())]  # type: ignore[arg-type]
    return exposition(meters)[0].decode()


@pytest.fixture(scope="module")
def text() -> str:
    return everything()


def names(text: str) -> set[str]:
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    found = set()
    for name, kind in types:
        base = re.sub(r"_(total|info)$", "", name) if kind == "counter" or name.endswith("_info") else name
        found |= {base + suffix for suffix in SUFFIXES[kind]} | {name}
    return found


@pytest.mark.service
def test_the_dashboard_asks_for_metrics_and_labels_that_exist(text: str) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    asked = {name for query in queries for name in re.findall(r"\btrtops_\w+", query)}
    assert len(asked) > 25
    assert asked <= names(text), asked - names(text)
    # Labels of those that have samples here; `instance` is Prometheus' own.
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for query in queries:
        for name, inside in re.findall(r"\b(trtops_\w+)\{([^}]*)\}", query):
            used = set(re.findall(r"(\w+)=", inside)) - {"instance"}
            assert name not in labels or used <= labels[name], query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.service
def test_the_live_table_reads_metrics_that_exist(text: str) -> None:
    known = names(text)
    assert all({name, f"{name}_total", f"{name}_count"} & known for name in USED)


@pytest.mark.service
def test_every_stage_of_a_batch_is_measured(text: str) -> None:
    for stage in ("copy_in", "compute", "copy_out"):
        assert f'trtops_batch_{stage}_seconds_count{{engine="sum"}} 1.0' in text
    assert re.search(r'trtops_request_queue_seconds_count\{.*engine="sum"\} 1\.0', text)
    assert re.search(r'trtops_batches_total\{engine="sum",reason="\w+"\} 1\.0', text)
    assert "trtops_front_ends 2.0" in text
    assert "trtops_front_end_restarts_total 1.0" in text


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 20), st.integers(1, 16), st.sampled_from([200, 429])), max_size=60
    )
)
def test_numbers_of_many_front_ends_are_as_those_of_one(seen: list[tuple[int, float, int, int]]) -> None:
    parts, one = [Meters(), Meters(), Meters()], Meters()
    for number, seconds, rows, status in seen:
        for meters in (parts[number], one):
            meter = meters.engine("e")
            if status == 200:
                meter.succeeded(Outcome(batch=16, queue_us=seconds * 1e5, compute_us=seconds * 1e4), rows, seconds, 1)
            else:
                meter.failed("overloaded", seconds)
                meter.answered(status, seconds)
    total = Meters()
    for meters in parts:
        meters.fold()
        total.add(msgspec.json.decode(msgspec.json.encode(meters), type=Meters))  # as they travel
    one.fold()
    if seen:
        mine, all_ = total.engine("e"), one.engine("e")
        assert (mine.requests, mine.failures, mine.rejected) == (all_.requests, all_.failures, all_.rejected)
        assert {code: of.counts for code, of in mine.duration.items()} == {
            code: of.counts for code, of in all_.duration.items()
        }
        assert mine.queue.counts == all_.queue.counts
        assert mine.queue.sum == pytest.approx(all_.queue.sum)
        assert {size: of.executions for size, of in mine.batches.items()} == pytest.approx(
            {size: of.executions for size, of in all_.batches.items()}
        )


def test_a_candidate_is_told_nothing_of_the_one_before_it_in_its_channel() -> None:
    """An analysis would count the answers of the last candidate as the next one's."""
    running: dict[tuple[str, str], int] = {}
    exposition = Exposition(lambda: (), dict)
    exposition.candidates = lambda: running
    total = Meters()

    def counted() -> dict[str, float]:
        text = exposition(total)[0].decode()
        found = samples(text, "e", where="here").get("canary", Sample())
        return {"answers": found.answers, "errors": found.errors}

    def answers(generation: int, good: int, bad: int) -> None:
        part = Meters()
        for _ in range(good):
            part.engine("e").succeeded(Outcome(generation=generation, batch=1, channel="canary"), 1, 0.01, 1)
        for _ in range(bad):
            part.engine("e").answered(500, 0.01, "canary", generation)
        part.fold()
        total.add(msgspec.json.decode(msgspec.json.encode(part), type=Meters))

    running["e", "canary"] = 2
    answers(2, 30, 5)
    assert counted() == {"answers": 35, "errors": 5}
    running["e", "canary"] = 4
    assert counted() == {"answers": 0, "errors": 0}
    answers(4, 3, 0)
    answers(2, 1, 1)  # late ones
    assert counted() == {"answers": 3, "errors": 0}
    for generation in range(5, 50):
        answers(generation, 1, 0)
    assert len(total.engine("e").beside["canary"]) <= 4
    running.clear()
    assert counted() == {"answers": 0, "errors": 0}


def test_what_is_gone_leaves_its_sums_and_nothing_that_was_so() -> None:
    meters = Meters(connections=3, buffered=9)
    meters.engine("e").in_flight = 2
    meters.engine("e").failed("deadline", 1.0)
    meters.ended()
    assert (meters.connections, meters.buffered, meters.engine("e").in_flight) == (0, 0, 0)
    assert meters.engine("e").rejected == {"deadline": 1}


def test_a_front_end_that_keeps_ending_is_started_ever_later() -> None:
    pauses = [pause_before(failures) for failures in range(12)]
    assert pauses[:2] == [0.0, 0.0]
    assert all(before <= after for before, after in itertools.pairwise(pauses))
    assert pauses[-1] == 5.0


def test_spans_have_the_callers_parent_and_the_stages_times() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from trtops.serve.trace import Tracer

    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engines = FakeEngines()
    engines.add(info(), add_up)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serving(engines, tracer=Tracer(provider)) as served:
        exchange(served, post("/v2/models/sum/infer", request_json(), f"traceparent: {parent}"))
        exchange(served, post("/v2/models/sum/infer", b"{"))
        exchange(served, post("/v2/models/sum/infer", request_json(), f"traceparent: {parent[:-1]}0"))
    spans: Any = exporter.get_finished_spans()
    by = {span.name: span for span in spans[:3]}
    root: Any = by["infer sum"]
    assert f"{root.context.trace_id:032x}" == parent[3:35]
    assert f"{root.parent.span_id:016x}" == parent[36:52]
    assert root.attributes["http.response.status_code"] == 200
    for stage in ("queue", "compute"):
        assert by[stage].parent.span_id == root.context.span_id
        assert root.start_time <= by[stage].start_time <= by[stage].end_time <= root.end_time
    failed = spans[3]
    assert (failed.status.status_code.name, failed.attributes["http.response.status_code"]) == ("ERROR", 400)
    assert len(spans) == 4, "a caller that says that it is not sampled is not traced"


def test_the_log_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    import logging

    from trtops.serve.logs import to_json

    root, mine = logging.getLogger(), logging.getLogger("trtops")
    handlers, level = list(root.handlers), mine.level
    engines = FakeEngines(error=ValueError("boom"))
    engines.add(info(), add_up)
    try:
        to_json()
        with serving(engines) as served:
            exchange(served, post("/v2/models/sum/infer", b"{", "X-Request-ID: r-17"))
            exchange(served, post("/v2/models/sum/infer", request_json(), "X-Request-ID: r-18"))
            exchange(served, post("/v2/models/sum/infer", b"{"))
    finally:
        root.handlers[:] = handlers
        mine.setLevel(level)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    refused, broken = (line for line in lines if line["logger"] == "trtops.serve.inference")
    assert (refused["request"], refused["status"], refused["level"]) == ("r-17", 400, "info")
    assert (broken["request"], broken["engine"], broken["level"]) == ("r-18", "sum", "error")
    assert "ValueError: boom" in broken["error"]
    assert np.isfinite(refused["ms"])


def test_ranges_for_a_profiler_name_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    from trtops.executor.ranges import nothing, ranges

    seen: list[tuple[str, str]] = []

    class annotate:  # noqa: N801 - the library's name
        def __init__(self, name: str, domain: str) -> None:
            self.name = name
            seen.append((domain, name))

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=annotate))  # a module
    monkeypatch.setenv("TRTOPS_NVTX", "1")
    everything()
    assert [name for _, name in seen] == ["sum@3", "copy in", "compute", "copy out"]
    assert {domain for domain, _ in seen} == {"trtops"}
    assert ranges({}) is nothing
    monkeypatch.setitem(sys.modules, "nvtx", None)  # not installed
    assert ranges({"TRTOPS_NVTX": "1"}) is nothing
