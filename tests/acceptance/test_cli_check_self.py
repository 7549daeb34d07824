"""Nobody judges themselves: who evaluates, by what, and who is let pass, is said by the base and never by the change."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.actions import git
from tests.support.changes import check, privileged, since, subjects, waiver, write
from tests.support.repository import Repository

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service

KNOWN = ("--repository", "github.com/trtops/trtops")
"""What an approver knows, whose clone has no ``origin``."""


@pytest.fixture
def repo(proposing: Repository) -> Repository:
    return proposing


def test_nobody_waives_their_own_change(repo: Repository) -> None:
    privileged(repo)
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    body = since(repo, code=1)
    assert subjects(body) == ["tiny"]  # its selector takes no other
    (effect,) = body["proposal"]["effects"]
    assert effect["effect"].startswith("spec.server_port_unprivileged would be waived by mine, not deny")
    assert body["proposal"]["edits"][0].startswith("waiver mine added: spec.server_port_unprivileged of tiny until")


def test_a_waiver_of_the_change_itself_counts_once_its_approver_signed_it(repo: Repository) -> None:
    privileged(repo)
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    said = repo.call("policy", "approve", "mine", "--as", "ann", *KNOWN).says(0).out
    key = re.search(r"key ([0-9a-f]{64})", said)
    assert key is not None
    assert "it does not count yet: the key" in said
    assert "waived_by" not in json.dumps(since(repo, code=1)["verdicts"]).replace('"waived_by": null', "")
    data = repo.root / "policies" / "data" / "approvals.yaml"
    member = f"{{key: {key.group(1)}, identity: somebody-else}}"
    text = data.read_text("utf-8")
    assert "platform-owners: []" in text
    write(data, text.replace("platform-owners: []", f"platform-owners: [{member}]"))
    since(repo, code=1)  # who may approve is said by the base
    git(repo.root, "add", "policies")
    git(repo.root, "commit", "-q", "-m", "approvers")
    body = since(repo, code=0)
    (finding,) = [
        finding for verdict in body["verdicts"] for finding in verdict["findings"] if finding["waived_by"] == "mine"
    ]
    assert finding["rule"] == "spec.server_port_unprivileged"
    path = repo.root / "governance" / "waivers" / "mine.yaml"
    write(path, path.read_text("utf-8").replace("engine: tiny", "engine: '*'"))
    assert "changed after it was signed" in json.dumps(since(repo, code=1))


def test_a_merged_waiver_counts_for_every_verb_that_judges_by_its_revision(repo: Repository) -> None:
    levels = repo.root / "governance" / "enforcement.yaml"
    write(levels, levels.read_text("utf-8").replace("waivers: any", "waivers: merged"))
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    privileged(repo)
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "waived")
    repo.call("build", "tiny").says(1, "neither merged", "TRTOPS_POLICIES_FROM=REF")
    repo.call("build", "tiny", TRTOPS_POLICIES_FROM="main").says(0)
    check(repo, code=1)
    check(repo, code=0, TRTOPS_POLICIES_FROM="main")
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver().replace("tiny", "'*'"))
    repo.call("build", "tiny", TRTOPS_POLICIES_FROM="HEAD^").says(1)
    repo.call("build", "tiny", TRTOPS_POLICIES_FROM="nope").says(2, "git knows no revision 'nope'")


def signed_waiver(repo: Repository, identity: str = "somebody-else") -> Path:
    """A waiver of what the working tree breaks, signed by a key that the base knows."""
    path = repo.root / "governance" / "waivers" / "mine.yaml"
    write(path, waiver())
    key = re.search(r"key ([0-9a-f]{64})", repo.call("policy", "approve", "mine", "--as", "ann", *KNOWN).says(0).out)
    assert key is not None
    data = repo.root / "policies" / "data" / "approvals.yaml"
    member = f"{{key: {key[1]}, identity: {identity}}}"
    text = data.read_text("utf-8").replace("platform-owners: []", f"somebody-else: [{member}]\n  platform-owners: []")
    write(data, text)
    git(repo.root, "commit", "-q", "-m", "approvers", "--", "policies")
    return path


def test_a_waiver_that_was_taken_away_counts_no_more_though_it_is_signed(repo: Repository) -> None:
    path = signed_waiver(repo)
    text = path.read_text("utf-8")
    git(repo.root, "add", "governance")
    git(repo.root, "commit", "-q", "-m", "waived")
    git(repo.root, "rm", "-q", "governance/waivers/mine.yaml")
    git(repo.root, "commit", "-q", "-m", "no more")
    git(repo.root, "checkout", "-q", "-b", "topic")
    privileged(repo)
    write(path.with_name("again.yaml"), f"# brought back\n{text}")
    said = json.dumps(since(repo, code=1)["verdicts"])
    assert "it was merged once and taken away again by " in said
    assert '"waived_by": "again"' not in said


def _rename(repo: Repository, name: str) -> None:
    levels = repo.root / "governance" / "enforcement.yaml"
    line = next(line for line in levels.read_text("utf-8").splitlines(keepends=True) if line.startswith("repository:"))
    write(levels, levels.read_text("utf-8").replace(line, f"repository: {name}\n" if name else ""))


def test_a_waiver_that_was_signed_in_another_repository_counts_only_there(repo: Repository, tmp_path: Path) -> None:
    """Same policies, same engine, same approver: what was let pass there is let pass by nobody here."""
    shutil.copytree(repo.root, tmp_path / "fork", symlinks=True)
    fork = Repository(tmp_path / "fork", tmp_path / "fork" / "home")
    path = signed_waiver(repo)
    privileged(repo)
    since(repo, code=0)
    _rename(fork, "acme/fork")
    write(fork.root / "governance" / "waivers" / "mine.yaml", path.read_text("utf-8"))
    shutil.copy2(repo.root / "policies" / "data" / "approvals.yaml", fork.root / "policies" / "data" / "approvals.yaml")
    git(fork.root, "commit", "-q", "-m", "a name", "--", "governance/enforcement.yaml", "policies")
    privileged(fork)
    said = json.dumps(since(fork, code=1)["verdicts"])
    assert "it was signed for the repository github.com/trtops/trtops, and this is acme/fork" in said
    _rename(fork, "github.com/trtops/trtops")  # the change does not say which repository it is in
    assert "and this is acme/fork" in json.dumps(since(fork, code=1)["verdicts"])


def _proposed(repo: Repository, name: str) -> Path:
    """A waiver on a branch that also renames the repository."""
    git(repo.root, "checkout", "-q", "-b", "topic")
    _rename(repo, name)
    path = repo.root / "governance" / "waivers" / "mine.yaml"
    write(path, waiver())
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "let me")
    return path


def _default_branch(repo: Repository, branch: str) -> None:
    """What a clone knows of its origin."""
    git(repo.root, "update-ref", "refs/remotes/origin/main", branch)
    git(repo.root, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")


@pytest.mark.parametrize("how", ["variable", "origin", "option", "settings of the change"])
def test_for_which_repository_a_waiver_is_signed_is_not_the_proposer_s_to_say(repo: Repository, how: str) -> None:
    """A signature for another repository would let pass there what nobody there has looked at."""
    own = "github.com/trtops/trtops"
    path = _proposed(repo, "acme/bank")
    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    if how == "variable":
        environment = {"TRTOPS_POLICIES_FROM": "main"}
    elif how == "option":
        words = KNOWN
    else:
        _default_branch(repo, "main")
        if how == "settings of the change":
            write(repo.root / "trtops.toml", 'policies_from = "HEAD"\n')
    before = path.read_text("utf-8")
    call = ("policy", "approve", "mine", "--as", "ann", *words)
    repo.call(*call, **environment).says(2, "called acme/bank by the working tree", f"{own} by ")
    assert path.read_text("utf-8") == before
    assert not (repo.home / "keys" / "approver-ann.pem").exists()
    _rename(repo, own)
    repo.call(*call, **environment).says(0, f"signed for {own}, as ")
    assert f"repository: {own}" in path.read_text("utf-8")


def test_what_only_the_working_tree_says_is_signed_for_nobody(repo: Repository) -> None:
    path = _proposed(repo, "acme/bank")
    before = path.read_text("utf-8")
    repo.call("policy", "approve", "mine", "--as", "ann").says(
        2, "nobody but the working tree says that this repository is acme/bank", "--repository NAME"
    )
    assert path.read_text("utf-8") == before
    repo.call("policy", "approve", "mine", "--as", "ann", TRTOPS_POLICIES_FROM="nope").says(2, "no revision 'nope'")


def test_where_the_repository_has_no_name_no_waiver_is_signed(repo: Repository) -> None:
    _rename(repo, "")
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    repo.call("policy", "approve", "mine", "--as", "ann", *KNOWN).says(
        2, "governance/enforcement.yaml: error: the repository has no name", "repository: OWNER/NAME"
    )
    assert not (repo.home / "keys" / "approver-ann.pem").exists()


@pytest.mark.parametrize("target", ["/dev/zero", "/nowhere", "../../engines/tiny/engine.yaml", "elsewhere"])
def test_a_waiver_that_is_a_link_lets_nothing_pass(repo: Repository, target: str) -> None:
    path = signed_waiver(repo)
    privileged(repo)
    since(repo, code=0)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)
    body = since(repo, code=2)
    assert {verdict["decision"] for verdict in body["verdicts"] if verdict["subject"] == "tiny"} == {"allow", "deny"}
    assert "not a plain file" in json.dumps(body["proposal"])


def test_a_hidden_waiver_lets_nothing_pass(repo: Repository) -> None:
    path = signed_waiver(repo)
    privileged(repo)
    path.rename(path.with_name(".mine.yaml"))
    since(repo, code=1)


def test_a_shallow_clone_cannot_tell_what_was_taken_away(repo: Repository, tmp_path: Path) -> None:
    signed_waiver(repo)
    git(repo.root, "commit", "-q", "--allow-empty", "-m", "more")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo.root}", "shallow")
    shallow = Repository(tmp_path / "shallow", tmp_path / "home")
    privileged(shallow)
    shutil.copytree(repo.root / "governance" / "waivers", shallow.root / "governance" / "waivers")
    assert "the clone is shallow" in json.dumps(check(shallow, "--policies-from", "HEAD", code=1)["verdicts"])


def test_who_wrote_the_change_does_not_sign_its_waiver(repo: Repository) -> None:
    signed_waiver(repo, identity="Test@example.org")  # who commits in these tests
    git(repo.root, "checkout", "-q", "-b", "topic")
    git(repo.root, "add", "governance")
    git(repo.root, "commit", "-q", "-m", "the waiver alone")
    privileged(repo)
    since(repo, code=0)
    git(repo.root, "commit", "-q", "-a", "-m", "the change")
    assert "test@example.org wrote the change and signed it" in json.dumps(since(repo, code=1)["verdicts"])


@pytest.mark.parametrize("how", ["flow", "end", "windows", "start"])
def test_a_file_that_takes_no_signature_is_left_as_it_is(repo: Repository, how: str) -> None:
    import yaml

    path = repo.root / "governance" / "waivers" / "mine.yaml"
    text = {
        "flow": yaml.safe_dump(yaml.safe_load(waiver()), default_flow_style=True),
        "end": f"{waiver()}...\n",
        "windows": waiver().replace("\n", "\r\n"),
        "start": f"---\n{waiver().rstrip()}",
    }[how]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    if how in ("flow", "end"):
        repo.call("policy", "approve", "mine", "--as", "ann", *KNOWN).says(
            2, "cannot take a signature", "`key: value` lines"
        )
        assert path.read_bytes() == text.encode()
    else:
        for _ in range(2):
            repo.call("policy", "approve", "mine", "--as", "ann", *KNOWN).says(0, "signed governance/waivers/mine.yaml")
        assert path.read_bytes().startswith(text.encode())
        assert path.read_bytes().count(b"signature:") == 1


def test_a_waiver_that_was_merged_counts_and_its_end_is_told(repo: Repository) -> None:
    write(repo.root / "governance" / "waivers" / "mine.yaml", waiver())
    privileged(repo)
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "waived")
    git(repo.root, "checkout", "-q", "-b", "topic")
    (repo.root / "governance" / "waivers" / "mine.yaml").unlink()
    body = since(repo)
    assert subjects(body) == ["tiny"]
    assert "spec.server_port_unprivileged would deny, not be waived" in body["proposal"]["effects"][0]["effect"]


def judged(repo: Repository, *arguments: str, code: int) -> dict[str, Any]:
    """As :func:`since`, with the engine left to the settings."""
    return check(
        repo, "--changed-since", "main", "--policies-from", "main", *arguments, code=code, TRTOPS_ENGINE="auto"
    )


def test_nobody_chooses_who_judges_their_own_change(repo: Repository) -> None:
    """A change could name a server that allows everything, or an environment in which everything is allowed."""
    git(repo.root, "checkout", "-q", "-b", "topic")
    privileged(repo)
    write(repo.root / "trtops.toml", 'opa_url = "http://127.0.0.1:9"\nenvironment = "lax"\nhome = "engines/tiny"\n')
    git(repo.root, "add", "-A")
    git(repo.root, "commit", "-q", "-m", "mine")
    body = judged(repo, code=1)
    assert subjects(body) == ["other", "tiny"]
    assert {verdict["environment"] for verdict in body["verdicts"]} == {"local"}
    assert body["errors"] == []


def test_the_base_s_settings_hold_though_a_change_takes_them_away(repo: Repository) -> None:
    write(repo.root / "trtops.toml", 'environment = "prod"\n')
    git(repo.root, "commit", "-q", "-a", "-m", "settings")
    git(repo.root, "checkout", "-q", "-b", "topic")
    write(repo.root / "trtops.toml", "")
    body = check(repo, "--policies-from", "main", code=2)  # no embedded engine judges for prod
    assert "demands the engine opa" in body["errors"][0]["what"]


def test_what_a_change_claims_to_remember_of_a_model_is_not_believed(repo: Repository) -> None:
    home = Repository(repo.root, repo.root / "state")
    check(home, code=0)
    git(repo.root, "checkout", "-q", "-b", "topic")
    assert since(home)["errors"] == []
    git(repo.root, "add", "-f", "state/preflight")
    body = since(home, code=2)
    assert "git tracks files of TRTOPS_HOME" in body["errors"][0]["what"]
    assert "git rm" in body["errors"][0]["fix"]
    git(repo.root, "rm", "-rfq", "--cached", "state")
    shutil.move(repo.root / "state", repo.engine / "files")
    (repo.root / "state").symlink_to("engines/tiny/files")
    assert since(home)["errors"] == []
    git(repo.root, "add", "state")
    assert "git tracks files of TRTOPS_HOME" in since(home, code=2)["errors"][0]["what"]


def test_a_revision_that_holds_the_change_does_not_judge_it(repo: Repository) -> None:
    git(repo.root, "checkout", "-q", "-b", "topic")
    privileged(repo)
    shutil.rmtree(repo.root / "policies" / "spec" / "server_port_unprivileged")
    since(repo, code=1)
    assert check(repo, "--changed-since", "main", "--policies-from", "HEAD", code=1)["errors"] == []
    git(repo.root, "commit", "-q", "-a", "-m", "mine")
    for mine in ("HEAD", "topic"):
        body = check(repo, "--changed-since", "main", "--policies-from", mine, code=2)
        assert "holds commits of the change" in body["errors"][0]["what"]
    git(repo.root, "commit", "-q", "--allow-empty", "-m", "more")
    check(repo, "--changed-since", "main", "--policies-from", "HEAD^", code=2)
    check(repo, "--changed-since", "main", "--policies-from", "main", code=1)
    check(repo, "--changed-since", "HEAD^", "--policies-from", "HEAD^", code=0)


def test_an_engine_of_elsewhere_takes_no_other_s_name(repo: Repository, tmp_path: Path) -> None:
    shutil.copytree(repo.engine, tmp_path / "mine")
    repo.call("check", str(tmp_path / "mine")).says(2, "calls itself tiny, as the one in engines/tiny does")
    (tmp_path / "link").symlink_to(repo.engine)
    repo.call("check", str(tmp_path / "link")).says(0)
    shutil.rmtree(repo.engine)
    repo.call("check", str(tmp_path / "mine")).says(0)
