"""The README says what is true: its commands are the application's, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from trtops.cli.main import app

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


def test_the_two_commands_are_those_of_ci() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    ship, test = re.findall(r"^    (python3 -m .+)$", README, flags=re.MULTILINE)[:2]
    assert ship in workflow
    assert test in workflow
    assert test in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
