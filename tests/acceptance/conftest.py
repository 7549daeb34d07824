"""Repositories for tests of the command line."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.changes import make_template
from tests.support.repository import Repository, copy_of, make_repository

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is some: thousands of flushes to a slow disk prove nothing more here."""
    there = Path("/dev/shm")
    if not os.access(there, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="trtops-tests-", dir=there) as name:
        yield Path(name)


@pytest.fixture
def folder(memory: Path) -> Iterator[Path]:
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def checked_template(memory: Path) -> Repository:
    return make_repository(memory / "checked" / "repo")


@pytest.fixture(scope="session")
def shipped_template(checked_template: Repository, memory: Path) -> Repository:
    made = copy_of(checked_template, memory / "shipped" / "repo")
    made.call("ship", "tiny").says(0, "generation 1 signed and published")
    return made


@pytest.fixture
def repo(checked_template: Repository, folder: Path) -> Repository:
    """A repository of one small engine; nothing was done in it yet."""
    return copy_of(checked_template, folder / "repo")


@pytest.fixture
def shipped(shipped_template: Repository, folder: Path) -> Repository:
    """A repository whose engine was shipped once."""
    return copy_of(shipped_template, folder / "shipped")


@pytest.fixture(scope="session")
def proposal_template(memory: Path) -> Path:
    return make_template(memory / "proposal" / "repo")


@pytest.fixture
def proposing(proposal_template: Path, tmp_path: Path) -> Repository:
    """A repository of two engines in git, committed on ``main``, for tests of what a pull request changes."""
    shutil.copytree(proposal_template, tmp_path / "repo", symlinks=True)
    return Repository(tmp_path / "repo", tmp_path / "repo" / "home")
