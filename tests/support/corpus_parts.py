"""Good documents that the cases of the policy corpus change: one engine of tier gold on its way to production."""

from __future__ import annotations

from typing import Any

from trtops.digest import Digest

NOW = 1_772_445_600
"""Monday, 2 March 2026, 10:00 UTC."""


def digest(text: str) -> str:
    """A digest that stands for something by its name."""
    return str(Digest.of_bytes(text.encode()))


MODEL = digest("model").removeprefix("sha256:")

ENGINE: dict[str, Any] = {
    "apiVersion": "trtops/v1",
    "kind": "Engine",
    "metadata": {"name": "street-signs", "owner": "vision-team", "labels": {"tier": "gold"}},
    "model": {"source": "https://models.example.org/street-signs/3/model.onnx", "sha256": MODEL},
    "targets": [
        {
            "backend": "tensorrt",
            "version": "10.3",
            "gpu": {"name": "H200", "compute_capability": "9.0"},
            "slo": {"p99": "5ms", "throughput": 2000},
        },
        {"backend": "onnxruntime", "version": "1.20"},
    ],
    "precision": {"mode": "fp16", "keep_fp32": ["op:Softmax"]},
    "profiles": [
        {
            "name": "default",
            "inputs": {"images": {"min": [1, 3, 64, 64], "opt": [8, 3, 64, 64], "max": [32, 3, 64, 64]}},
        }
    ],
    "batching": {
        "max_batch": 32,
        "preferred": [8, 16, 32],
        "max_queue_delay": "2ms",
        "queue": {"max_size": 512, "timeout": "100ms"},
        "priorities": 3,
    },
    "memory": {"workspace": "1GiB", "device_pool": "512MiB", "pinned_pool": "64MiB"},
    "interface": {"version": "2.1.0"},
    "builder": {"optimization_level": 4},
    "accuracy": {"samples": "file:samples.npz", "atol": 5e-3, "rtol": 1e-2, "metric": {"top1": 0.999}},
    "benchmark": {"batch_sizes": [1, 8, 32], "duration": "2s"},
    "execution": {"instances": 2, "streams": 1},
}

RUNTIME: dict[str, Any] = {
    "apiVersion": "trtops/v1",
    "kind": "Runtime",
    "batching": {"max_queue_delay": "1ms"},
    "server": {"host": "0.0.0.0", "port": 8080},  # noqa: S104 - what a service listens on
    "database": {"url": "postgresql://db.internal:5432/signs", "user": "signs", "password": "secret:db/password"},
    "features": {"return_scores": True},
    "sections": {"labels": ["stop", "yield"], "tokenizer": {"vocabulary": "signs.txt"}},
}

PREFLIGHT: dict[str, Any] = {
    "model": {
        "content": f"sha256:{MODEL}",
        "size_bytes": 40_000_000,
        "ir_version": 8,
        "opset": {"": 17},
        "inputs": [{"name": "images", "dtype": "float32", "shape": ["n", 3, 64, 64]}],
        "outputs": [{"name": "scores", "dtype": "float32", "shape": ["n", 43]}],
        "operators": {"Conv": 53, "Relu": 49, "Softmax": 1},
        "initializer_bytes": 39_000_000,
        "nodes": 130,
    },
    "facts": [],
    "output_shapes": {},
    "estimate_bytes": {"default": {"weights": 20_000_000, "activations": 100_000_000, "bindings": 1_600_000}},
}

LOCK: dict[str, Any] = {
    "engine": ENGINE["metadata"]["name"],
    "environment": "prod",
    "release": digest("released"),
    "version": "2.1.0",
    "inputs": PREFLIGHT["model"]["inputs"],
    "outputs": PREFLIGHT["model"]["outputs"],
}

H200: dict[str, Any] = {
    "kind": "gpu",
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "sm_count": 132,
    "cores": None,
    "memory_bytes": 150_000_000_000,
    "mig": None,
    "driver": "570.86.15",
}


