"""Clients that misbehave at every step, each beside a good one: all that the good one asks is answered, and rightly."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.executors import LONG, rows
from tests.support.transport_hostile import STEPS
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.transports import Stack

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
ROUNDS = 30


class Good:
    """Asks again and again, in a thread, until it is told to stop."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.stop = threading.Event()
        self.answers = 0
        self.wrong: list[object] = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with self.stack.client() as client:
            while not self.stop.is_set():
                value = self.answers % 100
                reply = client.wait(client.submit("e", rows(value).inputs, 1))
                if reply.error is not None or reply.outputs["y"][0, 0] != 2 * value:
                    self.wrong.append(reply)
                self.answers += 1

    def more(self) -> None:
        """It is answered now, too."""
        before = self.answers
        until(lambda: self.answers > before + 10, "a good client is answered")


@pytest.mark.parametrize("step", STEPS)
def test_a_good_client_is_served_beside_a_hostile_one(
    stack: Stack, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = Good(stack)
    command = [sys.executable, "-m", "tests.support.transport_hostile", str(stack.path), step, str(ROUNDS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as hostile:
        try:
            assert hostile.stdout is not None
            said = hostile.stdout.readline()
            if step == "stopped":
                hostile.send_signal(signal.SIGSTOP)
                good.more()
            assert said == ("sent\n" if step == "stopped" else "done\n")
            good.more()
        finally:
            hostile.kill()
            hostile.wait(LONG)
    until(lambda: stack.server.clients == 1, "the hostile one is gone")
    good.more()
    good.stop.set()
    good.thread.join(LONG)
    assert not good.thread.is_alive()
    assert good.wrong == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    until(lambda: (stack.server.clients, stack.server.held().in_use) == (0, 0), "nothing is left of either")
