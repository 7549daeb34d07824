"""What all tests share: how patient Hypothesis is, and servers that are started once a session."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.nacos_server import NacosServer, free_base, memory_folder, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

# A machine that is busy makes an example slow, never wrong. The rest stays as it is in CI, or outside of it.
settings.register_profile("patient", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("patient")

# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
