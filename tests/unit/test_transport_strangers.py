"""Clients that cheat, send nonsense, come too often or may not come: each is hung up on, and harms nobody else."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.executors import LONG, rows
from tests.support.transports import Stack
from trtops.errors import InputError, Unavailable
from trtops.transport.greeting import connect
from trtops.transport.layout import REQUEST_BYTES, RING_TAIL
from trtops.transport.limits import Limits
from trtops.transport.wire import VERSIONS, Hello, Refused, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtops.transport.client import Client


def poll_for_ever(client: Client) -> None:
    while True:
        client.poll()


def cheat_slot_out_of_range(client: Client) -> None:
    client._submit.push(4)


def cheat_post_twice(client: Client) -> None:
    call = client.submit("e", rows(1).inputs, 1)
    client._submit.push(call.slot)


def cheat_overrun(client: Client) -> None:
    layout = client._segment.layout
    client._segment.words[(layout.submit + RING_TAIL) // 4] = 1000


@pytest.mark.parametrize("cheat", [cheat_slot_out_of_range, cheat_post_twice, cheat_overrun])
def test_a_client_that_breaks_the_protocol_is_hung_up_on(
    stack: Stack, cheat: Callable[[Client], None], caplog: pytest.LogCaptureFixture
) -> None:
    stack.session.hold()
    with stack.client() as other, stack.client() as client:
        cheat(client)
        os.eventfd_write(client._their_bell, 1)
        with pytest.raises(Unavailable, match="broke the protocol"):
            poll_for_ever(client)
        stack.session.gate.set()
        assert other.infer("e", rows(1).inputs, 1).error is None
    assert "broke the protocol" in caplog.text


@pytest.mark.parametrize("size", [0, 1, 127, 129, 4000, 2**32 - 1])
def test_a_malformed_description_fails_alone(stack: Stack, size: int) -> None:
    with stack.client() as client:
        call, _ = client.reserve("e", rows(1).inputs, 1)
        start = client._segment.starts[call.slot]
        noise = np.random.default_rng(size).bytes(256)
        client._segment.memory[start + REQUEST_BYTES : start + REQUEST_BYTES + 256] = noise
        call.size = size
        client.send(call)
        assert isinstance(client.wait(call).error, InputError)
        assert client.infer("e", rows(1).inputs, 1).error is None


@pytest.mark.parametrize(
    "packet",
    [
        b"garbage",
        b"[]",
        b'{"type": "ask", "number": 1}',
        b'{"type": "withdraw", "slot": 1, "sequence": 1}',
        b'{"type": "hello", "versions": [1], "slots": "many", "input_bytes": 1, "output_bytes": 1}',
        b"\xff" * 4096,
    ],
)
def test_a_bad_greeting_is_hung_up_on(stack: Stack, packet: bytes) -> None:
    with connect(stack.path, 10) as sock:
        sock.send(packet)
        message = decode_from_executor(sock.recv(4096))
        assert isinstance(message, Refused)
        assert "broke the protocol" in message.what
        assert sock.recv(1) == b""


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (Hello([VERSIONS[-1] + 1], 4, 4096, 4096), r"speaks version \[\d+\], this executor 1, 2, "),
        (Hello([VERSIONS[-1]], 0, 4096, 4096), "0 slots of"),
        (Hello([VERSIONS[-1]], -5, 4096, 4096), "-5 slots of"),
        (Hello([VERSIONS[-1]], 10**15, 4096, 4096), "slots of"),
        (Hello([VERSIONS[-1]], 4, 10**18, 4096), "were asked for"),
        (Hello([VERSIONS[-1]], 4, -1, 4096), "were asked for"),
        (Hello([VERSIONS[-1]], 200, 1 << 20, 1 << 20), r"ask for fewer or smaller slots"),
    ],
)
def test_quotas_and_versions_are_refused_with_the_reason(stack: Stack, hello: Hello, said: str) -> None:
    with connect(stack.path, 10) as sock:
        sock.send(encode(hello))
        message = decode_from_executor(sock.recv(4096))
        assert isinstance(message, Refused)
        assert re.search(said, f"{message.what} ({message.fix})")
    with stack.client() as other:
        assert other.infer("e", rows(1).inputs, 1).error is None


def test_a_client_that_never_says_hello_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.transport.server._GREETING", 0.05)
    stack = Stack(tmp_path / "s")
    try:
        with connect(stack.path, 10) as sock:
            message = decode_from_executor(sock.recv(4096))
            assert isinstance(message, Refused)
            assert "did not say hello" in message.what
    finally:
        stack.close()


def test_only_so_many_clients(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "s", clients=1)
    try:
        with stack.client(), pytest.raises(Unavailable, match="1 clients are connected, as many as may be"):
            stack.client()
    finally:
        stack.close()


def test_users_that_may_not_are_refused(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "s", users=frozenset({os.getuid() + 1}), mode=0o660)
    try:
        assert stack.path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(Unavailable, match=f"user {os.getuid()} may not use this executor"):
            stack.client()
    finally:
        stack.close()
    limits = Limits(users=frozenset({7}), groups=frozenset({9}))
    assert [limits.allow(7, 1), limits.allow(1, 9), limits.allow(1, 1)] == [True, True, False]
    assert Limits().allow(os.getuid(), 12345)


def test_a_flood_of_one_client_leaves_room_for_others(stack: Stack) -> None:
    stop = threading.Event()

    def flood() -> None:
        with stack.client() as client:
            while not stop.is_set():
                calls = [client.submit("no such engine", rows(1).inputs, 1) for _ in range(4)]
                for call in calls:
                    client.wait(call)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with stack.client() as client:
            for index in range(50):
                assert client.infer("e", rows(index).inputs, 1).outputs["y"][0, 0] == 2 * index
    finally:
        stop.set()
        thread.join(LONG)
