"""Commands for who writes policies and lets be passed: lint, test, new, docs, explain, approve, try, input, bundle."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtops.cli.guard import guarded, say
from trtops.cli.options import EngineArgument, EnvironmentOption, OpaUrlOption, PolicyEngineOption, named
from trtops.cli.start import style, workspace

if TYPE_CHECKING:
    from trtops.policy.testing import Report

policy_app = typer.Typer(help="Rules: lint, test, write, explain.", no_args_is_help=True, rich_markup_mode=None)

RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="STAGE/NAME or STAGE.NAME.")]


class InputStage(str, Enum):
    """Stages whose document can be had before anything is built."""

    source = "source"
    spec = "spec"


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    policy_app.command("lint")(lint)
    policy_app.command("test")(test)
    policy_app.command("new")(new)
    policy_app.command("docs")(docs)
    policy_app.command("explain")(explain)
    policy_app.command("approve")(approve)
    policy_app.command("try")(try_)
    policy_app.command("input")(input_)
    policy_app.command("bundle")(bundle)
    app.add_typer(policy_app, name="policy")


@guarded
def lint() -> int:
    """Look for what bites later.

    Built-ins that engines treat differently, names, metadata, references that no input has; and `opa check --strict`
    where OPA is installed.
    """
    from trtops.workflow.policy import lint as run

    with workspace(quiet=True) as here:
        linted = run(here)
    for defect in linted.defects:
        say(f"{defect.location}: {defect.message}\n" + (f"  fix: {defect.fix}\n" if defect.fix else ""))
    by = "trtops and opa check --strict" if linted.opa else "trtops (opa is not installed)"
    say(f"{linted.rules} rules, {len(linted.defects)} defects; looked at by {by}\n")
    return 1 if linted.defects else 0


@guarded
def test(
    rules: Annotated[list[str] | None, typer.Argument(metavar="RULE", help="Only these rules.")] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show the lines of each file; all must be reached.")
    ] = False,
) -> int:
    """Run the rules' tests.

    In the embedded engine, and by `opa test` where OPA is installed. Every line of a rule has to be reached.
    """
    from trtops.workflow.policy import test as run

    with workspace(quiet=True) as here:
        reports = run(here, rules or ())
    for report in reports:
        _show_tests(report, coverage=coverage)
    return 0 if all(report.passed for report in reports) else 1


def _show_tests(report: Report, *, coverage: bool) -> None:
    from trtops.report import text
    from trtops.report.rows import Table

    for case in report.cases:
        if case.outcome != "passed":
            say(f"{case.location}: {case.outcome} {case.rule}: {case.name}: {case.message}\n")
    if coverage:
        rows = tuple(
            (entry.rule, str(entry.lines), f"{entry.percent:.0f} %", ", ".join(map(str, entry.missed)))
            for entry in report.coverage
        )
        say(text.table(Table(("rule", "lines", "covered", "missed lines"), rows, frozenset({1, 2})), style()))
    for entry in report.coverage:
        if entry.missed and not coverage:
            say(f"{entry.file}: no test reaches lines {', '.join(map(str, entry.missed))}\n")
    passed = sum(case.outcome == "passed" for case in report.cases)
    say(f"{report.engine}: {passed} passed, {len(report.cases) - passed} failed\n")


@guarded
def new(
    rule: Annotated[str, typer.Argument(metavar="STAGE/NAME", help="E.g. spec/owner_present.")],
    title: Annotated[str | None, typer.Option("--title", help="One line that says what holds.")] = None,
) -> int:
    """Write a new rule and its test."""
    import os

    from trtops.workflow.policy import new as run

    with workspace(quiet=True) as here:
        paths = run(here, rule, title)
    for path in paths:
        say(f"wrote {os.path.relpath(path)}\n")
    say(f"fill in what is marked, then: trtops policy test {rule}\n")
    return 0


@guarded
def docs() -> int:
    """Write a page for each rule.

    To docs/rules, from the rules' metadata; pages of rules that are gone are removed.
    """
    from trtops.workflow.policy import docs as run

    with workspace(quiet=True) as here:
        changed, count = run(here)
    for path in changed:
        say(f"wrote {path}\n")
    say(f"{count} pages, {len(changed)} of them changed\n")
    return 0


@guarded
def explain(rule: RuleArgument) -> int:
    """Say what a rule asks, and how strictly where."""
    from trtops.workflow.policy import explain as run

    with workspace(quiet=True) as here:
        say(run(here, rule))
    return 0


@guarded
def approve(
    waiver: Annotated[str, typer.Argument(metavar="WAIVER", help="Name of a file in governance/waivers.")],
    key: Annotated[
        str, typer.Option("--as", metavar="KEY", help="Name of a key of this home, or a private key's path.")
    ],
    repository: Annotated[
        str | None, typer.Option("--repository", metavar="NAME", help="What it is called, where no base says so.")
    ] = None,
) -> int:
    """Sign a waiver as its approver.

    It then counts before it is merged, in this repository alone: its name is read from the base (TRTOPS_POLICIES_FROM,
    else the default branch of `origin`), since who proposes the waiver wrote the working tree. Whose key counts for
    whom stands in policies/data/approvals.yaml (of the base, on a pull request).
    """
    import os

    from trtops.workflow.approve import approve_waiver as run

    with workspace(quiet=True) as here:
        done = run(here, waiver, key, repository=repository)
    say(f"signed {os.path.relpath(done.path)}, key {done.key}\n")
    say(f"signed for {done.repository}, as {done.base} says; it counts in no other repository\n")
    if done.refusal is not None:
        say(f"it does not count yet: {done.refusal}\n")
    return 0


@guarded
def try_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An input document, JSON or YAML.")],
    environment: EnvironmentOption = None,
    policy_engine: PolicyEngineOption = None,
    opa_url: OpaUrlOption = None,
) -> int:
    """Judge an input document from a file."""
    from trtops.report import text
    from trtops.workflow.policy import try_document

    with workspace({"environment": environment, "engine": named(policy_engine), "opa_url": opa_url}) as here:
        verdict = try_document(here, file)
    say(text.verdict(verdict, style()))
    return 1 if verdict.decision == "deny" else 0


@guarded
def input_(
    engine: EngineArgument,
    stage: Annotated[InputStage, typer.Option("--stage", help="Which document.")] = InputStage.spec,
    environment: EnvironmentOption = None,
) -> int:
    """Print what policies see of an engine."""
    from trtops.workflow.policy import input_of

    with workspace({"environment": environment}) as here:
        say(input_of(here, engine, stage.value))
    return 0


@guarded
def bundle(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where it is written.")] = Path(
        "bundle.tar.gz"
    ),
    policies_from: Annotated[
        str | None, typer.Option("--policies-from", metavar="REF", help="Of this git revision.")
    ] = None,
) -> int:
    """Write one OPA bundle of all that judges."""
    from trtops.workflow.policy import bundle as run

    with workspace(quiet=True) as here:
        policies = run(here, out, policies_from=policies_from)
    say(f"wrote {out}: {len(policies.rules)} rules, revision {policies.digest}\n")
    return 0
