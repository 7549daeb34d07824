"""``trtops build``: every target that this machine can build, in a child process, signed by the builder key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtops.errors import InputError, IntegrityError, TrustError
from trtops.workflow.timings import KeyVoucher

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtops.backend.port import Backend, BackendStatus, Progress, Sidecar
    from trtops.build.plan import BuildPlan
    from trtops.build.protocol import SampleSource
    from trtops.build.runner import Built
    from trtops.digest import Digest
    from trtops.release.documents import Provenance
    from trtops.release.handover import Taken
    from trtops.spec.engine import Builder, Target
    from trtops.workflow.check import Checked
    from trtops.workflow.workspace import Workspace

PROVENANCE = "provenance"
"""Kind of the store's records that say, signed, who built an artifact, as DSSE envelopes: plan key -> the last build's,
whichever engine it was for; plan key and engine -> that engine's own."""


@dataclass(frozen=True)
class TargetBuild:
    """What became of one target.

    Attributes:
        target: of the spec.
        status: what its backend can do here.
        built: the engine; None if it was skipped.
        provenance: the builder's statement on it, and ``envelope``, its signed bytes.
        skipped: why it was not built here; None if it was.
        taken: what another machine handed on, which built, verified and measured it; None: it is of this one.
        refused: why what another machine handed on was not taken; None if it was, or nothing was.
    """

    target: Target
    status: BackendStatus
    built: Built | None = None
    provenance: Provenance | None = None
    envelope: bytes | None = None
    skipped: str | None = None
    taken: Taken | None = None
    refused: str | None = None


def build(
    workspace: Workspace, checked: Checked, *, only: Collection[str] = (), rebuild: bool = False
) -> tuple[TargetBuild, ...]:
    """Build the targets of an engine, or find them in the store.

    Args:
        workspace: where.
        checked: what policies allowed.
        only: ids of targets; empty: all.
        rebuild: build anew what is cached.

    Raises:
        InputError: the spec has no such target.
        BuildFailed: the builder refused, crashed, hung, or ran out of memory or time.
        IntegrityError: what the store has is damaged; ``rebuild`` replaces it.
        StorageError: the engine could not be kept.
    """
    return tuple(_build(workspace, checked, target, rebuild=rebuild) for target in chosen(checked, only))


def or_taken(workspace: Workspace, checked: Checked, build: TargetBuild) -> TargetBuild:
    """A target's build; where this machine cannot build or cannot load it, what another one handed on, if any did.

    Where that is forged or damaged, or its builder was revoked, the build says so (``refused``).

    Raises:
        StorageError: the store cannot be read.
    """
    from trtops.build.runner import Built
    from trtops.workflow.handover import offered

    if build.built is not None and build.status.can_load:
        return build
    found, refused = offered(workspace, checked.spec, build.target.id)
    if refused is not None:
        skipped = f"{build.skipped}; {refused}" if build.skipped else None
        return replace(build, skipped=skipped, refused=refused)
    if found is None:
        return build
    envelope = found.envelopes[found.provenance.digest()]
    built = Built(sidecar=found.sidecar, cached=True, seconds=0.0)
    return TargetBuild(build.target, build.status, built, found.provenance, envelope, taken=found)


def chosen(checked: Checked, only: Collection[str]) -> tuple[Target, ...]:
    """Targets of a spec by id, in the spec's order; all of them where none is named.

    Raises:
        InputError: the spec has no such target.
    """
    known = [target.id for target in checked.spec.targets]
    for name in only:
        if name not in known:
            raise InputError(
                f"{checked.spec.name} has no target {name!r}",
                where=checked.locate(("targets",), "engine"),
                fix=f"its targets are {', '.join(known)}",
            )
    return tuple(target for target in checked.spec.targets if not only or target.id in only)


