"""The command that tells what is wrong here."""

from __future__ import annotations

import typer  # noqa: TC002 - read at run time

from trtops.cli.guard import guarded, say
from trtops.cli.options import EnvironmentOption, OpaUrlOption, PolicyEngineOption, named
from trtops.cli.start import style, workspace


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


@guarded
def doctor(
    environment: EnvironmentOption = None, policy_engine: PolicyEngineOption = None, opa_url: OpaUrlOption = None
) -> int:
    """Tell what is wrong here, and what to do.

    Store, registry, keys, secrets, policies and backends, as the settings name them; 2 if something will fail. Changes
    nothing.
    """
    from trtops.report import text
    from trtops.report.rows import Outcome, Table
    from trtops.workflow.doctor import examine

    with workspace(
        {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}, quiet=True
    ) as here:
        found = examine(here)
    tones: dict[str, Outcome] = {"good": "done", "note": "warned", "bad": "failed"}
    rows = tuple((one.subject, one.state, one.words + (f"; {one.fix}" if one.fix else "")) for one in found)
    say(text.table(Table(("what", "state", "found"), rows, tones=tuple(tones[one.state] for one in found)), style()))
    return 2 if any(one.state == "bad" for one in found) else 0
