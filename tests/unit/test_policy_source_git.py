"""Policies of a git revision: of its objects alone, whatever the working tree says."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.policies import OWNER, repository, write, write_rule
from trtops.errors import Undecided
from trtops.policy.loader import load_policies
from trtops.policy.source import read_revision

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service


def git(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


def commit(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = repository(tmp_path / "clone")
    git(root, "init", "-q")
    commit(root, "first")
    return root


def test_nobody_judges_themselves(clone: Path) -> None:
    git(clone, "checkout", "-qb", "change")
    write_rule(clone, "findings := set()", name="owner_present")
    write(clone, {"policies/data/limits.yaml": "workspace: 100000\n"})
    (clone / "governance/enforcement.yaml").write_text("nonsense: [")
    commit(clone, "let me pass")
    base = load_policies(clone, revision="main")
    assert base.merged
    assert base.data == {"limits": {"workspace": 100}}
    assert "no owner" in base.rule("spec.owner_present").file.text
    assert base.origin == f"main ({git(clone, 'rev-parse', 'main')[:12]})"
    assert base.rule("spec.owner_present").file.label == "main:policies/spec/owner_present/rule.rego"


def test_a_revision_has_the_digest_of_its_folder(clone: Path) -> None:
    assert load_policies(clone, revision="HEAD").digest == load_policies(clone).digest


def test_attributes_hide_and_change_nothing(clone: Path) -> None:
    write(clone, {".gitattributes": "policies/spec/owner_present export-ignore\npolicies/** export-subst\n"})
    commit(clone, "hide")
    assert load_policies(clone, revision="HEAD").digest == load_policies(clone).digest


def test_the_root_may_be_below_the_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    root = repository(tmp_path / "team" / "engines")
    repository(tmp_path, {"other": OWNER})
    commit(tmp_path, "first")
    found = load_policies(root, revision="HEAD")
    assert [rule.id for rule in found.rules] == ["spec.owner_present", "spec.workspace_bounded"]
    assert found.rules[0].file.label == "HEAD:team/engines/policies/spec/owner_present/rule.rego"


def test_errors_name_the_revision(clone: Path) -> None:
    write(clone, {"policies/spec/owner_present/rule.rego": "package other\n"})
    commit(clone, "break")
    with pytest.raises(Undecided) as caught:
        load_policies(clone, revision="HEAD")
    assert str(caught.value.where) == "HEAD:policies/spec/owner_present/rule.rego:1"


@pytest.mark.parametrize("revision", ["gone", "", " ", "--help", "-x", "main..main", "HEAD:policies"])
def test_a_revision_that_is_none(clone: Path, revision: str) -> None:
    with pytest.raises(Undecided, match="revision"):
        load_policies(clone, revision=revision)


def test_a_revision_without_policies(clone: Path) -> None:
    git(clone, "rm", "-qr", "policies")
    commit(clone, "none")
    with pytest.raises(Undecided, match="no policies"):
        load_policies(clone, revision="HEAD")


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(Undecided, match="not a git repository"):
        load_policies(repository(tmp_path), revision="HEAD")


def test_no_git(clone: Path) -> None:
    with pytest.raises(Undecided, match="git is not installed"):
        read_revision(clone, "HEAD", git=["git-that-is-not-there"])


def test_a_link_is_no_policy(clone: Path) -> None:
    (clone / "policies/data/other.yaml").symlink_to("limits.yaml")
    commit(clone, "link")
    with pytest.raises(Undecided, match="a symbolic link among the policies"):
        load_policies(clone, revision="HEAD")


def test_an_object_that_is_missing(clone: Path) -> None:
    name = git(clone, "rev-parse", "HEAD:policies/data/limits.yaml")
    (clone / ".git/objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(Undecided, match="git cannot read an object"):
        load_policies(clone, revision="HEAD")
