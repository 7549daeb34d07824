"""Commands on releases: release, promote, approve, status, history, rollback, verify-release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtops.cli.guard import complain, guarded, say
from trtops.cli.options import (
    EngineArgument,
    EnvironmentOption,
    JsonOption,
    OpaUrlOption,
    PolicyEngineOption,
    TargetOption,
    named,
)
from trtops.cli.start import style, workspace


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (release, promote, approve, status, history, rollback):
        app.command()(command)
    app.command("verify-release")(verify_release)


@guarded
def release(
    engine: EngineArgument,
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
    target: TargetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge everything, publish nothing.")] = False,
    json: JsonOption = False,
) -> int:
    """Gate the evidence, sign, move the channel.

    What is built and measured already is reused.
    """
    from trtops.cli.engine import show_shipment
    from trtops.errors import TrtopsError
    from trtops.workflow.check import folders_of
    from trtops.workflow.ship import Options, Shipment, ship

    shipment = Shipment()
    failure: TrtopsError | None = None
    flags = {"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}
    with workspace(flags, quiet=json) as here:
        (folder,) = folders_of(here, [engine])
        try:
            ship(here, folder, Options(only=tuple(target or ()), publish=not dry_run), shipment)
        except TrtopsError as error:
            failure = error
    show_shipment(shipment, json=json)
    return complain(failure) if failure is not None else 0


@guarded
def promote(
    engine: EngineArgument,
    to: Annotated[str, typer.Option("--to", metavar="ENV", help="Environment to move it to.")],
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
) -> int:
    """Move what runs in one environment to another.

    The same digests, with the other environment's runtime config, judged by its gates. --env is where it comes from.
    """
    from trtops.report import text
    from trtops.workflow.check import folders_of
    from trtops.workflow.judge import open_gate
    from trtops.workflow.promote import promote as run

    flags = {"engine": named(policy_engine), "opa_url": opa_url}
    with workspace({"environment": environment, **flags}, quiet=True) as there:
        source = there.environment
    with workspace({"environment": to, **flags}) as here, open_gate(here) as gate:
        (folder,) = folders_of(here, [engine])
        done = run(here, folder, source, gate)
    for verdict in done.verdicts:
        say(text.brief(verdict, style()))
    published = done.released.published
    new = f"from {done.source} generation {done.generation}" if published.new else "nothing new"
    new += ", beside the stable release: trtops rollout status" if published.rollout else ""
    say(
        f"{done.released.release.engine}: generation {published.generation} in {to} ({new}), "
        f"release {published.release.short}, config {published.config.short}\n"
    )
    return 0


@guarded
def approve(
    what: Annotated[str, typer.Argument(metavar="RELEASE", help="ENGINE: what runs; or ENGINE@sha256:…")],
    key: Annotated[
        str, typer.Option("--as", metavar="KEY", help="Name of a key of this home, or a private key's path.")
    ],
    environment: EnvironmentOption = None,
) -> int:
    """Approve a release.

    Signs its digest: whatever changes in it voids the approval. Whose approval counts, and how many it takes, stands in
    policies/data/approvals.yaml; nobody approves their own.
    """
    from trtops.workflow.approve import approve as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, what, key)
        where = here.environment
    made = done.made
    targets = ", ".join(artifact.target for artifact in made.artifacts)
    say(f"interface {made.contract.version}, tier {made.tier}, targets {targets}, commit {made.commit or 'unknown'}\n")
    say(f"{'approved' if done.new else 'approved already'}: {done.engine}@{done.release} in {where}, key {done.key}\n")
    return 0


@guarded
def status(
    engine: Annotated[str | None, typer.Argument(metavar="ENGINE", help="Only this engine.")] = None,
    environment: EnvironmentOption = None,
    service: Annotated[
        list[str] | None,
        typer.Option("--service", metavar="URL", help="Control port of a service, set beside; may be given again."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show what each channel names now.

    With --service also what runs: generation, release and device of each service, and whether it is what is named.
    """
    from trtops.report import jsonout, text
    from trtops.report.running import pairing_table
    from trtops.workflow.release import problems_of
    from trtops.workflow.release import status as run
    from trtops.workflow.running import compare

    name = Path(engine).name if engine else None
    with workspace({"environment": environment}, quiet=True) as here:
        found = run(here, name)
        now = here.now()
        compared = compare(found, service or (), here.environment, name)
    bindings = [one.binding for one in found if one.binding is not None]
    if json:
        say(jsonout.bindings(bindings, compared.pairings if service else None))
    elif bindings or not found:
        say(text.status(bindings, style(), now=now))
    if compared.pairings and not json:
        say("\n" + text.table(pairing_table(compared.pairings), style()))
    wrong = (*(problem for _, problem in problems_of(found)), *compared.problems)
    return max([0, *(complain(problem) for problem in wrong)])


