"""Commands on engines: ship, check, build, verify, bench."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import complain, guarded, say
from trtops.cli.options import (
    ChangedSinceOption,
    EngineArgument,
    EnginesArgument,
    EnvironmentOption,
    JsonOption,
    OpaUrlOption,
    PolicyEngineOption,
    RebuildOption,
    ReportFormat,
    TargetOption,
    named,
)
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.errors import TrtopsError
    from trtops.report.checks import CheckReport
    from trtops.workflow.build import TargetBuild
    from trtops.workflow.check import Checked
    from trtops.workflow.measure import Measured, Want
    from trtops.workflow.ship import Shipment
    from trtops.workflow.workspace import Workspace


def _in_a_folder(file: typer.FileTextWrite | None) -> typer.FileTextWrite | None:
    """The page is written last: minutes of work shall not end in a folder that was never there."""
    if file is not None and not (folder := Path(file.name).parent).is_dir():
        raise typer.BadParameter(f"there is no folder {folder}")
    return file


HtmlOption = Annotated[
    typer.FileTextWrite | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write a page with plots.",
        encoding="utf-8",
        lazy=True,
        callback=_in_a_folder,
    ),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (ship, check, build, verify, bench, precision, inspect):
        app.command()(command)


@guarded
def ship(
    engine: EngineArgument,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="At the end, start a server from what was released and ask it once.")
    ] = False,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: TargetOption = None,
    rebuild: RebuildOption = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
    html: HtmlOption = None,
) -> int:
    """Take an engine through every stage.

    Check, build, verify, bench, gate the evidence, sign, release; what is there already is reused.
    """
    from trtops.errors import TrtopsError
    from trtops.workflow.check import folders_of
    from trtops.workflow.ship import Options, Shipment
    from trtops.workflow.ship import ship as run

    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    shipment = Shipment()
    code = 0
    with workspace(flags, quiet=json) as here:
        (folder,) = folders_of(here, [engine])
        options = Options(smoke=smoke, rebuild=rebuild, fresh=fresh, only=tuple(target or ()))
        failure: TrtopsError | None = None
        try:
            run(here, folder, options, shipment)
        except TrtopsError as error:
            failure = error
    show_shipment(shipment, json=json)
    if html is not None:
        from trtops.report import html as pages

        released = shipment.released
        html.write(
            pages.page(
                [one.evidence for one in shipment.measured],
                release=released.published.release if released else None,
                commit=released.release.commit if released else None,
                verdicts=shipment.verdicts,
            )
        )
    if failure is not None:
        code = complain(failure)
    return code


def show_shipment(shipment: Shipment, *, json: bool) -> None:
    """Print findings, the table of stages and the answer; or the stages as JSON."""
    from trtops.report import answers, jsonout, text

    if json:
        say(jsonout.stages(shipment.rows))
        return
    for verdict in shipment.verdicts:
        say(text.verdict(verdict, style()) if verdict.decision == "deny" else text.brief(verdict, style()))
    if shipment.rows:
        say(text.stages(shipment.rows, style()))
    if shipment.answer is not None:
        say(answers.plain(shipment.answer.outputs))


@guarded
def check(
    engines: EnginesArgument = None,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    changed_since: ChangedSinceOption = None,
    policies_from: Annotated[
        str | None,
        typer.Option("--policies-from", metavar="REF", help="Judge by the policies of this git revision."),
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", "-f", help="What is printed.", show_default=False)
    ] = ReportFormat.text,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="FORMAT=FILE", help="Also write a report there; may be given again."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Hold engines against models and policies.

    Exit codes: 0 allowed, 1 denied, 2 could not decide.
    """
    from trtops.errors import TrtopsError
    from trtops.report.checks import COMMAND, CheckReport, Failure
    from trtops.workflow.outputs import parse_outputs, write_outputs
    from trtops.workflow.review import review

    outputs = parse_outputs(output or ())
    wanted = ReportFormat.json if json else form
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    try:
        with workspace(flags, quiet=wanted is not ReportFormat.text) as here:
            report = review(here, engines or (), policies_from=policies_from, changed_since=changed_since)
    except TrtopsError as error:
        report = CheckReport(failures=(Failure(COMMAND, error),))
    show_check(report, wanted)
    return max([report.exit_code, *(complain(error) for error in write_outputs(report, outputs))])


def show_check(report: CheckReport, form: ReportFormat) -> None:
    """Print a report; as text, what could not be decided goes to standard error."""
    from trtops.report import text
    from trtops.workflow.outputs import render

    if form is not ReportFormat.text:
        say(render(report, form.value))
        return
    say(text.check(report, style(), errors=False))
    sys.stderr.write(text.check_errors(report, text.Style.of(sys.stderr, os.environ)))


