"""One record of what was built and how it did: the spec, the device, the artifact, its accuracy, its numbers.

Pure: who stores and who signs it is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.accuracy.values import AccuracyReport as Accuracy
from trtops.accuracy.values import WorstElement
from trtops.bench.results import BatchMeasurement, Benchmark, Interval
from trtops.device import Device
from trtops.digest import Digest, Value, digest_of
from trtops.spec.engine import Target

if TYPE_CHECKING:
    from trtops.backend.port import Sidecar
    from trtops.spec.engine import EngineSpec

__all__ = [
    "Accuracy",
    "BatchMeasurement",
    "Benchmark",
    "Carried",
    "Evidence",
    "Interval",
    "Reuse",
    "WorstElement",
    "assemble",
    "carried",
    "rebind",
    "reusable",
    "settings_digest",
]


class Evidence(Value):
    """All that is known of one artifact, bound to what it was made from.

    Attributes:
        engine: name.
        spec: digest of the engine spec.
        model: digest of the ONNX file.
        target: what it was built for.
        plan: cache key of the build.
        artifact: digest of the engine.
        size_bytes: of the engine.
        device: where it was verified and measured.
        accuracy: None where this machine cannot load the engine; ``unverified`` says why.
        benchmark: None likewise.
        created: epoch seconds.
        trtops: version of the tool.
        settings: digest of what decided how it was verified and measured (:func:`settings_digest`).
    """

    engine: str
    spec: Digest
    model: Digest
    target: Target
    plan: Digest
    artifact: Digest
    size_bytes: int
    device: Device
    accuracy: Accuracy | None = None
    benchmark: Benchmark | None = None
    unverified: str | None = None
    created: int
    trtops: str
    settings: Digest | None = None


class Reuse(Value):
    """Whether an older record still holds, and why, or why not, in words. True in a condition if it does."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        """Whether the record holds."""
        return self.ok


def settings_digest(spec: EngineSpec) -> Digest:
    """Digest of the parts of a spec that decide how an engine is verified and measured: profiles, accuracy, benchmark.

    Owner, labels and SLOs are no part: a change of those asks for a new verdict, not for new measurements.
    """
    wanted = spec.model_dump(mode="json", include={"profiles", "accuracy", "benchmark"})
    return digest_of(wanted)


def assemble(
    spec: EngineSpec,
    sidecar: Sidecar,
    device: Device,
    *,
    accuracy: Accuracy | None,
    benchmark: Benchmark | None,
    unverified: str | None = None,
    created: int,
    trtops: str,
) -> Evidence:
    """Put the record of one artifact together.

    Args:
        spec: what was asked for.
        sidecar: of the artifact.
        device: where it was verified and measured.
        accuracy: None where this machine cannot load the engine; ``unverified`` then says why.
        benchmark: None likewise.
        unverified: why nothing could be compared.
        created: epoch seconds.
        trtops: version of the tool.

    Raises:
        ValueError: neither accuracy nor a reason for its absence, numbers of another device, or a target that the spec
            has not (the caller's fault).
    """
    if accuracy is None and not unverified:
        raise ValueError("evidence without accuracy has to say why")
    if benchmark is not None and benchmark.device != device:
        message = f"measured on {benchmark.device.label}, recorded as {device.label}"
        raise ValueError(message)
    return Evidence(
        engine=spec.name,
        spec=spec.digest(),
        model=sidecar.model,
        target=_target_now(spec, sidecar),
        plan=sidecar.plan,
        artifact=sidecar.artifact,
        size_bytes=sidecar.size_bytes,
        device=device,
        accuracy=accuracy,
        benchmark=benchmark,
        unverified=unverified,
        created=created,
        trtops=trtops,
        settings=settings_digest(spec),
    )


def reusable(
    evidence: Evidence,
    spec: EngineSpec,
    sidecar: Sidecar,
    device: Device,
    *,
    samples: Digest,
    backend_version: str,
) -> Reuse:
    """Tell whether a record says all that a new verification and measurement would say.

    It does if it is of the same artifact, on the same device, by the same version of the backend, on the same samples,
    under the same settings, and complete. What it found is no matter: a record of a failure holds as well.

    Args:
        evidence: the older record.
        spec: what is asked for now.
        sidecar: of the artifact that is there now.
        device: the device here.
        samples: digest of the samples now.
        backend_version: of the backend that would run it now.
    """
    if evidence.accuracy is None or evidence.benchmark is None:
        return Reuse(ok=False, reason=f"it is not complete: {evidence.unverified or 'nothing was measured'}")
    if reason := _mismatch(evidence, spec, sidecar, device):
        return Reuse(ok=False, reason=reason)
    measured = evidence.benchmark
    compared = (
        (measured.backend == sidecar.target.backend, "it was measured by another backend"),
        (
            measured.backend_version == backend_version,
            f"it was measured by {measured.backend} {measured.backend_version}",
        ),
        (evidence.accuracy.samples == samples, "the samples changed"),
    )
    for holds, reason in compared:
        if not holds:
            return Reuse(ok=False, reason=reason)
    return Reuse(ok=True, reason="same artifact, device, backend, samples and settings")


def _mismatch(evidence: Evidence, spec: EngineSpec, sidecar: Sidecar, device: Device) -> str:
    """Why nothing of a record holds; empty if its parts may."""
    compared = (
        (evidence.engine == spec.name, "it is of another engine"),
        (evidence.artifact == sidecar.artifact, "the artifact changed"),
        (evidence.plan == sidecar.plan, "the build plan changed"),
        (evidence.device == device, f"it was measured on {evidence.device.label}"),
        (
            evidence.spec == spec.digest() or evidence.settings == settings_digest(spec),
            "profiles, accuracy or benchmark settings changed",
        ),
    )
    return next((reason for holds, reason in compared if not holds), "")


class Carried(Value):
    """Parts of an older record that still hold; None for a part that has to be found anew."""

    accuracy: Accuracy | None = None
    benchmark: Benchmark | None = None


def carried(
    evidence: Evidence | None,
    spec: EngineSpec,
    sidecar: Sidecar,
    device: Device,
    *,
    samples: Digest,
    backend_version: str,
) -> Carried:
    """The parts of an older record that a new run would find again. Arguments as for :func:`reusable`.

    Law: both parts are there exactly if the record is reusable.
    """
    if evidence is None or _mismatch(evidence, spec, sidecar, device):
        return Carried()
    accuracy, benchmark = evidence.accuracy, evidence.benchmark
    if accuracy is not None and accuracy.samples != samples:
        accuracy = None
    if benchmark is not None and (benchmark.backend, benchmark.backend_version) != (
        sidecar.target.backend,
        backend_version,
    ):
        benchmark = None
    return Carried(accuracy=accuracy, benchmark=benchmark)


def rebind(evidence: Evidence, spec: EngineSpec, sidecar: Sidecar) -> Evidence:
    """A reusable record under the spec of now: its digest, settings and target (whose SLO may have changed).

    Law: a record whose spec did not change comes back equal, with the same digest.

    Raises:
        ValueError: the spec has no such target (the caller's fault).
    """
    now = {"spec": spec.digest(), "settings": settings_digest(spec), "target": _target_now(spec, sidecar)}
    return evidence.model_copy(update=now)


def _target_now(spec: EngineSpec, sidecar: Sidecar) -> Target:
    """The spec's own target: an artifact from the cache carries the SLO of the day that it was built."""
    for target in spec.targets:
        if target.id == sidecar.target.id:
            return target
    message = f"the spec has no target {sidecar.target.id}"
    raise ValueError(message)