def _build(workspace: Workspace, checked: Checked, target: Target, *, rebuild: bool) -> TargetBuild:
    from trtops.backend.select import backend
    from trtops.build.runner import Limits
    from trtops.build.runner import build as build_engine

    adapter = backend(target.backend)
    status = adapter.status(target)
    if not status.can_build or status.version is None:
        return TargetBuild(target, status, skipped=status.reason or "this machine cannot build it")
    if reason := adapter.refusal(target, checked.spec.precision):
        return TargetBuild(target, status, skipped=reason)
    model = checked.model
    assert model is not None  # noqa: S101 - allowed specs have their model
    wanted = plan_of(checked, target, adapter, status)
    settings = workspace.resolved.settings

    def say(step: Progress) -> None:
        workspace.progress(f"build {target.id}", step.phase, step.done, step.total)

    builders = _Builders(workspace, checked, wanted)
    built = build_engine(
        wanted,
        model=model,
        store=workspace.store,
        limits=Limits(deadline_s=settings.build_timeout, memory_bytes=settings.build_memory or None),
        on_progress=say,
        rebuild=rebuild,
        samples=samples_of(checked),
        voucher=builders,
    )
    if not built.cached:
        workspace.progress(f"build {target.id}", "built", 1, 1)
    kept = builders.kept.get(built.sidecar.digest())
    if kept is None or kept[0].engine != checked.spec.name:  # the same bytes serve engines that are built alike
        kept = _vouch(workspace, checked, wanted, built.sidecar, anew=False)
    return TargetBuild(target, status, built, *kept)


class _Builders(KeyVoucher):
    """Builder keys of this home, asked for engines while a build holds the lock of its plan.

    Attributes:
        kept: digests of the plan's sidecars that a trusted key vouches for, each with its word.
    """

    def __init__(self, workspace: Workspace, checked: Checked, wanted: BuildPlan) -> None:
        super().__init__(workspace.keys)
        self._workspace, self._checked, self._wanted = workspace, checked, wanted
        self.kept: dict[Digest, tuple[Provenance, bytes]] = {}

    def sidecars(self) -> Collection[Digest]:
        self.kept = _vouched(self._workspace, self._checked.spec.name, self._wanted)
        return self.kept

    def vouch(self, sidecar: Sidecar) -> None:
        self.kept = {sidecar.digest(): _vouch(self._workspace, self._checked, self._wanted, sidecar, anew=True)}


def plan_of(checked: Checked, target: Target, adapter: Backend, status: BackendStatus) -> BuildPlan:
    """What is to be built for a target here.

    Raises:
        InputError: a plugin library of the spec is not there, or is another one than was reviewed.
    """
    from trtops.build.passes import converters
    from trtops.build.plan import plan
    from trtops.digest import Digest

    return plan(
        checked.spec.model_copy(update={"builder": _with_libraries(checked, target)}),
        target,
        model=Digest("sha256", checked.spec.model.sha256),
        backend_version=status.version or "",
        device=adapter.device() if status.can_load else None,
        calibration=_samples_digest(checked),
        converters=converters(checked.spec.precision.mode),
    )


def _with_libraries(checked: Checked, target: Target) -> Builder:
    """The spec's builder options, paths of plugin libraries made absolute and their bytes looked at."""
    from trtops.digest import Digest

    builder = checked.spec.builder
    if not target.backend.startswith("tensorrt"):
        return builder
    plugins = []
    for index, plugin in enumerate(builder.plugins):
        if plugin.library is None:
            plugins.append(plugin)
            continue
        where = checked.locate(("builder", "plugins", index), "engine")
        path = (checked.folder / plugin.library).absolute()
        try:
            found = Digest.of_file(path).value
        except OSError as error:
            what = f"the plugin library {plugin.library} cannot be read: {error.strerror}"
            raise InputError(what, where=where, fix="put it there; the path starts from the spec's folder") from error
        if plugin.sha256 != found:
            told = f"not {plugin.sha256}" if plugin.sha256 else "which the spec does not say"
            what = f"the plugin library {plugin.library} has the sha256 {found}, {told}"
            raise InputError(what, where=where, fix="review the library, and write its sha256")
        plugins.append(plugin.model_copy(update={"library": str(path)}))
    return builder.model_copy(update={"plugins": tuple(plugins)})


