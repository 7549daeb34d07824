"""What is to be built, as a value whose key is the digest of exactly what changes the engine's bytes (design §4.7).

The key counts: the model's digest, the repairs and the precision with its calibration data, the profiles, the formats
of inputs and outputs that are not linear, the pools and the flags that the backend's builder reads, plugins by digest,
the versions of what converts and builds, the target, and for TensorRT, which times kernels, the device. It does not
count who owns the engine, SLOs, labels, how requests are batched, what is measured, paths, pools of the executor, or
whether a timing cache may save time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trtops.device import Device
from trtops.digest import Digest, Grown, digest_of
from trtops.spec.bindings import Binding
from trtops.spec.engine import Builder, Memory, Precision, Profile, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.spec.engine import EngineSpec

DEFAULT_REPAIRS = ("unique-dimension-names", "fixed-dimensions", "output-shapes", "kernel-shapes")
"""Repairs of every build, in their order (:mod:`trtops.build.passes`)."""

# Fields of the spec that each builder reads. What it does not read cannot change its bytes.
_POOLS: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("workspace", "tactic_shared_memory", "dla"),
    "tensorrt_rtx": ("workspace", "tactic_shared_memory"),
}
_FLAGS: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("optimization_level", "version_compatible", "hardware_compatible"),
    "tensorrt_rtx": ("optimization_level", "version_compatible"),
}
_TIMES_KERNELS = frozenset({"tensorrt"})


class BuildPlan(Grown):
    """All that a build needs beside the model's file.

    Attributes:
        engine: name of the engine, for messages.
        target: what to build for.
        model: digest of the source ONNX file.
        precision, profiles, bindings, memory, builder: from the spec.
        calibration: digest of the calibration data; None where the precision needs none.
        backend_version: of the library that builds.
        device: the device of the build; None where the backend does not look at one.
        converters: name -> version of what rewrites the model before the build.
        repairs: names of the repairs, in order.
    """

    later: ClassVar[tuple[str, ...]] = ("bindings",)

    engine: str
    target: Target
    model: Digest
    precision: Precision
    calibration: Digest | None = None
    profiles: tuple[Profile, ...]
    bindings: dict[str, Binding] = Field(default_factory=dict)
    memory: Memory
    builder: Builder
    backend_version: str
    device: Device | None = None
    converters: dict[str, str] = Field(default_factory=dict)
    repairs: tuple[str, ...] = DEFAULT_REPAIRS

    @property
    def key(self) -> Digest:
        """The cache key. Equal keys: the same engine."""
        return digest_of(self._counted())

    def _counted(self) -> dict[str, Any]:
        backend = self.target.backend
        body = self.model_dump(mode="json", exclude={"engine", "memory", "builder", "device", "precision"})
        body["target"].pop("slo")
        body["precision"] = counted_precision(self.precision, backend)
        body["memory"] = self.memory.model_dump(mode="json", include=set(_POOLS.get(backend, ())))
        body["builder"] = self.builder.model_dump(mode="json", include=set(_FLAGS.get(backend, ())))
        body["plugins"] = _counted_plugins(self.builder, backend)
        body["device"] = _counted_device(self.device) if self.device and backend in _TIMES_KERNELS else None
        return body


def plan(
    spec: EngineSpec,
    target: Target,
    *,
    model: Digest,
    backend_version: str,
    device: Device | None = None,
    calibration: Digest | None = None,
    converters: Mapping[str, str] | None = None,
    repairs: tuple[str, ...] = DEFAULT_REPAIRS,
) -> BuildPlan:
    """Say what is to be built. Pure.

    Args:
        spec: the engine.
        target: one of its targets.
        model: digest of the ONNX file as it was fetched.
        backend_version: of the library that will build.
        device: that will build, where the backend has one here.
        calibration: digest of the calibration data, for INT8.
        converters: name -> version of what rewrites the model (:func:`trtops.build.passes.converters`).
        repairs: names of the repairs.
    """
    return BuildPlan(
        engine=spec.name,
        target=target,
        model=model,
        precision=spec.precision,
        calibration=calibration,
        profiles=spec.profiles,
        bindings={name: one for name, one in spec.bindings.items() if one.format != "linear"},
        memory=spec.memory,
        builder=spec.builder,
        backend_version=backend_version,
        device=device,
        converters=dict(converters or {}),
        repairs=repairs,
    )


def counted_precision(precision: Precision, backend: str) -> dict[str, Any]:
    """What of a precision changes bytes: those of an engine of a backend, or of the converted file (no backend)."""
    body: dict[str, Any] = {"mode": precision.mode}
    if precision.mode not in {"fp32", "tf32"}:
        body["keep_fp32"] = sorted(set(precision.keep_fp32))
    if backend in _FLAGS:
        body["tf32"] = precision.tf32 or precision.mode == "tf32"
    if precision.calibration is not None and precision.mode in {"int8", "fp8"}:
        # Where the data come from does not matter: their digest is counted.
        body["calibration"] = precision.calibration.model_dump(mode="json", exclude={"source"})
    return body


def _counted_plugins(builder: Builder, backend: str) -> list[dict[str, Any]]:
    if backend not in _FLAGS:
        return []
    bodies = [
        # A library counts by its digest; only one that has none counts by its path.
        {"name": plugin.name, "library": plugin.sha256 or plugin.library}
        for plugin in builder.plugins
    ]
    return sorted(bodies, key=lambda body: (body["name"] or "", body["library"] or ""))


def _counted_device(device: Device) -> dict[str, Any]:
    body = device.model_dump(mode="json", exclude={"cores", "driver"})
    body["driver_major"] = (device.driver or "").partition(".")[0]
    return body
