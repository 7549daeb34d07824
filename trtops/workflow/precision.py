"""``trtops precision``: one engine in several precisions, built, verified and measured; layers by error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops.errors import BuildFailed, InputError, TrtopsError
from trtops.report.precision import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtops.build.precision import LayerError
    from trtops.spec.engine import EngineSpec, Precision, PrecisionMode, Target
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.check import Checked
    from trtops.workflow.workspace import Workspace

MODES: tuple[PrecisionMode, ...] = ("fp32", "tf32", "fp16", "bf16", "int8")

_LAYER_BATCHES = 4


def precisions(
    workspace: Workspace, checked: Checked, target: Target, modes: Sequence[PrecisionMode], *, fresh: bool = False
) -> tuple[Variant, ...]:
    """Build, verify and measure a target in several precisions. What was built and measured before is taken again.

    Args:
        workspace: where.
        checked: the engine as policies allowed it; only its precision mode is changed.
        target: of its spec.
        modes: precisions, in this order.
        fresh: measure again what was measured before.

    Raises:
        InputError: samples or calibration data are wrong.
        StorageError, IntegrityError: of the store.
    """
    return tuple(_variant(workspace, checked, target, mode, fresh=fresh) for mode in modes)


def target_of(checked: Checked, name: str | None) -> Target:
    """The target of that id; where none is named, the only one or the first that this machine can load.

    Raises:
        InputError: there is no such target, or none that this machine can load.
    """
    from trtops.backend.select import backend
    from trtops.workflow.build import chosen

    targets = chosen(checked, [name] if name else [])
    for target in targets:
        if name or backend(target.backend).status(target).can_load:
            return target
    known = ", ".join(target.id for target in targets)
    raise InputError(f"this machine can load no target of {checked.spec.name}: {known}", fix="name one with --target")


def _variant(workspace: Workspace, checked: Checked, target: Target, mode: PrecisionMode, *, fresh: bool) -> Variant:
    from trtops.workflow.build import build
    from trtops.workflow.measure import Want, measure

    spec = checked.spec
    precision, note = _asked(checked, mode)
    changed = replace(checked, engine=replace(checked.engine, spec=spec.model_copy(update={"precision": precision})))
    try:
        (made,) = build(workspace, changed, only=[target.id])
    except BuildFailed as error:
        return Variant(mode, skipped=error.what)
    if made.built is None:
        return Variant(mode, skipped=made.skipped)
    evidence = measure(workspace, changed, made, Want(fresh=fresh)).evidence
    if mode in {"fp32", "tf32"}:
        return Variant(mode, evidence)
    try:
        return Variant(mode, evidence, layers=_layers(workspace, changed, made), note=note)
    except BuildFailed as error:
        return Variant(mode, evidence, unmeasured=error.what, note=note)


def _asked(checked: Checked, mode: PrecisionMode) -> tuple[Precision, str | None]:
    """The spec's precision in another mode, and what has to be said of it."""
    from trtops.spec.engine import Calibration

    spec = checked.spec
    precision = spec.precision.model_copy(update={"mode": mode})
    uri = _accuracy_samples(spec)
    quantized = checked.preflight is not None and "QuantizeLinear" in checked.preflight.model.operators
    if mode != "int8" or precision.calibration is not None or quantized or uri == "random":
        return precision, None
    note = "calibrated on the samples of accuracy that it is compared on, too: set precision.calibration for others"
    return precision.model_copy(update={"calibration": Calibration(source=uri)}), note


def _layers(workspace: Workspace, checked: Checked, made: TargetBuild) -> tuple[LayerError, ...]:
    """Errors of the converted file's inner tensors, on the first batches of the samples."""
    import tempfile
    from pathlib import Path

    from trtops.accuracy import load_samples
    from trtops.build.passes import prepare
    from trtops.build.plan import DEFAULT_REPAIRS
    from trtops.build.precision import feeds_of, layer_errors

    assert checked.model is not None  # noqa: S101 - it was built
    assert checked.preflight is not None  # noqa: S101 - likewise
    spec = checked.spec
    with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
        path = Path(folder) / "model.onnx"
        prepare(checked.model.read_bytes(), path, repairs=DEFAULT_REPAIRS, profiles=spec.profiles)
        data = path.read_bytes()
        converted = _converted(workspace, checked, made, path)
    uri = _accuracy_samples(spec)
    shown = load_samples(uri, base=checked.folder, inputs=checked.preflight.model.inputs)
    return layer_errors(data, converted, feeds_of(shown, spec.profiles, most=_LAYER_BATCHES))


def _converted(workspace: Workspace, checked: Checked, made: TargetBuild, path: Path) -> bytes:
    """The file that was built, as the build kept it; converted again where it could not keep it."""
    from trtops.backend.select import backend
    from trtops.build.conversions import Conversions, conversion_key
    from trtops.build.precision import convert, feeds_of, read_samples
    from trtops.workflow.build import plan_of, samples_of
    from trtops.workflow.timings import KeyVoucher

    data = path.read_bytes()
    key = conversion_key(plan_of(checked, made.target, backend(made.target.backend), made.status))
    if key is not None:
        try:
            if Conversions(workspace.store, key, KeyVoucher(workspace.keys)).fetch(path) is not None:
                return path.read_bytes()
        except TrtopsError:
            workspace.progress("precision", "convert the model again: the kept one cannot be used", 0, 0)
    source = samples_of(checked)
    feeds = feeds_of(read_samples(source, data), checked.spec.profiles) if source else []
    return convert(data, checked.spec.precision, feeds).data


def _accuracy_samples(spec: EngineSpec) -> str:
    return spec.accuracy.samples if spec.accuracy else "random"
