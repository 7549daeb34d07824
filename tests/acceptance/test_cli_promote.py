"""From dev to staging: the same digests, another config, the other environment's gates, other people's approvals."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.policies import opa_binary
from tests.support.repository import copy_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.repository import Done, Repository

pytestmark = pytest.mark.service

AUTHOR = "author@example.org"
SIGNERS = "environments:\n  default: {first_use: true, keys: []}\n"


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"TRTOPS_ENGINE": "opa", "TRTOPS_OPA": str(opa_binary()), "TRTOPS_EXPIRES": "7"}


@pytest.fixture(scope="module")
def released_template(checked_template: Repository, memory: Path, settings: dict[str, str]) -> Repository:
    repo = copy_of(checked_template, memory / "promoted" / "repo")
    (repo.root / "policies/data/signers.yaml").write_text(SIGNERS)
    (repo.root / ".gitignore").write_text("home\n")
    (repo.engine / "runtime.staging.yaml").write_text("features: {scores: false}\n")
    _git(repo, "init", "-q")
    _commit(repo)
    repo.call("ship", "tiny", "--env", "dev", **settings).says(0, "generation 1 signed and published")
    return repo


@pytest.fixture
def released(released_template: Repository, folder: Path) -> Repository:
    """A repository under git whose engine is released to dev."""
    return copy_of(released_template, folder / "repo")


def _git(repo: Repository, *words: str) -> None:
    subprocess.run(
        ["git", "-c", f"user.email={AUTHOR}", "-c", "user.name=author", *words],
        cwd=repo.root,
        check=True,
        capture_output=True,
    )


def _commit(repo: Repository) -> None:
    _git(repo, "add", "-A")
    _git(repo, "commit", "-qm", "change")


def _approver(repo: Repository, key: str, identity: str) -> None:
    """Write who may approve into the policies' data."""
    path = repo.root / "policies/data/approvals.yaml"
    text, count = re.subn(
        r"release-managers: \[.*\].*", f"release-managers: [{{key: {key}, identity: {identity}}}]", path.read_text()
    )
    assert count == 1
    path.write_text(text)


def _approve(repo: Repository, name: str, env: str = "dev") -> str:
    """Approve what runs there; gives the key's id."""
    done = repo.call("approve", "tiny", "--as", name, "--env", env).says(0, "approved: tiny@sha256:")
    return done.out.split()[-1]