def measurement(batch: int, p50: float) -> dict[str, Any]:
    """One row: a p50 in microseconds, the rest in proportion, intervals of two percent."""

    def around(value: float) -> dict[str, float]:
        return {"value": value, "low": value * 0.98, "high": value * 1.02}

    return {
        "batch": batch,
        "shapes": {"images": [batch, 3, 64, 64]},
        "warmup_runs": 50,
        "runs": 1000,
        "mean": p50,
        "stddev": p50 / 50,
        "p50": around(p50),
        "p90": around(p50 * 1.1),
        "p99": around(p50 * 1.25),
        "throughput": around(batch * 1e6 / p50),
    }


EVIDENCE: dict[str, Any] = {
    "engine": "street-signs",
    "spec": digest("spec"),
    "model": digest("model"),
    "target": ENGINE["targets"][0],
    "plan": digest("plan"),
    "artifact": digest("artifact"),
    "size_bytes": 21_000_000,
    "device": H200,
    "accuracy": {
        "reference": "ONNX Runtime 1.20, optimisations off",
        "samples": digest("samples"),
        "count": 64,
        "atol": 5e-3,
        "rtol": 1e-2,
        "elements": 2752,
        "outside": 0,
        "max_abs": 2e-3,
        "max_rel": 4e-3,
        "metrics": {"top1": 1.0},
        "required": {"top1": 0.999},
        "worst": None,
        "passed": True,
    },
    "benchmark": {
        "device": H200,
        "backend": "tensorrt",
        "backend_version": "10.3.0.26",
        "rows": [measurement(1, 400.0), measurement(8, 800.0), measurement(32, 2000.0)],
        "warnings": [],
    },
    "unverified": None,
    "created": NOW - 3600,
    "trtops": "0.1.0",
}

_CONTRACT: dict[str, Any] = {
    "version": "2.1.0",
    "inputs": PREFLIGHT["model"]["inputs"],
    "outputs": PREFLIGHT["model"]["outputs"],
}

RELEASE: dict[str, Any] = {
    "apiVersion": "trtops/v1",
    "kind": "EngineRelease",
    "engine": "street-signs",
    "tier": "gold",
    "spec": digest("spec"),
    "spec_verdict": digest("spec verdict"),
    "contract": _CONTRACT,
    "batching": ENGINE["batching"],
    "memory": ENGINE["memory"],
    "execution": ENGINE["execution"],
    "artifacts": [
        {
            "target": "tensorrt-10.3-h200",
            "sidecar": {
                "backend": "tensorrt",
                "backend_version": "10.3.0.26",
                "target": ENGINE["targets"][0],
                "device": H200,
                "plan": digest("plan"),
                "model": digest("model"),
                "artifact": digest("artifact"),
                "size_bytes": 21_000_000,
                "inputs": _CONTRACT["inputs"],
                "outputs": _CONTRACT["outputs"],
                "profiles": ENGINE["profiles"],
                "format": "application/vnd.nvidia.tensorrt.engine",
            },
            "evidence": digest("evidence"),
            "verdict": digest("evidence verdict"),
            "provenance": digest("provenance"),
        }
    ],
    "skipped": {"onnxruntime-1.20": "not built here"},
    "commit": "4f2a9c1d7e8b6a5c3d2e1f0a9b8c7d6e5f4a3b2c",
    "created": NOW,
    "trtops": "0.1.0",
}

CONFIG: dict[str, Any] = {
    "apiVersion": "trtops/v1",
    "kind": "ConfigRelease",
    "engine": "street-signs",
    "environment": "prod",
    "config": RUNTIME,
    "created": NOW,
}

VERDICT: dict[str, Any] = {
    "stage": "evidence",
    "subject": "street-signs",
    "environment": "prod",
    "engine": "opa 1.22.3",
    "policies": digest("policies"),
    "input": digest("input"),
    "rules": ["evidence.verified"],
    "findings": [],
}