def samples_of(checked: Checked) -> SampleSource | None:
    """Data that decides what the spec's precision does to the model: calibration data, else the accuracy samples.

    None where the precision needs none: FP32, or INT8 of a model that comes quantized.
    """
    from trtops.build.precision import needs_samples
    from trtops.build.protocol import SampleSource

    precision, accuracy = checked.spec.precision, checked.spec.accuracy
    if not needs_samples(precision):
        return None
    folder = str(checked.folder.absolute())
    if (given := precision.calibration) is not None:
        return SampleSource(uri=given.source, folder=folder, count=given.samples)
    if precision.mode == "int8":
        return None
    return SampleSource(uri=accuracy.samples if accuracy else "random", folder=folder)


def _samples_digest(checked: Checked) -> Digest | None:
    from trtops.accuracy import load_samples

    source = samples_of(checked)
    if source is None or checked.preflight is None:
        return None
    inputs = checked.preflight.model.inputs
    return load_samples(source.uri, base=checked.folder, inputs=inputs, count=source.count).digest


def kept(workspace: Workspace, engine: str, wanted: BuildPlan) -> Digest | None:
    """The artifact that the store has for a build plan, if a builder key vouches for it and its bytes are there.

    Raises:
        StorageError: the store cannot be read.
    """
    from trtops.build.runner import recorded

    vouched = _vouched(workspace, engine, wanted)
    try:
        sidecar = recorded(wanted, workspace.store) if vouched else None
    except IntegrityError:  # a build says so
        return None
    there = sidecar is not None and sidecar.digest() in vouched and workspace.store.has(sidecar.artifact)
    return sidecar.artifact if sidecar is not None and there else None


def _vouched(workspace: Workspace, engine: str, wanted: BuildPlan) -> dict[Digest, tuple[Provenance, bytes]]:
    """Digests of a build plan's sidecars that a builder key vouches for, with its word for this engine if there is one.

    The bytes depend on the plan alone, so those that were built for another engine may be taken; a service takes a
    builder's word for no other engine than its own, so that one is given anew.
    """
    from trtops.release.documents import Provenance
    from trtops.release.envelope import verify

    found: dict[Digest, tuple[Provenance, bytes]] = {}
    for key in (_of_engine(wanted, engine), str(wanted.key)):
        body = workspace.store.record(PROVENANCE, key)
        if body is None:
            continue
        try:
            signed = verify(body, Provenance, workspace.keys.root(), where=f"record {PROVENANCE} {wanted.key.short}")
        except TrustError:
            continue
        if signed.value.plan == wanted.key:
            found.setdefault(signed.value.sidecar, (signed.value, body))
    return found


def _of_engine(wanted: BuildPlan, engine: str) -> str:
    return f"{wanted.key}.{engine}"


def _vouch(
    workspace: Workspace, checked: Checked, wanted: BuildPlan, sidecar: Sidecar, *, anew: bool
) -> tuple[Provenance, bytes]:
    """Sign what was built for this engine, and keep the statement beside it."""
    import trtops
    from trtops.release.assemble import provenance_of
    from trtops.release.envelope import sign
    from trtops.workflow.workspace import commit_of

    signer = workspace.keys.signer("builder")
    provenance = provenance_of(
        checked.spec,
        sidecar,
        builder=signer.key_id,
        commit=commit_of(checked.folder),
        trtops=trtops.__version__,
    )
    envelope = sign(provenance, [signer])
    workspace.store.keep(PROVENANCE, _of_engine(wanted, checked.spec.name), envelope)
    if anew:
        workspace.store.keep(PROVENANCE, str(wanted.key), envelope)
    return provenance, envelope
