"""Repositories for tests of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.repository import Repository, copy_of, make_repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def checked_template(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return make_repository(tmp_path_factory.mktemp("template") / "repo")


@pytest.fixture
def repo(checked_template: Repository, tmp_path: Path) -> Repository:
    """A repository of one small engine; nothing was done in it yet."""
    return copy_of(checked_template, tmp_path / "repo")


@pytest.fixture(scope="session")
def shipped_template(checked_template: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = copy_of(checked_template, tmp_path_factory.mktemp("shipped") / "repo")
    made.call("ship", "tiny").says(0, "generation 1 signed and published")
    return made


@pytest.fixture
def shipped(shipped_template: Repository, tmp_path: Path) -> Repository:
    """A repository whose engine was shipped once."""
    return copy_of(shipped_template, tmp_path / "repo")
