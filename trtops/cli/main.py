"""The application: every command and group, imported without anything heavy."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops import __version__
from trtops.cli import (
    author,
    config,
    doctor,
    engine,
    interface,
    plan,
    policy,
    registry,
    release,
    rollout,
    secret,
    serve,
    trust,
)

app = typer.Typer(
    name="trtops",
    help="The release platform for TensorRT engines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for part in (engine, plan, release, rollout, serve, author, policy, registry, secret, trust, interface, config, doctor):
    part.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trtops {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The release platform for TensorRT engines.

    Exit codes: 0 done or allowed, 1 denied by a policy, 2 could not be done or decided, 3 somebody else moved first.
    """
    del version


def run() -> None:
    """Entry point of the command ``trtops``."""
    app()
