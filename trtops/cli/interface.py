"""Commands on interfaces: lock."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EnginesArgument, EnvironmentOption
from trtops.cli.start import workspace

interface_app = typer.Typer(
    help="What clients of released engines rely on.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    interface_app.command()(lock)
    interface_app.callback()(_interface)
    app.add_typer(interface_app, name="interface")


def _interface() -> None:
    """What clients of released engines rely on."""


@guarded
def lock(
    engines: EnginesArgument = None,
    environment: EnvironmentOption = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; 1 if a file is not what is released.")] = False,
) -> int:
    """Write released interfaces into governance/interfaces.

    Commit them: from then on `trtops check` denies a change that breaks one without a new major version.
    """
    from trtops.workflow.interface import lock as run

    with workspace({"environment": environment}, quiet=True) as here:
        for one in run(here, engines or (), check=check):
            state = "written" if one.new else "as it was"
            say(f"{one.path}: interface {one.lock.version} of {one.lock.engine} in {one.lock.environment}, {state}\n")
    return 0
