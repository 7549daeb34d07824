"""``.github/workflows/refresh.yml``: its steps, run in order, against registries that are fresh, expired, forged, away."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.acceptance.test_workflow_check import project
from tests.support.actions import Job, git
from tests.support.releases import bundle, has_all
from tests.support.repository import CHECKOUT
from trtops.errors import Unavailable
from trtops.registry.file import FileRegistry
from trtops.release import layout
from trtops.release.documents import Channel
from trtops.release.fetch import fetch, opened
from trtops.release.keys import KeyRing, Signer
from trtops.release.lineage import with_key, without_key
from trtops.release.publish import publish
from trtops.release.root import ALL_ROLES, Role, root_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.release.root import Root

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

WORKFLOW = CHECKOUT / ".github" / "workflows" / "refresh.yml"
DEV = Channel(engine="cls", environment="dev")
DAY = 86_400


class Team:
    """A repository on GitHub, its keys, and the registry that its environments share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = project(folder / "project")
        self.remote, clone = made.remote, made.clone
        (clone / "trtops.toml").write_text("expires = 7\n")
        git(clone, "commit", "-q", "-m", "pointers expire", "--", "trtops.toml")
        git(clone, "push", "-q", "origin", "main")
        self.signers: dict[Role, Signer] = {role: Signer.generate() for role in ALL_ROLES}
        self.root = root_of({role: signer.public for role, signer in self.signers.items()})
        self.given = self.root
        self.registry = FileRegistry(folder / "registry", "dev")

    @property
    def keys(self) -> KeyRing:
        return KeyRing(dict(self.signers), self.root)

    def release(self, *, ago: int) -> None:
        """A release whose pointer was good for a week, so many seconds ago."""
        then = int(time.time()) - ago
        publish(
            self.registry, self.keys, DEV, bundle(self.keys, created=then),
            now=then, lifetime=7 * DAY, has_artifact=has_all,
        )  # fmt: skip

    def turn(self, root: Root) -> None:
        """The next version of the root, published."""
        from trtops.release.envelope import sign

        self.registry.create(layout.root(root.version), sign(root, [self.signers["root"]]))
        self.root = root

    def run(self, *, environment: str = "dev", **changes: str) -> Job:
        contexts: Mapping[str, str] = {
            "vars.TRTOPS_ROOT": self.given.canonical_bytes().decode(),
            "vars.TRTOPS_REGISTRY": f"file:{self.folder / 'registry'}",
            "secrets.TRTOPS_REFRESH_KEY": bytes(self.signers["refresh"].dsse.private_bytes).decode(),
            "secrets.TRTOPS_NACOS_PUBLISHER": "not asked for by a folder",
        }
        number = len(list(self.folder.glob("runner-*")))
        opa = Path("/nowhere/opa")  # nothing is judged
        job = Job(
            WORKFLOW, self.remote, self.folder / f"runner-{number}", {**contexts, **changes}, opa, "refs/heads/main"
        )
        return job.run("snapshot", {"environment": environment})

    def served(self) -> int:
        """The generation that a service takes now."""
        now = int(time.time())
        return fetch(opened(self.registry, self.root, DEV, now), self.registry, now).binding.generation


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


def test_what_has_expired_is_fresh_again_and_no_channel_moves(team: Team) -> None:
    team.release(ago=30 * DAY)
    pointer = team.registry.read(layout.pointer(DEV))
    with pytest.raises(Unavailable):
        team.served()
    done = team.run()
    assert done.succeeded, [step.out for step in done.steps]
    assert "snapshot " in done.summary
    assert "1 channel and 0 secrets, expires in 168 h" in done.summary
    assert team.served() == 1
    assert team.registry.read(layout.pointer(DEV)) == pointer
    first = team.registry.read(layout.SNAPSHOT)
    assert team.run().succeeded
    assert team.registry.read(layout.SNAPSHOT) != first, "it counts on, on every run"
    keys = sorted(path.name for path in (done.temp / "home" / "keys").glob("*.pem"))
    assert keys == ["refresh.pem"], "no other key was there, and none was made"


def test_it_follows_a_root_that_is_newer_than_what_the_environment_was_given(team: Team) -> None:
    team.release(ago=30 * DAY)
    old = team.signers["refresh"]
    team.signers["refresh"] = Signer.generate()
    team.turn(with_key(team.root, "refresh", team.signers["refresh"].public))
    team.turn(without_key(team.root, old.key_id))
    done = team.run()
    assert done.succeeded, [step.out for step in done.steps]
    assert "root version 3: was 1" in done.step("Follow").out
    assert team.served() == 1


def test_a_key_that_was_revoked_refreshes_nothing_and_the_job_fails(team: Team) -> None:
    team.release(ago=30 * DAY)
    team.turn(without_key(team.root, team.signers["refresh"].key_id, instead={"refresh": Signer.generate().public}))
    done = team.run()
    assert done.step("Refresh").outcome == "failure"
    assert team.registry.read(layout.SNAPSHOT) is None


def test_a_forged_pointer_is_told_and_the_job_fails_so_that_somebody_looks(team: Team) -> None:
    team.release(ago=DAY)
    assert team.run().succeeded
    pointer = team.registry.read(layout.pointer(DEV))
    assert pointer is not None
    team.registry.swap(layout.pointer(DEV), b"{}", pointer)
    done = team.run()
    assert done.step("Refresh").code == 2
    assert "channels/cls/stable" in done.summary


def test_a_registry_that_is_away_fails_its_own_job(team: Team) -> None:
    done = team.run(**{"vars.TRTOPS_REGISTRY": "nacos://127.0.0.1:9"})
    assert done.step("Follow").outcome == "failure"
    assert done.step("Refresh").outcome == "skipped"


def test_an_environment_with_nothing_in_it_is_none_that_fails(team: Team) -> None:
    done = team.run(environment="prod")
    assert done.succeeded, [step.out for step in done.steps]
    assert "0 channels and 0 secrets" in done.summary


def test_it_asks_for_no_more_than_it_needs() -> None:
    document = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert set(document[True]) == {"schedule", "workflow_dispatch"}  # YAML 1.1 reads `on` as true
    assert document["permissions"] == {}
    assert document["env"]["PYTHONSAFEPATH"] == "1"
    (job,) = document["jobs"].values()
    assert job["permissions"] == {"contents": "read"}
    assert job["if"] == "github.ref == 'refs/heads/main'"
    assert job["environment"] == "refresh-${{ matrix.environment }}"
    assert not job["strategy"]["fail-fast"]
    secrets = set(re.findall(r"secrets\.(\w+)", str(job)))
    assert secrets == {"TRTOPS_REFRESH_KEY", "TRTOPS_NACOS_PUBLISHER"}, "no key that could move anything"
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step


@pytest.mark.parametrize("linter", ["actionlint", "zizmor"])
def test_linters_of_workflows_find_nothing(linter: str) -> None:
    cached = Path.home() / ".cache" / "trtops" / "tools" / "actionlint-v1.7.7" / "actionlint"
    found = shutil.which(linter) or (str(cached) if linter == "actionlint" and cached.is_file() else None)
    if found is None:
        pytest.skip(f"no {linter}")
    extra = [] if linter == "actionlint" else ["--offline", "--no-progress", "--quiet"]
    done = subprocess.run([found, *extra, str(WORKFLOW)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
