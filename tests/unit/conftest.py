"""What several files set up alike. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.attacked import Scene
    from tests.support.serving import Served
    from tests.support.transports import Stack
    from trtops.executor.executor import Executor
    from trtops.executor.remote import RemoteEngines
    from trtops.executor.supervisor import Supervisor


@pytest.fixture
def executor() -> Iterator[Executor]:
    """An executor without an engine."""
    from trtops.executor.executor import Executor

    made = Executor()
    yield made
    made.close(drain=5)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor without an engine, which loses no time."""
    from tests.support.fleets import QUICK
    from trtops.executor.supervisor import Supervisor

    made = Supervisor(tmp_path / "s.sock", pace=QUICK)
    yield made
    made.close(drain=1)


@pytest.fixture
def remote(supervisor: Supervisor) -> Iterator[RemoteEngines]:
    """A client of that supervisor."""
    from trtops.executor.remote import RemoteEngines

    made = RemoteEngines(supervisor.path)
    yield made
    made.close()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """An executor with one engine behind a server on shared memory."""
    from tests.support.transports import Stack

    made = Stack(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A machine that serves, and a registry that an attacker has."""
    from tests.support.attacked import Scene

    made = Scene(tmp_path)
    yield made
    made.engines.close(drain=1)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of an engine that adds up, one for a module and held to its ``LIMITS``."""
    from tests.support.serving import summing

    with summing(request.module.LIMITS) as (one, _):
        yield one
