"""A job of a GitHub workflow, run here: its ``run:`` steps for real, the actions that it uses as far as they matter.

An expression or a condition that is not known here fails the test: it would be something that nobody looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_STEP_SECONDS = 110


@dataclass
class Step:
    """A step that was run or skipped.

    Attributes:
        name: its name, or the action that it uses.
        outcome: ``success``, ``failure`` or ``skipped``.
        code: of its shell; None for an action.
        out: what it printed, both streams.
        inputs: ``with`` of an action, expressions replaced.
    """

    name: str
    outcome: str
    code: int | None = None
    out: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Job:
    """Runs one job of a workflow file.

    Attributes:
        file: the workflow.
        remote: bare repository that holds ``ref``.
        folder: where the workspace, the runner's temporary folder and its tools are made.
        contexts: expression -> value, e.g. ``github.base_ref``.
        opa: the binary that ``setup-opa`` puts on PATH.
        ref: what is checked out: the merge commit of a pull request, or a branch.
        artifacts: where artifacts that jobs hand to each other are kept.
    """

    file: Path
    remote: Path
    folder: Path
    contexts: Mapping[str, str]
    opa: Path
    ref: str = "refs/pull/1/merge"
    artifacts: Path | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def temp(self) -> Path:
        return self.folder / "temp"

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text(encoding="utf-8")

    @property
    def outputs(self) -> dict[str, str]:
        """What steps wrote to ``GITHUB_OUTPUT``, by name."""
        lines = (self.folder / "output.txt").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def succeeded(self) -> bool:
        return all(step.outcome != "failure" for step in self.steps)

    def step(self, name: str) -> Step:
        (found,) = [step for step in self.steps if name in step.name]
        return found

    def run(self, job: str, matrix: Mapping[str, str]) -> Job:
        """Run the steps in order, as the runner does: after a failure only those that say so."""
        document = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        body = document["jobs"][job]
        known = {**self.contexts, **{f"matrix.{name}": value for name, value in matrix.items()}}
        known["runner.temp"] = str(self.temp)
        for folder in (self.temp, self.folder / "bin", self.folder / "home"):
            folder.mkdir(parents=True)
        (self.folder / "summary.md").touch()
        (self.folder / "output.txt").touch()
        base = {**document.get("env", {}), **body.get("env", {})}
        for step in body["steps"]:
            self.steps.append(self._step(step, base, known))
        return self

    def _step(self, step: dict[str, Any], base: dict[str, str], known: Mapping[str, str]) -> Step:
        name = step.get("name", step.get("uses", "?"))
        if not self._wanted(step.get("if"), known):
            return Step(name, "skipped")
        if "uses" in step:
            inputs = {key: _replaced(value, known) for key, value in step.get("with", {}).items()}
            self._action(step["uses"].partition("@")[0], inputs)
            return Step(f"{name} ({step['uses'].partition('@')[0]})", "success", inputs=inputs)
        own = {key: _replaced(value, known) for key, value in {**base, **step.get("env", {})}.items()}
        assert "${{" not in step["run"], f"{name}: an expression in a script is an injection"
        script = self.folder / "script.sh"
        script.write_text(step["run"], encoding="utf-8")
        done = subprocess.run(
            ["bash", "-e", str(script)],
            cwd=self.workspace,
            env={**self._environment(), **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_STEP_SECONDS,
            check=False,
        )
        return Step(name, "failure" if done.returncode else "success", done.returncode, done.stdout.decode())

    def _wanted(self, condition: str | None, known: Mapping[str, str]) -> bool:
        if condition is None:
            return self.succeeded
        match = _EXPRESSION.fullmatch(condition)
        assert match, condition
        terms = match[1].split(" && ")
        always = terms[0] == "!cancelled()"
        return (always or self.succeeded) and all(_holds(term, known) for term in terms[always:])

    def _action(self, action: str, inputs: dict[str, Any]) -> None:
        if action == "actions/checkout":
            assert inputs == {"fetch-depth": "0", "persist-credentials": "False"}, "history, and no token left behind"
            self._checkout()
        elif action == "actions/setup-python":
            (self.folder / "bin" / "python3").symlink_to(sys.executable)
        elif action == "open-policy-agent/setup-opa":
            (self.folder / "bin" / "opa").symlink_to(self.opa)
        elif action == "actions/upload-artifact":
            if self.artifacts is not None and Path(inputs["path"]).exists():
                shutil.rmtree(self.artifacts / inputs["name"], ignore_errors=True)  # of an earlier run
                shutil.copytree(inputs["path"], self.artifacts / inputs["name"])
        elif action == "actions/download-artifact":
            assert self.artifacts is not None
            shutil.copytree(self.artifacts / inputs["name"], inputs["path"])
        else:
            assert action == "github/codeql-action/upload-sarif", action

    def _checkout(self) -> None:
        """All branches with all history, and what the event is about."""
        git(self.folder, "init", "-q", str(self.workspace))
        git(self.workspace, "remote", "add", "origin", str(self.remote))
        refs = ("+refs/heads/*:refs/remotes/origin/*", f"+{self.ref}:refs/remotes/event")
        git(self.workspace, "fetch", "-q", "--no-tags", "origin", *refs)
        git(self.workspace, "checkout", "-q", "--detach", "refs/remotes/event")

    def _environment(self) -> dict[str, str]:
        """As on a runner, without a network: what pip would download is what this test's own environment holds."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        system = [path for path in os.environ["PATH"].split(":") if not (self.folder / path / "opa").exists()]
        return {
            **kept,
            "PATH": ":".join([str(self.folder / "bin"), *system]),
            "HOME": str(self.folder / "home"),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_BASE_REF": self.contexts.get("github.base_ref", ""),
            "GITHUB_REF": self.ref,
            "GITHUB_SHA": git(self.workspace, "rev-parse", "HEAD"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_OUTPUT": str(self.folder / "output.txt"),
            "RUNNER_TEMP": str(self.temp),
            "PYTHONPATH": sysconfig.get_paths()["purelib"],
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round: no isolation
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }


def _holds(comparison: str, known: Mapping[str, str]) -> bool:
    left, _, right = comparison.partition(" == ")
    return known[left] == (right[1:-1] if right[:1] == "'" else known[right])


def _replaced(value: Any, known: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda match: known[match[1]], str(value))


def git(folder: Path, *arguments: str) -> str:
    """Run git, with an identity and none of the user's settings."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