@guarded
def build(
    engine: EngineArgument,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: TargetOption = None,
    rebuild: RebuildOption = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End a build after so long (default: 3600).")
    ] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="BYTES", help="Bound a build's memory (default: no bound).")
    ] = None,
) -> int:
    """Build what this machine can build.

    Each target in a child process; names the targets that it skips, and why.
    """
    from trtops.report import text
    from trtops.report.estimates import estimates
    from trtops.report.rows import StageRow

    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace({**flags, "build_timeout": timeout, "build_memory": memory}) as here:
        checked, builds = _built(here, engine, target, rebuild=rebuild)
    rows = []
    for one in builds:
        if one.built is None:
            rows.append(StageRow(f"build {one.target.id}", f"skipped: {one.skipped}", None, None, "skipped"))
            continue
        word = "reused" if one.built.cached else "built"
        outcome = "reused" if one.built.cached else "done"
        sidecar = one.built.sidecar
        rows.append(StageRow(f"build {one.target.id}", word, one.built.seconds, sidecar.artifact, outcome))  # type: ignore[arg-type]
    say(text.stages(rows, style()))
    for one in builds:
        if one.built is not None and one.built.phases:
            parts = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in one.built.phases.items())
            say(f"{one.target.id}: {parts}\n")
    for one in builds:
        if one.built is not None and one.built.sidecar.steps:
            steps = "".join(f"  {number}. {step}\n" for number, step in enumerate(one.built.sidecar.steps, start=1))
            say(f"{one.target.id}: the model was changed before the build:\n{steps}")
    say(estimates(checked.spec, checked.preflight, style()))
    _refuse_none(checked, builds)
    return 0


@guarded
def verify(
    engine: EngineArgument,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: TargetOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> int:
    """Compare outputs with ONNX Runtime's.

    The original model with optimisations off, at min, opt and max of every profile; prints the worst element.
    """
    from trtops.workflow.measure import Want

    want = Want(accuracy=True, benchmark=False, fresh=fresh)
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags, quiet=json) as here:
        measured = _measured(here, engine, target, want)
    _show_evidence(measured, json=json)
    if all(one.evidence.accuracy is None for one in measured):
        raise _nothing("verified", measured)
    failed = [one for one in measured if one.evidence.accuracy is not None and not one.evidence.accuracy.passed]
    return 1 if failed else 0


@guarded
def bench(
    engine: EngineArgument,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: TargetOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
    html: HtmlOption = None,
) -> int:
    """Measure latency and throughput.

    For each batch size of the spec, with 95 % confidence intervals.
    """
    from trtops.workflow.measure import Want

    want = Want(accuracy=False, benchmark=True, fresh=fresh)
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags, quiet=json) as here:
        measured = _measured(here, engine, target, want)
    _show_evidence(measured, json=json)
    if html is not None:
        from trtops.report import html as pages

        html.write(pages.page([one.evidence for one in measured]))
    if all(one.evidence.benchmark is None for one in measured):
        raise _nothing("measured", measured)
    return 0


@guarded
def precision(
    engine: EngineArgument,
    modes: Annotated[
        str, typer.Option("--modes", metavar="LIST", help="Precisions, separated by commas: fp32,tf32,fp16,bf16,int8.")
    ] = "fp32,fp16,int8",
    layers: Annotated[int, typer.Option("--layers", metavar="N", min=0, help="How many layers are shown.")] = 5,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="ID", help="Of the spec (default: the first that loads here)."),
    ] = None,
    fresh: FreshOption = False,
) -> int:
    """Build, verify and measure one target in several precisions, side by side.

    Latency, size and accuracy loss of each, then its layers by error, worst first. Needs samples for fp16 (those of
    the accuracy section), calibration data for int8 (where the spec names none, those of the accuracy section, too).
    """
    from trtops.errors import InputError, Unavailable
    from trtops.report.precision import precisions as written
    from trtops.workflow.precision import MODES, precisions, target_of

    wanted = [mode.strip() for mode in modes.split(",") if mode.strip()]
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise InputError(
            f"there is no precision {unknown[0]!r}", where="--modes", fix=f"choose from {', '.join(MODES)}"
        )
    chosen = [mode for mode in MODES if mode in wanted]
    if not chosen:
        raise InputError("no precision is named", where="--modes", fix=f"choose from {', '.join(MODES)}")
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags) as here:
        checked = _allowed(here, engine)
        variants = precisions(here, checked, target_of(checked, target), chosen, fresh=fresh)
    say(written(variants, style(), layers=layers))
    if all(variant.evidence is None for variant in variants):
        what = f"none of {', '.join(chosen)} was built: {'; '.join(sorted({str(one.skipped) for one in variants}))}"
        raise Unavailable(what, fix="choose other precisions with --modes, or another target with --target")
    return 0


