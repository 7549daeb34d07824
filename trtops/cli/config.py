"""Commands on runtime configs: diff."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument
from trtops.cli.start import style, workspace

config_app = typer.Typer(help="Runtime configs: diff.", no_args_is_help=True, rich_markup_mode=None)
SIDE = "ENV: what runs there; ENV@GENERATION: what ran; +ENV: what stands here."


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    config_app.command()(diff)
    config_app.callback()(_config)
    app.add_typer(config_app, name="config")


def _config() -> None:
    """Runtime configs: diff."""


@guarded
def diff(
    engine: EngineArgument,
    before: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help="The same.")],
) -> int:
    """Show what differs between two configs.

    Released ones are verified; what a revoked key has signed is passed over where it is not needed, and told. Secrets
    are references on both sides.
    """
    from trtops.cli.guard import passed_over
    from trtops.report import text
    from trtops.report.rows import Table
    from trtops.workflow.configs import diff as run

    with workspace(quiet=True) as here:
        found = run(here, engine, before, after)
    for problem in found.skipped:
        passed_over(problem, "passed over, an older generation was asked for")
    rows = tuple((one.path, one.before or "", one.after or "") for one in found.differences)
    say(text.table(Table(("key", before, after), rows), style()) if rows else f"{before} and {after} are the same\n")
    return 0
