"""``build-bench.yml`` and ``release.yml``: their steps, run in order, with a real OPA and a real Nacos."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.acceptance.test_workflow_check import project, replace
from tests.support.actions import Job, git
from tests.support.nacos_server import password_of
from tests.support.policies import opa_binary
from tests.support.repository import CHECKOUT
from trtops.release.documents import Channel
from trtops.release.fetch import fetch, fetch_proofs
from trtops.release.keys import KeyStore
from trtops.release.trust import TrustedChannel
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.nacos_server import NacosServer

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

FOLDER = CHECKOUT / ".github" / "workflows"
BUILD, RELEASE = FOLDER / "build-bench.yml", FOLDER / "release.yml"
SECRET = re.compile(r"\$\{\{ secrets\.(\w+) \}\}")


@dataclass
class Team:
    """A repository on GitHub with its environments: keys, variables, secrets, a store and a registry."""

    folder: Path
    registry: str
    remote: Path = field(init=False)
    clone: Path = field(init=False)
    keys: KeyStore = field(init=False)

    def __post_init__(self) -> None:
        made = project(self.folder / "project")
        self.remote, self.clone = made.remote, made.clone
        self.pull_request = made.pull_request
        self.keys = KeyStore(self.folder / "keys-of-the-team")
        key = self.keys.signer("release").key_id
        data = self.clone / "policies" / "data"
        (data / "signers.yaml").write_text(f"environments:\n  default: {{first_use: false, keys: [{key}]}}\n")
        replace(
            data / "approvals.yaml",
            "bronze: {required: 1, approvers: [release-managers]}",
            "bronze: {required: 0, approvers: []}",
        )
        replace(data / "change_windows.yaml", "    always: false\n", "    always: true\n")
        (self.clone / "trtops.toml").write_text("expires = 7\n")
        self.push("the team's rules")

    def push(self, message: str) -> tuple[str, str]:
        """Commit all and push; gives the commits before and after."""
        before = git(self.clone, "rev-parse", "HEAD")
        git(self.clone, "add", "-A")
        git(self.clone, "commit", "-q", "-m", message)
        git(self.clone, "push", "-q", "origin", "main")
        return before, git(self.clone, "rev-parse", "HEAD")

    def pem(self, role: str) -> str:
        return (self.folder / "keys-of-the-team" / "keys" / f"{role}.pem").read_text()

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def job(
        self,
        file: Path,
        job: str,
        contexts: Mapping[str, str],
        matrix: Mapping[str, str] | None = None,
        *,
        ref: str = "refs/heads/main",
    ) -> Job:
        number = len(list(self.folder.glob("runner-*")))
        made = Job(
            file, self.remote, self.folder / f"runner-{number}", contexts, opa_binary(), ref, self.folder / "artifacts"
        )
        return made.run(job, matrix or {})

    def secrets(self, environment: str, before: str) -> dict[str, str]:
        """What the environment of that name holds."""
        root = self.keys.root().canonical_bytes().decode()
        return {
            "vars.TRTOPS_ROOT": root,
            "vars.TRTOPS_REGISTRY": self.registry,
            "vars.TRTOPS_STORE": str(self.store),
            "inputs.engine": "first",
            "github.sha": "HEAD",
            "secrets.TRTOPS_BUILDER_KEY": self.pem("builder"),
            "secrets.TRTOPS_RELEASE_KEY": self.pem("release"),
            "secrets.TRTOPS_CHANNEL_KEY": self.pem("channel"),
            "secrets.TRTOPS_NACOS_PUBLISHER": password_of(f"trtops-{environment}-publisher"),
            "secrets.TRTOPS_NACOS_READER": password_of(f"trtops-{before}-service"),
        }


def event(kind: str, base: str, sha: str) -> dict[str, str]:
    """The expressions of build-bench.yml that tell a push from a pull request."""
    origin = "refs/remotes/origin/main"
    push = kind == "push"
    return {
        "github.event_name": kind,
        "github.event_name == 'pull_request' && format('refs/remotes/origin/{0}', github.base_ref) || github.event.before": base
        if push
        else origin,
        "github.event_name == 'pull_request' && format('refs/remotes/origin/{0}', github.base_ref) || github.sha": sha
        if push
        else origin,
    }


def matrix_of(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(job.outputs["matrix"])["include"]
    return found


def passed(job: Job) -> Job:
    failed = [step for step in job.steps if step.outcome == "failure"]
    assert not failed, failed[0].out
    return job


def build(team: Team, contexts: Mapping[str, str], *, ref: str = "refs/heads/main") -> tuple[Job, Job]:
    """Both jobs, for the one engine that the change touches."""
    plan = passed(team.job(BUILD, "plan", contexts, ref=ref))
    assert plan.outputs["any"] == "true"
    entry = next(one for one in matrix_of(plan) if one["engine"] == "first")
    assert entry == {"engine": "first", "target": "onnxruntime", "runner": ["ubuntu-24.04"]}
    engine = team.job(BUILD, "engine", contexts, {"engine": "first", "target": "onnxruntime"}, ref=ref)
    return plan, engine


def change(root: Path) -> None:
    replace(root / "engines" / "first" / "engine.yaml", "[4, 8]", "[2, 8]")


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path, registry="")


def test_a_pull_request_is_built_with_keys_of_one_job_and_leaves_nothing_behind(team: Team) -> None:
    def also_choose(root: Path) -> None:
        change(root)
        runners = root / "governance" / "runners.yaml"
        runners.write_text(runners.read_text().replace("[ubuntu-24.04]", "[self-hosted]"))

    team.pull_request(also_choose)
    contexts = {
        **event("pull_request", "", ""),
        "github.event_name == 'push' && vars.TRTOPS_STORE || ''": "",
    }
    plan, engine = build(team, contexts, ref="refs/pull/1/merge")
    passed(engine)
    assert engine.step("builder key").outcome == "skipped"
    assert "verify onnxruntime" in engine.summary
    report = team.folder / "artifacts" / "report-first-onnxruntime"
    (evidence,) = json.loads((report / "evidence.json").read_text())["evidence"]
    assert evidence["accuracy"]["passed"]
    assert (report / "bench.html").read_text().startswith("<!doctype html>")
    assert (team.folder / "artifacts" / "store-first-onnxruntime" / "records").is_dir()
    assert not team.store.exists()
    assert plan.outputs["matrix"].count("self-hosted") == 0


def test_a_pull_request_that_policies_deny_is_built_nowhere(team: Team) -> None:
    team.pull_request(lambda root: replace(root / "engines" / "first" / "runtime.yaml", "port: 8000", "port: 80"))
    plan = passed(team.job(BUILD, "plan", event("pull_request", "", ""), ref="refs/pull/1/merge"))
    assert plan.outputs == {"matrix": '{"include":[]}', "any": "false"}


def test_a_pull_request_that_touches_no_engine_is_built_nowhere(team: Team) -> None:
    team.pull_request(lambda root: (root / "README.md").write_text("words"))
    plan = passed(team.job(BUILD, "plan", event("pull_request", "", ""), ref="refs/pull/1/merge"))
    assert plan.outputs["any"] == "false"


def test_an_engine_that_fails_fails_its_job_and_its_report_is_kept(team: Team) -> None:
    def spoil(root: Path) -> None:
        change(root)
        replace(root / "engines" / "first" / "engine.yaml", "samples: file:samples.npz", "samples: file:none.npz")

    team.pull_request(spoil)
    contexts = {**event("pull_request", "", ""), "github.event_name == 'push' && vars.TRTOPS_STORE || ''": ""}
    _, engine = build(team, contexts, ref="refs/pull/1/merge")
    assert engine.step("Build, verify").outcome == "failure"
    assert "none.npz" in engine.step("Build, verify").out
    assert (team.folder / "artifacts" / "report-first-onnxruntime" / "stages.txt").exists()


def test_an_engine_that_policies_deny_is_not_released(team: Team) -> None:
    replace(team.clone / "engines" / "first" / "runtime.yaml", "port: 8000", "port: 80")
    team.push("a privileged port")
    runner = team.job(RELEASE, "runner", team.secrets("dev", "dev"))
    assert runner.step("Choose").outcome == "failure"
    assert "::error::policies deny first" in runner.step("Choose").out


@pytest.fixture
def environments(nacos: NacosServer) -> list[str]:
    return [nacos.emptied(name) for name in ("dev", "staging", "prod")]


def released(team: Team, nacos: NacosServer, environment: str) -> TrustedChannel:
    """What a service of that environment takes from the real server."""
    registry = nacos.registry(environment)
    channel = Channel(engine="first", environment=environment)
    trusted = fetch(TrustedChannel(team.keys.root(), channel), registry, int(time.time()))
    fetch_proofs(trusted, registry, "onnxruntime")
    return trusted


def test_from_a_push_to_production(tmp_path: Path, nacos: NacosServer, environments: list[str]) -> None:
    team = Team(tmp_path, nacos.url)
    change(team.clone)
    base, sha = team.push("a change")
    push = {
        **event("push", base, sha),
        "github.event_name == 'push' && vars.TRTOPS_STORE || ''": str(team.store),
        **team.secrets("dev", "dev"),
    }
    _, engine = build(team, push)
    passed(engine)
    assert not (team.folder / "artifacts" / "store-first-onnxruntime" / "records").exists()

    runner = passed(team.job(RELEASE, "runner", team.secrets("dev", "dev")))
    assert runner.outputs == {"labels": '["ubuntu-24.04"]'}
    plan = passed(team.job(RELEASE, "plan", team.secrets("dev", "dev")))
    assert "nothing -> 1: a new release, a new config, stable 100 %" in plan.summary
    assert "onnxruntime reused" in plan.summary
    assert not (plan.temp / "home" / "keys").exists(), "a plan needs no key, and makes none"
    publish = passed(team.job(RELEASE, "publish", team.secrets("dev", "dev")))
    assert "generation 1 signed and published" in publish.step("Do what was planned").out
    dev = released(team, nacos, "dev")
    assert dev.engine_release.commit == sha
    (record,) = Store(str(team.store)).records("sidecar").values()
    assert json.loads(record)["artifact"] == str(dev.engine_release.artifacts[0].sidecar.artifact), "built once"

    for environment, before in (("staging", "dev"), ("prod", "staging")):
        passed(team.job(RELEASE, environment, team.secrets(environment, before)))
        there = released(team, nacos, environment)
        assert there.engine_release.digest() == dev.engine_release.digest()
        assert there.binding.reason == f"promote from {before} generation 1"
    for text in (job.read_text(errors="replace") for job in tmp_path.glob("runner-*/summary.md")):
        assert "PRIVATE KEY" not in text

    # The very same again: nothing is left to do, and nothing is done.
    passed(team.job(RELEASE, "plan", team.secrets("dev", "dev")))
    again = passed(team.job(RELEASE, "publish", team.secrets("dev", "dev")))
    assert "the plan moves nothing" in again.step("Do what was planned").out

    # Approved too late: the world has moved since the plan was made.
    change_of = team.clone / "engines" / "first" / "engine.yaml"
    replace(change_of, "preferred: [2, 8]", "preferred: [2, 6]")
    team.push("another change")
    passed(team.job(RELEASE, "plan", team.secrets("dev", "dev")))
    replace(change_of, "preferred: [2, 6]", "preferred: [3, 6]")
    team.push("meanwhile")
    late = team.job(RELEASE, "publish", team.secrets("dev", "dev"))
    assert late.step("Do what was planned").code == 3, late.step("Do what was planned").out
    assert "the world moved since the plan was made" in late.step("Do what was planned").out
    assert released(team, nacos, "dev").binding.generation == 1
    assert environments == ["dev", "staging", "prod"]


@pytest.mark.parametrize("file", [BUILD, RELEASE], ids=["build-bench", "release"])
def test_a_workflow_asks_for_no_more_than_it_needs(file: Path) -> None:
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert document["permissions"] == {}
    assert document["env"]["PYTHONSAFEPATH"] == "1"
    for name, job in document["jobs"].items():
        assert job["permissions"] == {"contents": "read"}, name
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
                assert not step["uses"].startswith("actions/cache@"), "no cache: a pull request would write to it"
            for script in (step.get("run", ""),):
                assert "${{" not in script
        if SECRET.search(str(job)):
            assert job.get("environment"), f"{name} meets secrets with nobody's approval"


def test_pull_requests_meet_no_secret_and_forks_no_runner() -> None:
    document = yaml.safe_load(BUILD.read_text(encoding="utf-8"))
    assert set(document[True]) == {"pull_request", "push"}  # YAML 1.1 reads `on` as true
    engine = document["jobs"]["engine"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in engine["if"]
    assert engine["environment"] == "${{ github.event_name == 'push' && 'builder' || '' }}"
    for job in document["jobs"].values():
        for step in job["steps"]:
            if SECRET.search(str(step)):
                assert step["if"] == "${{ github.event_name == 'push' }}", step
    assert not SECRET.search(str(document["jobs"]["plan"]))


def test_a_release_is_approved_in_each_environment_and_of_main_only() -> None:
    document = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))
    assert list(document[True]) == ["workflow_dispatch"]
    jobs = document["jobs"]
    assert jobs["runner"]["if"] == "github.ref == 'refs/heads/main'"
    assert [job.get("environment") for job in jobs.values()] == [None, "plan", "dev", "staging", "prod"]
    assert [job.get("needs") for job in jobs.values()] == [None, "runner", ["runner", "plan"], "publish", "staging"]
    signing = {name for name, job in jobs.items() if "CHANNEL_KEY" in str(job)}
    assert signing == {"publish", "staging", "prod"}


@pytest.mark.parametrize("linter", ["actionlint", "zizmor"])
def test_linters_of_workflows_find_nothing(linter: str) -> None:
    cached = Path.home() / ".cache" / "trtops" / "tools" / "actionlint-v1.7.7" / "actionlint"
    found = shutil.which(linter) or (str(cached) if linter == "actionlint" and cached.is_file() else None)
    if found is None:
        pytest.skip(f"no {linter}")
    extra = [] if linter == "actionlint" else ["--offline", "--no-progress", "--quiet"]
    done = subprocess.run(
        [found, *extra, str(BUILD), str(RELEASE)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
