"""Connections to workers that do not answer."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.fleets import ONES, load
from tests.support.waiting import LONG, until
from trtops.errors import InputError, Unavailable
from trtops.executor.port import Request
from trtops.transport.links import Links

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.executor.remote import RemoteEngines
    from trtops.executor.supervisor import Supervisor

NEED = (4096, 4096)
ROWS = 1 << 18


def connected(listener: socket.socket) -> int:
    """How many connections wait to be taken; they are."""
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(tmp_path / "s"))
    made.listen(16)
    made.setblocking(False)
    return made


def test_one_that_does_not_answer_is_waited_for_once_in_a_while(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.transport.links._WELCOME", 0.05)
    now = 100.0
    links = Links(tmp_path / "s", slots=1, input_bytes=4096, output_bytes=4096, clock=lambda: now)
    with listener:
        with pytest.raises(Unavailable, match="did not answer the hello in time"):
            links.get(1, NEED)
        for _ in range(5):
            with pytest.raises(Unavailable, match="worker 1 did not answer just now") as refused:
                links.get(1, NEED)
            assert refused.value.fix == "send the request again in a few seconds"
        assert connected(listener) == 1
        with pytest.raises(Unavailable, match="did not answer the hello in time"):
            links.get(2, NEED)  # another one
        now += 60.0
        with pytest.raises(Unavailable, match="did not answer the hello in time"):
            links.get(1, NEED)
        assert connected(listener) == 2
    links.close()


def test_one_that_is_gone_is_asked_for_again_at_once(tmp_path: Path) -> None:
    links = Links(tmp_path / "s", slots=1, input_bytes=4096, output_bytes=4096)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no executor can be reached"):
            links.get(1, NEED)
    links.close()


@pytest.mark.service
def test_requests_are_refused_while_a_worker_stands_still_and_served_when_it_goes_on(
    supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop that sends them must not stand still with it: it would be taken for hung itself."""
    monkeypatch.setattr("trtops.transport.links._WELCOME", 0.05)
    monkeypatch.setattr("trtops.transport.links._REST", 0.2)
    load(supervisor, tmp_path, 1)
    remote.infer("e", ONES, 2)
    worker = supervisor.workers()[0].pid
    larger = Request({"x": np.ones((ROWS, 4), np.float32)}, ROWS)  # than the slots of the connection that there is
    os.kill(worker, signal.SIGSTOP)
    try:
        for _ in range(3):
            with pytest.raises(Unavailable, match="did not answer"):
                remote.submit("e", larger, print)
    finally:
        os.kill(worker, signal.SIGCONT)
    monkeypatch.setattr("trtops.transport.links._WELCOME", LONG)

    def answered() -> bool:
        try:
            remote.infer("e", larger.inputs, ROWS)
        except Unavailable:
            return False
        except InputError as error:
            return "takes 1 to 8" in str(error)  # the worker's own words
        return True

    until(answered, "the worker answers")
