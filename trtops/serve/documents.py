"""The protocol's documents about the server and its models, as plain JSON values. Pure.

Metadata and health are the protocol's own; configuration, statistics and the repository index are the extensions that
Triton's clients ask for (https://github.com/triton-inference-server/server/tree/main/docs/protocol).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.executor.port import EngineInfo
    from trtops.serve.measure import EngineMeter
    from trtops.tensor import TensorInfo

EXTENSIONS = (
    "binary_tensor_data",
    "logging",
    "model_configuration",
    "model_repository",
    "statistics",
    "system_shared_memory",
    "trace",
)
TRACE_SETTINGS: Mapping[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_mode": "opentelemetry",
    "trace_rate": "1",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
}
"""Triton's trace settings as they are here, without ``--otel``: no trace is written to a file. Types are Triton's."""


def server_metadata() -> dict[str, Any]:
    """``GET /v2``."""
    return {"name": "trtops", "version": __version__, "extensions": list(EXTENSIONS)}


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.oip_shape)}


def model_metadata(info: EngineInfo) -> dict[str, Any]:
    """``GET /v2/models/{model}``. Shapes include the batch dimension."""
    return {
        "name": info.name,
        "versions": [info.version],
        "platform": info.backend,
        "inputs": [_tensor(tensor) for tensor in info.inputs],
        "outputs": [_tensor(tensor) for tensor in info.outputs],
    }


def _config_tensor(tensor: TensorInfo, first: int) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": list(tensor.oip_shape[first:])}


def model_config(info: EngineInfo) -> dict[str, Any]:
    """``GET /v2/models/{model}/config``, the part of Triton's that has a meaning here. Dims leave the batch out.

    ``max_batch_size`` is 0, and dims are whole, where requests are not put together along the first axis.
    """
    tensors = (*info.inputs, *info.outputs)
    batched = all(bool(tensor.shape) and not isinstance(tensor.shape[0], int) for tensor in tensors)
    return {
        "name": info.name,
        "platform": info.backend,
        "backend": info.backend,
        "max_batch_size": info.max_batch if batched else 0,
        "input": [_config_tensor(tensor, int(batched)) for tensor in info.inputs],
        "output": [_config_tensor(tensor, int(batched)) for tensor in info.outputs],
        "dynamic_batching": {},
        "parameters": {
            "trtops_digest": {"string_value": info.digest},
            "trtops_generation": {"string_value": str(info.generation)},
        },
    }


def _times(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def model_statistics(info: EngineInfo, meter: EngineMeter) -> dict[str, Any]:
    """One entry of ``GET /v2/models/stats``.

    Copies in and out are part of ``compute_infer``: they are not measured apart and take 0 ns here; their counts are
    those of ``compute_infer``, which perf_analyzer demands. Executions are summed as shares (a request of 2 rows in a
    batch of 8 is a quarter of one) and rounded. The version is the major one alone: perf_analyzer reads it as an
    integer and looks that up again.
    """
    meter.fold()
    good = meter.queue.count
    successes = meter.duration.get(200)
    return {
        "name": info.name,
        "version": info.version.partition(".")[0],
        "last_inference": meter.last,
        "inference_count": meter.requests,
        "execution_count": round(sum(batch.executions for batch in meter.batches.values())),
        "inference_stats": {
            "success": _times(good, successes.sum if successes else 0.0),
            "fail": _times(meter.failures, meter.failed_seconds),
            "queue": _times(good, meter.queue.sum),
            "compute_input": _times(good, 0.0),
            "compute_infer": _times(good, meter.compute.sum),
            "compute_output": _times(good, 0.0),
            "cache_hit": _times(0, 0.0),
            "cache_miss": _times(0, 0.0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _times(round(batch.executions), 0.0),
                "compute_infer": _times(round(batch.executions), batch.compute_us / 1e6),
                "compute_output": _times(round(batch.executions), 0.0),
            }
            for size, batch in sorted(meter.batches.items())
        ],
    }


def repository_index(infos: tuple[EngineInfo, ...], absent: Mapping[str, str]) -> list[dict[str, Any]]:
    """``POST /v2/repository/index``: what serves, and with ``absent``'s reasons what does not."""
    ready = [{"name": info.name, "version": info.version, "state": "READY", "reason": ""} for info in infos]
    served = {info.name for info in infos}
    return ready + [
        {"name": name, "version": "", "state": "UNAVAILABLE", "reason": why}
        for name, why in sorted(absent.items())
        if name not in served
    ]


def trace_settings(*, on: bool) -> dict[str, str | list[str]]:
    """``GET /v2/trace/setting``."""
    return {**TRACE_SETTINGS, "trace_level": ["TIMESTAMPS" if on else "OFF"]}


def log_settings(*, json: bool) -> dict[str, str | bool | int]:
    """``GET /v2/logging``."""
    return {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "json" if json else "default",
    }
