"""``trtops verify`` and ``trtops bench``: accuracy and speed of what was built, kept as evidence.

Evidence is kept in the store under the build's key, signed by the builder key, and taken again as long as it holds:
a trusted builder's signature, same artifact, device, backend, samples and settings.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtops.backend.port import Progress
from trtops.errors import NotLoadable, TrtopsError, TrustError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.accuracy import Samples
    from trtops.backend.port import Backend, BackendStatus, DeviceTimes, Session, Sidecar
    from trtops.bench.device import DeviceTimeline
    from trtops.build.voucher import VouchedRecord
    from trtops.device import Device
    from trtops.evidence import Accuracy, Benchmark, Evidence
    from trtops.spec.engine import EngineSpec
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.check import Checked
    from trtops.workflow.workspace import Workspace

_T = TypeVar("_T")

EVIDENCE = "evidence"
"""Kind of the store's records: plan key and engine -> evidence, as a DSSE envelope that a builder key signed."""

DEVICE_TIMES = "device-times"
"""Kind of the store's records: artifact -> where an execution's time goes (:class:`DeviceTimeline`), signed."""

_PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class Want:
    """What is asked for. ``fresh``: measure again what is there already."""

    accuracy: bool = True
    benchmark: bool = True
    fresh: bool = False


@dataclass(frozen=True)
class Measured:
    """Evidence of one target, and which of its parts were taken from an earlier run.

    Attributes:
        evidence: the record.
        accuracy_reused, benchmark_reused: taken from the store.
        accuracy_seconds, benchmark_seconds: how long each took here.
        envelope: the record as another machine signed it; None: it is of this one, and signed when it is released.
        device_times: where the time of an execution goes, by batch size, where the backend can tell.
    """

    evidence: Evidence
    accuracy_reused: bool = False
    benchmark_reused: bool = False
    accuracy_seconds: float = 0.0
    benchmark_seconds: float = 0.0
    device_times: tuple[DeviceTimes, ...] = ()
    envelope: bytes | None = None


def measure(workspace: Workspace, checked: Checked, build: TargetBuild, want: Want) -> Measured:
    """Verify and benchmark one target, as far as it was not done before.

    Args:
        workspace: where.
        checked: the engine.
        build: a target that was built.
        want: which parts.

    Raises:
        InputError: the samples are wrong, or a batch size is in no profile.
        IntegrityError: the artifact is damaged.
        StorageError, TrustError: the evidence could not be kept, or this home's builder key not be used.
    """
    from trtops.backend.select import backend
    from trtops.workflow.handover import hand_over

    assert build.built is not None  # noqa: S101 - the caller leaves skipped targets out
    if (there := build.taken) is not None:
        return Measured(there.evidence, True, True, envelope=there.envelopes[there.evidence.digest()])  # noqa: FBT003
    sidecar = build.built.sidecar
    adapter = backend(build.target.backend)
    if not build.status.can_load:
        return _unverified(workspace, checked, build, sidecar.device)
    run = _Run(workspace, checked, sidecar, adapter, adapter.device(), build.status, _samples(checked, sidecar))
    found = run.measured(want)
    hand_over(workspace, build, found.evidence)
    return found


def kept_evidence(workspace: Workspace, engine: str, sidecar: Sidecar) -> Evidence | None:
    """What a trusted builder found of an engine's artifact before; None if none did: it is measured again then.

    What is taken here is released, and signed anew for other machines. Whoever can write to the store can write such a
    record, so that only a builder's signature counts; stores of version 0.1 have records without.

    Raises:
        StorageError: the store cannot be read.
    """
    from trtops.evidence import Evidence
    from trtops.release.envelope import verify

    body = workspace.store.record(EVIDENCE, _evidence_key(engine, sidecar))
    if body is None:
        return None
    try:
        return verify(body, Evidence, workspace.keys.root(), where=f"record {EVIDENCE} of {engine}").value
    except TrustError as error:
        workspace.progress(f"measure {sidecar.target.id}", f"evidence of before is left out: {error.what}", 0, 0)
        return None


def _keep_evidence(workspace: Workspace, engine: str, sidecar: Sidecar, evidence: Evidence) -> None:
    """Keep what was found, where others can believe it: where this home's own root trusts its builder key."""
    from trtops.release.envelope import sign, signers_of

    signer = workspace.keys.signer("builder")
    body = sign(evidence, [signer])
    if signer.key_id in signers_of(body, type(evidence), workspace.keys.root()):
        workspace.store.keep(EVIDENCE, _evidence_key(engine, sidecar), body)


def _evidence_key(engine: str, sidecar: Sidecar) -> str:
    """Engines that are built alike share an artifact; each is measured with its own samples, by its own settings."""
    return f"{sidecar.plan}.{engine}"


def _samples(checked: Checked, sidecar: Sidecar) -> Samples:
    from trtops.accuracy import load_samples
    from trtops.spec.engine import Accuracy as Settings

    settings = checked.spec.accuracy or Settings()
    return load_samples(settings.samples, base=checked.folder, inputs=sidecar.inputs)


def _unverified(workspace: Workspace, checked: Checked, build: TargetBuild, device: Device) -> Measured:
    """Record that this machine built an engine that it cannot load; the gate of its target says so."""
    import trtops
    from trtops.evidence import assemble

    assert build.built is not None  # noqa: S101 - as in measure
    evidence = assemble(
        checked.spec,
        build.built.sidecar,
        device,
        accuracy=None,
        benchmark=None,
        unverified=build.status.reason or "this machine cannot load it",
        created=workspace.now(),
        trtops=trtops.__version__,
    )
    return Measured(evidence)


