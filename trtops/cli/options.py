"""Options that several commands share, declared once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class PolicyEngine(str, Enum):
    """What evaluates policies."""

    auto = "auto"
    opa = "opa"
    embedded = "embedded"


class ReportFormat(str, Enum):
    """How a check's report is written."""

    text = "text"
    json = "json"
    sarif = "sarif"
    junit = "junit"
    github = "github"
    markdown = "markdown"


EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of an engine, or its folder.")]
EnginesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ENGINE", help="Names or folders of engines; none: all of them.")
]
EnvironmentOption = Annotated[
    str | None, typer.Option("--env", "-e", metavar="NAME", help="Environment (default: local).", show_default=False)
]
PolicyEngineOption = Annotated[
    PolicyEngine | None, typer.Option("--engine", help="What evaluates policies (default: auto).", show_default=False)
]
OpaUrlOption = Annotated[
    str | None, typer.Option("--opa-url", metavar="URL", help="An OPA server that runs already.", show_default=False)
]
ChangedSinceOption = Annotated[
    str | None, typer.Option("--changed-since", metavar="REF", help="Only what differs from the merge base with REF.")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", "-t", metavar="ID", help="Only this target; may be given again.", show_default=False),
]
RebuildOption = Annotated[bool, typer.Option("--rebuild", help="Build anew, also what is cached.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutputOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the plan there, for `trtops apply`.")
]


def named(engine: PolicyEngine | None) -> str | None:
    """The setting that an option gives; None if it was not given."""
    return engine.value if engine is not None else None
