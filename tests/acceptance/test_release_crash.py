"""Killed at any write, a publisher loses nothing: readers see the old or the new release, and a re-run finishes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import SCENARIOS
from tests.support.crash_verbs import VERBS, repository
from tests.support.releases import CHANNEL, NOW
from trtops.errors import InputError
from trtops.registry.file import FileRegistry
from trtops.release.documents import Channel
from trtops.release.fetch import fetch, fetch_arm, fetch_proofs, history, status
from trtops.release.keys import KeyStore, load_root
from trtops.release.root import ROLES
from trtops.release.trust import TrustedChannel

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE = {"first": 0, "next": 2, "rollback": 2, "refresh": 2}


def _generation(home: Path) -> int:
    """What a reader with the right keys sees: a whole release, or none."""
    registry = FileRegistry(home, "dev")
    if registry.read("channels/cls/stable") is None:
        return 0
    root = load_root(home / "root.json")
    assert status(registry, root, CHANNEL, NOW).state == "released"
    service = fetch(TrustedChannel(root, CHANNEL), registry, NOW)
    fetch_proofs(service, registry, "onnxruntime")
    assert len(history(registry, root, CHANNEL)) == service.binding.generation
    return service.binding.generation


def _leftovers(home: Path) -> list[Path]:
    return [path for path in home.rglob(".tmp-*") if path.parent in {home / "keys", home / "dev/channels/cls"}]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Memory where there is some: hundreds of fsyncs of a slow disk prove nothing more here."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def _points(folder: Path, scenario: str) -> list[dict[str, str]]:
    """Where each child was killed, with its folder; in the last one it was not."""
    command = [sys.executable, "-B", "-m", "tests.support.crash", str(folder / "points"), scenario]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"open", "os.rename", "fsync"} <= {point["died_at"] for point in points}
    assert points[-1]["died_at"] is None
    return points


def _run_again(scenario: str, home: Path) -> str:
    _, again = SCENARIOS[scenario]
    try:
        again(home)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.service
@pytest.mark.parametrize("scenario", sorted(BEFORE))
def test_killed_at_each_write_in_turn(folder: Path, scenario: str) -> None:
    before, seen = BEFORE[scenario], []
    for point in _points(folder, scenario):
        home = Path(point["home"])
        present = _generation(home)
        seen.append(present)
        done_before = present == before + 1
        refusal = _run_again(scenario, home)
        # Once it has moved, going back again has nothing to do, and a second refresh is a second move.
        assert ("binds what runs already" in refusal) is (scenario == "rollback" and done_before)
        assert _generation(home) == before + 1 + (scenario == "refresh" and done_before)
        assert _leftovers(home) == []
    assert seen == sorted(seen)  # once new, new for good
    assert {seen[0], seen[-1]} == {before, before + 1} == set(seen)


def _read(home: Path, environment: str) -> tuple[int, dict[str, int], str]:
    """What a reader sees in a repository: generation, weights and phase of the rollout; each arm a whole release."""
    made = repository(home)
    registry = FileRegistry(made.home / "registry", environment)
    channel, root = Channel(engine="tiny", environment=environment), load_root(made.home / "root.json")
    if registry.read("channels/tiny/stable") is None:
        return 0, {}, ""
    trusted = fetch(TrustedChannel(root, channel), registry, int(time.time()))
    for arm in trusted.binding.arms:
        fetch_proofs(fetch_arm(trusted.beside(arm), registry), registry, "onnxruntime")
    assert len(history(registry, root, channel)) == trusted.binding.generation
    rollout = trusted.binding.rollout
    return trusted.binding.generation, trusted.binding.weights, f"{rollout.phase} {rollout.step}" if rollout else ""


# command -> generations before and after, what a reader sees after, and exit codes of the command and its re-run
ENDS = {
    "promote": (1, 2, {"stable": 100}, "", 0, 0),
    "rollback-command": (2, 3, {"stable": 100}, "", 0, 0),
    "rollback-of-a-rollout": (2, 3, {"stable": 100}, "", 0, 2),
    "rollout-begin": (1, 2, {"stable": 95, "canary": 5}, "progressing 0", 0, 0),
    "rollout-advance": (2, 4, {"stable": 95, "canary": 5}, "paused 2", 0, 0),
    "rollout-pause": (5, 6, {"stable": 95, "canary": 5}, "paused 2", 0, 0),
    "rollout-resume": (4, 5, {"stable": 95, "canary": 5}, "progressing 2", 0, 0),
    "rollout-abort": (2, 3, {"stable": 100}, "aborted 0", 0, 0),
    "rollout-fails": (7, 8, {"stable": 100}, "aborted 4", 1, 1),
    "rollout-readmit": (3, 4, {"stable": 100}, "aborted 0", 0, 2),
}


@pytest.mark.service
@pytest.mark.timeout(900)  # some fifty whole commands, twice
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_command_is_killed_at_each_write_in_turn(folder: Path, verb: str) -> None:
    """A step of a rollout is one move, so killed between two, it goes on from where it stands: it skips none."""
    _, act, environment = VERBS[verb]
    before, after, weights, phase, code, again = ENDS[verb]
    seen = []
    for point in _points(folder, verb):
        home = Path(point["home"])
        present = _read(home, environment)[0]
        seen.append(present)
        if verb == "rollback-command" and present == after:
            continue  # run again, it goes back to where it came from, as it should
        assert act(home) == (again if present == after else code)
        assert _read(home, environment) == (after, weights, phase)
        assert [path for path in repository(home).half_written() if path.startswith("registry/")] == []
        shutil.rmtree(home)
    assert seen == sorted(seen)
    assert set(seen) == set(range(before, after + 1))


@pytest.mark.service
def test_killed_while_making_keys(folder: Path) -> None:
    for point in _points(folder, "keys"):
        home = Path(point["home"])
        kept = {path.name: path.read_bytes() for path in (home / "keys").glob("*.pem")}
        root = KeyStore(home).root()
        assert root == load_root(home / "root.json")
        assert {role: KeyStore(home).signer(role).key_id for role in ROLES} == {
            role: root.roles[role].keys[0] for role in ROLES
        }
        assert kept.items() <= {path.name: path.read_bytes() for path in (home / "keys").glob("*.pem")}.items()
        assert list((home / "keys").glob(".tmp-*")) == []
