"""Commands on secrets: keygen, seal, audit."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, EnvironmentOption
from trtops.cli.start import style, workspace

secret_app = typer.Typer(help="Secrets: seal, audit.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    for command in (keygen, seal, audit):
        secret_app.command()(command)
    app.add_typer(secret_app, name="secret")


@guarded
def keygen() -> int:
    """Make this home's age identity.

    Prints its public half, which others seal to. The private half stays in TRTOPS_HOME/keys.
    """
    from trtops.workflow.secrets import keygen as run

    with workspace(quiet=True) as here:
        say(f"{run(here).recipient}\n")
    return 0


@guarded
def seal(
    engine: EngineArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="As in secret:PATH, e.g. db/password.")],
    recipient: Annotated[
        list[str] | None,
        typer.Option("--recipient", "-r", metavar="AGE1…", help="Who may open it (default: this home)."),
    ] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Seal a value from standard input.

    It is bound to the engine, the environment and the path, signed, and published apart from releases.
    """
    import getpass
    import sys

    from trtops.workflow.secrets import checked_value
    from trtops.workflow.secrets import seal as run

    text = getpass.getpass("value: ") if sys.stdin.isatty() else sys.stdin.read()
    with workspace({"environment": environment}, quiet=True) as here:
        recipients = run(here, engine, path, checked_value(text), recipient or ())
        say(f"sealed {path} of {engine} in {here.environment} for {', '.join(recipients)}\n")
    return 0


@guarded
def audit(engine: EngineArgument, environment: EnvironmentOption = None) -> int:
    """Tell which secrets are sealed.

    Every reference of the engine's runtime config; 1 if one is missing or does not open. Shows no value.
    """
    from trtops.report import text
    from trtops.report.rows import Table
    from trtops.workflow.secrets import audit as run

    with workspace({"environment": environment}, quiet=True) as here:
        found = run(here, engine)
    rows = tuple((one.path, one.state) for one in found)
    tones = tuple("done" if one.ok else "failed" for one in found)
    say(text.table(Table(("secret", "state"), rows, tones=tones), style()) if rows else "it refers to no secret\n")  # type: ignore[arg-type]
    return 0 if all(one.ok for one in found) else 1
