"""The cache key counts what changes the engine's bytes, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.build.plan import BuildPlan, plan
from trtops.device import Device
from trtops.digest import Digest
from trtops.spec.engine import EngineSpec

DIGEST = Digest.of_bytes(b"model")
GPU = {"name": "H200", "compute_capability": "9.0"}
DEVICE = Device(
    kind="gpu",
    name="NVIDIA H200",
    compute_capability="9.0",
    sm_count=132,
    memory_bytes=141 << 30,
    driver="570.86.15",
)


def _document(backend: str) -> dict[str, Any]:
    target: dict[str, Any] = {"backend": backend}
    if backend == "tensorrt":
        target |= {"version": "8.6", "gpu": GPU}
    if backend == "tensorrt_rtx":
        target |= {"compute_capability": "8.6"}
    return {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "small", "owner": "team", "labels": {"tier": "gold"}},
        "model": {"source": "file:model.onnx", "sha256": "0" * 64},
        "targets": [target],
        "precision": {"mode": "int8", "keep_fp32": ["op:Softmax", "op:Add"], "calibration": {"source": "a.npz"}},
        "profiles": [{"name": "default", "inputs": {"x": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}}}],
        "memory": {"workspace": "1GiB"},
    }


def _set(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    inner: Any = document.get(head, {})
    if not rest:
        return {**document, head: value}
    if isinstance(inner, list):
        index, _, tail = rest.partition(".")
        changed = list(inner)
        changed[int(index)] = _set(inner[int(index)], tail, value) if tail else value
        return {**document, head: changed}
    return {**document, head: _set(inner, rest, value)}


def _plan(document: dict[str, Any], **changes: Any) -> BuildPlan:
    spec = EngineSpec.model_validate(document)
    facts: dict[str, Any] = {
        "model": DIGEST,
        "backend_version": "8.6.0",
        "device": DEVICE,
        "calibration": Digest.of_bytes(b"data"),
        "converters": {"onnx": "1.17"},
    }
    return plan(spec, spec.targets[0], **(facts | changes))


IN_SPEC: dict[str, tuple[str, ...]] = {
    # change -> backends whose key it must change; every other backend's key must stay
    "precision.mode=fp16": ("onnxruntime", "tensorrt", "tensorrt_rtx", "fake"),
    "precision.tf32=True": ("tensorrt", "tensorrt_rtx"),
    "precision.keep_fp32=['op:Add']": ("onnxruntime", "tensorrt", "tensorrt_rtx", "fake"),
    "precision.keep_fp32=['op:Add', 'op:Softmax', 'op:Add']": (),
    "precision.calibration.method='entropy'": ("onnxruntime", "tensorrt", "tensorrt_rtx", "fake"),
    "precision.calibration.source='b.npz'": (),
    "profiles.0.inputs.x.max=[16, 4]": ("onnxruntime", "tensorrt", "tensorrt_rtx", "fake"),
    "profiles.0.name='other'": ("onnxruntime", "tensorrt", "tensorrt_rtx", "fake"),
    "memory.workspace='2GiB'": ("tensorrt", "tensorrt_rtx"),
    "memory.tactic_shared_memory='64KiB'": ("tensorrt", "tensorrt_rtx"),
    "memory.dla='1MiB'": ("tensorrt",),
    "memory.device_pool='1GiB'": (),
    "memory.pinned_pool='1GiB'": (),
    "memory.input='mapped'": (),
    "builder.optimization_level=1": ("tensorrt", "tensorrt_rtx"),
    "builder.version_compatible=True": ("tensorrt", "tensorrt_rtx"),
    "builder.hardware_compatible=True": ("tensorrt",),
    "builder.timing_cache=False": (),
    "builder.plugins=[{'name': 'EfficientNMS_TRT'}]": ("tensorrt", "tensorrt_rtx"),
    "targets.0.gpu={'name': 'H200', 'compute_capability': '9.0', 'mig': '1g.18gb'}": (
        "onnxruntime",
        "tensorrt",
        "tensorrt_rtx",
        "fake",
    ),
    "targets.0.slo={'p99': '5ms'}": (),
    "metadata.name='other'": (),
    "metadata.owner='others'": (),
    "metadata.labels={}": (),
    "model.source='file:other.onnx'": (),
    "batching.max_batch=4": (),
    "benchmark.batch_sizes=[1, 2]": (),
    "execution.instances=2": (),
    "accuracy.atol=0.5": (),
    "interface.version='2.0.0'": (),
}


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "tensorrt_rtx", "fake"])
@pytest.mark.parametrize("change", IN_SPEC)
def test_change_of_the_spec(change: str, backend: str) -> None:
    import ast

    path, _, value = change.partition("=")
    literal = ast.literal_eval(value) if value[0] in "'[{TF0123456789" else value
    before = _document(backend)
    after = _set(before, path, literal)
    assert (_plan(before).key != _plan(after).key) is (backend in IN_SPEC[change])


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"model": Digest.of_bytes(b"other")}, True),
        ({"backend_version": "8.6.1"}, True),
        ({"calibration": Digest.of_bytes(b"other")}, True),
        ({"converters": {"onnx": "1.18"}}, True),
        ({"repairs": ("output-shapes",)}, True),
        ({"device": DEVICE.model_copy(update={"name": "NVIDIA H100"})}, True),
        ({"device": DEVICE.model_copy(update={"sm_count": 16})}, True),
        ({"device": DEVICE.model_copy(update={"memory_bytes": 1})}, True),
        ({"device": DEVICE.model_copy(update={"mig": "1g.18gb"})}, True),
        ({"device": DEVICE.model_copy(update={"driver": "580.1"})}, True),
        ({"device": DEVICE.model_copy(update={"driver": "570.99"})}, False),
    ],
)
def test_change_of_the_facts(changes: dict[str, Any], counted: bool) -> None:
    assert (_plan(_document("tensorrt"), **changes).key != _plan(_document("tensorrt")).key) is counted


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt_rtx"])
def test_backends_that_time_no_kernels_ignore_the_device(backend: str) -> None:
    assert _plan(_document(backend), device=None).key == _plan(_document(backend)).key


def test_calibration_counts_only_where_it_is_used() -> None:
    before = _set(_document("tensorrt"), "precision.mode", "fp16")
    after = _set(before, "precision.calibration.method", "entropy")
    assert _plan(before).key == _plan(after).key


def test_plugin_libraries_count_by_their_digest() -> None:
    def with_library(path: str, digest: str) -> Digest:
        plugins = [{"library": path, "sha256": digest}]
        return _plan(_set(_document("tensorrt"), "builder.plugins", plugins)).key

    assert with_library("a.so", "1" * 64) == with_library("b.so", "1" * 64)
    assert with_library("a.so", "1" * 64) != with_library("a.so", "2" * 64)


@given(st.lists(st.integers(1, 64), min_size=3, max_size=3), st.lists(st.integers(1, 64), min_size=3, max_size=3))
def test_profiles_have_one_key_each(one: list[int], other: list[int]) -> None:
    def key(rows: list[int]) -> Digest:
        low, best, high = sorted(rows)
        shape = {"min": [low, 4], "opt": [best, 4], "max": [high, 4]}
        return _plan(_set(_document("fake"), "profiles.0.inputs.x", shape)).key

    assert (key(one) == key(other)) is (sorted(one) == sorted(other))


@given(st.sampled_from(["onnxruntime", "tensorrt", "tensorrt_rtx", "fake"]))
def test_plan_survives_its_canonical_form(backend: str) -> None:
    made = _plan(_document(backend))
    again = BuildPlan.model_validate_json(made.canonical_bytes())
    assert again == made
    assert again.key == made.key
