"""Commands for who writes specs: new, schema, settings."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EnvironmentOption
from trtops.cli.start import style, workspace

settings_app = typer.Typer(help="Settings of the tool.", no_args_is_help=True, rich_markup_mode=None)


class Kind(str, Enum):
    """What a schema describes."""

    engine = "engine"
    runtime = "runtime"
    runners = "runners"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(new)
    app.command()(schema)
    settings_app.command("show")(show)
    app.add_typer(settings_app, name="settings")


@guarded
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the new engine: a-z, 0-9 and dashes.")],
    model: Annotated[str, typer.Option("--model", "-m", metavar="FILE", help="An ONNX file, or a URI of one.")],
) -> int:
    """Write a first spec from an ONNX file.

    engines/NAME/engine.yaml with its inputs, dynamic dimensions and a first profile; a file from elsewhere is copied
    beside it.
    """
    import os

    from trtops.workflow.new import new as run

    with workspace() as here:
        path = run(here, name, model)
    say(f"wrote {os.path.relpath(path)}: give it an owner, look at the profile, then: trtops check {name}\n")
    return 0


@guarded
def schema(
    kind: Annotated[Kind, typer.Argument(help="What it describes.", case_sensitive=False)] = Kind.engine,
) -> int:
    """Print a JSON Schema, for editors."""
    import json

    from trtops.spec.schema import json_schema

    say(json.dumps(json_schema(kind.value.capitalize()), indent=2, ensure_ascii=False) + "\n")
    return 0


@guarded
def show(environment: EnvironmentOption = None) -> int:
    """Show every setting with its value and where it comes from."""
    from trtops.report import text
    from trtops.report.rows import Table

    with workspace({"environment": environment}, quiet=True) as here:
        rows = here.resolved.rows()
    say(text.table(Table(("setting", "value", "from"), rows), style()))
    return 0
