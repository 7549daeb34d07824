"""Commands that look before they leap: plan, apply."""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - Typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import (
    ChangedSinceOption,
    EnginesArgument,
    EnvironmentOption,
    OpaUrlOption,
    OutputOption,
    PolicyEngineOption,
    named,
)
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.release.plan import Plan
    from trtops.workflow.ship import Shipment


class PlanFormat(str, Enum):
    """How a plan is printed."""

    text = "text"
    json = "json"
    github_matrix = "github-matrix"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (plan, apply):
        app.command()(command)


@guarded
def plan(
    engines: EnginesArgument = None,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    changed_since: ChangedSinceOption = None,
    policies_from: Annotated[
        str | None,
        typer.Option("--policies-from", metavar="REF", help="Judge by policies and runners of this git revision."),
    ] = None,
    form: Annotated[
        PlanFormat, typer.Option("--format", "-f", help="What is printed.", show_default=False)
    ] = PlanFormat.text,
    output: OutputOption = None,
) -> int:
    """Show what would be built, released and moved.

    Reads only. --out writes the plan for `trtops apply`, which does exactly that or refuses. Exit codes: 0, 1 policies
    deny an engine or it cannot be released, 2 could not decide.
    """
    from trtops.report import plan as report
    from trtops.workflow.plan import matrix_of
    from trtops.workflow.plan import plan as run

    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags, quiet=form is not PlanFormat.text) as here:
        found = run(here, engines or (), changed_since=changed_since, policies_from=policies_from)
    if output is not None:
        _write(output, found)
    if form is PlanFormat.github_matrix:
        say(report.matrix(matrix_of(found)))
        return 0
    say(found.canonical_bytes().decode() + "\n" if form is PlanFormat.json else report.plan(found, style()))
    if output is not None and form is PlanFormat.text:
        say(f"written to {output}: trtops apply {output} --env {found.environment}\n")
    return 1 if any(one.move in {"denied", "blocked"} for one in found.engines) else 0


@guarded
def apply(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A plan that `trtops plan --out FILE` wrote.")],
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
) -> int:
    """Do what a plan says.

    Exactly that: where spec, policies, keys or the channel are not as they were when it was made, nothing is done (exit
    3).
    """
    from trtops.cli.engine import show_shipment
    from trtops.workflow.plan import apply as run

    def done(engine: str, shipment: Shipment) -> None:
        say(f"{engine}:\n")
        show_shipment(shipment, json=False)

    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags) as here:
        planned = run(here, path, done)
    if not planned.moves:
        say(f"nothing to do in {planned.environment}: the plan moves nothing\n")
    return 0


def _write(path: Path, found: Plan) -> None:
    from trtops.durable import write_durably

    write_durably(path.absolute(), [found.canonical_bytes(), b"\n"])
