"""Commands on a release that runs beside the stable one: rollout status, advance, pause, resume, abort, readmit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, EnvironmentOption, JsonOption
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.release.documents import Binding
    from trtops.release.rollout import Held

rollout_app = typer.Typer(
    help="A release that runs beside the stable one: status, advance, pause, resume, abort, readmit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GenerationOption = Annotated[
    int | None,
    typer.Option("--generation", metavar="N", help="Only if the channel stands there; else exit 3.", min=1),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Goes into the history.")]


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    for command in (status, advance, pause, resume, abort, readmit):
        rollout_app.command()(command)
    app.add_typer(rollout_app, name="rollout")


@guarded
def status(engine: EngineArgument, environment: EnvironmentOption = None, json: JsonOption = False) -> int:
    """Show how far a rollout has come.

    Its steps, the traffic of each release, and what is in quarantine; who paused it, and how to go on.
    """
    from trtops.report import jsonout
    from trtops.report.rollout import rollout
    from trtops.workflow.rollout import pausing, standing

    with workspace({"environment": environment}, quiet=True) as here:
        found = standing(here, Path(engine).name)
        paused, now = pausing(here, found), here.now()
    say(jsonout.bindings([found]) if json else rollout(found, style(), now=now, paused=paused))
    return 0


@guarded
def advance(
    engine: EngineArgument,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL|FILE",
            help="Control port of a service that runs the candidate, or a file with its metrics; may be given again.",
        ),
    ] = None,
    window: Annotated[
        float,
        typer.Option("--window", metavar="SECONDS", help="Look twice, count what is between (0: all).", min=0, max=300),
    ] = 0.0,
    generation: GenerationOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Go on, as far as the steps allow.

    Takes each step whose condition is met; after the last one the candidate is the stable release. To call it again
    skips nothing. Exit codes: 0 it moved or waits, 1 an analysis failed and the rollout is aborted, 2 an analysis
    cannot be decided (nothing moves), 3 somebody else moved it.
    """
    from trtops.workflow.rollout import Metrics, sources_of
    from trtops.workflow.rollout import advance as run

    where = Metrics(sources_of(metrics or ()), window)
    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, where, generation, _tell)
    name = Path(engine).name
    if done.aborted:
        from trtops.errors import Denied

        raise Denied(f"{name}: the rollout was aborted", fix="see trtops rollout status, and release what is mended")
    if done.held.kind == "undecided":
        from trtops.errors import Undecided

        raise Undecided(f"{name}: {done.held.why}", fix="it stays at this step; look again when there is more to see")
    say(f"{name}: {done.held.why}\n")
    return 0


@guarded
def pause(
    engine: EngineArgument,
    reason: ReasonOption = "",
    generation: GenerationOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Hold a rollout where it is."""
    from trtops.workflow.rollout import pause as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, reason, generation)
    return _tell(done, engine)


@guarded
def resume(
    engine: EngineArgument,
    reason: ReasonOption = "",
    generation: GenerationOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Let a paused rollout go on.

    It takes no step: the next `trtops rollout advance` does.
    """
    from trtops.workflow.rollout import resume as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, reason, generation)
    return _tell(done, engine)


@guarded
def abort(
    engine: EngineArgument,
    reason: ReasonOption = "",
    generation: GenerationOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Give all traffic back to the stable release.

    The candidate goes into quarantine: no command releases it again until `trtops rollout readmit`.
    """
    from trtops.workflow.rollout import abort as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, reason, generation)
    return _tell(done, engine)


@guarded
def readmit(
    engine: EngineArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Of the release, config or artifact; or its start.")],
    reason: ReasonOption = "",
    environment: EnvironmentOption = None,
) -> int:
    """Take something out of quarantine.

    A release comes out with its artifacts.
    """
    from trtops.workflow.rollout import readmit as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, digest, reason)
    return _tell(done, engine)


def _tell(done: Binding | Held, engine: str = "") -> int:
    from trtops.release.rollout import Held
    from trtops.report.escape import visible
    from trtops.report.tables import weights

    if isinstance(done, Held):
        say(f"{Path(engine).name}: {done.why}\n")
    else:
        told = f"{done.engine}: generation {done.generation} in {done.environment} ({done.reason}), {weights(done)}"
        say(f"{visible(told)}\n")
    return 0
