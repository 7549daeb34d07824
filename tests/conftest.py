"""Servers that several folders of tests share, started once a session."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.nacos_server import NacosServer, free_base, memory_folder, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def nacos() -> Iterator[NacosServer]:
    """A real Nacos 3.1 with its administrator. Needs Java and Maven: skipped without, a failure in CI."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    home = memory_folder()
    server = NacosServer(home / "home", free_base())
    try:
        server.start()
        server.make_administrator()
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
