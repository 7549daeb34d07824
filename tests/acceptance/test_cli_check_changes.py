"""``trtops check`` over git: what changed, by whose policies, what the change to policies would do."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.actions import git
from tests.support.changes import check, privileged, since, subjects, waiver, write
from tests.support.repository import Repository, make_repository
from trtops.errors import Undecided
from trtops.workflow.git import Git
from trtops.workflow.review import engine_folders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.service


@pytest.fixture
def repo(proposing: Repository) -> Repository:
    return proposing


def test_nothing_changed_is_said_and_allowed(repo: Repository) -> None:
    body = since(repo)
    assert (body["verdicts"], body["proposal"], body["change"]["engines"]) == ([], None, {})
    done = repo.call("check", "--changed-since", "main").says(0, "no engine is touched, nothing had to be judged")
    assert done.err == ""


@pytest.mark.parametrize("stage", ["", "add", "commit"])
def test_a_change_is_seen_in_the_working_tree_the_index_and_commits(repo: Repository, stage: str) -> None:
    git(repo.root, "checkout", "-q", "-b", "topic")
    privileged(repo)
    if stage:
        git(repo.root, "add", "-A")
    if stage == "commit":
        git(repo.root, "commit", "-q", "-m", "topic")
    body = since(repo, code=1)
    assert subjects(body) == ["tiny"]
    assert body["change"]["engines"] == {"tiny": ["engines/tiny/runtime.yaml changed"]}


def test_what_the_base_gained_meanwhile_is_no_change_of_this_branch(repo: Repository) -> None:
    git(repo.root, "checkout", "-q", "-b", "topic")
    git(repo.root, "checkout", "-q", "main")
    privileged(repo)
    git(repo.root, "commit", "-q", "-a", "-m", "main moves on")
    git(repo.root, "checkout", "-q", "topic")
    assert since(repo)["change"]["engines"] == {}


def test_an_untracked_engine_is_checked_and_an_ignored_file_is_not_seen(repo: Repository) -> None:
    shutil.copytree(repo.engine, repo.root / "engines" / "new one")
    write(repo.engine / "some.log", "x")
    body = since(repo, code=2)  # a name that no engine can have
    assert list(body["change"]["engines"]) == ["new one"]
    assert [error["subject"] for error in body["errors"]] == ["new one"]


@pytest.mark.parametrize(
    "name", ['q"uote', "tab\tnew\nline", "é", "-n", b"\xff\xfe".decode("utf-8", "surrogateescape")]
)
def test_odd_names_are_read_whole(repo: Repository, name: str) -> None:
    write(repo.engine / name / name, "x")
    git(repo.root, "checkout", "-q", "-b", "topic")
    for tracked in (False, True):
        if tracked:
            git(repo.root, "add", "-A")
        body = since(repo)
        assert body["change"]["engines"] == {"tiny": [f"engines/tiny/{name}/{name} added"]}


def test_a_deleted_engine_is_listed_with_what_that_means(repo: Repository) -> None:
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "waiver")
    git(repo.root, "checkout", "-q", "-b", "topic")
    shutil.rmtree(repo.engine)
    body = since(repo)
    (gone,) = body["change"]["gone"]
    assert gone["name"] == "tiny"
    assert gone["notes"] == [
        "not released in local, as far as the registry here tells",
        "the waiver mine is for it alone: delete it, too",
    ]
    assert body["verdicts"] == []


def test_a_deleted_engine_that_is_released_runs_on(repo: Repository) -> None:
    pointer = repo.home / "registry"
    repo.call("ship", "tiny").says(0)
    assert pointer.is_dir()
    git(repo.root, "checkout", "-q", "-b", "topic")
    (repo.engine / "engine.yaml").unlink()
    (gone,) = since(repo)["change"]["gone"]
    assert gone["notes"][0] == "its folder engines/tiny still holds files"
    assert gone["notes"][1].startswith("still released in local: stable; services run it on until")


def test_a_renamed_engine_is_judged_by_its_new_name(repo: Repository) -> None:
    git(repo.root, "mv", "engines/tiny", "engines/small")
    body = since(repo, code=2)
    assert "the engine in engines/small calls itself tiny" in body["errors"][0]["what"]
    repo.edit("name: tiny", "name: small", file=repo.root / "engines" / "small" / "engine.yaml")
    body = since(repo)
    assert subjects(body) == ["small"]
    assert [(one["name"], one["renamed_to"]) for one in body["change"]["gone"]] == [("tiny", "small")]


def test_a_shared_overlay_behind_a_link_touches_its_engine(repo: Repository) -> None:
    runtime = repo.engine / "runtime.yaml"
    write(repo.root / "shared" / "runtime.yaml", runtime.read_text("utf-8"))
    runtime.unlink()
    runtime.symlink_to("../../shared/runtime.yaml")
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "share")
    git(repo.root, "checkout", "-q", "-b", "topic")
    repo.edit("port: 8000", "port: 80", file=repo.root / "shared" / "runtime.yaml")
    assert subjects(since(repo, code=1)) == ["tiny"]


@pytest.mark.parametrize("target", ["nowhere", "/dev/zero", "..", "engine.yaml"])
def test_a_spec_that_is_a_link_to_no_file_is_not_passed_over(repo: Repository, target: str) -> None:
    for folder in (repo.engine, repo.root / "engines" / "new"):
        folder.mkdir(exist_ok=True)
        (folder / "engine.yaml").unlink(missing_ok=True)
        (folder / "engine.yaml").symlink_to(target)
    git(repo.root, "add", "-A")
    body = since(repo, code=2)
    assert [error["subject"] for error in body["errors"]] == ["new", "tiny"]


def test_engines_behind_a_link_are_seen(repo: Repository) -> None:
    git(repo.root, "mv", "engines", "elsewhere")
    (repo.root / "engines").symlink_to("elsewhere")
    shutil.copytree(repo.root / "elsewhere" / "tiny", repo.root / "elsewhere" / "new")
    repo.edit("name: tiny", "name: new", file=repo.root / "elsewhere" / "new" / "engine.yaml")
    git(repo.root, "add", "-A")
    assert subjects(since(repo)) == ["new", "other", "tiny"]
    git(repo.root, "commit", "-q", "-m", "moved")
    git(repo.root, "checkout", "-q", "-b", "topic")
    repo.edit("port: 8000", "port: 80", file=repo.root / "elsewhere" / "new" / "runtime.yaml")
    assert "new" in subjects(since(repo, code=1))


def test_links_are_followed_hop_by_hop(repo: Repository) -> None:
    (repo.root / "a").symlink_to("b")
    (repo.root / "b").symlink_to("c")
    write(repo.root / "c" / "x", "x")
    (repo.engine / "data").symlink_to("../../a")
    (repo.engine / "loop").symlink_to("loop")
    (repo.engine / "out").symlink_to("/etc")
    (_, tiny) = engine_folders(repo.root, names=False)
    assert {"a", "b", "c"} <= set(tiny.links)
    assert not [link for link in tiny.links if link.startswith("..") or "etc" in link]


def test_a_stricter_limit_is_told_and_counts_nothing(repo: Repository) -> None:
    limits = repo.root / "policies" / "data" / "limits.yaml"
    limits.write_text(
        limits.read_text("utf-8").replace("workspace_mib: 8192", "workspace_mib: 32", 1), encoding="utf-8"
    )
    body = since(repo)
    assert subjects(body) == ["other", "tiny"]
    assert [(effect["subject"], effect["before"]) for effect in body["proposal"]["effects"]] == [
        ("other", None),
        ("tiny", None),
    ]
    assert body["proposal"]["edits"] == ["policies/data/limits.yaml changed"]
    # Without a base to judge by, the working tree's policies judge.
    check(repo, "tiny", code=1)


def test_a_laxer_policy_does_not_let_its_own_author_pass(repo: Repository) -> None:
    privileged(repo)
    shutil.rmtree(repo.root / "policies" / "spec" / "server_port_unprivileged")
    body = since(repo, code=1)
    (effect,) = body["proposal"]["effects"]
    assert (effect["rule"], effect["after"]) == ("spec.server_port_unprivileged", None)
    assert body["proposal"]["edits"] == ["rule spec.server_port_unprivileged taken away"]


def test_a_rule_taken_away_is_told_though_it_finds_nothing(repo: Repository) -> None:
    shutil.rmtree(repo.root / "policies" / "spec" / "server_port_unprivileged")
    body = since(repo)
    assert (body["proposal"]["effects"], body["proposal"]["engines"]) == ([], 2)
    assert body["proposal"]["edits"] == ["rule spec.server_port_unprivileged taken away"]


def test_a_lower_level_is_told(repo: Repository) -> None:
    privileged(repo)
    levels = "level: soft\nrules: {spec.server_port_unprivileged: advisory}\n"
    repo.edit("level: soft\n", levels, file=repo.root / "governance" / "enforcement.yaml")
    body = since(repo, code=1)
    (effect,) = body["proposal"]["effects"]
    assert effect["effect"].startswith("spec.server_port_unprivileged would warn, not deny")
    assert "rule spec.server_port_unprivileged: soft becomes advisory in local" in body["proposal"]["edits"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("policies/spec/owner_present/rule.rego", "package trtops.spec.owner_present\n\nfindings contains x if {\n"),
        ("policies/data/limits.yaml", "tiers: 1\n"),
        ("governance/enforcement.yaml", "kind: [\n"),
        ("policies/spec/stray.rego", "package x\n"),
    ],
)
def test_policies_that_cannot_be_evaluated_would_break_every_check(repo: Repository, path: str, text: str) -> None:
    write(repo.root / path, text)
    body = since(repo, code=2)
    assert {verdict["decision"] for verdict in body["verdicts"]} <= {"allow"}
    assert body["errors"] == []
    assert body["proposal"]["errors"]


def test_a_repository_that_cannot_judge_its_base_decides_nothing(repo: Repository) -> None:
    git(repo.root, "checkout", "-q", "--orphan", "empty")
    git(repo.root, "rm", "-rfq", "--cached", "policies")
    git(repo.root, "commit", "-q", "-m", "no policies")
    body = check(repo, "--policies-from", "empty", code=2)
    assert "has no policies" in body["errors"][0]["what"]


def test_changes_to_tests_of_rules_touch_nothing(repo: Repository) -> None:
    with (repo.root / "policies" / "spec" / "owner_present" / "rule_test.rego").open("a") as file:
        file.write("# a comment\n")
    body = since(repo)
    assert (body["change"]["engines"], body["proposal"]) == ({}, None)


def test_names_and_a_revision_exclude_each_other(repo: Repository) -> None:
    body = check(repo, "tiny", "--changed-since", "main", code=2)
    assert "exclude each other" in body["errors"][0]["what"]


@pytest.mark.parametrize("ref", ["nope", "-x", " ", "--output=/tmp/x", "main^9", "main:engines"])
def test_a_revision_that_is_none(repo: Repository, ref: str) -> None:
    body = check(repo, f"--changed-since={ref}", code=2)
    assert "revision" in body["errors"][0]["what"]


def test_a_shallow_clone_is_told_how_to_be_mended(repo: Repository, tmp_path: Path) -> None:
    git(repo.root, "checkout", "-q", "-b", "topic")
    for number in range(3):
        git(repo.root, "commit", "-q", "--allow-empty", "-m", str(number))
    url = f"file://{repo.root}"
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", "-b", "topic", url, "shallow")
    shallow = Repository(tmp_path / "shallow", tmp_path / "home")
    body = check(shallow, "--changed-since", "origin/main", code=2)
    assert "the clone is shallow" in body["errors"][0]["what"]
    assert "fetch-depth: 0" in body["errors"][0]["fix"]


def test_histories_with_nothing_in_common(repo: Repository) -> None:
    git(repo.root, "checkout", "-q", "--orphan", "other")
    git(repo.root, "commit", "-q", "-m", "another root")
    assert "no commit in common" in check(repo, "--changed-since", "main", code=2)["errors"][0]["what"]


def test_outside_of_git(tmp_path: Path) -> None:
    made = make_repository(tmp_path / "repo")
    body = check(made, "--changed-since", "main", code=2, GIT_CEILING_DIRECTORIES=str(tmp_path))
    assert "not a git repository" in body["errors"][0]["what"]


def test_git_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Undecided, match="git is not installed"):
        Git(tmp_path, (str(tmp_path / "no-git"),)).commit("main")


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    with pytest.raises(Undecided, match="knows no revision"):
        Git(tmp_path).merge_base("HEAD")


def test_settings_of_the_repository_run_nothing_and_hide_nothing(repo: Repository) -> None:
    marker = repo.root / "ran.log"
    program = repo.root / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n", encoding="utf-8")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external"):
        git(repo.root, "config", key, str(program))
    git(repo.root, "config", "diff.orderFile", "/dev/null")
    git(repo.root, "config", "diff.noprefix", "true")
    marker.unlink(missing_ok=True)
    privileged(repo)
    assert subjects(since(repo, code=1)) == ["tiny"]
    assert not marker.exists()


def test_a_root_below_the_top_of_its_repository(proposal_template: Path, tmp_path: Path) -> None:
    top = tmp_path / "top"
    shutil.copytree(proposal_template, top / "ml", ignore=shutil.ignore_patterns(".git"))
    git(top, "init", "-q", "-b", "main")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "base")
    made = Repository(top / "ml", tmp_path / "home")
    write(top / "engines" / "tiny" / "engine.yaml", "not ours")
    assert since(made)["change"]["engines"] == {}
    repo_edit = made.engine / "runtime.yaml"
    made.edit("port: 8000", "port: 80", file=repo_edit)
    assert since(made, code=1)["change"]["engines"] == {"tiny": ["engines/tiny/runtime.yaml changed"]}


@pytest.mark.parametrize("name", ["runtime.prd.yaml", "runtime.yml", "runtime.prod.yml", "runtime..yaml"])
def test_a_runtime_config_that_nothing_reads_is_told(repo: Repository, name: str) -> None:
    write(repo.engine / name, "database: {password: hunter2}\n")
    body = check(repo, code=2)
    assert subjects(body) == ["other"]
    (error,) = body["errors"]
    assert error["what"] == "this is the runtime config of no environment"
    assert (error["where"]["file"], error["where"]["line"]) == (f"engines/tiny/{name}", 1)
    assert "environments are local, dev, staging, prod" in error["fix"]


def test_one_wrong_engine_hides_no_other(repo: Repository) -> None:
    repo.edit("kind: Engine", "kind: Motor")
    body = check(repo, code=2)
    assert subjects(body) == ["other"]
    assert [error["subject"] for error in body["errors"]] == ["tiny"]


def answers(*failing: str) -> Callable[..., object]:
    """An engine's evaluation that fails for engines of these names, and notes what it was asked."""

    def evaluate(self: Any, stage: Any, documents: Any) -> Any:
        for document in documents:
            if document["engine"] in failing or "*" in failing:
                raise Undecided(f"cannot judge {document['engine']}")
        return original(self, stage, documents)

    from trtops.policy.embedded import EmbeddedEngine

    original = EmbeddedEngine.evaluate
    return evaluate


