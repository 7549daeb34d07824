"""Commands on secrets: keygen, seal, open, rotate, audit."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, EnvironmentOption
from trtops.cli.start import style, workspace

secret_app = typer.Typer(help="Secrets: seal, open, rotate, audit.", no_args_is_help=True, rich_markup_mode=None)


_PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="As in secret:PATH, e.g. db/password.")]
_RecipientOption = Annotated[
    list[str] | None,
    typer.Option("--recipient", "-r", metavar="AGE1…", help="Who may open it (default: governance/recipients.yaml)."),
]


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    for command in (keygen, seal, rotate, audit):
        secret_app.command()(command)
    secret_app.command("open")(open_)
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
    path: _PathArgument,
    recipient: _RecipientOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Seal a value from standard input.

    It is bound to the engine, the environment and the path, signed, and published apart from releases. Who may open it
    stands in governance/recipients.yaml, by environment and engine; where nobody does, this home may.
    """
    import getpass
    import sys

    from trtops.workflow.secrets import checked_value
    from trtops.workflow.secrets import seal as run

    # Wrapped at once: no frame that an error may pass through holds it in clear.
    value = checked_value(getpass.getpass("value: ") if sys.stdin.isatty() else sys.stdin.read())
    with workspace({"environment": environment}, quiet=True) as here:
        recipients = run(here, engine, path, value, recipient or ())
        say(f"sealed {path} of {engine} in {here.environment} for {', '.join(recipients)}\n")
    return 0


@guarded
def open_(
    engine: EngineArgument,
    path: _PathArgument,
    environment: EnvironmentOption = None,
) -> int:
    """Print a value, with this home's identity.

    For a pipe: the value and nothing else goes to standard output; on a terminal a line end follows. A service opens
    its secrets itself, in memory.
    """
    import sys

    from trtops.workflow.secrets import open_secret

    with workspace({"environment": environment}, quiet=True) as here:
        value = open_secret(here, engine, path)
    say(value.get_secret_value())
    if sys.stdout.isatty() and not value.get_secret_value().endswith("\n"):
        say("\n")
    return 0


@guarded
def rotate(
    engine: EngineArgument,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Which (default: all of it).")] = None,
    recipient: _RecipientOption = None,
    environment: EnvironmentOption = None,
) -> int:
    """Seal again, to other recipients.

    With this home's identity, which opens what is sealed now. Whoever is left out still knows what they have opened:
    change the value as well, with trtops secret seal.
    """
    from trtops.workflow.secrets import rotate as run

    with workspace({"environment": environment}, quiet=True) as here:
        for path, recipients in run(here, engine, paths or (), recipient or ()).items():
            say(f"sealed {path} of {engine} in {here.environment} anew for {', '.join(recipients)}\n")
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
