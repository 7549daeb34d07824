"""Opens what judges: the policies of the repository or of a revision, and the engine that evaluates them."""

from __future__ import annotations

import datetime as dt
import os
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trtops.settings import ROOT_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.errors import TrtopsError
    from trtops.policy.gate import Gate, Subject
    from trtops.policy.verdict import Stage, Verdict
    from trtops.workflow.git import Git
    from trtops.workflow.workspace import Workspace

_IN_A_ROW = 3
"""After so many failures in a row the engine, not the document, is to blame: nothing more is asked of it."""


def set_by(workspace: Workspace, revision: str) -> Workspace:
    """The workspace with the settings of a git revision in place of the working tree's.

    ``trtops.toml`` chooses who evaluates, for which environment, and where what was remembered lies: whose change is
    judged chooses none of these. Flags and the environment's variables hold as before.

    Raises:
        InputError: the revision's settings are wrong.
        Undecided: git knows no such revision, or tracks files of ``TRTOPS_HOME``.
    """
    from trtops.settings import with_file
    from trtops.workflow.git import Git

    git = Git(workspace.root)
    content = git.content(git.commit(revision), ROOT_FILE) or b""
    here = replace(workspace, resolved=with_file(workspace.resolved, content, f"{revision}:{ROOT_FILE}"))
    _demand_own_memory(here, git)
    return here


def _demand_own_memory(workspace: Workspace, git: Git) -> None:
    """Refuse what a change brings along as if it had been found here before: what preflight says of a model.

    Raises:
        Undecided: git tracks it, or a link on the way to it.
    """
    from trtops.errors import Undecided
    from trtops.workflow.preflights import FOLDER

    place = workspace.resolved.home / FOLDER
    root = os.path.normpath(workspace.root)
    inside = [path for path in (place, *place.parents) if os.path.normpath(path).startswith(f"{root}{os.sep}")]
    for path in inside:
        if (path == place or path.is_symlink()) and git.tracked(os.path.relpath(path, root)):
            raise Undecided(
                "git tracks files of TRTOPS_HOME: what is remembered of models may be somebody's invention",
                where=str(path),
                fix="take it out (`git rm -r --cached`) and ignore it, or set TRTOPS_HOME to a folder outside",
            )


@contextmanager
def open_gate(workspace: Workspace, *, policies_from: str | None = None) -> Iterator[Gate]:
    """A gate for the workspace's environment, on the day that its clock tells (UTC).

    Args:
        workspace: whose settings choose the engine.
        policies_from: git revision to read policies, data, enforcement and waivers from; None: that of the settings,
            without one the working tree.

    Raises:
        Undecided: policies cannot be read, or the engine that the environment demands is not there.
    """
    from trtops.policy.engines import open_engine
    from trtops.policy.gate import Gate
    from trtops.policy.loader import load_policies, with_proposed
    from trtops.workflow.consent import Past, refusal
    from trtops.workflow.git import Git

    settings = workspace.resolved.settings
    policies_from = settings.policies_from if policies_from is None else policies_from
    policies = load_policies(workspace.root, revision=policies_from)
    past = None
    if policies_from is not None:
        policies = with_proposed(policies, workspace.root)
        git = Git(workspace.root)
        past = Past(git, git.commit(policies_from))
    engine = open_engine(
        policies,
        environment=workspace.environment,
        choice=settings.engine,
        opa_url=settings.opa_url,
        opa_token=settings.opa_token,
        opa_ca=settings.opa_ca,
    )
    try:
        today = dt.datetime.fromtimestamp(workspace.clock(), tz=dt.timezone.utc).date()
        yield Gate(policies, engine, workspace.environment, today, refusal=partial(refusal, policies, past))
    finally:
        engine.close()


def judge_each(
    gate: Gate, stage: Stage, subjects: Sequence[Subject], *, whole: bool = False
) -> list[Verdict | TrtopsError]:
    """Judge many documents at once; where that cannot be decided, one by one, so that a bad one hides no other.

    Returns:
        A verdict, or why there is none, for each document, in their order.
    """
    from trtops.errors import Undecided

    if not subjects:
        return []
    try:
        return [*gate.judge_all(stage, subjects, whole=whole)]
    except Undecided as error:
        if len(subjects) == 1:
            return [error]
    answers: list[Verdict | TrtopsError] = []
    failures: list[Undecided] = []  # in a row
    for subject in subjects:
        if len(failures) == _IN_A_ROW:
            last = failures[-1]
            what = f"not judged, since {_IN_A_ROW} before it could not be: {last.what}"
            answers.append(Undecided(what, where=last.where, fix=last.fix))
            continue
        try:
            answers.append(gate.judge(stage, subject))
            failures.clear()
        except Undecided as error:
            failures.append(error)
            answers.append(error)
    return answers
