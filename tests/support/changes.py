"""Changes of a repository of engines in git, and ``trtops check`` of them, for tests of pull requests."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from typing import TYPE_CHECKING, Any

from tests.support.actions import git
from tests.support.repository import Repository, make_repository

if TYPE_CHECKING:
    from pathlib import Path

WAIVER = """\
apiVersion: trtops/v1
kind: Waiver
rule: spec.server_port_unprivileged
selector: {engine: tiny}
reason: it was always so
owner: me
approver: somebody-else
granted: "GRANTED"
expires: "EXPIRES"
"""


def make_template(root: Path) -> Path:
    """A repository of two engines, ``tiny`` and ``other``, committed on ``main``."""
    made = make_repository(root)
    second = root / "engines" / "other"
    shutil.copytree(made.engine, second)
    spec = second / "engine.yaml"
    spec.write_text(spec.read_text("utf-8").replace("name: tiny", "name: other"), encoding="utf-8")
    (root / ".gitignore").write_text("home/\n*.log\n", encoding="utf-8")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "base")
    return root


def check(repo: Repository, *arguments: str, code: int, **environment: str) -> dict[str, Any]:
    done = repo.call("check", "--json", *arguments, **environment).says(code)
    assert done.err == ""
    body: dict[str, Any] = json.loads(done.out)
    assert body["exit_code"] == code
    return body


def since(repo: Repository, *arguments: str, code: int = 0) -> dict[str, Any]:
    return check(repo, "--changed-since", "main", "--policies-from", "main", *arguments, code=code)


def subjects(body: dict[str, Any]) -> list[str]:
    return sorted({verdict["subject"] for verdict in body["verdicts"]})


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def waiver() -> str:
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return WAIVER.replace("GRANTED", str(today)).replace("EXPIRES", str(today + dt.timedelta(days=9)))


def privileged(repo: Repository) -> None:
    repo.edit("port: 8000", "port: 80", file=repo.engine / "runtime.yaml")
