from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import records
from trtops.device import Device
from trtops.evidence import Evidence, Reuse, assemble, rebind, reusable, settings_digest

if TYPE_CHECKING:
    from trtops.spec.engine import EngineSpec


def check(evidence: Evidence | None = None, spec: EngineSpec | None = None, **changes: object) -> Reuse:
    now: dict[str, object] = {
        "sidecar": records.sidecar(),
        "device": records.CPU,
        "samples": records.digest("samples"),
        "backend_version": "1.23.0",
        **changes,
    }
    return reusable(evidence or records.evidence(), spec or records.engine_spec(), **now)  # type: ignore[arg-type]


def test_the_record_names_what_it_was_made_from() -> None:
    evidence, spec, sidecar = records.evidence(), records.engine_spec(), records.sidecar()
    assert evidence.spec == spec.digest()
    assert (evidence.model, evidence.plan, evidence.artifact) == (sidecar.model, sidecar.plan, sidecar.artifact)
    assert evidence.settings == settings_digest(spec)
    assert evidence.size_bytes == sidecar.size_bytes


def test_the_target_is_the_specs_of_now() -> None:
    spec = records.engine_spec(targets=[{"backend": "onnxruntime", "slo": {"p99": "5ms"}}])
    evidence = assemble(
        spec, records.sidecar(), records.CPU, accuracy=records.accuracy(), benchmark=None, created=1, trtops="1"
    )
    assert evidence.target.slo is not None
    assert evidence.target.slo.p99 == 5000


def test_contradictions_are_refused() -> None:
    spec, sidecar = records.engine_spec(), records.sidecar()
    with pytest.raises(ValueError, match="has to say why"):
        assemble(spec, sidecar, records.CPU, accuracy=None, benchmark=None, created=1, trtops="1")
    other = Device(kind="cpu", name="aarch64")
    with pytest.raises(ValueError, match="measured on x86_64 CPU, 2 cores, recorded as aarch64 CPU"):
        assemble(
            spec, sidecar, other, accuracy=records.accuracy(), benchmark=records.benchmark(), created=1, trtops="1"
        )
    with pytest.raises(ValueError, match="no target onnxruntime"):
        assemble(
            records.engine_spec(targets=[{"backend": "tensorrt_rtx"}]),
            sidecar,
            records.CPU,
            accuracy=None,
            benchmark=None,
            unverified="no GPU",
            created=1,
            trtops="1",
        )


def test_the_same_again_is_reused() -> None:
    assert check()
    assert check().reason == "same artifact, device, backend, samples and settings"
    assert check(records.evidence(passed=False))


def test_a_changed_owner_or_slo_reuses_the_numbers_under_the_new_spec() -> None:
    spec = records.engine_spec(
        metadata={"name": "ppocr-cls", "owner": "others"}, targets=[{"backend": "onnxruntime", "slo": {"p99": "5ms"}}]
    )
    old = records.evidence()
    assert check(old, spec)
    new = rebind(old, spec, records.sidecar())
    assert new.spec == spec.digest() != old.spec
    assert new.target.slo is not None
    assert (new.benchmark, new.accuracy, new.created) == (old.benchmark, old.accuracy, old.created)


def test_rebinding_to_the_same_spec_changes_nothing() -> None:
    old = records.evidence()
    assert rebind(old, records.engine_spec(), records.sidecar()).digest() == old.digest()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": records.engine_spec(benchmark={"batch_sizes": [1]})}, "settings changed"),
        ({"spec": records.engine_spec(accuracy={"atol": 0.5})}, "settings changed"),
        ({"sidecar": records.sidecar(artifact=records.digest("other"))}, "artifact changed"),
        ({"sidecar": records.sidecar(plan=records.digest("other"))}, "plan changed"),
        ({"device": Device(kind="cpu", name="x86_64", cores=64)}, "measured on x86_64 CPU, 2 cores"),
        ({"backend_version": "1.24.0"}, "measured by onnxruntime 1.23.0"),
        ({"samples": records.digest("other")}, "samples changed"),
        ({"evidence": records.evidence().model_copy(update={"engine": "other"})}, "another engine"),
        ({"evidence": records.evidence().model_copy(update={"benchmark": None})}, "not complete"),
        (
            {"evidence": records.evidence().model_copy(update={"accuracy": None, "unverified": "needs a GPU"})},
            "not complete: needs a GPU",
        ),
    ],
)
def test_anything_that_changes_the_numbers_forbids_reuse(changes: dict[str, object], reason: str) -> None:
    result = check(**changes)  # type: ignore[arg-type]
    assert not result
    assert reason in result.reason


def test_an_old_record_without_settings_is_reused_under_the_same_spec_only() -> None:
    old = records.evidence().model_copy(update={"settings": None})
    assert check(old)
    assert not check(old, records.engine_spec(metadata={"name": "ppocr-cls", "owner": "others"}))