@guarded
def inspect(
    engine: Annotated[
        str | None, typer.Argument(metavar="ENGINE", help="Name of an engine, or its folder.", show_default=False)
    ] = None,
    target: TargetOption = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="A B", help="Compare two artifacts, by the beginning of their digests."),
    ] = None,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
) -> int:
    """Look into an engine: bindings, steps of the build, memory, layers and their types.

    Builds what is not built yet. With --diff, what differs between two artifacts of the store.
    """
    from trtops.errors import InputError
    from trtops.report.inspection import difference, inspection
    from trtops.workflow.inspect import find, look

    if (engine is None) == (diff is None):
        raise InputError("name an engine, or two artifacts with --diff", where="trtops inspect")
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags) as here:
        if diff is not None:
            one, other = (find(here, prefix) for prefix in diff)
            written = [difference((one, look(here, one)[0]), (other, look(here, other)[0]))]
        else:
            assert engine is not None  # noqa: S101 - one of the two was given
            checked, builds = _built(here, engine, target)
            _refuse_none(checked, builds)
            written = [
                inspection(made.built.sidecar, *look(here, made.built.sidecar), style())
                if made.built is not None
                else f"{made.target.id}: skipped: {made.skipped}\n"
                for made in builds
            ]
    say("\n".join(written))
    return 0


def _built(
    here: Workspace, engine: str, target: list[str] | None, *, rebuild: bool = False
) -> tuple[Checked, tuple[TargetBuild, ...]]:
    """Check an engine, refuse it if it is denied, and build its targets."""
    from trtops.workflow.build import build as run

    checked = _allowed(here, engine)
    return checked, run(here, checked, only=tuple(target or ()), rebuild=rebuild)


def _allowed(here: Workspace, engine: str) -> Checked:
    """Check an engine, and refuse it if it is denied."""
    from trtops.errors import Denied
    from trtops.report import text
    from trtops.workflow.check import check as check_one
    from trtops.workflow.check import folders_of
    from trtops.workflow.judge import open_gate

    (folder,) = folders_of(here, [engine])
    with open_gate(here) as gate:
        checked = check_one(here, folder, gate)
    if checked.denied:
        for verdict in checked.verdicts:
            say(text.verdict(verdict, style()))
        raise Denied(f"policies deny {checked.spec.name}", where=checked.engine.document.file)
    return checked


def _measured(here: Workspace, engine: str, target: list[str] | None, want: Want) -> list[Measured]:
    from trtops.workflow.measure import measure

    checked, builds = _built(here, engine, target)
    _refuse_none(checked, builds)
    for one in builds:
        if one.built is None:
            typer.echo(f"{one.target.id}: skipped: {one.skipped}", err=True)
    return [measure(here, checked, one, want) for one in builds if one.built is not None]


def _refuse_none(checked: Checked, builds: tuple[TargetBuild, ...]) -> None:
    """What was asked for was not done where every target was skipped: that is no success."""
    from trtops.errors import Unavailable

    if any(one.built is not None for one in builds):
        return
    reasons = "; ".join(f"{one.target.id}: {one.skipped}" for one in builds)
    what = f"this machine can build no target of {checked.spec.name} that is asked for: {reasons}"
    raise Unavailable(what, fix="run it where one can be built; trtops doctor tells what is here")


def _nothing(done: str, measured: list[Measured]) -> TrtopsError:
    from trtops.errors import Unavailable

    reasons = {one.evidence.unverified or "this machine cannot load it" for one in measured}
    what = f"nothing was {done}: {'; '.join(sorted(reasons))}"
    return Unavailable(what, fix="run it on the machine that the target names")


def _show_evidence(measured: list[Measured], *, json: bool) -> None:
    from trtops.report import jsonout, text
    from trtops.report.device import device_times, sweep, untold

    if json:
        say(jsonout.evidence([one.evidence for one in measured]))
        return
    for one in measured:
        if one.accuracy_reused or one.benchmark_reused:
            say("evidence of an earlier run holds; --fresh measures again\n")
        say(text.evidence(one.evidence, style()))
        if one.evidence.benchmark is not None:
            say(sweep(one.evidence.benchmark))
        if one.device_times:
            say(device_times(one.device_times, style()))
        elif one.evidence.benchmark is not None:
            say(untold(one.evidence.benchmark))
