"""Verdicts: levels, waivers, places, and answers that are none."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.policies import ENFORCEMENT, METADATA, OWNER, WORKSPACE, document, repository, write, write_rule
from trtops.errors import Location, Undecided
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.engines import find_opa, open_engine
from trtops.policy.gate import Gate, Subject
from trtops.policy.governance import parse_waiver
from trtops.policy.loader import load_policies
from trtops.release.keys import Signer
from trtops.release.waivers import refusal, sign_waiver, with_signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtops.policy.verdict import Finding, Verdict

TODAY = dt.date(2026, 3, 1)
NAME = "acme/engines"
WAIVER = """\
apiVersion: trtops/v1
kind: Waiver
rule: spec.workspace_bounded
selector: {engine: large-*, path: memory.*}
reason: the new pool comes in April
owner: team-a
approver: team-b
granted: 2026-02-01
expires: 2026-04-01
"""


class Scripted:
    """An engine that answers what it is told."""

    name = "embedded"
    version = "scripted 1"

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def evaluate(self, stage: str, documents: Sequence[Mapping[str, Any]]) -> list[Any]:
        assert stage == "spec"
        assert documents
        return list(self.answers)

    def close(self) -> None:
        pass


def judge(
    root: Path, *subjects: Subject, environment: str = "local", today: dt.date = TODAY, whole: bool = False, **more: Any
) -> tuple[Verdict, ...]:
    policies = load_policies(root)
    gate = Gate(policies, EmbeddedEngine(policies), environment, today, **more)
    return gate.judge_all("spec", subjects, whole=whole)


def large(name: str = "large-one", size: int = 200) -> Subject:
    return Subject(name, name, document(owner="a", memory={"workspace": size}))


def waivers(root: Path, **files: str) -> Path:
    return write(root, {f"governance/waivers/{name.replace('_', '-')}.yaml": text for name, text in files.items()})


def said(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.rule.startswith("governance.")]


def test_a_verdict_names_what_made_it(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    (verdict,) = judge(tmp_path, large())
    assert verdict.policies == policies.digest
    assert verdict.engine.startswith("embedded regorus ")
    assert verdict.rules == ("spec.owner_present", "spec.workspace_bounded")
    assert type(verdict).model_validate_json(verdict.canonical_bytes()) == verdict
    assert judge(tmp_path, large(size=201))[0].input != verdict.input


def test_the_place_is_asked_for_by_path(tmp_path: Path) -> None:
    asked: list[tuple[Any, str]] = []

    def locate(path: tuple[str | int, ...], kind: str) -> Location | None:
        asked.append((path, kind))
        return Location("engine.yaml", 7, 3) if path == ("memory", "workspace") else None

    repository(tmp_path)
    subject = Subject("x", "x", document(memory={"workspace": 101}), locate)
    owner, workspace = judge(tmp_path, subject)[0].findings
    assert asked == [(("owner",), "engine"), (("memory", "workspace"), "engine")]
    assert owner.location is None
    assert str(workspace.location) == "engine.yaml:7:3"


@pytest.mark.parametrize(
    ("extra", "metadata", "level"),
    [
        ("", None, "soft"),
        ("", "hard", "hard"),
        ("rules: {spec.workspace_bounded: advisory}\n", "hard", "advisory"),
        ("ENV level: advisory", None, "advisory"),
        ("ENV level: advisory", "hard", "hard"),
        ("ENV rules: {spec.workspace_bounded: advisory}", "hard", "advisory"),
        ("ENV rules: {spec.workspace_bounded: hard}|rules: {spec.workspace_bounded: advisory}\n", None, "hard"),
    ],
)
def test_the_nearest_level_counts(tmp_path: Path, extra: str, metadata: str | None, level: str) -> None:
    text = ENFORCEMENT
    for part in filter(None, extra.split("|")):
        if part.startswith("ENV "):
            text = text.replace("waivers: any", f"waivers: any, {part[4:]}")
        else:
            text += part
    root = repository(tmp_path, enforcement=text)
    if metadata:
        block = METADATA.replace('"0.1"\n', f'"0.1"\n#   level: {metadata}\n')
        write_rule(root, WORKSPACE, name="workspace_bounded", metadata=block)
    (verdict,) = judge(root, large())
    assert [finding.level for finding in verdict.findings] == [level]
    assert verdict.decision == ("warn" if level == "advisory" else "deny")


@pytest.mark.parametrize(("severity", "decision"), [("deny", "deny"), ("warn", "warn"), ("info", "allow")])
def test_severity_decides(tmp_path: Path, severity: str, decision: str) -> None:
    root = repository(tmp_path, {})
    write_rule(root, OWNER, metadata=METADATA.replace("severity: deny", f"severity: {severity}"))
    assert judge(root, Subject("x", "x", document()))[0].decision == decision


def test_an_unknown_environment(tmp_path: Path) -> None:
    repository(tmp_path)
    with pytest.raises(Undecided, match="unknown environment 'pord'; did you mean 'prod'"):
        judge(tmp_path, large(), environment="pord")


def test_an_environment_that_demands_opa(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    with pytest.raises(Undecided, match="demands the engine opa"):
        judge(tmp_path, large(), environment="prod")
    nothing = {"PATH": str(tmp_path)}
    with pytest.raises(Undecided, match="demands the engine opa, not the embedded"):
        open_engine(policies, environment="prod", choice="embedded", environ=nothing)
    with pytest.raises(Undecided, match="not on PATH"):
        open_engine(policies, environment="prod", environ=nothing)
    with pytest.raises(Undecided, match="it was asked for"):
        open_engine(policies, environment="local", choice="opa", environ=nothing)
    assert open_engine(policies, environment="local", environ=nothing).name == "embedded"


def test_auto_takes_opa_where_it_is(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path / "r"))
    binary = tmp_path / "opa"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert open_engine(policies, environment="local", environ={"PATH": str(tmp_path)}).name == "opa"
    assert open_engine(policies, environment="prod", environ={"PATH": "", "TRTOPS_OPA": str(binary)}).name == "opa"
    assert open_engine(policies, environment="local", opa_url="http://127.0.0.1:1", environ={"PATH": ""}).name == "opa"
    embedded = open_engine(policies, environment="local", choice="embedded", environ={"PATH": str(tmp_path)})
    assert embedded.name == "embedded"
    with pytest.raises(Undecided, match="TRTOPS_OPA names no program"):
        find_opa({"TRTOPS_OPA": str(tmp_path / "gone")})


def test_a_waived_finding_stays_visible(tmp_path: Path) -> None:
    root = waivers(repository(tmp_path), big=WAIVER)
    waived, denied = judge(root, large(), large("other"))
    assert [finding.waived_by for finding in waived.findings] == ["big"]
    assert waived.decision == "warn"
    assert [finding.waived_by for finding in denied.findings] == [None]
    assert denied.decision == "deny"


@pytest.mark.parametrize(
    ("selector", "counts"),
    [
        ("{engine: large-one}", True),
        ("{engine: large-one, path: memory.workspace}", True),
        ("{engine: large-one, path: 'memory.*'}", True),
        ("{engine: large-one, path: memory}", False),
        ("{engine: large-one, path: memory.pinned_pool}", False),
        ("{engine: large-two}", False),
        ("{engine: '*'}", True),
        ("{engine: large-one, environments: [local, prod]}", True),
        ("{engine: large-one, environments: [prod]}", False),
    ],
)
def test_a_waiver_is_for_what_it_selects(tmp_path: Path, selector: str, counts: bool) -> None:
    text = WAIVER.replace("{engine: large-*, path: memory.*}", selector)
    (verdict,) = judge(waivers(repository(tmp_path), big=text), large())
    assert (verdict.findings[0].waived_by == "big") == counts
    assert verdict.decision == ("warn" if counts else "deny")


def test_a_waiver_of_another_rule_lets_nothing_pass(tmp_path: Path) -> None:
    text = WAIVER.replace("workspace_bounded", "owner_present")
    (verdict,) = judge(waivers(repository(tmp_path), big=text), large())
    assert verdict.decision == "deny"


@pytest.mark.parametrize(
    ("today", "kind"),
    [
        (dt.date(2026, 1, 31), "waiver_invalid"),
        (dt.date(2026, 2, 1), None),
        (dt.date(2026, 4, 1), None),
        (dt.date(2026, 4, 2), "waiver_expired"),
    ],
)
def test_a_waiver_holds_from_day_to_day(tmp_path: Path, today: dt.date, kind: str | None) -> None:
    (verdict,) = judge(waivers(repository(tmp_path), big=WAIVER), large(), today=today)
    assert [finding.rule for finding in said(verdict)] == ([f"governance.{kind}"] if kind else [])
    assert verdict.decision == ("deny" if kind else "warn")
    for finding in said(verdict):
        assert finding.location is not None
        assert finding.location.line == (9 if kind == "waiver_expired" else 8)
        assert finding.location.file.endswith("governance/waivers/big.yaml")
        assert not finding.blocking


@pytest.mark.parametrize(
    ("old", "new", "words", "line"),
    [
        ("expires: 2026-04-01", "expires: 2026-05-03", "91 days", 9),
        ("expires: 2026-04-01", "expires: 2026-01-31", "-1 days", 9),
        ("expires: 2026-04-01", "expires: 2026-02-30", "no day", 9),
        ("expires: 2026-04-01", "expires: soon", "expires", 9),
        ("approver: team-b", "approver: Team-A", "its owner approved it", 7),
        ("approver: team-b\n", "", "approver", 1),
        ("reason: the new pool comes in April", "reason: ''", "reason", 5),
        ("owner: team-a", "owner: team-a\nseverity: info", "unknown key", 7),
        ("rule: spec.workspace_bounded", "rule: workspace", "rule", 3),
        ("selector: {engine: large-*, path: memory.*}", "selector: {}", "selector.engine", 4),
        (WAIVER, "- a", "mapping", 1),
    ],
)
def test_a_waiver_that_is_wrong_lets_nothing_pass_and_is_reported(
    tmp_path: Path, old: str, new: str, words: str, line: int
) -> None:
    assert old in WAIVER
    (verdict,) = judge(waivers(repository(tmp_path), big=WAIVER.replace(old, new)), large())
    assert verdict.decision == "deny"
    (notice,) = said(verdict)
    assert notice.rule == "governance.waiver_invalid"
    assert words in notice.message
    assert notice.location is not None
    assert notice.location.line == line
    assert notice.fix


def test_ninety_days_are_allowed(tmp_path: Path) -> None:
    text = WAIVER.replace("expires: 2026-04-01", "expires: 2026-05-02")
    (verdict,) = judge(waivers(repository(tmp_path), big=text), large())
    assert verdict.findings[0].waived_by == "big"


def test_a_hard_rule_is_not_waived(tmp_path: Path) -> None:
    text = ENFORCEMENT + "rules: {spec.workspace_bounded: hard}\n"
    (verdict,) = judge(waivers(repository(tmp_path, enforcement=text), big=WAIVER), large())
    assert verdict.decision == "deny"
    assert [finding.rule for finding in said(verdict)] == ["governance.waiver_refused"]


@pytest.mark.parametrize(
    ("signer", "changed", "group", "decision", "says"),
    [
        ("team-b", "", "team-b", "warn", ""),
        ("ann@example.org", "", "team-b", "warn", ""),  # the group approves by its member's key
        ("team-b", "", "nobody", "deny", "none of team-b"),
        ("team-a", "", "team-b", "deny", "team-a owns it and signed it"),
        ("team-b", "2026-03-16", "team-b", "deny", "changed after it was signed"),
    ],
)
def test_a_waiver_that_is_not_merged_counts_by_its_approvers_key(
    tmp_path: Path, signer: str, changed: str, group: str, decision: str, says: str
) -> None:
    text = ENFORCEMENT.replace("waivers: any", "waivers: merged")
    key = Signer.generate()
    root = waivers(repository(tmp_path, enforcement=text), big=WAIVER)
    (document_,) = (waiver.document for waiver in load_policies(root).waivers)
    assert document_ is not None
    signed = with_signature(WAIVER, sign_waiver(document_, key, NAME))
    waivers(root, big=signed.replace("2026-04-01", changed or "2026-04-01"))
    approvals = {"groups": {group: [{"key": key.key_id, "identity": signer}]}}
    if group == "nobody":
        approvals["groups"]["nobody"][0]["identity"] = "somebody"
    (verdict,) = judge(root, large(), refusal=partial(refusal, approvals=approvals, repository=NAME))
    assert verdict.decision == decision
    assert [finding.rule for finding in said(verdict)] == (["governance.waiver_unapproved"] if says else [])
    assert all(says in finding.message for finding in said(verdict))


@pytest.mark.parametrize(
    ("owner", "groups", "counts"),
    [
        ("team-a", {"team-b": ["ann@example.org"]}, True),
        ("Ann@Example.org", {"team-b": ["ann@example.org"]}, False),
        ("ann", {"team-b": ["ann@example.org"]}, False),
        ("Ann <ann@example.org>", {"team-b": ["ann@example.org"]}, False),
        ("ann@example.org\u200b", {"team-b": ["ann@example.org"]}, False),
        ("\uff41\uff4e\uff4e@example.org", {"team-b": ["ann@example.org"]}, False),
        ("anna@example.org", {"team-b": ["ann@example.org"]}, True),
        ("team-a", {"team-b": ["ann@example.org"], "team-a": ["ann@example.org"]}, False),  # of the group that owns it
        (
            "ann@example.org",
            {"team-b": ["a.smith@example.org"], "other": ["ann@example.org"]},
            False,
        ),  # by another name
    ],
)
def test_nobody_signs_for_what_they_own(owner: str, groups: dict[str, list[str]], counts: bool) -> None:
    key = Signer.generate()
    text = WAIVER.replace("owner: team-a", f'owner: "{owner}"')
    waiver = parse_waiver(text.encode(), "w.yaml", "w.yaml", ["spec.workspace_bounded"]).document
    assert waiver is not None
    signed = waiver.model_copy(update={"signature": sign_waiver(waiver, key, NAME)})
    members = {group: [{"key": key.key_id, "identity": name} for name in names] for group, names in groups.items()}
    reason = refusal(signed, {"groups": members}, NAME)
    assert reason == (None if counts else f"{owner} owns it and signed it")


@pytest.mark.parametrize(
    ("given", "here", "says"),
    [
        (NAME, NAME, None),
        ("acme/other", NAME, f"signed for the repository acme/other, and this is {NAME}"),
        (NAME.upper(), NAME, "and this is"),
        (None, NAME, f"it takes a signature for {NAME}"),
        (NAME, None, "names none"),
        (None, None, None),  # before repositories had names
    ],
)
def test_a_signature_counts_in_the_repository_that_it_was_given_for(
    given: str | None, here: str | None, says: str | None
) -> None:
    key = Signer.generate()
    waiver = parse_waiver(WAIVER.encode(), "w.yaml", "w.yaml", ["spec.workspace_bounded"]).document
    assert waiver is not None
    signed = waiver.model_copy(update={"signature": sign_waiver(waiver, key, given)})
    approvals = {"groups": {"team-b": [{"key": key.key_id, "identity": "ann"}]}}
    reason = refusal(signed, approvals, here)
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize("was", ["acme/other", None])
def test_replay_a_signature_of_elsewhere_with_this_repositorys_name_written_in(was: str | None) -> None:
    """The name is under the signature, not only beside it; nor is one of before taken for one of now."""
    key = Signer.generate()
    waiver = parse_waiver(WAIVER.encode(), "w.yaml", "w.yaml", ["spec.workspace_bounded"]).document
    assert waiver is not None
    moved = sign_waiver(waiver, key, was).model_copy(update={"repository": NAME})
    approvals = {"groups": {"team-b": [{"key": key.key_id, "identity": "ann"}]}}
    assert "does not hold" in str(refusal(waiver.model_copy(update={"signature": moved}), approvals, NAME))


@pytest.mark.parametrize("approver", ["Team-A", "team-a\u200b", "\uff54\uff45\uff41\uff4d-a", "team -a"])
def test_an_owner_approves_under_no_other_spelling(tmp_path: Path, approver: str) -> None:
    text = WAIVER.replace("approver: team-b", f'approver: "{approver}"')
    (verdict,) = judge(waivers(repository(tmp_path), big=text), large())
    assert verdict.decision == "deny"
    assert "its owner approved it" in said(verdict)[0].message


def test_a_waiver_neither_merged_nor_signed_lets_nothing_pass(tmp_path: Path) -> None:
    text = ENFORCEMENT.replace("waivers: any", "waivers: merged")
    root = waivers(repository(tmp_path, enforcement=text), big=WAIVER)
    (verdict,) = judge(root, large())
    assert verdict.decision == "deny"
    assert "neither merged" in said(verdict)[0].message
    assert "trtops policy approve big --as KEY" in (said(verdict)[0].fix or "")


def test_signing_again_replaces_the_signature_and_keeps_comments(tmp_path: Path) -> None:
    root = waivers(repository(tmp_path), big=WAIVER)
    (waiver,) = (each.document for each in load_policies(root).waivers)
    assert waiver is not None
    first, second = sign_waiver(waiver, Signer.generate(), NAME), sign_waiver(waiver, Signer.generate(), NAME)
    commented = WAIVER.replace("owner:", "# who mends it\nowner:")
    once = with_signature(commented, first)
    assert with_signature(once, second) == once.replace(first.public, second.public).replace(first.value, second.value)
    assert "# who mends it" in once


def test_an_unused_waiver_is_reported(tmp_path: Path) -> None:
    exact = WAIVER.replace("large-*", "large-one")
    root = waivers(repository(tmp_path), exact=exact, many=WAIVER)
    small = large(size=50)
    (verdict,) = judge(root, small)
    assert [finding.rule for finding in said(verdict)] == ["governance.waiver_unused"]
    assert "exact" in said(verdict)[0].message
    (verdict,) = judge(root, small, whole=True)
    assert len(said(verdict)) == 2
    one, two = judge(root, small, large("large-two"), whole=True)
    assert [finding.rule for finding in said(one)] == ["governance.waiver_unused"]  # of the exact one
    assert said(two) == []


def test_a_waiver_of_another_stage_is_not_spoken_of(tmp_path: Path) -> None:
    root = repository(tmp_path)
    write_rule(root, OWNER, stage="release")
    waivers(root, other=WAIVER.replace("spec.workspace_bounded", "release.probe"))
    assert said(judge(root, large())[0]) == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([], "did not answer for each document"),
        ([{}], "spec.owner_present: the decision is undefined"),
        ([{"spec.owner_present": ([],)}], "spec.workspace_bounded: the decision is undefined"),
        ([{"spec.owner_present": ([],), "spec.workspace_bounded": ()}], "workspace_bounded: the decision is undefined"),
        (
            [{"spec.owner_present": ([], []), "spec.workspace_bounded": ([],)}],
            "owner_present: the decision is undefined",
        ),
        ([{"spec.owner_present": ({},), "spec.workspace_bounded": ([],)}], "the decision is dict, not a set"),
        ([{"spec.owner_present": (None,), "spec.workspace_bounded": ([],)}], "the decision is NoneType"),
        ([{"spec.owner_present": (False,), "spec.workspace_bounded": ([],)}], "the decision is bool"),
        ([{"spec.owner_present": ([],), "spec.workspace_bounded": ([],), "spec.x": ([],)}], "unknown rules: spec.x"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, answers: list[Any], words: str) -> None:
    policies = load_policies(repository(tmp_path))
    gate = Gate(policies, Scripted(*answers), "local", TODAY)
    with pytest.raises(Undecided, match=words):
        gate.judge("spec", large())


def test_a_message_that_sprintf_could_not_fill_in(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    finding = {"message": "workspace is %!d(string=much)", "path": []}
    engine = Scripted({"spec.owner_present": ([],), "spec.workspace_bounded": ([finding],)})
    with pytest.raises(Undecided, match="sprintf could not fill in"):
        Gate(policies, engine, "local", TODAY).judge("spec", large())


def test_good_answers_pass(tmp_path: Path) -> None:
    policies = load_policies(repository(tmp_path))
    engine = Scripted({"spec.owner_present": ([],), "spec.workspace_bounded": ([],)})
    assert Gate(policies, engine, "local", TODAY).judge("spec", large()).decision == "allow"


def test_a_breakdown_of_the_native_engine_is_undecided(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its exception is no Exception; the engine is made anew, since nothing is known of its state."""
    body = 'findings contains {"message": "odd", "path": []} if input.document.n % 2 == 1'
    root = repository(tmp_path, {"calm": OWNER, "parity": body})
    policies = load_policies(root)
    gate = Gate(policies, EmbeddedEngine(policies), "local", TODAY)
    huge = Subject("huge", "huge", document(owner="a", n=1e300))
    with pytest.raises(Undecided, match=r"spec\.parity: regorus broke down: .*\(judging huge\)") as caught:
        gate.judge_all("spec", [Subject("odd", "odd", document(owner="a", n=1)), huge])
    assert str(caught.value.where).endswith("policies/spec/parity/rule.rego:11")
    assert gate.judge("spec", Subject("odd", "odd", document(owner="a", n=1))).decision == "deny"
    capfd.readouterr()  # the native code says so on stderr by itself