@guarded
def verify_release(
    engine: EngineArgument,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="FILE", help="Trusted keys (default: this home's root.json).")
    ] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Check all that vouches for a release.

    As a service would: signatures, digests, history, proofs of every target, and the bytes in the store. With a copied
    registry and store it needs no network. 2 if something does not hold, or a secret of its config is not sealed yet.
    """
    from trtops.report import text
    from trtops.report.rows import Outcome, Table
    from trtops.workflow.verify import verify_release as run

    with workspace({"environment": environment}, quiet=True) as here:
        found = run(here, Path(engine).name, root)
    states: dict[bool | None, tuple[str, Outcome]] = {
        True: ("holds", "done"),
        False: ("FAILS", "failed"),
        None: ("absent", "skipped"),
    }
    rows = tuple((one.subject, states[one.holds][0], one.words) for one in found)
    say(
        text.table(Table(("what", "state", "found"), rows, tones=tuple(states[one.holds][1] for one in found)), style())
    )
    return 2 if any(one.holds is False for one in found) else 0


@guarded
def history(engine: EngineArgument, environment: EnvironmentOption = None, json: JsonOption = False) -> int:
    """Show every move of a channel.

    Newest first; the chain of signatures is verified. 2 where the newest is signed by a key that was revoked since:
    it is shown, and does not count.
    """
    from trtops.report import jsonout, text
    from trtops.workflow.release import history as run

    with workspace({"environment": environment}, quiet=True) as here:
        found = run(here, Path(engine).name)
    listed = tuple(link.binding for link in found.links)
    revoked = {link.binding.digest(): link.revoked.what for link in found.links if link.revoked is not None}
    say(jsonout.history(listed, revoked) if json else text.history(listed, style(), revoked=revoked))
    return max((complain(problem) for problem in found.problems), default=0)


@guarded
def rollback(
    engine: EngineArgument,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="GENERATION", help="Bring back this one (default: what ran before).", min=1),
    ] = None,
    reject: Annotated[
        str | None,
        typer.Option("--reject", metavar="REASON", help="Put what runs now in quarantine: nothing releases it again."),
    ] = None,
    environment: EnvironmentOption = None,
) -> int:
    """Bring back an earlier generation.

    As a new generation, so that services take it; the engine and config releases are those of before. A rollout that is
    open is aborted by it. What nobody vouches for but a revoked key is passed over, and told: it goes back to the
    newest that still counts.
    """
    from trtops.cli.guard import passed_over
    from trtops.workflow.release import rollback as run

    with workspace({"environment": environment}, quiet=True) as here:
        done = run(here, Path(engine).name, to, reject)
    for problem in done.skipped:
        passed_over(problem, "passed over")
    binding = done.binding
    say(
        f"{binding.engine}: generation {binding.generation} in {binding.environment} ({binding.reason}), "
        f"release {binding.engine_release.short}, config {binding.config_release.short}\n"
    )
    return 0
