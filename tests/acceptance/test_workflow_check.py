"""``.github/workflows/check.yml``: its steps, run in order in a clone, for pull requests of each kind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from tests.support.actions import Job, git
from tests.support.policies import opa_binary
from tests.support.repository import CHECKOUT, RUNTIME, SPEC, quiet, write_engine

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.service

WORKFLOW = CHECKOUT / ".github" / "workflows" / "check.yml"
SCHEMA = json.loads((CHECKOUT / "tests" / "golden" / "sarif" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
HOSTILE_BRANCH = "rel/$(id>pwned)`id>pwned`\"';id>pwned"
WAIVER = """\
apiVersion: trtops/v1
kind: Waiver
rule: spec.server_port_unprivileged
selector: {engine: first}
reason: it was always so
owner: me
approver: somebody-else
granted: "GRANTED"
expires: "EXPIRES"
"""


@dataclass(frozen=True)
class Project:
    """A bare remote, and a clone of it that pull requests are made in."""

    remote: Path
    clone: Path
    branch: str

    def pull_request(self, change: Callable[[Path], object]) -> None:
        """Change files on a branch, and make the commit that merges it, as GitHub does."""
        git(self.clone, "checkout", "-q", "-b", "topic")
        change(self.clone)
        git(self.clone, "add", "-A")
        git(self.clone, "commit", "-q", "-m", "the change")
        git(self.clone, "checkout", "-q", self.branch)
        git(self.clone, "merge", "-q", "--no-ff", "-m", "merge", "topic")
        git(self.clone, "push", "-q", "origin", "HEAD:refs/pull/1/merge")


def project(folder: Path, branch: str = "main") -> Project:
    """A repository that holds trtops itself, its policies, and two engines whose models are files."""
    clone = folder / "clone"
    clone.mkdir(parents=True)
    for name in ("trtops", "policies", "governance"):
        shutil.copytree(CHECKOUT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "trtops.toml"):
        shutil.copy(CHECKOUT / name, clone / name)
    quiet(clone)
    for name in ("first", "second"):
        write_engine(clone / "engines" / name, SPEC.replace("name: tiny", f"name: {name}"), RUNTIME)
    (clone / ".gitignore").write_text(".trtops/\n", encoding="utf-8")
    git(folder, "init", "-q", "--bare", "remote.git")
    git(clone, "init", "-q", "-b", branch)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "base")
    git(clone, "remote", "add", "origin", str(folder / "remote.git"))
    git(clone, "push", "-q", "origin", branch)
    return Project(folder / "remote.git", clone, branch)


def run(folder: Path, change: Callable[[Path], object], *, branch: str = "main", fork: bool = False) -> Job:
    opa = opa_binary()
    made = project(folder / "project", branch)
    made.pull_request(change)
    contexts = {
        "github.base_ref": branch,
        "github.repository": "team/engines",
        "github.event.pull_request.head.repo.full_name": "somebody/engines" if fork else "team/engines",
    }
    job = Job(WORKFLOW, made.remote, folder / "runner", contexts, opa).run("engines", {"environment": "prod"})
    assert job.step("Install").outcome == "success", job.step("Install").out
    assert "Traceback" not in job.step("Check").out
    jsonschema.Draft4Validator(SCHEMA).validate(sarif(job))
    assert job.step("upload-artifact").inputs["path"] == str(job.temp / "report")
    for report in (job.temp / "report").iterdir():
        assert report.read_bytes(), report
    return job


def sarif(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((job.temp / "report" / "check.sarif").read_text(encoding="utf-8"))
    return document


def results(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sarif(job)["runs"][0]["results"]
    return found


def verdicts(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((job.temp / "report" / "check.json").read_text(encoding="utf-8"))
    return document


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def open_a_privileged_port(root: Path) -> None:
    replace(root / "engines" / "first" / "runtime.yaml", "port: 8000", "port: 80")


def test_a_good_pull_request(tmp_path: Path) -> None:
    job = run(tmp_path, lambda root: replace(root / "engines" / "first" / "engine.yaml", "[4, 8]", "[2, 8]"))
    check = job.step("Check")
    assert (check.outcome, check.code) == ("success", 0), check.out
    assert "::error" not in check.out
    assert {one["subject"] for one in verdicts(job)["verdicts"]} == {"first"}
    assert all(one["engine"].startswith("opa 1.") for one in verdicts(job)["verdicts"])
    assert "✅ allowed" in job.summary
    assert job.step("upload-sarif").inputs == {
        "sarif_file": str(job.temp / "report" / "check.sarif"),
        "category": "trtops-prod",
    }
    assert results(job) == []


def test_a_denied_pull_request_of_a_fork_to_a_branch_with_a_hostile_name(tmp_path: Path) -> None:
    job = run(tmp_path, open_a_privileged_port, branch=HOSTILE_BRANCH, fork=True)
    check = job.step("Check")
    assert (check.outcome, check.code) == ("failure", 1), check.out
    assert "::error file=engines/first/runtime.yaml,line=5,col=9,title=spec.server_port_unprivileged::" in check.out
    (result,) = results(job)
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "engines/first/runtime.yaml"
    assert "❌ denied" in job.summary
    assert job.step("code scanning").outcome == "skipped"
    assert not [*tmp_path.rglob("pwned")]


def test_a_pull_request_that_changes_a_policy_is_judged_by_the_base(tmp_path: Path) -> None:
    def tighten(root: Path) -> None:
        limits = root / "policies" / "data" / "limits.yaml"
        text = limits.read_text(encoding="utf-8")
        limits.write_text(text.replace("workspace_mib: 8192", "workspace_mib: 32", 1), encoding="utf-8")

    job = run(tmp_path, tighten)
    check = job.step("Check")
    assert (check.outcome, check.code) == ("success", 0), check.out
    assert {one["subject"] for one in verdicts(job)["verdicts"]} == {"first", "second"}
    proposal = verdicts(job)["proposal"]
    assert [(effect["subject"], effect["rule"]) for effect in proposal["effects"]] == [
        ("first", "spec.workspace_bounded"),
        ("second", "spec.workspace_bounded"),
    ]
    assert "policies/data/limits.yaml changed" in check.out
    assert "would deny" in job.summary
    assert results(job) == []


def test_nobody_waives_their_own_change(tmp_path: Path) -> None:
    import datetime as dt

    today = dt.datetime.now(tz=dt.timezone.utc).date()
    waiver = WAIVER.replace("GRANTED", str(today)).replace("EXPIRES", str(today + dt.timedelta(days=30)))

    def waive(root: Path) -> None:
        open_a_privileged_port(root)
        (root / "governance" / "waivers").mkdir(exist_ok=True)  # git keeps no empty folder
        (root / "governance" / "waivers" / "port.yaml").write_text(waiver, encoding="utf-8")

    job = run(tmp_path, waive)
    check = job.step("Check")
    assert (check.outcome, check.code) == ("failure", 1), check.out
    assert "would be waived by port, not deny" in check.out
    (effect,) = verdicts(job)["proposal"]["effects"]
    assert effect["after"]["waived_by"] == "port"


def test_a_pull_request_that_deletes_an_engine(tmp_path: Path) -> None:
    job = run(tmp_path, lambda root: shutil.rmtree(root / "engines" / "second"))
    check = job.step("Check")
    assert (check.outcome, check.code) == ("success", 0), check.out
    assert verdicts(job)["verdicts"] == []
    (gone,) = verdicts(job)["change"]["gone"]
    assert (gone["name"], gone["renamed_to"]) == ("second", None)
    assert re.search(r"second: deleted", job.summary)


def test_nothing_of_a_pull_request_is_run(tmp_path: Path) -> None:
    """`python -m venv` and the like look for modules where they are run."""

    def shadow(root: Path) -> None:
        open_a_privileged_port(root)
        for module in ("venv.py", "pip.py", "ensurepip.py", "json.py", "sitecustomize.py", "regorus.py", "yaml.py"):
            (root / module).write_text(f"open({str(tmp_path / 'pwned')!r}, 'w').close()\n", encoding="utf-8")
        (root / "trtops" / "__init__.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w').close()\n")

    job = run(tmp_path, shadow)
    assert job.step("Check").code == 1, job.step("Check").out
    assert not (tmp_path / "pwned").exists()


def test_a_pull_request_that_breaks_what_judges_cannot_be_decided(tmp_path: Path) -> None:
    job = run(
        tmp_path, lambda root: replace(root / "governance" / "enforcement.yaml", "level: soft\n", "level: none\n")
    )
    check = job.step("Check")
    assert (check.outcome, check.code) == ("failure", 2), check.out
    assert "::error file=governance/enforcement.yaml,line=" in check.out
    assert "not decided" in job.summary
    assert [result["level"] for result in results(job)] == ["error"]


def test_the_workflow_asks_for_no_more_than_it_needs() -> None:
    document = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert document["permissions"] == {}
    assert list(document[True]) == ["pull_request"]  # YAML 1.1 reads `on` as true
    assert document["env"]["PYTHONSAFEPATH"] == "1"
    (job,) = document["jobs"].values()
    levels = yaml.safe_load((CHECKOUT / "governance" / "enforcement.yaml").read_text(encoding="utf-8"))
    assert job["strategy"]["matrix"] == {"environment": list(levels["environments"])}
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
        assert "secrets." not in str(step)


def test_linters_of_workflows_find_nothing() -> None:
    found = shutil.which("actionlint") or str(
        Path.home() / ".cache" / "trtops" / "tools" / "actionlint-v1.7.7" / "actionlint"
    )
    if not Path(found).is_file():
        pytest.skip("no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7")
    done = subprocess.run([found, str(WORKFLOW)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
