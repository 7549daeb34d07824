"""The README says what is true: its commands are the application's, its links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import typer.main

from trtops.cli.main import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _commands(command: object, path: str = "trtops") -> dict[str, object]:
    children = getattr(command, "commands", {})
    if not children:
        return {path: command}
    return {name: leaf for word, child in children.items() for name, leaf in _commands(child, f"{path} {word}").items()}


def _rows() -> list[str]:
    return re.findall(r"^\| `(trtops [^`]+)` \|", README, flags=re.MULTILINE)


def test_the_table_of_commands_is_the_applications() -> None:
    shown = {re.match(r"trtops( [a-z-]+)+", row).group(0).strip() for row in _rows()}  # type: ignore[union-attr]
    assert shown == set(_commands(typer.main.get_command(app)))


def test_every_option_in_the_table_exists() -> None:
    commands = _commands(typer.main.get_command(app))
    for row in _rows():
        name = re.match(r"trtops( [a-z-]+)+", row).group(0).strip()  # type: ignore[union-attr]
        known = {option for parameter in commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]
        assert set(re.findall(r"--[a-z-]+", row)) <= known, row


def test_every_relative_link_leads_somewhere() -> None:
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document):
            assert (ROOT / target).exists(), target


def test_each_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    told = set(re.findall(r"[\w.-]+", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")))
    assert [one for one in wanted if re.match(r"[\w.-]+", one).group(0) not in told] == []  # type: ignore[union-attr]


def test_the_two_commands_are_those_of_ci() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    ship, test = re.findall(r"^    (python3 -m .+)$", README, flags=re.MULTILINE)[:2]
    assert ship in workflow
    assert test in workflow
    assert test in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