@dataclass(frozen=True)
class _Run:
    """One target on this machine."""

    workspace: Workspace
    checked: Checked
    sidecar: Sidecar
    adapter: Backend
    device: Device
    status: BackendStatus
    samples: Samples

    @property
    def spec(self) -> EngineSpec:
        return self.checked.spec

    def measured(self, want: Want) -> Measured:
        """Take what holds, measure what is missing, keep the sum."""
        import trtops
        from trtops.evidence import assemble, carried, rebind

        old = None if want.fresh else kept_evidence(self.workspace, self.spec.name, self.sidecar)
        parts = carried(
            old, self.spec, self.sidecar, self.device, samples=self.samples.digest, backend_version=self.version
        )
        accuracy, benchmark = parts.accuracy, parts.benchmark
        need_accuracy = want.accuracy and accuracy is None
        need_benchmark = want.benchmark and benchmark is None
        if old is not None and not (need_accuracy or need_benchmark) and (accuracy or benchmark):
            return Measured(
                rebind(old, self.spec, self.sidecar),
                accuracy is not None,
                benchmark is not None,
                device_times=self._kept_times() if want.benchmark else (),
            )
        took = [0.0, 0.0]
        times: tuple[DeviceTimes, ...] = ()
        with closing(self._load()) as session:
            if need_accuracy:
                accuracy, took[0] = _timed(lambda: self._verify(session))
            if need_benchmark:
                benchmark, took[1] = _timed(lambda: self._bench(session))
                times = self._probe(session)
        evidence = assemble(
            self.spec,
            self.sidecar,
            self.device,
            accuracy=accuracy,
            benchmark=benchmark,
            unverified=None if accuracy else f"not verified yet: run trtops verify {self.spec.name}",
            created=self.workspace.now(),
            trtops=trtops.__version__,
        )
        _keep_evidence(self.workspace, self.spec.name, self.sidecar, evidence)
        return Measured(evidence, parts.accuracy is not None, parts.benchmark is not None, took[0], took[1], times)

    @property
    def version(self) -> str:
        return self.status.version or ""

    def _load(self) -> Session:
        return self.adapter.load(self.workspace.store.path(self.sidecar.artifact), self.sidecar)

    def _say(self, stage: str) -> Callable[[Progress], None]:
        name = f"{stage} {self.sidecar.target.id}"
        return lambda step: self.workspace.progress(name, step.phase, step.done, step.total)

    def _verify(self, session: Session) -> Accuracy:
        from trtops.accuracy import verify
        from trtops.backend.onnxruntime import OnnxRuntimeBackend
        from trtops.spec.engine import Accuracy as Settings
        from trtops.spec.engine import Target

        judge = OnnxRuntimeBackend()
        status = judge.status(Target(backend="onnxruntime"))
        if status.version is None or self.checked.model is None:
            raise NotLoadable("the reference, ONNX Runtime, is not installed", fix="pip install onnxruntime")
        name = f"onnxruntime {status.version}, the original file, optimisations off"
        with closing(judge.reference(self.checked.model)) as reference:
            return verify(
                reference,
                session,
                self.spec.profiles,
                self.samples,
                self.spec.accuracy or Settings(),
                reference_name=name,
                progress=self._say("verify"),
            )

    @property
    def _timeline(self) -> VouchedRecord[DeviceTimeline]:
        from trtops.bench.device import DeviceTimeline
        from trtops.build.voucher import VouchedRecord
        from trtops.workflow.timings import KeyVoucher

        key, voucher = str(self.sidecar.artifact), KeyVoucher(self.workspace.keys)
        return VouchedRecord(self.workspace.store, DEVICE_TIMES, key, voucher, DeviceTimeline)

    def _kept_times(self) -> tuple[DeviceTimes, ...]:
        """What was measured before; nothing where no trusted key vouches for it: only reports tell it."""
        try:
            kept = self._timeline.read()
        except TrtopsError as error:
            self._say("bench")(Progress(phase=f"device times of before are left out (--fresh measures them): {error}"))
            return ()
        return kept.times if kept is not None else ()

    def _probe(self, session: Session) -> tuple[DeviceTimes, ...]:
        """Ask the session where the time of each batch size goes, where it can tell."""
        from trtops.backend.port import Probed
        from trtops.bench.device import DeviceTimeline
        from trtops.bench.workload import plan_workload

        if not isinstance(session, Probed):
            return ()
        work = plan_workload(self.spec.benchmark.batch_sizes, self.spec.profiles, session.inputs, self.samples)
        times = tuple(session.probe(one.variants[0], batch=one.batch, seconds=_PROBE_SECONDS) for one in work)
        self._timeline.write(DeviceTimeline(key=str(self.sidecar.artifact), times=times))
        return times

    def _bench(self, session: Session) -> Benchmark:
        from trtops.bench.conditions import read_conditions
        from trtops.bench.measure import measure as run
        from trtops.bench.workload import plan_workload

        settings = self.spec.benchmark
        workload = plan_workload(settings.batch_sizes, self.spec.profiles, session.inputs, self.samples)
        return run(
            session,
            settings,
            workload,
            time.perf_counter_ns,
            device=self.device,
            status=self.status,
            progress=self._say("bench"),
            conditions=lambda: read_conditions(Path("/"), self.device.cores or 1),
        )


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start
