"""``trtops policy``: what a platform owner does with rules."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops.errors import InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from trtops.policy.port import PolicySet
    from trtops.policy.soundness import Defect
    from trtops.policy.testing import Report
    from trtops.policy.verdict import Stage, Verdict
    from trtops.workflow.workspace import Workspace


@dataclass(frozen=True)
class Linted:
    """Defects, and what was looked at. ``opa`` tells whether ``opa check --strict`` had its say, too."""

    rules: int
    defects: tuple[Defect, ...]
    opa: bool


def today(workspace: Workspace) -> dt.date:
    """The day (UTC) that the workspace's clock tells."""
    return dt.datetime.fromtimestamp(workspace.clock(), tz=dt.timezone.utc).date()


def lint(workspace: Workspace) -> Linted:
    """Look for what makes rules differ between engines, pass by accident, or go without documentation.

    Raises:
        Undecided: the policies cannot be read, or OPA is there and cannot be run.
    """
    import os

    from trtops.policy.engines import find_opa
    from trtops.policy.lint import lint as run
    from trtops.policy.lint import strict_check
    from trtops.policy.loader import load_policies

    policies = load_policies(workspace.root)
    binary = find_opa(os.environ)
    defects = run(policies, today=today(workspace))
    if binary is not None:
        defects += strict_check(policies, binary)
    return Linted(len(policies.rules), defects, binary is not None)


def test(workspace: Workspace, only: Collection[str]) -> tuple[Report, ...]:
    """Run the rules' tests in the embedded engine, and in OPA where it is installed.

    Args:
        workspace: whose policies.
        only: ids of rules and libraries; empty: all.

    Raises:
        Undecided: the policies cannot be read, a rule is unknown, or OPA is there and cannot be run.
    """
    import os

    from trtops.policy.engines import find_opa
    from trtops.policy.loader import load_policies
    from trtops.policy.testing import run_embedded, run_opa

    policies = load_policies(workspace.root)
    named = [rule.replace("/", ".") for rule in only] or None
    reports = [run_embedded(policies, only=named)]
    binary = find_opa(os.environ)
    if binary is not None:
        reports.append(run_opa(policies, binary, only=named))
    return tuple(reports)


def new(workspace: Workspace, rule: str, title: str | None) -> tuple[Path, ...]:
    """Write the folder of a rule: the rule and its test, with one place to fill in.

    Raises:
        InputError: the name is none, or the rule exists.
        StorageError: the disk refused.
    """
    import trtops
    from trtops.policy.scaffold import new_rule

    return new_rule(workspace.root, rule, since=trtops.__version__, title=title)


def docs(workspace: Workspace) -> tuple[tuple[str, ...], int]:
    """Write a page for each rule, and their index.

    Returns:
        Paths of the pages that differ from what was there, or are gone, relative to the root; and how many there are.

    Raises:
        Undecided: the policies cannot be read.
        StorageError: a page cannot be written.
    """
    from trtops.policy.loader import load_policies
    from trtops.policy.pages import FOLDER, write

    try:
        changed, count = write(load_policies(workspace.root), workspace.root)
    except OSError as error:
        where = str(error.filename or workspace.root / FOLDER)
        raise StorageError(f"a page cannot be written: {error.strerror}", where=where, fix="free the path") from error
    return changed, count


def explain(workspace: Workspace, rule: str) -> str:
    """A rule in words: what it asks, its level in each environment, its waivers.

    Raises:
        Undecided: no such rule, or it cannot be read.
    """
    from trtops.policy.explain import explain as run
    from trtops.policy.loader import load_policies

    return run(load_policies(workspace.root), rule, today=today(workspace))


def bundle(workspace: Workspace, path: Path, *, policies_from: str | None = None) -> PolicySet:
    """Write one OPA bundle with everything that judges; its revision is the digest that verdicts name.

    Raises:
        Undecided: the policies cannot be read.
        StorageError: the file could not be written.
    """
    from trtops.durable import write_durably
    from trtops.policy.bundle import bundle as pack
    from trtops.policy.loader import load_policies

    policies = load_policies(workspace.root, revision=policies_from)
    if path.is_dir():
        raise StorageError(f"{path} is a folder", fix="give the path of a file, such as bundle.tar.gz")
    write_durably(path, [pack(policies)])
    return policies


def try_document(workspace: Workspace, path: Path) -> Verdict:
    """Judge an input document as it stands in a file (JSON or YAML); its ``schema`` names the stage.

    Raises:
        InputError: the file is no input document.
        Undecided: a policy could not be evaluated.
    """
    from trtops.document import load_document
    from trtops.policy.gate import Subject
    from trtops.workflow.judge import open_gate

    document = load_document(path)
    stage = _stage_of(document.data, path)
    name = str(document.data.get("engine", path.stem))
    with open_gate(workspace) as gate:
        return gate.judge(stage, Subject(name, name, document.data, lambda place, _: document.locate(place)))


def _stage_of(data: dict[str, Any], path: Path) -> Stage:
    from trtops.policy.inputs import input_model
    from trtops.policy.port import STAGES

    schema = data.get("schema")
    known = {input_model(stage).model_fields["schema_id"].default: stage for stage in STAGES}
    if isinstance(schema, str) and schema in known:
        return known[schema]
    raise InputError(
        f"this is no input document that policies know: its schema is {schema!r}",
        where=str(path),
        fix=f"`trtops policy input ENGINE` writes one; schema is one of {', '.join(known)}",
    )


def input_of(workspace: Workspace, engine: str, stage: Stage) -> str:
    """The input document of an engine for the stage ``source`` or ``spec``, as policies see it, as JSON.

    Raises:
        InputError: the stage has no document before something is built.
        TrtopsError: as for a check.
    """
    from trtops.workflow.check import check, folders_of, source_document, spec_document
    from trtops.workflow.judge import open_gate

    if stage not in ("source", "spec"):
        raise InputError(
            f"the stage {stage} judges what is built and released",
            fix="give --stage source or --stage spec; docs/concepts/policy-inputs.md describes all four",
        )
    (folder,) = folders_of(workspace, [engine])
    with open_gate(workspace) as gate:
        checked = check(workspace, folder, gate)
        if stage == "source" or checked.preflight is None:
            document = source_document(checked, workspace.environment)
        else:
            document = spec_document(checked, checked.preflight, gate)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
