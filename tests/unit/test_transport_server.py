"""Clients and an executor over shared memory: answers, refusals, deaths at every step, clients that cheat."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.executors import LONG, Box, Session, batching, rows
from tests.support.transport_victim import STEPS
from trtops.errors import Cancelled, DeadlineExceeded, InputError, Overloaded, Retryable, StorageError, Unavailable
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.executor.port import Outcome, Request
from trtops.executor.remote import RemoteEngines
from trtops.transport.client import Client
from trtops.transport.greeting import connect
from trtops.transport.layout import REQUEST_BYTES, RING_TAIL, VERSION
from trtops.transport.server import Limits, Server
from trtops.transport.wire import Hello, Refused, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
VICTIM = ROOT / "tests" / "support" / "transport_victim.py"


class Stack:
    """An executor with one engine, and its server."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.path = path
        self.session = Session()
        self.executor = Executor()
        self.executor.load(
            "e",
            generation=3,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="fake",
            batching=batching(queue={"timeout": "20s"}),
            instances=1,
            open_session=lambda: self.session,
        )
        self.server = Server(path, Attachment(self.executor), limits=Limits(**limits))

    def client(self, **options: Any) -> Client:
        return Client(self.path, **{"slots": 4, "input_bytes": 4096, "output_bytes": 4096, **options})

    def close(self) -> None:
        self.session.gate.set()
        self.server.close()
        self.executor.close(drain=5)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "s")
    yield made
    made.close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Look until it is so. The server tells nobody when it reclaimed a client, so a test has to look."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.002)


def held() -> tuple[int, int]:
    """Descriptors of this process, and mapped segments."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:trtops-slots")  # noqa: PTH208 - the directory changes


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


def test_outputs_that_do_not_fit_are_an_error_not_a_crash(stack: Stack) -> None:
    with stack.client() as client:
        stack.session.run = lambda _: {"y": np.zeros((1, 2000), np.float32)}  # type: ignore[method-assign]
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


# -- clients that cheat ------------------------------------------------------------------------------------------------


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
        (Hello([VERSION + 1], 4, 4096, 4096), r"speaks version \[2\], this executor 1"),
        (Hello([VERSION], 0, 4096, 4096), "0 slots of"),
        (Hello([VERSION], -5, 4096, 4096), "-5 slots of"),
        (Hello([VERSION], 10**15, 4096, 4096), "slots of"),
        (Hello([VERSION], 4, 10**18, 4096), "were asked for"),
        (Hello([VERSION], 4, -1, 4096), "were asked for"),
        (Hello([VERSION], 200, 1 << 20, 1 << 20), r"ask for fewer or smaller slots"),
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


def test_a_batch_that_runs_in_the_transport_s_thread_holds_up_nobody(stack: Stack) -> None:
    """A lone request finds an idle lane and runs in the thread that read it; others are read, and time out, meanwhile."""
    with stack.client() as first, stack.client() as second:
        stack.session.threads.clear()
        assert first.infer("e", rows(1).inputs, 1).error is None
        assert {thread.ident for thread in threading.enumerate() if thread.name.startswith("trtops-transport")} & (
            stack.session.threads
        )
        stack.session.hold()
        running = first.submit("e", rows(1).inputs, 1)
        stack.session.wait_entered()
        late = second.wait(second.submit("e", rows(2).inputs, 1, deadline=time.monotonic() + 0.02))
        assert isinstance(late.error, DeadlineExceeded)
        assert running.reply is None
        with stack.client() as third:  # and a new one is welcomed
            waiting = third.submit("e", rows(3).inputs, 1)
            stack.session.gate.set()
            assert third.wait(waiting).outputs["y"][0, 0] == 6
        assert first.wait(running).outputs["y"][0, 0] == 2


def test_a_server_that_ends_while_its_thread_runs_a_batch_does_not_wait_for_it(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "s")
    client = stack.client()
    stack.session.hold()
    running = client.submit("e", rows(1).inputs, 1)
    stack.session.wait_entered()
    stack.server.close()
    assert isinstance(client.wait(running).error, Unavailable)
    stack.close()
    client.close()


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


class Slow:
    """Work that is said to take long, and is done in the thread that may do it; it tells which one that was."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.threads: list[int] = []
        self.here = 0

    def submit(self, *request: Any) -> Callable[[], None]:
        _, inputs, _, _, _, done, client = request
        assert client == f"pid {os.getpid()}, uid {os.getuid()}"
        x = inputs["x"].copy()
        self.waiting.append(lambda: done(Outcome({"y": x})))
        return lambda: None

    def start(self, *, relief: Any = None) -> None:
        while self.waiting:
            work = self.waiting.pop()
            if relief(1.0):
                self.here += 1
                self.threads.append(threading.get_ident())
                relief.begun()
            work()

    def mapped(self, memory: Any) -> None:
        """Nothing reads it."""

    def catalogue(self) -> bytes:
        return b"[]"


def test_the_thread_that_answers_a_lone_client_takes_its_next_request_too(tmp_path: Path) -> None:
    """Nobody is woken for it, however long the work was expected to take; another client is served all the same."""
    handler = Slow()
    server = Server(tmp_path / "s.sock", handler, linger=LONG)
    x = {"x": np.zeros((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as client:
        for value in range(100):
            x["x"][:] = value
            assert client.infer("e", x, 1).outputs["y"][0, 0] == value
        assert handler.here == 100
        assert len(set(handler.threads)) == 1
        with Client(tmp_path / "s.sock", slots=1, input_bytes=4096) as other:
            assert other.infer("e", x, 1).error is None
    server.close()


def test_no_request_is_overlooked_when_a_lone_client_comes_as_the_server_stops_to_look(tmp_path: Path) -> None:
    server = Server(tmp_path / "s.sock", Slow(), linger=1e-4)
    rng = np.random.default_rng(7)
    x = {"x": np.zeros((1, 4), np.float32)}
    with Client(tmp_path / "s.sock", slots=3, input_bytes=4096) as client:
        for pause in rng.uniform(0, 2e-4, 500):
            calls = [client.submit("e", x, 1) for _ in range(int(rng.integers(1, 4)))]
            for call in calls:
                assert client.wait(call).error is None
            until = time.perf_counter() + pause
            while time.perf_counter() < until:
                pass
    server.close()
