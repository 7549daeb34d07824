"""An engine with two targets, built, measured and judged on paper: what a release is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtops.backend.port import Sidecar
from trtops.device import Device
from trtops.digest import Digest
from trtops.evidence import Accuracy, Evidence
from trtops.policy.verdict import Finding, Verdict
from trtops.release.assemble import Candidate, config_release, engine_release, provenance_of
from trtops.release.documents import Channel
from trtops.release.keys import KeyRing
from trtops.release.publish import Bundle
from trtops.spec.engine import EngineSpec, RuntimeConfig
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from trtops.policy.verdict import Stage
    from trtops.release.keys import Keys

NOW = 1_800_000_000
CHANNEL = Channel(engine="cls", environment="dev")
DEVICE = Device(kind="cpu", name="x86_64", cores=2)
X = TensorInfo(name="x", dtype="float32", shape=("n", 3, 48, 192))
Y = TensorInfo(name="y", dtype="float32", shape=("n", 2))


def digest(text: str) -> Digest:
    return Digest.of_bytes(text.encode())


def spec(**changes: Any) -> EngineSpec:
    shape = {"min": [1, 3, 48, 192], "opt": [8, 3, 48, 192], "max": [32, 3, 48, 192]}
    document = {
        "apiVersion": "trtops/v1",
        "kind": "Engine",
        "metadata": {"name": "cls", "owner": "ocr-team"},
        "model": {"source": "file:model.onnx", "sha256": digest("model").value},
        "targets": [{"backend": "onnxruntime"}, {"backend": "tensorrt_rtx", "compute_capability": "8.6"}],
        "profiles": [{"inputs": {"x": shape}}],
    }
    return EngineSpec.model_validate(document | changes)


def sidecar(target: int = 0, *, of: EngineSpec | None = None, artifact: str = "engine 1", **changes: Any) -> Sidecar:
    of = of or spec()
    fields: dict[str, Any] = {
        "backend": of.targets[target].backend,
        "backend_version": "1.0",
        "target": of.targets[target],
        "device": DEVICE,
        "plan": digest(f"plan {target}"),
        "model": digest("model"),
        "artifact": digest(f"{artifact} {target}"),
        "size_bytes": 1000,
        "inputs": (X,),
        "outputs": (Y,),
        "profiles": of.profiles,
        "format": "application/vnd.onnx",
    }
    return Sidecar(**(fields | changes))


def accuracy(*, passed: bool = True) -> Accuracy:
    return Accuracy(
        reference="onnxruntime 1.0, no optimisation",
        samples=digest("samples"),
        count=4,
        atol=1e-5,
        rtol=1e-4,
        elements=8,
        outside=0 if passed else 3,
        max_abs=1e-7,
        max_rel=1e-6,
        passed=passed,
    )


def evidence(made: Sidecar, *, of: EngineSpec | None = None, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "engine": (of or spec()).name,
        "spec": (of or spec()).digest(),
        "model": made.model,
        "target": made.target,
        "plan": made.plan,
        "artifact": made.artifact,
        "size_bytes": made.size_bytes,
        "device": DEVICE,
        "accuracy": accuracy(),
        "created": NOW - 100,
        "trtops": "0.1.0",
    }
    return Evidence(**(fields | changes))


def verdict(stage: Stage = "evidence", *, deny: bool = False, subject: str = "cls") -> Verdict:
    finding = Finding(rule=f"{stage}.slow", stage=stage, severity="deny", message="p99 is 9 ms, 5 ms are allowed")
    return Verdict(
        stage=stage,
        subject=subject,
        environment="dev",
        engine="embedded regorus 0.9.1",
        policies=digest("policies"),
        input=digest("input"),
        rules=(f"{stage}.slow",),
        findings=(finding,) if deny else (),
    )


def candidate(target: int = 0, *, of: EngineSpec | None = None, builder: str = "b", **changes: Any) -> Candidate:
    of = of or spec()
    made = changes.pop("sidecar", None) or sidecar(target, of=of, artifact=changes.pop("artifact", "engine 1"))
    fields: dict[str, Any] = {
        "sidecar": made,
        "evidence": evidence(made, of=of),
        "verdict": verdict(subject=f"cls/{made.target.id}"),
        "provenance": provenance_of(of, made, builder=builder, commit="abc123", trtops="0.1.0"),
    }
    return Candidate(**(fields | changes))


def runtime(**sections: Any) -> RuntimeConfig:
    return RuntimeConfig(apiVersion="trtops/v1", kind="Runtime", sections=sections)


def bundle(
    keys: Keys,
    *,
    artifact: str = "engine 1",
    of: EngineSpec | None = None,
    config: RuntimeConfig | None = None,
    created: int = NOW,
    environment: str = "dev",
) -> Bundle:
    """A whole release of one target; another ``artifact`` makes another release."""
    of = of or spec()
    one = candidate(of=of, artifact=artifact, builder=keys.signer("builder").key_id)
    allowed = verdict("spec")
    release = engine_release(of, allowed, [one], skipped={}, commit="abc123", trtops="0.1.0", created=created)
    settings = config_release(of.name, environment, config or runtime(), created=created)
    return Bundle(release, settings, allowed, (one,), {})


def ring() -> KeyRing:
    return KeyRing()


def has_all(_: Digest) -> bool:
    return True
