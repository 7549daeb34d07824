"""What a change to policies, data, enforcement or waivers would do once it is merged.

A pull request is judged by the policies of its base: nobody judges, or waives, their own change. So that its reviewers
see what they merge, the same documents are judged by the changed policies as well, as if they were merged, and the
findings that differ are told. They count nothing: only policies that cannot be evaluated at all do, since they would
break every check to come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops.errors import TrtopsError, Undecided
from trtops.policy.governance import ENFORCEMENT_FILE
from trtops.report.checks import Effect, Failure, Proposal
from trtops.report.labels import label
from trtops.workflow.check import subject_of
from trtops.workflow.judge import judge_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.policy.gate import Gate
    from trtops.policy.governance import WaiverDocument
    from trtops.policy.port import PolicyEngine, PolicySet, Rule
    from trtops.policy.verdict import Finding, Stage, Verdict
    from trtops.workflow.check import Checked
    from trtops.workflow.workspace import Workspace

CHANGED = "the changed policies"
"""Subject of what is wrong with them as a whole."""

_STAGES: tuple[Stage, ...] = ("source", "spec")


def propose(workspace: Workspace, gate: Gate, checked: Sequence[Checked], *, whole: bool) -> Proposal | None:
    """Judge by the working tree's policies what a gate has judged by those of the base.

    Args:
        workspace: the repository.
        gate: what judged.
        checked: what it judged.
        whole: as of :func:`trtops.workflow.check.check_all`.

    Returns:
        What would change; None where the policies are the same.
    """
    from trtops.policy.loader import load_policies

    before = gate.policies.digest
    try:
        # As merged: that is what is asked, and a waiver counts only then.
        policies = replace(load_policies(workspace.root), merged=True)
    except Undecided as error:
        return Proposal(before, None, failures=(Failure(CHANGED, error),))
    if policies.digest == before:
        return None
    try:
        engine = _engine(workspace, policies)
    except Undecided as error:
        return Proposal(before, policies.digest, note=f"what it would do cannot be told here: {error.what}")
    try:
        return _compare(replace(gate, policies=policies, engine=engine), checked, before=gate, whole=whole)
    finally:
        engine.close()


def _engine(workspace: Workspace, policies: PolicySet) -> PolicyEngine:
    """An engine of our own: what nobody reviewed yet is uploaded to no server that judges for others.

    Raises:
        Undecided: the environment demands OPA, and its binary is not here.
    """
    from trtops.policy.engines import open_engine

    settings = workspace.resolved.settings
    choice = "opa" if settings.opa_url is not None else settings.engine
    return open_engine(policies, environment=workspace.environment, choice=choice)


def _compare(proposed: Gate, checked: Sequence[Checked], *, before: Gate, whole: bool) -> Proposal:
    found: list[Effect] = []
    failures: list[Failure] = []
    for stage in _STAGES:
        judged = [(one, verdict) for one in checked for verdict in one.verdicts if verdict.stage == stage]
        if not judged:
            continue
        subjects = [subject_of(one, stage, proposed) for one, _ in judged]
        answers = judge_each(proposed, stage, subjects, whole=whole)
        for (one, verdict), answer in zip(judged, answers, strict=True):
            if isinstance(answer, TrtopsError):
                failures.append(Failure(f"{one.spec.name} by {CHANGED}", answer))
            else:
                found += effects(verdict, answer)
    return Proposal(
        before.policies.digest,
        proposed.policies.digest,
        edits=tuple(edits(before.policies, proposed.policies, proposed.environment)),
        judged=len(checked),
        effects=tuple(sorted(found, key=lambda effect: (effect.subject, effect.stage, effect.rule))),
        failures=tuple(failures),
    )


def edits(before: PolicySet, after: PolicySet, environment: str) -> Iterator[str]:
    """What differs between two policy sets, one line each. Pure.

    A rule that nothing breaks today changes no verdict when it is taken away; its reviewers are told all the same.
    """
    old = {rule.id: rule for rule in before.rules}
    new = {rule.id: rule for rule in after.rules}
    yield from (f"rule {name} taken away" for name in old if name not in new)
    yield from (f"rule {name} added" for name in new if name not in old)
    for name in sorted(old.keys() & new.keys()):
        if old[name].file.text != new[name].file.text:
            yield f"rule {name} changed"
        was, now = _level(before, old[name], environment), _level(after, new[name], environment)
        if was != now:
            yield f"rule {name}: {was} becomes {now} in {environment}"
    waivers = [{waiver.id: waiver.document for waiver in each.waivers} for each in (before, after)]
    for name in sorted(waivers[0].keys() | waivers[1].keys()):
        if name not in waivers[1]:
            yield f"waiver {name} taken away"
        elif name not in waivers[0]:
            yield f"waiver {name} added: {_said(waivers[1][name])}"
        elif waivers[0][name] != waivers[1][name]:
            yield f"waiver {name} changed: {_said(waivers[1][name])}"
    yield from _files(before, after)


def _level(policies: PolicySet, rule: Rule, environment: str) -> str:
    if environment not in policies.enforcement.environments:
        return "nothing"
    return policies.enforcement.level_of(rule.id, rule.metadata.level, environment)[0]


def _said(waiver: WaiverDocument | None) -> str:
    if waiver is None:
        return "it cannot be read"
    return f"{waiver.rule} of {waiver.selector.engine} until {waiver.expires}, approved by {waiver.approver}"


def _files(before: PolicySet, after: PolicySet) -> Iterator[str]:
    """Shared files that differ: libraries, data, enforcement."""
    for path in sorted(before.files.keys() | after.files.keys()):
        shared = path.startswith(("policies/lib/", "policies/data/")) or path == ENFORCEMENT_FILE
        if shared and not path.endswith("_test.rego") and before.files.get(path) != after.files.get(path):
            word = "added" if path not in before.files else "taken away" if path not in after.files else "changed"
            yield f"{path} {word}"


def effects(before: Verdict, after: Verdict) -> Iterator[Effect]:
    """The findings of two verdicts on one document that appear, vanish, or mean something else. Pure.

    A finding is the same one if its rule and its place are: a message names limits, which may have moved.
    """
    places = dict.fromkeys([*map(_place, before.findings), *map(_place, after.findings)])
    for place in places:
        old = [finding for finding in before.findings if _place(finding) == place]
        new = [finding for finding in after.findings if _place(finding) == place]
        for was, now in _pairs(old, new):
            if was is None or now is None or label(was) != label(now):
                yield Effect(before.subject, before.stage, was, now)


def _place(finding: Finding) -> tuple[object, ...]:
    # What is said of a waiver has no place in the document; its words tell it from others.
    words = finding.message if finding.rule.startswith("governance.") else ""
    return (finding.rule, finding.path, words)


def _pairs(old: Sequence[Finding], new: Sequence[Finding]) -> Iterator[tuple[Finding | None, Finding | None]]:
    """Pair findings of one place: those of the same words, then the rest in their order."""
    rest = [*new]
    unpaired: list[Finding] = []
    for was in old:
        same = next((now for now in rest if now.message == was.message), None)
        if same is None:
            unpaired.append(was)
            continue
        rest.remove(same)
        yield was, same
    for number in range(max(len(unpaired), len(rest))):
        yield (
            unpaired[number] if number < len(unpaired) else None,
            rest[number] if number < len(rest) else None,
        )
