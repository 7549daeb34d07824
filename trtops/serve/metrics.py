"""The numbers of :mod:`trtops.serve.measure` as Prometheus reads them: histograms with their unit in the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trtops.serve.measure import STABLE, Meters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from trtops.executor.port import EngineInfo
    from trtops.serve.measure import EngineMeter, Histogram
    from trtops.serve.observe import ExecutorMeter, Totals


class Processes(Protocol):
    """Front ends in processes of their own."""

    @property
    def serving(self) -> int:
        """How many serve now."""

    @property
    def restarts(self) -> int:
        """How often one was started again."""


class Exposition:
    """Writes the metrics when they are asked for; nothing is copied before."""

    def __init__(
        self,
        index: Callable[[], tuple[EngineInfo, ...]],
        swaps: Callable[[], Mapping[tuple[str, str], int]],
        executor: ExecutorMeter | None = None,
    ) -> None:
        """Read from these.

        Args:
            index: what is served.
            swaps: (engine, result) -> how many swaps ended so.
            executor: counts of the executor, if it has an observer.
        """
        from prometheus_client.registry import CollectorRegistry

        self._meters = Meters()
        self._index = index
        self._swaps = swaps
        self._executor = executor
        self.front_ends: Processes | None = None
        self.candidates: Callable[[], Mapping[tuple[str, str], int]] = dict
        self.more: list[Callable[[], Iterable[Metric]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def __call__(self, meters: Meters) -> tuple[bytes, bytes]:
        """The text and its content type; ``meters`` are the numbers of all front ends."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        self._meters = meters
        return generate_latest(self._registry), CONTENT_TYPE_LATEST.encode()

    def collect(self) -> Iterator[Metric]:
        """All metrics, as the library's collectors give them."""
        self._meters.fold()
        yield from self._durations()
        yield from self._counts()
        yield from self._state()
        if self.front_ends is not None:
            yield from _processes(self.front_ends)
        if self._executor is not None:
            yield from _batches(self._executor.totals())
        for collect in self.more:
            yield from collect()

    def _durations(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        total = HistogramMetricFamily(
            "trtops_request_duration_seconds",
            "From the whole request to its answer",
            labels=["engine", "channel", "code"],
            unit="seconds",
        )
        running = self.candidates()
        for name, meter in self._meters.engines.items():
            found = {STABLE: meter.duration}
            for channel, candidates in meter.beside.items():
                found[channel] = candidates.get(running.get((name, channel), 0), {})
            for channel, durations in found.items():
                for status, histogram in sorted(durations.items()):
                    total.add_metric([name, channel, str(status)], histogram.cumulative(), histogram.sum)
        yield total
        parts: list[tuple[str, str, Callable[[EngineMeter], Histogram]]] = [
            ("trtops_request_queue_seconds", "Waiting for a batch", lambda meter: meter.queue),
            ("trtops_request_compute_seconds", "Execution of the batch that it ran in", lambda meter: meter.compute),
            ("trtops_request_batch_rows", "Rows of the batch that a request ran in", lambda meter: meter.batch),
        ]
        for metric, text, of in parts:
            family = HistogramMetricFamily(metric, text, labels=["engine"])
            for name, meter in self._meters.engines.items():
                family.add_metric([name], of(meter).cumulative(), of(meter).sum)
            yield family

    def _counts(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        rows = CounterMetricFamily("trtops_inferences", "Rows answered well", labels=["engine"])
        rejected = CounterMetricFamily(
            "trtops_requests_rejected", "Requests answered with an error", labels=["engine", "reason"]
        )
        for name, meter in self._meters.engines.items():
            rows.add_metric([name], meter.requests)
            for reason, count in sorted(meter.rejected.items()):
                rejected.add_metric([name, reason], count)
        malformed = CounterMetricFamily(
            "trtops_http_refused",
            "Requests that never reached an engine: malformed, too large, too late",
            labels=["code"],
        )
        for status, count in sorted(self._meters.malformed.items()):
            malformed.add_metric([str(status)], count)
        swaps = CounterMetricFamily("trtops_swaps", "Changes of what is served", labels=["engine", "result"])
        for (name, result), count in sorted(self._swaps().items()):
            swaps.add_metric([name, result], count)
        yield from (rows, rejected, malformed, swaps)

    def _state(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        flight = GaugeMetricFamily("trtops_requests_in_flight", "Requests taken and not answered", labels=["engine"])
        for name, meter in self._meters.engines.items():
            flight.add_metric([name], meter.in_flight)
        generation = GaugeMetricFamily("trtops_engine_generation", "Generation that is served", labels=["engine"])
        about = InfoMetricFamily("trtops_engine", "What is served", labels=["engine"])
        for info in self._index():
            generation.add_metric([info.name], info.generation)
            details = {"version": info.version, "digest": info.digest, "backend": info.backend}
            about.add_metric([info.name], details)
        connections = GaugeMetricFamily("trtops_http_connections", "Open connections", self._meters.connections)
        held = GaugeMetricFamily("trtops_http_buffered_bytes", "Bytes of requests that are held", self._meters.buffered)
        yield from (flight, generation, about, connections, held)


def _processes(processes: Processes) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("trtops_front_ends", "Front-end processes that serve", processes.serving)
    yield CounterMetricFamily("trtops_front_end_restarts", "Front ends started again", processes.restarts)


def _batches(totals: Totals) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    released = CounterMetricFamily("trtops_batches", "Batches, by why they were released", labels=["engine", "reason"])
    for (name, reason), count in sorted(totals.batches.items()):
        released.add_metric([name, reason], count)
    failed = CounterMetricFamily("trtops_batches_failed", "Batches that ended in an error", labels=["engine"])
    deaths = CounterMetricFamily("trtops_sessions_died", "Sessions that died and were opened again", labels=["engine"])
    depth = GaugeMetricFamily("trtops_queue_depth", "Requests that waited when the last batch ended", labels=["engine"])
    load = GaugeMetricFamily("trtops_load_duration_seconds", "Of the last load and warm-up", labels=["engine"])
    for family, numbers in (
        (failed, totals.failed_batches),
        (deaths, totals.deaths),
        (depth, totals.depth),
        (load, totals.load),
    ):
        for name, number in sorted(numbers.items()):
            family.add_metric([name], number)
    yield from (released, failed, deaths, depth, load)
    for metric, text, series in (
        ("trtops_batch_rows", "Rows of a batch", totals.rows),
        ("trtops_batch_copy_in_seconds", "Putting a batch's inputs together", totals.gather),
        ("trtops_batch_compute_seconds", "Run of a batch", totals.compute),
        ("trtops_batch_copy_out_seconds", "Keeping a batch's outputs", totals.copy_out),
    ):
        histogram = HistogramMetricFamily(metric, text, labels=["engine"])
        for name, one in sorted(series.items()):
            histogram.add_metric([name], one.cumulative(), one.sum)
        yield histogram
