"""HTTP/2 as gRPC's port speaks it: flow control, limits, floods, faults; frames are written by hand here."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hpack
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.http2 import (
    HEALTH,
    INFER,
    QUICK,
    ROOM,
    STREAM,
    Client,
    close_sockets,
    held,
    message,
    server,
    until_reset,
)
from tests.support.serving import FakeEngines, Served, info, serving, tensor
from tests.support.waiting import until
from trtops.serve.exchange import Limits
from trtops.serve.faults import Fault
from trtops.serve.frames import (
    ACK,
    CALM,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    FRAME_SIZE,
    HEAD,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL,
    PUSH,
    RESET,
    SETTING,
    SETTINGS,
    WINDOW,
    frame,
)
from trtops.serve.grpc_messages import messages
from trtops.serve.grpc_streams import timeout_of, trailers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    yield
    close_sockets()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with server(Limits(queued=32)) as (one, _):
        yield one


OPEN = "OPEN"
FAULTS: list[tuple[str, bytes, int]] = [
    ("a frame that is too large", HEAD.pack(0x10, 0, DATA, 0, 1), FRAME_SIZE),
    ("a stream of the server's", frame(HEADERS, END_HEADERS, 2, b"\x82"), PROTOCOL),
    ("stream 0", frame(HEADERS, END_HEADERS, 0, b"\x82"), PROTOCOL),
    ("data of a stream that is not open", frame(DATA, 0, 7, b"x"), PROTOCOL),
    ("data of the connection", frame(DATA, 0, 0, b"x"), PROTOCOL),
    ("a window that grows by nothing", frame(WINDOW, 0, 0, bytes(4)), PROTOCOL),
    ("a window of a stream that is not open", frame(WINDOW, 0, 9, b"\0\0\0\1"), PROTOCOL),
    ("a window that overflows", frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"), FLOW),
    ("a short window", frame(WINDOW, 0, 0, b"\0"), FRAME_SIZE),
    ("settings of a wrong size", frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE),
    ("settings of a stream", frame(SETTINGS, 0, 1), FRAME_SIZE),
    ("an acknowledgement that says something", frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE),
    ("an initial window that is too large", frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 31)), FLOW),
    ("a ping of a wrong size", frame(PING, 0, 0, b"1"), FRAME_SIZE),
    ("a reset of a stream that was never open", frame(RESET, 0, 5, bytes(4)), PROTOCOL),
    ("a short reset", frame(RESET, 0, 1, b"1"), FRAME_SIZE),
    ("a push", frame(PUSH, 0, 1, bytes(9)), PROTOCOL),
    ("a short priority", frame(PRIORITY, 0, 1, b"1"), FRAME_SIZE),
    ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b"\x82"), PROTOCOL),
    ("headers that are not continued", frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    ("headers continued on another stream", frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 4, 3), PROTOCOL),
    ("a block that is no HPACK", frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION),
    ("an index that is not in the table", frame(HEADERS, END_HEADERS, 1, b"\xfe"), COMPRESSION),
    ("more padding than frame", frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09\x82"), PROTOCOL),
    ("a bomb", frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 4000), COMPRESSION),
]


@pytest.mark.parametrize(("data", "code"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_fault_ends_the_connection_with_its_code(served: Served, data: bytes, code: int) -> None:
    client = Client(served)
    client.socket.sendall(data)
    assert client.end() == code
    other = Client(served)
    other.ask(1, b"\0" * 5, HEALTH)
    assert other.answer(1)[0]["grpc-status"] == "0"


def test_what_is_no_http2_is_told_so(served: Served) -> None:
    client = Client(served, greet=False)
    client.socket.sendall(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    assert client.end() == PROTOCOL


def test_the_peers_window_is_kept_to(served: Served) -> None:
    client = Client(served, window=10)
    client.ask(1, message())
    sent = b""
    for kind, _, number, payload in client.frames():
        if kind == DATA and number == 1:
            sent += payload
            if len(sent) == 10:
                break
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        next(kind for kind, *_ in client.frames() if kind in {DATA, HEADERS})
    client.socket.settimeout(20)
    client.socket.sendall(frame(WINDOW, 0, 1, struct.pack(">I", 7)))
    client.socket.sendall(frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 16)))
    found, rest = client.answer(1)
    answer = messages()["ModelInferResponse"].FromString((sent + rest)[5:])
    assert (found["grpc-status"], answer.outputs[0].name) == ("0", "y")


def test_an_answer_that_the_peer_leaves_no_window_for_is_not_kept_for_ever() -> None:
    with server(replace(ROOM, write_time=0.3)) as (served, _):
        client = Client(served, window=10)
        client.ask(1, message())
        kinds = [(kind, payload) for kind, _, number, payload in until_reset(client) if number == 1]
        assert kinds[-1] == (RESET, struct.pack(">I", CALM))
        until(lambda: held(served) == 0 and all(not one._streams for one in served.server._grpc[0].connections))


def test_windows_that_open_elsewhere_do_not_let_an_answer_be_kept_longer() -> None:
    with server(replace(ROOM, write_time=0.3)) as (served, _):
        client, done = Client(served, window=10), threading.Event()
        client.ask(1, message())

        def widen() -> None:
            for _ in range(600):
                if done.wait(0.05):
                    return
                client.socket.sendall(frame(WINDOW, 0, 0, struct.pack(">I", 1)))

        thread = threading.Thread(target=widen)
        thread.start()
        try:
            assert any(kind == RESET for kind, _, _, _ in until_reset(client))
        finally:
            done.set()
            thread.join()


def test_large_tensors_both_ways() -> None:
    engines = FakeEngines()
    engines.add(
        info("echo", (tensor("in", shape=("n", "m")),), (tensor("out", shape=("n", "m")),)),
        lambda got: {"out": got["in"]},
    )
    x = np.random.default_rng(1).standard_normal((4, 1 << 20)).astype(np.float32)
    with serving(engines, grpc=True) as served, triton.InferenceServerClient(f"127.0.0.1:{served.grpc}") as client:
        asked = triton.InferInput("in", list(x.shape), "FP32")
        asked.set_data_from_numpy(x)
        for _ in range(3):
            np.testing.assert_array_equal(client.infer("echo", [asked]).as_numpy("out"), x)
        for algorithm in ("gzip", "deflate"):
            small = triton.InferInput("in", [1, 4], "FP32")
            small.set_data_from_numpy(x[:1, :4])
            result = client.infer("echo", [small], compression_algorithm=algorithm).as_numpy("out")
            np.testing.assert_array_equal(result, x[:1, :4])
        until(lambda: held(served) == 0)


@settings(max_examples=25, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b" * 60, "c" * 900]), st.booleans()), min_size=1, max_size=25))
def test_headers_that_were_known_mean_what_they_say(asked: list[tuple[str, bool]]) -> None:
    """Whatever enters the table of compression and leaves it: each request has its own metadata."""
    with server(Limits()) as (served, engines):
        client = Client(served)
        for index, (key, indexed) in enumerate(asked):
            client.encoder.header_table_size = 1024 if index % 7 == 6 else 4096
            block = client.encoder.encode(
                [
                    *((":method", "POST"), (":scheme", "http"), (":path", INFER.decode()), ("te", "trailers")),
                    ("content-type", "application/grpc"),
                    hpack.HeaderTuple("x-routing-key", key)
                    if indexed
                    else hpack.NeverIndexedHeaderTuple("x-routing-key", key),
                ]
            )
            number = 2 * index + 1
            client.socket.sendall(
                frame(HEADERS, END_HEADERS, number, block) + frame(DATA, END_STREAM, number, message())
            )
            assert client.answer(number)[0]["grpc-status"] == "0"
        client.socket.close()
        assert [request.key for request in engines.taken] == [key for key, _ in asked]


@pytest.mark.parametrize("flood", ["resets", "pings", "settings", "empty data", "priorities", "continuations"])
def test_floods_end_the_connection_and_harm_no_other(flood: str) -> None:
    with server(Limits()) as (served, engines):
        client = Client(served)
        if flood == "resets":
            engines.gate.clear()
            pieces = [
                frame(HEADERS, END_HEADERS, number, client.headers())
                + frame(DATA, END_STREAM, number, message())
                + frame(RESET, 0, number, bytes(4))
                for number in range(1, 20001, 2)
            ]
        elif flood == "pings":
            pieces = [frame(PING, 0, 0, bytes(8))] * 20000
        elif flood == "settings":
            pieces = [frame(SETTINGS, 0, 0, SETTING.pack(4, 65535))] * 20000
        elif flood == "priorities":
            pieces = [frame(PRIORITY, 0, 1, bytes(5))] * 20000
        elif flood == "empty data":
            pieces = [frame(HEADERS, END_HEADERS, 1, client.headers()), *[frame(DATA, 0, 1)] * 20000]
        else:
            pieces = [frame(HEADERS, 0, 1, client.headers()), *[frame(CONTINUATION, 0, 1, b"")] * 20000]
        try:
            for piece in pieces:
                client.socket.sendall(piece)
            code = client.end()
        except (BrokenPipeError, ConnectionResetError):
            code = CALM  # it hung up before all was sent
        assert code == CALM
        assert all(job.cancelled for job in engines.jobs)
        engines.gate.set()
        until(lambda: not engines.jobs)
        other = Client(served)
        other.ask(1, message())
        assert other.answer(1)[0]["grpc-status"] == "0"
        until(lambda: held(served) == 0)


def test_windows_and_pings_of_a_client_that_asks_are_no_flood() -> None:
    """gRPC's libraries send two to four such frames an answer; thousands of requests go on one connection, or stream."""
    answers = 2500
    between = frame(WINDOW, 0, 0, struct.pack(">I", 200)) + frame(PING, 0, 0, bytes(8)) + frame(PING, 0, 0, bytes(8))
    with server(Limits()) as (served, _):
        client = Client(served)
        for number, asked in ((1, message()), (3, message(width=3))):  # served, and refused
            client.socket.sendall(frame(HEADERS, END_HEADERS, number, client.headers(STREAM)))
            wider = frame(WINDOW, 0, number, struct.pack(">I", 200))
            for _ in range(answers):
                client.socket.sendall(frame(DATA, 0, number, asked) + wider + between)
                client.part(number)
            client.socket.sendall(frame(DATA, END_STREAM, number))
            assert client.answer(number)[0]["grpc-status"] == "0"
        for number in range(5, 5 + 2 * answers, 2):  # refused, every one of them, and told so
            client.ask(number, b"\0\0\0\0\1\xff")
            client.socket.sendall(between)
            assert client.answer(number)[0]["grpc-status"] == "3"


