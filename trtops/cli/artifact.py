"""Commands on what machines hand to each other: export, import."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, TargetOption
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.workflow.handover import Handed

artifact_app = typer.Typer(
    help="What one machine built, for another that releases: export, import.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    artifact_app.command("export")(export)
    artifact_app.command("import")(import_)
    app.add_typer(artifact_app, name="artifact")


@guarded
def export(
    engine: EngineArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Is made; may hold other targets.")],
    target: TargetOption = None,
) -> int:
    """Write what was built, verified and measured here into a folder.

    Of the spec as it stands: each engine with its builder's signed word and evidence. Where machines share a store
    (TRTOPS_STORE) nothing has to be carried: `trtops release` finds there what others have built.
    """
    from trtops.workflow.handover import export as run

    with workspace(quiet=True) as here:
        done = run(here, engine, tuple(target or ()), out)
    say(_table(done, "exported", ""))
    return 0


@guarded
def import_(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Of `trtops artifact export`.")],
) -> int:
    """Take what other machines exported.

    Into this home's store, for `trtops release`: only what a builder key that is trusted here has signed, and the very
    bytes that it signed. What is older than what is here stays out.
    """
    from trtops.workflow.handover import bring as run

    with workspace(quiet=True) as here:
        done = run(here, folders)
    say(_table(done, "imported", "what is here is as new"))
    return 0


def _table(done: tuple[Handed, ...], new: str, old: str) -> str:
    from trtops.report import text
    from trtops.report.numbers import size
    from trtops.report.rows import Table

    rows = tuple(
        (
            f"{one.engine}/{one.target}",
            one.artifact.short,
            size(one.size_bytes),
            one.builder[:12],
            new if one.new else old,
        )
        for one in done
    )
    return text.table(Table(("target", "artifact", "size", "builder", "state"), rows, frozenset({2})), style())