def _binding(repo: Repository, env: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(repo.call("status", "tiny", "--env", env, "--json").says(0).out)["bindings"][0]
    return found


def _promote(repo: Repository, settings: dict[str, str]) -> Done:
    return repo.call("promote", "tiny", "--env", "dev", "--to", "staging", **settings)


def test_the_same_digests_go_on_once_others_approve(released: Repository, settings: dict[str, str]) -> None:
    done = _promote(released, settings).says(1, "0 of 1 approvals", "trtops approve tiny@sha256:", "--env staging")
    digest = re.search(r"tiny@(sha256:[0-9a-f]{64})", done.err)
    assert digest is not None
    assert digest[1] == _binding(released, "dev")["engine_release"]
    released.call("status", "--env", "staging").says(0, "nothing is released yet")

    key = _approve(released, "alice")
    _promote(released, settings).says(1, "its key may not approve here")
    _approver(released, key, "alice@example.org")
    _promote(released, settings).says(0, "generation 1 in staging (from dev generation 1)")

    dev, staging = _binding(released, "dev"), _binding(released, "staging")
    assert staging["engine_release"] == dev["engine_release"]
    assert staging["config_release"] != dev["config_release"]
    assert staging["reason"] == "promote from dev generation 1"
    _promote(released, settings).says(0, "nothing new")
    assert _binding(released, "staging") == staging


def test_an_approval_may_lie_where_it_goes_to(released: Repository, settings: dict[str, str]) -> None:
    digest = _binding(released, "dev")["engine_release"]
    done = released.call("approve", f"tiny@{digest}", "--as", "alice", "--env", "staging").says(0, digest, "in staging")
    _approver(released, done.out.split()[-1], "alice@example.org")
    _promote(released, settings).says(0, "generation 1 in staging")


def test_only_what_exists_is_approved(released: Repository, settings: dict[str, str]) -> None:
    digest = _binding(released, "dev")["engine_release"]
    other = f"sha256:{'0' * 64}"
    for env in ("dev", "staging"):
        done = released.call("approve", f"tiny@{other}", "--as", "alice", "--env", env)
        done.says(2, "there is no release 000000000000", "no gate has judged one")
        released.call("approve", f"big@{digest}", "--as", "alice", "--env", env).says(2, "is no release of big")
        shown = released.call("approve", f"tiny@{digest}", "--as", "alice", "--env", env)
        shown.says(0, "interface 1.0.0, tier bronze, targets onnxruntime, commit ")
    path = released.home / "store" / "records" / "release" / f"{digest.removeprefix('sha256:')}.json"
    path.write_bytes(path.read_bytes().replace(b'"tier":"bronze"', b'"tier":"silver"'))
    released.call("approve", f"tiny@{digest}", "--as", "alice", "--env", "staging").says(2, "is no release of tiny")
    released.call("approve", f"tiny@{digest}", "--as", "alice", "--env", "dev").says(0)  # the registry has it, signed
    del settings


def test_nobody_approves_their_own(released: Repository, settings: dict[str, str]) -> None:
    """The commit's author by identity; who releases by key."""
    _approver(released, _approve(released, "alice"), AUTHOR)
    _promote(released, settings).says(1, "it is by an author")
    own = str(released.home / "keys" / "release.pem")
    _approver(released, _approve(released, own), "releaser@example.org")
    _promote(released, settings).says(1, "it is by an author")


def test_who_wrote_a_part_of_the_change_approves_none_of_it(released: Repository, settings: dict[str, str]) -> None:
    _approver(released, _approve(released, "alice"), "alice@example.org")
    _promote(released, settings).says(0, "generation 1 in staging")
    released.edit("max_queue_delay: 1ms", "max_queue_delay: 2ms")
    _git(released, "commit", "-qam", "a part", "--author", "alice <alice@example.org>")
    released.edit("max_queue_delay: 2ms", "max_queue_delay: 3ms")
    _commit(released)
    released.call("ship", "tiny", "--env", "dev", **settings).says(0, "generation 2")
    _approve(released, "alice")
    _promote(released, settings).says(1, "it is by an author")


def test_an_approval_is_void_when_the_release_changes(released: Repository, settings: dict[str, str]) -> None:
    _approver(released, _approve(released, "alice"), "alice@example.org")
    released.edit("max_queue_delay: 1ms", "max_queue_delay: 2ms")
    _commit(released)
    _promote(released, settings).says(2, "dev runs another spec of tiny", "git checkout", "release this one to dev")
    released.call("ship", "tiny", "--env", "dev", **settings).says(0, "generation 2")
    _promote(released, settings).says(1, "0 of 1 approvals")
    _approve(released, "alice")
    _promote(released, settings).says(0, "generation 1 in staging (from dev generation 2)")


def test_rules_of_the_other_environment_judge_its_config(released: Repository, settings: dict[str, str]) -> None:
    _approver(released, _approve(released, "alice"), "alice@example.org")
    (released.engine / "runtime.staging.yaml").write_text("server: {host: 127.0.0.1, port: 80}\n")
    _promote(released, settings).says(1, "policies of staging deny tiny: ", "port 80", "trtops check --env staging")
    released.call("status", "--env", "staging").says(0, "nothing is released yet")


def test_it_meets_the_other_environments_steps_and_its_quarantine(
    released: Repository, settings: dict[str, str]
) -> None:
    _approver(released, _approve(released, "alice"), "alice@example.org")
    _promote(released, settings).says(0, "generation 1 in staging")
    runtime = released.engine / "runtime.staging.yaml"
    runtime.write_text(runtime.read_text() + "rollout: {steps: [{weight: 5}, {pause: manual}]}\n")
    released.edit("max_queue_delay: 1ms", "max_queue_delay: 2ms")
    _commit(released)
    released.call("ship", "tiny", "--env", "dev", **settings).says(0, "generation 2 signed and published ")
    _approve(released, "alice")
    _promote(released, settings).says(0, "generation 2 in staging", "beside the stable release")
    assert _binding(released, "staging")["weights"] == {"stable": 95, "canary": 5}
    _promote(released, settings).says(0, "nothing new, beside the stable release")
    released.call("rollout", "abort", "tiny", "--env", "staging", "--reason", "slow").says(0)
    _promote(released, settings).says(1, "was aborted before", "trtops rollout readmit tiny sha256:")


def test_what_was_tampered_with_is_not_promoted(released: Repository, settings: dict[str, str]) -> None:
    _approver(released, _approve(released, "alice"), "alice@example.org")
    for kind in ("evidence", "verdicts", "provenance"):
        for path in (released.home / "registry" / "dev" / kind).iterdir():
            whole = path.read_bytes()
            path.write_bytes(whole.replace(b'"sig":"', b'"sig":"00'))
            _promote(released, settings).says(2)
            path.write_bytes(whole)
    released.call("status", "--env", "staging").says(0, "nothing is released yet")
    _promote(released, settings).says(0, "generation 1 in staging")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("promote", "tiny", "--env", "dev", "--to", "dev"), "it is in dev already"),
        (("promote", "absent", "--to", "staging"), "there is no engine"),
        (("promote", "tiny", "--env", "elsewhere", "--to", "staging"), "tiny cannot be taken from elsewhere"),
        (("approve", "absent", "--as", "alice"), "absent is not released"),
        (("approve", "tiny@sha256:12", "--as", "alice"), "not the digest of a release"),
        (("approve", "UPPER", "--as", "alice"), "not the name of an engine"),
        (("approve", "tiny", "--as", "no/such.pem", "--env", "dev"), "no such private key"),
        (("approve", "tiny", "--as", "Alice!", "--env", "dev"), "not the name of a key"),
    ],
)
def test_mistakes_are_told(released: Repository, settings: dict[str, str], words: tuple[str, ...], says: str) -> None:
    released.call(*words, **settings).says(2, says)