def test_more_streams_than_allowed_are_refused_and_can_be_sent_again() -> None:
    with server() as (served, engines):
        engines.gate.clear()
        client = Client(served)
        for number in range(1, 2 * ROOM.queued + 3, 2):
            client.ask(number, message())
        refused = next(
            (number, payload) for kind, _, number, payload in client.frames() if kind == RESET and payload != bytes(4)
        )
        assert refused == (2 * ROOM.queued + 1, struct.pack(">I", 7))
        engines.gate.set()


def test_slow_clients_are_held_to_their_times() -> None:
    with server(QUICK) as (served, _):
        silent, half, slow = Client(served, greet=False), Client(served), Client(served)
        half.socket.sendall(frame(HEADERS, 0, 1, half.headers()))
        slow.socket.sendall(frame(HEADERS, END_HEADERS, 1, slow.headers()) + frame(DATA, 0, 1, message()[:9]))
        found, _ = slow.answer(1)
        assert (found["grpc-status"], found["grpc-message"]) == ("4", "the message took too long to come")
        assert half.end() == CALM
        silent.end()
        idle = Client(served)
        assert idle.end() == 0, "an idle connection ends in peace"
        until(lambda: not served.server._grpc[0].connections)


@pytest.mark.parametrize(
    ("changes", "body", "status", "text"),
    [
        ({"content_type": "text/plain"}, message(), "12", "no gRPC call"),
        ({"grpc_timeout": "9x"}, message(), "3", "grpc-timeout"),
        ({"grpc_encoding": "br"}, b"\1" + message()[1:], "12", "gzip and deflate"),
        ({}, b"\1" + message()[1:], "3", "grpc-encoding does not say how"),
        ({}, message() * 2, "3", "one message"),
        ({}, b"", "3", "one message"),
        ({}, b"\0\0\0\0\x09abc", "3", "one message"),
        ({}, b"\0\xff\xff\xff\xff", "8", "too large"),
        ({"more": "x" * 3000}, message(), "8", "metadata is too large"),
    ],
    ids=["type", "timeout", "brotli", "compressed how", "two messages", "none", "half of one", "4 GiB", "metadata"],
)
def test_calls_that_are_wrong_are_told_why(changes: dict[str, Any], body: bytes, status: str, text: str) -> None:
    with server() as (served, _):
        client = Client(served)
        client.ask(1, body, **changes)
        found, _ = client.answer(1)
        assert found["grpc-status"] == status
        assert text in found["grpc-message"]
        until(lambda: held(served) == 0)


def test_timeouts_as_they_are_written() -> None:
    found = [timeout_of(value) for value in (b"", b"1H", b"2M", b"3S", b"4m", b"5u", b"6n")]
    assert found == [None, 3600.0, 120.0, 3.0, 0.004, pytest.approx(5e-6), pytest.approx(6e-9)]


@given(st.text(max_size=2000), st.sampled_from([400, 429, 503, 500, 418]))
def test_any_message_of_a_fault_can_be_read_again(text: str, status: int) -> None:
    from urllib.parse import unquote

    pairs: dict[Any, Any] = dict(
        hpack.Decoder().decode(trailers_of(Fault(status, "reason", text, 1.5 if status == 503 else None)))
    )
    assert unquote(pairs["grpc-message"], errors="replace") == text[:1000].encode(errors="replace").decode(
        errors="replace"
    )
    assert ("retry-after" in pairs) is (status == 503)
