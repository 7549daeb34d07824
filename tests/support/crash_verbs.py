"""What is killed of whole commands: promotion, rollback, and every move of a rollout, in a repository of their own."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.repository import Repository, copy_of, make_repository

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = """
rollout:
  steps: [{weight: 5}, {shadow: 20}, {pause: manual}, {weight: 50}, {analysis: {requests: 10, error_rate: 0.01}}]
"""
KEPT = {"schemes_allowed", "owner_present", "verified", "weights_sum"}
"""A rule a stage: none at all would be "could not decide"."""
FAILING = """\
# TYPE trtops_request_duration_seconds histogram
trtops_request_duration_seconds_count{engine="tiny",channel="canary",code="500"} 100
"""


def repository(root: Path) -> Repository:
    return Repository(root, root / "home")


def _shipped(root: Path) -> Repository:
    """Generation 1 in local; dev takes what the embedded engine judged, since no rule is what is tested here."""
    made = make_repository(root)
    enforcement = root / "governance" / "enforcement.yaml"
    text, count = re.subn(r"dev: \{.*\}", "dev: {engine: any, waivers: any, level: advisory}", enforcement.read_text())
    assert count == 1
    enforcement.write_text(text)
    for rule in root.glob("policies/*/*/rule.rego"):
        if rule.parent.name not in KEPT:  # what they say is nothing that is tested here, and takes its time
            shutil.rmtree(rule.parent)
    _done(made, "ship", "tiny", "--env", "local")
    return made


def _done(made: Repository, *arguments: str) -> None:
    """In a process of its own: the one that is forked must have no threads."""
    done = made.run(*arguments)
    assert done.code in {0, 2}, done


def _promotable(root: Path) -> None:
    made = _shipped(root)
    _done(made, "promote", "tiny", "--env", "local", "--to", "dev")
    made.edit("version: 1.0.0", "version: 1.1.0")
    _done(made, "ship", "tiny", "--env", "local")


def _second(root: Path) -> Repository:
    made = _shipped(root)
    (made.engine / "runtime.yaml").write_text((made.engine / "runtime.yaml").read_text() + PLAN)
    made.edit("version: 1.0.0", "version: 1.1.0")
    _done(made, "release", "tiny", "--dry-run")
    return made


def _begun(root: Path) -> Repository:
    made = _second(root)
    _done(made, "release", "tiny")
    (root / "failing.txt").write_text(FAILING)
    return made


def _at_the_pause(root: Path) -> Repository:
    made = _begun(root)
    _done(made, "rollout", "advance", "tiny")
    return made


def _resumed(root: Path) -> Repository:
    made = _at_the_pause(root)
    _done(made, "rollout", "resume", "tiny")
    return made


def _at_the_analysis(root: Path) -> Repository:
    made = _resumed(root)
    _done(made, "rollout", "advance", "tiny")
    return made


def _aborted(root: Path) -> Repository:
    made = _begun(root)
    _done(made, "rollout", "abort", "tiny")
    return made


def _twice(root: Path) -> Repository:
    made = _shipped(root)
    made.edit("version: 1.0.0", "version: 1.1.0")
    _done(made, "ship", "tiny", "--env", "local")
    return made


def _calls(*arguments: str) -> Callable[[Path], int]:
    def act(root: Path) -> int:
        done = repository(root).call(*(word.replace("ROOT", str(root)) for word in arguments))
        assert done.code in {0, 1, 2}, done
        return done.code

    return act


def _readmit(root: Path) -> int:
    """Take the one release that is in quarantine out of it, by the digest that its file bears."""
    made = repository(root)
    (newest,) = (path for path in (root / "home/registry/local/engines/tiny/releases").iterdir()
                 if b"1.1.0" in _payload(path))  # fmt: skip
    return made.call("rollout", "readmit", "tiny", newest.stem.removeprefix("sha256-")).code


def _payload(path: Path) -> bytes:
    return base64.b64decode(json.loads(path.read_bytes())["payload"])


def _warmed(prepare: Callable[[Path], object], act: Callable[[Path], int]) -> Callable[[Path], None]:
    """Run the command once on a copy, so that what it imports is not imported by each child anew."""

    def prepared(root: Path) -> None:
        prepare(root)
        with tempfile.TemporaryDirectory(dir=root.parent) as copy:
            act(copy_of(repository(root), Path(copy) / "repo").root)

    return prepared


# name -> (what is there before, the command that is killed, the environment that it moves)
_VERBS: dict[str, tuple[Callable[[Path], object], Callable[[Path], int], str]] = {
    "promote": (_promotable, _calls("promote", "tiny", "--env", "local", "--to", "dev"), "dev"),
    "rollback-command": (_twice, _calls("rollback", "tiny"), "local"),
    "rollback-of-a-rollout": (_begun, _calls("rollback", "tiny"), "local"),
    "rollout-begin": (_second, _calls("release", "tiny"), "local"),
    "rollout-advance": (_begun, _calls("rollout", "advance", "tiny"), "local"),
    "rollout-pause": (_resumed, _calls("rollout", "pause", "tiny"), "local"),
    "rollout-resume": (_at_the_pause, _calls("rollout", "resume", "tiny"), "local"),
    "rollout-abort": (_begun, _calls("rollout", "abort", "tiny"), "local"),
    "rollout-fails": (
        _at_the_analysis,
        _calls("rollout", "advance", "tiny", "--metrics", "ROOT/failing.txt"),
        "local",
    ),
    "rollout-readmit": (_aborted, _readmit, "local"),
}
VERBS = {name: (_warmed(prepare, act), act, env) for name, (prepare, act, env) in _VERBS.items()}