def test_a_document_that_no_rule_can_judge_hides_no_other(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.policy.embedded.EmbeddedEngine.evaluate", answers("tiny"))
    body = check(repo, code=2)
    assert subjects(body) == ["other"]
    assert [(error["subject"], error["what"]) for error in body["errors"]] == [("tiny", "cannot judge tiny")]


def test_an_engine_that_fails_again_and_again_is_asked_no_more(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        folder = repo.root / "engines" / f"e{number}"
        shutil.copytree(repo.engine, folder)
        spec = folder / "engine.yaml"
        spec.write_text(spec.read_text("utf-8").replace("name: tiny", f"name: e{number}"), encoding="utf-8")
    monkeypatch.setattr("trtops.policy.embedded.EmbeddedEngine.evaluate", answers("*"))
    errors = check(repo, code=2)["errors"]
    assert len(errors) == 7
    assert sum("not judged, since 3 before it" in error["what"] for error in errors) == 4


def test_preflight_is_remembered_and_found_again_when_it_must_be(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trtops.model.preflight as module

    calls: list[str] = []
    original = module.preflight

    def counted(spec: Any, model: Any, facts: Any) -> Any:
        calls.append(spec.name)
        return original(spec, model, facts)

    monkeypatch.setattr(module, "preflight", counted)
    first = check(repo, "tiny", code=0)
    assert check(repo, "tiny", code=0) == first
    assert calls == ["tiny"]
    (entry,) = (repo.home / "preflight").iterdir()
    for damaged in (b"", b"{}", entry.read_bytes()[:-20], b"\xff"):
        entry.write_bytes(damaged)
        assert check(repo, "tiny", code=0) == first
    assert calls == ["tiny"] * 5
    repo.edit("owner: team", "owner: another-team")
    check(repo, "tiny", code=0)
    assert len(calls) == 5  # who owns it is nothing that a model could contradict
    repo.edit("max: [8, 4]", "max: [9, 4]")
    check(repo, "tiny", code=0)
    assert len(calls) == 6


def test_a_home_that_cannot_be_written_fails_no_check(repo: Repository) -> None:
    check(repo, "tiny", code=0)
    shutil.rmtree(repo.home / "preflight")
    (repo.home / "preflight").write_text("in the way")
    check(repo, "tiny", code=0)


def test_a_proposal_is_not_uploaded_to_a_server_that_judges_for_others(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtops.policy import engines
    from trtops.workflow.proposal import _engine
    from trtops.workflow.workspace import open_workspace

    asked: list[tuple[str, object]] = []

    def opened(policies: object, **options: Any) -> object:
        asked.append((options["choice"], options.get("opa_url")))
        return policies

    monkeypatch.setattr(engines, "open_engine", opened)
    here = open_workspace({"opa_url": "https://opa.example.org"}, start=repo.root)
    _engine(here, object())  # type: ignore[arg-type]
    _engine(replace(here, resolved=open_workspace({"engine": "embedded"}, start=repo.root).resolved), object())  # type: ignore[arg-type]
    assert asked == [("opa", None), ("embedded", None)]
