"""Clients and an executor over shared memory: answers, refusals, deaths at every step."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.executors import LONG, Box, Session, load, rows
from tests.support.transport_victim import STEPS
from tests.support.transports import Stack, held
from tests.support.waiting import until
from trtops.errors import Cancelled, DeadlineExceeded, InputError, Overloaded, Retryable, StorageError, Unavailable
from trtops.executor.attach import Attachment
from trtops.executor.port import Request
from trtops.executor.remote import RemoteEngines
from trtops.tensor import TensorInfo
from trtops.transport.server import Server

if TYPE_CHECKING:
    from trtops.transport.client import Client

ROOT = Path(__file__).parents[2]
VICTIM = ROOT / "tests" / "support" / "transport_victim.py"


def test_answers_are_those_of_the_executor(stack: Stack) -> None:
    with stack.client() as client:
        reply = client.infer("e", rows(1, 2).inputs, 2)
        np.testing.assert_array_equal(reply.outputs["y"], rows(2, 4).inputs["x"])
        assert (reply.generation, reply.batch) == (3, 2)
        assert reply.compute_us > 0
        assert client.catalogue()[0]["name"] == "e"
        for _ in range(20):  # slots come round
            assert client.infer("e", rows(5).inputs, 1).outputs["y"][0, 0] == 10
    until(lambda: "0 clients, 0 slots" in repr(stack.server), "the client is gone")


def test_inputs_are_written_in_place_and_outputs_lent(stack: Stack) -> None:
    with stack.client(copy=False, slots=2) as client:
        call, views = client.reserve("e", {"x": np.empty((1, 4), np.float32)}, 1)
        assert views["x"].ctypes.data % 64 == 0
        views["x"][:] = 4
        client.send(call)
        first = client.wait(call).outputs["y"][0, 1:3]  # a view of a view keeps the slot
        second = client.infer("e", rows(6).inputs, 1)
        with pytest.raises(Overloaded, match="all 2 slots are in use"):
            client.submit("e", rows(1).inputs, 1)
        assert first.tolist() == [8, 8]
        del second
        gc.collect()
        assert client.infer("e", rows(7).inputs, 1).outputs["y"][0, 0] == 14
        assert first.tolist() == [8, 8]
    assert first.tolist() == [8, 8]  # also when the connection is closed


def test_a_reserved_slot_can_be_given_back(stack: Stack) -> None:
    with stack.client(slots=1) as client:
        call, _ = client.reserve("e", rows(1).inputs, 1)
        client.abandon(call)
        assert client.infer("e", rows(1).inputs, 1).error is None


def test_errors_cross_with_their_class(stack: Stack) -> None:
    with stack.client() as client:
        with pytest.raises(InputError, match=r"no engine 'f' is loaded \(loaded engines: e\)"):
            client.infer("f", rows(1).inputs, 1)
        with pytest.raises(InputError, match=r"engine e: input 'x' has shape \[1, 3\], expected FP32 \[-1, 4\]"):
            client.infer("e", {"x": np.zeros((1, 3), np.float32)}, 1)
        with pytest.raises(InputError, match="2 rows where the request has 1"):
            client.infer("e", rows(1, 2).inputs, 1)
        with pytest.raises(InputError, match="priority -1"):
            client.infer("e", rows(1).inputs, 1, priority=-1)
        with pytest.raises(DeadlineExceeded):
            client.infer("e", rows(1).inputs, 1, deadline=time.monotonic() - 1)
        stack.session.before = lambda _: (_ for _ in ()).throw(Retryable("told to"))
        with pytest.raises(Retryable, match="told to"):
            client.infer("e", rows(1).inputs, 1)


def test_a_request_without_inputs_is_refused_whatever_shapes_an_engine_takes(stack: Stack) -> None:
    load(stack.executor, Session(inputs=(TensorInfo(name="x", dtype="float32", shape=("batch", "width")),)), name="f")
    with stack.client() as client:
        for name in ("e", "f"):
            with pytest.raises(InputError, match=f"engine {name}: input 'x' is missing"):
                client.infer(name, {}, 1)


def test_outputs_that_do_not_fit_are_an_error_not_a_crash(stack: Stack) -> None:
    with stack.client() as client:
        stack.session.run = lambda _: {"y": np.zeros((1, 2000), np.float32)}  # type: ignore[method-assign, assignment]
        with pytest.raises(InputError, match="need 8000 bytes, the output area of a slot has 4096"):
            client.infer("e", rows(1).inputs, 1)


def test_cancel_and_deadline_while_a_batch_runs(stack: Stack) -> None:
    stack.session.hold()
    with stack.client() as client:
        running = client.submit("e", rows(1).inputs, 1)
        stack.session.wait_entered()
        waiting = client.submit("e", rows(2).inputs, 1)
        late = client.submit("e", rows(3).inputs, 1, deadline=time.monotonic() + 0.02)
        client.cancel(waiting)
        assert isinstance(client.wait(waiting).error, Cancelled)
        assert isinstance(client.wait(late).error, DeadlineExceeded)
        stack.session.gate.set()
        assert client.wait(running).error is None
        client.cancel(running)  # too late: nothing happens
        assert client.infer("e", rows(4).inputs, 1).error is None


def test_many_threads_share_a_client(stack: Stack) -> None:
    failed: list[BaseException] = []

    def work(client: Client, number: int) -> None:
        try:
            for index in range(100):
                value = number * 1000 + index
                assert client.infer("e", rows(value).inputs, 1).outputs["y"][0, 0] == 2 * value
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    with stack.client(slots=8) as client:
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert not failed
        assert not any(thread.is_alive() for thread in threads)
        assert "8 of 8 slots free" in repr(client)


def test_remote_engines_have_the_calls_of_an_executor(stack: Stack) -> None:
    remote, box = RemoteEngines(stack.path, slots=8), Box()
    try:
        assert remote.engines() == stack.executor.engines()
        for index in range(8):
            remote.submit("e", rows(index), box.of(index))
        box.wait(8)
        assert [float(box.outcomes[index].outputs["y"][0, 0]) for index in range(8)] == [2 * i for i in range(8)]
        stack.session.hold()
        remote.submit("e", rows(1), box.of("first"))
        stack.session.wait_entered()
        remote.submit("e", Request(rows(1).inputs, 1, time.monotonic() + 100, 0), box.of("second"))()
        assert isinstance(box.error("second"), Cancelled)
        stack.session.gate.set()
        box.wait_key("first")
    finally:
        remote.close()
    with pytest.raises(Unavailable):
        remote.submit("e", rows(1), box.of("never"))


def test_the_executor_s_end_is_told_at_once(stack: Stack) -> None:
    stack.session.hold()
    client = stack.client()
    call = client.submit("e", rows(1).inputs, 1)
    stack.session.wait_entered()
    stack.server.close()
    error = client.wait(call).error
    assert isinstance(error, Unavailable | Retryable)
    with pytest.raises(Unavailable, match="connection is gone"):
        client.submit("e", rows(1).inputs, 1)
    with pytest.raises(Unavailable, match="connection is gone"):
        client.catalogue()
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="no executor can be reached"):
        stack.client()


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.service
@pytest.mark.parametrize("step", STEPS)
def test_a_client_killed_at_any_step_leaves_nothing(stack: Stack, step: str) -> None:
    with stack.client() as other:
        assert other.infer("e", rows(1).inputs, 1).error is None
        before = held()
        if step == "running":
            stack.session.hold()
        victim = subprocess.Popen(
            [sys.executable, str(VICTIM), str(stack.path), step],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        if step == "running":
            stack.session.wait_entered()
        if step == "answered":
            assert victim.stdout.readline() == b"sent\n"
            until(lambda: "1 slots" not in repr(stack.server) and "0 slots in use" in repr(stack.server), "answered")
        if step in {"running", "answered"}:
            victim.send_signal(signal.SIGKILL)
        assert victim.wait(LONG) == -signal.SIGKILL
        victim.stdout.close()
        until(lambda: "1 clients" in repr(stack.server), "the victim's socket is closed")
        stack.session.gate.set()
        reply = other.infer("e", rows(21).inputs, 1)
        assert reply.outputs["y"][0, 0] == 42
        until(lambda: "0 requests" in repr(stack.executor), "no request is left")
        until(lambda: held() == before, "descriptors and maps are back")
        assert "1 clients, 0 slots in use" in repr(stack.server)


# -- the socket --------------------------------------------------------------------------------------------------------


def test_a_stale_socket_is_replaced_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    stack = Stack(path)
    try:
        with pytest.raises(Unavailable, match="another server listens there"):
            Server(path, Attachment(stack.executor))
        with stack.client() as client:
            assert client.infer("e", rows(1).inputs, 1).error is None
    finally:
        stack.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(StorageError, match="there is a file, not a socket"):
        Server(path, Attachment(stack.executor))
    assert path.read_text() == "precious"
    with pytest.raises(StorageError, match="no socket can be made"):
        Server(tmp_path / "no" / "folder" / "s", Attachment(stack.executor))
