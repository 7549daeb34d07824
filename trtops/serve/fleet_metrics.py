"""Metrics of a supervisor: its workers, what they hold, restarts, and what shadows found."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from trtops.executor.overview import UnitStatus, WorkerStatus
    from trtops.executor.supervisor import Supervisor

Channels = tuple[tuple[str, str, str, str], ...]


def channel_metrics(channels: Callable[[], Channels]) -> Iterator[Metric]:
    """What runs in each channel: engine, channel, digests of the engine release and of the config release."""
    from prometheus_client.core import InfoMetricFamily

    family = InfoMetricFamily("trtops_channel", "Release that runs in a channel", labels=["engine", "channel"])
    for engine, channel, engine_release, config_release in channels():
        family.add_metric([engine, channel], {"engine_release": engine_release, "config_release": config_release})
    yield family


def fleet_metrics(supervisor: Supervisor) -> Iterator[Metric]:
    """All metrics of a supervisor, as the library's collectors give them."""
    yield from _of_workers(supervisor.workers())
    units = supervisor.units()
    yield from _of_units(units)
    yield from _of_shadows(units)


def _of_workers(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["worker"]
    about = GaugeMetricFamily("trtops_worker_state", "1 for the state that a worker is in", labels=["worker", "state"])
    memory = GaugeMetricFamily("trtops_worker_memory_bytes", "Resident memory of a worker", labels=labels)
    clients = GaugeMetricFamily("trtops_worker_clients", "Clients that are connected to a worker", labels=labels)
    slots = GaugeMetricFamily("trtops_worker_slots_in_use", "Slots of clients that a worker holds", labels=labels)
    granted = GaugeMetricFamily("trtops_worker_slots", "Slots that clients of a worker have", labels=labels)
    shared = GaugeMetricFamily(
        "trtops_worker_shared_memory_bytes", "Memory that a worker shares with its clients", labels=labels
    )
    pools = GaugeMetricFamily(
        "trtops_worker_pool_bytes", "Memory that the pools of a worker's engines hold", labels=["worker", "pool"]
    )
    silent = GaugeMetricFamily("trtops_worker_silence_seconds", "Since a worker's last sign of life", labels=labels)
    for worker in workers:
        name = str(worker.number)
        about.add_metric([name, worker.state], 1)
        memory.add_metric([name], worker.memory)
        clients.add_metric([name], worker.clients)
        slots.add_metric([name], worker.slots)
        granted.add_metric([name], worker.granted)
        shared.add_metric([name], worker.shared)
        for pool, size in zip(("host", "device"), worker.pools, strict=True):
            pools.add_metric([name, pool], size)
        silent.add_metric([name], worker.silent)
    yield from (about, memory, clients, slots, granted, shared, pools, silent)


def _of_units(units: tuple[UnitStatus, ...]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["engine", "channel", "device"]
    ready = GaugeMetricFamily("trtops_channel_ready", "Whether a channel's engine serves", labels=labels)
    restarts = CounterMetricFamily("trtops_worker_restarts", "Workers of an engine that died", labels=labels)
    for unit in units:
        if unit.state != "draining":
            place = [unit.name, unit.channel, unit.device or "default"]
            ready.add_metric(place, float(unit.state == "ready"))
            restarts.add_metric(place, unit.restarts)
    yield from (ready, restarts)


def _of_shadows(units: tuple[UnitStatus, ...]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["engine", "channel"]
    mirrored = CounterMetricFamily("trtops_shadow_mirrored", "Requests that were copied", labels=labels)
    dropped = CounterMetricFamily(
        "trtops_shadow_dropped", "Requests that were not copied, since the candidate was behind", labels=labels
    )
    compared = CounterMetricFamily("trtops_shadow_compared", "Copies whose outputs were compared", labels=labels)
    differing = CounterMetricFamily("trtops_shadow_differences", "Copies whose outputs differ", labels=labels)
    failed = CounterMetricFamily("trtops_shadow_failures", "Copies that the candidate failed to answer", labels=labels)
    worst = GaugeMetricFamily(
        "trtops_shadow_worst_ratio", "Largest difference, over the tolerance of the spec", labels=labels
    )
    for place, counts in {(unit.name, unit.channel): unit.shadow for unit in units}.items():
        if counts is not None:
            mirrored.add_metric(place, counts.mirrored)
            dropped.add_metric(place, counts.dropped)
            compared.add_metric(place, counts.compared)
            differing.add_metric(place, counts.differing)
            failed.add_metric(place, counts.failed)
            worst.add_metric(place, counts.worst)
    yield from (mirrored, dropped, compared, differing, failed, worst)
