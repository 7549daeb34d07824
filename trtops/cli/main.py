"""The application: every command and group, imported without anything heavy."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trtops import __version__
from trtops.cli import (
    artifact,
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


class Commands(TyperGroup):
    """The commands; says of a wrong argument what is wrong and not by which class it was found."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # noqa: ANN401 - what the command returns
        """Run a command, as its base does.

        Raises:
            typer.BadParameter: an argument is wrong.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, by which some versions check
            raise


app = typer.Typer(
    name="trtops",
    cls=Commands,
    help="The release platform for TensorRT engines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for part in (
    engine,
    artifact,
    plan,
    release,
    rollout,
    serve,
    author,
    policy,
    registry,
    secret,
    trust,
    interface,
    config,
    doctor,
):
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
