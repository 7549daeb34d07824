"""Commands on the registry: refresh, prune, init."""

from __future__ import annotations

from typing import Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EnvironmentOption
from trtops.cli.start import style, workspace

registry_app = typer.Typer(help="The registry: refresh, prune, init.", no_args_is_help=True, rich_markup_mode=None)
init_app = typer.Typer(help="Set a registry up.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the groups of this module."""
    registry_app.command()(refresh)
    registry_app.command()(prune)
    init_app.command("nacos")(init_nacos)
    init_app.callback()(_init)
    registry_app.add_typer(init_app, name="init")
    app.add_typer(registry_app, name="registry")


def _init() -> None:
    """Set a registry up."""


@guarded
def refresh(
    engine: Annotated[str | None, typer.Argument(metavar="ENGINE", help="Only this engine.")] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Let channel pointers expire later.

    On a schedule. With a root of `trtops trust init` an online key signs a snapshot of all channels, and can move none
    of them; with one that was made on first use, the channel key signs new generations. Expired pointers come back.
    """
    from pathlib import Path

    from trtops.cli.guard import complain
    from trtops.report import text
    from trtops.workflow.release import refresh as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name if engine else None)
        now = here.now()
    if done.snapshot is None:
        say(text.status(done.bindings, style(), now=now))
        return 0
    snapshot = done.snapshot
    ends = "never expires" if snapshot.expires is None else f"expires in {(snapshot.expires - now) / 3600:.0f} h"
    count = f"{text.plural(len(snapshot.channels), 'channel')} and {text.plural(len(snapshot.secrets), 'secret')}"
    say(f"snapshot {snapshot.version} of {snapshot.environment}: {count}, {ends}\n")
    for problem in done.problems:
        complain(problem)
    return 2 if done.problems else 0


@guarded
def prune(
    environment: EnvironmentOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without, only look.")] = False,
    after: Annotated[
        float, typer.Option("--after", metavar="HOURS", help="Only what a look so long ago had found already.", min=0)
    ] = 24.0,
    revoked: Annotated[
        bool, typer.Option("--revoked", help="Also what only documents of revoked keys lead to.")
    ] = False,
) -> int:
    """Remove documents that nothing leads to.

    Of publishers that lost a race, or died before the pointer. What belongs to any generation is kept, and so are
    approvals and secrets. A look is remembered: what was found so only now may be of somebody who publishes right now.
    What a document of a revoked key names is kept as well, unless --revoked says that it may go.
    """
    from trtops.cli.guard import passed_over
    from trtops.report import text
    from trtops.report.numbers import instant
    from trtops.report.rows import Table
    from trtops.workflow.prune import prune as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, after_hours=after, remove=yes, revoked=revoked)
        found, where = done.found, here.environment
    for problem in done.distrusted:
        passed_over(problem, "not trusted; what it names may go" if revoked else "not trusted; what it names is kept")
    if not found:
        say(f"everything in {where} belongs to a release\n")
        return 0
    states = {
        (True, True): "removed",
        (True, False): "would be removed: --yes",
        (False, False): f"kept for {after:g} h",
    }
    rows = tuple((one.name, instant(one.since), states[one.ripe, one.removed]) for one in found)
    say(text.table(Table(("document", "seen since", "state"), rows), style()))
    return 0


@guarded
def init_nacos(
    environment: EnvironmentOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what is missing.")] = False,
) -> int:
    """Make an environment on a Nacos.

    Its namespace, a user for publishers and one for services with no more rights than they need, and a document that
    marks it. Does only what is missing. As an administrator: set TRTOPS_NACOS_USER and TRTOPS_NACOS_PASSWORD.
    """
    from trtops.registry.nacos.setup import ROLES, user_name
    from trtops.workflow.registry import init_nacos as run
    from trtops.workflow.registry import password_file

    steps = []

    with workspace({"environment": environment}, quiet=True) as here:
        tense = "would" if dry_run else "did"

        def done(step: object) -> None:
            steps.append(step)
            say(f"{tense} {getattr(step, 'words', step)}\n")

        made = run(here, done, dry_run=dry_run)
        kept = [password_file(here.resolved, user_name(here.environment, role)) for role in ROLES]
    if not steps:
        say(f"nothing to do: {here.environment} is set up on {here.resolved.registry}\n")
    for path in made:
        say(f"its password is in {path}\n")
    if not dry_run and not all(path.exists() for path in kept):
        say("the users were made elsewhere: their passwords are where that was done, or with whoever made them\n")
    return 0
