"""HTTP/2 as gRPC's port speaks it: flow control, limits, floods, faults; frames are written by hand here."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hpack
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.serving import FakeEngines, Served, add_up, info, serving, tensor
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
    GOAWAY,
    HEAD,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
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

INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = b"/grpc.health.v1.Health/Check"
ROOM = Limits(body_bytes=1 << 20, header_bytes=2048, queued=32)
QUICK = replace(ROOM, header_time=1.0, body_time=1.0, idle_time=1.0)


def message(rows: int = 1, width: int = 4) -> bytes:
    asked = messages()["ModelInferRequest"](model_name="sum", raw_input_contents=[bytes(4 * rows * width)])
    asked.inputs.add(name="x", datatype="FP32", shape=[rows, width])
    data: bytes = asked.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


_SOCKETS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    yield
    while _SOCKETS:
        _SOCKETS.pop().close()


class Client:
    """A client that says just what a test wants."""

    def __init__(self, served: Served, *, greet: bool = True, window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.grpc), timeout=20)
        _SOCKETS.append(self.socket)
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.buffer = b""
        if greet:
            first = b"" if window is None else SETTING.pack(4, window)
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, first))

    def headers(self, path: bytes = INFER, **more: str) -> bytes:
        pairs = [(":method", "POST"), (":scheme", "http"), (":path", path.decode()), (":authority", "t")]
        pairs += [("te", "trailers"), ("content-type", "application/grpc")]
        pairs += [(name.replace("_", "-"), value) for name, value in more.items()]
        data: bytes = self.encoder.encode(pairs)
        return data

    def ask(self, number: int, body: bytes, path: bytes = INFER, **more: str) -> None:
        self.socket.sendall(
            frame(HEADERS, END_HEADERS, number, self.headers(path, **more)) + frame(DATA, END_STREAM, number, body)
        )

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while True:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + self._size():
                piece = self.socket.recv(1 << 16)
                if not piece:
                    return
                self.buffer += piece
            _, _, kind, flags, number = HEAD.unpack_from(self.buffer)
            size = self._size()
            payload, self.buffer = self.buffer[9 : 9 + size], self.buffer[9 + size :]
            yield kind, flags, number, payload

    def _size(self) -> int:
        return int.from_bytes(self.buffer[:3], "big")

    def answer(self, number: int) -> tuple[dict[str, str], bytes]:
        """Headers and trailers of a stream together, and its body."""
        found: dict[str, str] = {}
        body = b""
        for kind, flags, stream, payload in self.frames():
            if kind == HEADERS:
                pairs: dict[str, str] = dict(self.decoder.decode(payload))  # type: ignore[arg-type]  # text, not raw
                if stream == number:
                    found |= pairs
            elif kind == DATA and stream == number:
                body += payload
            if stream == number and flags & END_STREAM and kind in {HEADERS, DATA}:
                return found, body
            assert kind != GOAWAY, payload
        raise AssertionError("the connection ended")

    def part(self, number: int) -> bytes:
        """A part of a stream's body."""
        for kind, _, stream, payload in self.frames():
            assert kind != GOAWAY, payload
            if kind == HEADERS:
                self.decoder.decode(payload)
            elif kind == DATA and stream == number:
                return payload
        raise AssertionError("the connection ended")

    def end(self) -> int:
        """The code that the connection ends with."""
        code = -1
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                code = struct.unpack(">II", payload[:8])[1]
        return code


@contextmanager
def server(limits: Limits = ROOM, **engine: Any) -> Iterator[tuple[Served, FakeEngines]]:
    engines = FakeEngines(**engine)
    engines.add(info(), add_up)
    with serving(engines, limits, grpc=True) as served:
        yield served, engines


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with server(Limits(queued=32)) as (one, _):
        yield one


def held(served: Served) -> int:
    return sum(port.buffered for port in served.server._grpc)


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


@pytest.mark.parametrize("pieces", ["together", "apart"])
def test_a_stream_has_a_bound_of_answers_that_its_client_does_not_take(pieces: str) -> None:
    empty = bytes(5)
    with server() as (served, _):
        client = Client(served, window=0)
        client.socket.sendall(frame(HEADERS, END_HEADERS, 1, client.headers(STREAM)))
        if pieces == "together":
            client.socket.sendall(frame(DATA, 0, 1, empty * 3000))
        else:
            client.socket.sendall(frame(DATA, 0, 1, empty) * 3000)
        other = Client(served)
        other.ask(1, message())
        assert other.answer(1)[0]["grpc-status"] == "0"
        client.socket.sendall(frame(WINDOW, 0, 1, struct.pack(">I", 1 << 20)))
        told, body = client.answer(1)
        assert (told["grpc-status"], told["grpc-message"]) == ("8", "a stream may have 64 requests in flight")
        answers = 0
        while body:
            body, answers = body[5 + int.from_bytes(body[1:5], "big") :], answers + 1
        assert answers == 64
        assert held(served) == 0


def test_the_streams_of_a_connection_have_a_bound_of_requests_together() -> None:
    with server() as (served, engines):
        engines.gate.clear()
        client, other = Client(served), Client(served)
        for number in (1, 3):
            client.socket.sendall(frame(HEADERS, END_HEADERS, number, client.headers(STREAM)))
            client.socket.sendall(frame(DATA, 0, number, message() * 20))
        told, _ = client.answer(3)
        expected = "the streams of a connection may have 32 requests in flight"
        assert (told["grpc-status"], told["grpc-message"]) == ("8", expected)
        other.ask(1, message())
        until(lambda: len(engines.jobs) >= 21)
        assert held(served) >= 20 * (len(message()) - 5), "what is in flight counts"
        engines.gate.set()
        assert other.answer(1)[0]["grpc-status"] == "0"
        client.socket.sendall(frame(DATA, END_STREAM, 1, message()))  # those of before were answered, or taken back
        assert client.answer(1)[0]["grpc-status"] == "0"
        assert held(served) == 0
        client.ask(5, message() * 20, STREAM)
        assert client.answer(5)[0]["grpc-status"] == "0"


def wide(size: int) -> bytes:
    """A request of so many bytes, which its answer repeats."""
    asked = messages()["ModelInferRequest"](model_name="wide", raw_input_contents=[bytes(size)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, size // 4])
    data: bytes = asked.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


@contextmanager
def repeating(limits: Limits = ROOM) -> Iterator[tuple[Served, FakeEngines]]:
    with server(limits) as (served, engines):
        about = info("wide", (tensor("x", shape=("n", "w")),), (tensor("y", shape=("n", "w")),))
        engines.add(about, lambda inputs: {"y": inputs["x"]})
        yield served, engines


@pytest.mark.parametrize("way", ["calls", "streams"])
def test_a_connection_has_a_bound_of_answers_that_its_client_does_not_take(way: str) -> None:
    size, path = 40_000, INFER if way == "calls" else STREAM
    with repeating(replace(ROOM, untaken_bytes=64_000)) as (served, _):
        client, other = Client(served, window=0), Client(served)
        for number in (1, 3):
            client.ask(number, wide(size), path)
        until(lambda: sum(one._untaken for one in served.server._grpc[0].connections) >= 2 * size)
        client.ask(5, wide(size), path)
        refused, body = client.answer(5)
        assert (refused["grpc-status"], body) == ("8", b"")
        assert "answers wait that this connection does not take" in refused["grpc-message"]
        other.ask(1, wide(size), path)
        assert other.answer(1)[0]["grpc-status"] == "0"
        client.socket.sendall(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20)))
        client.socket.sendall(frame(SETTINGS, 0, 0, SETTING.pack(4, 1 << 20)))
        assert len(client.answer(1)[1]) > size
        assert len(client.answer(3)[1]) > size
        until(lambda: held(served) == 0)
        client.ask(7, wide(size), path)
        assert client.answer(7)[0]["grpc-status"] == "0"


def test_what_a_message_is_unpacked_to_counts() -> None:
    with repeating(replace(ROOM, buffered_bytes=1 << 20)) as (served, engines):
        engines.gate.clear()
        packed = gzip.compress(wide(900_000)[5:])
        body = b"\1" + len(packed).to_bytes(4, "big") + packed
        assert len(body) < 2000
        client, other = Client(served), Client(served)
        client.ask(1, body, grpc_encoding="gzip")
        until(lambda: held(served) > 900_000)
        other.ask(1, body, grpc_encoding="gzip")
        told, _ = other.answer(1)
        assert (told["grpc-status"], told["retry-after"]) == ("14", "1")
        engines.gate.set()
        for number in (0, 1):
            client.socket.sendall(frame(WINDOW, 0, number, struct.pack(">I", 1 << 20)))
        assert client.answer(1)[0]["grpc-status"] == "0"
        until(lambda: held(served) == 0)


def test_answers_that_wait_go_out_in_their_order_and_in_parts() -> None:
    with repeating() as (served, _):
        client = Client(served, window=0)
        client.socket.sendall(frame(HEADERS, END_HEADERS, 1, client.headers(STREAM)))
        client.socket.sendall(frame(DATA, END_STREAM, 1, b"".join(wide(size) for size in (8, 70_000, 4, 300))))
        client.socket.sendall(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20)))
        for _ in range(9):
            client.socket.sendall(frame(WINDOW, 0, 1, struct.pack(">I", 7_001)))
        client.socket.sendall(frame(WINDOW, 0, 1, struct.pack(">I", 100_000)))
        told, body = client.answer(1)
        assert told["grpc-status"] == "0"
        sizes = []
        while body:
            size = int.from_bytes(body[1:5], "big")
            one = messages()["ModelStreamInferResponse"].FromString(body[5 : 5 + size])
            sizes.append(len(one.infer_response.raw_output_contents[0]))
            body = body[5 + size :]
        assert sizes == [8, 70_000, 4, 300]
        assert held(served) == 0


def test_a_stream_that_asks_for_too_much_ends_well_formed() -> None:
    with server() as (served, engines):
        client = Client(served)
        client.socket.sendall(frame(HEADERS, END_HEADERS, 1, client.headers(STREAM)) + frame(DATA, 0, 1, message()))
        client.part(1)
        engines.gate.clear()
        client.socket.sendall(frame(DATA, 0, 1, message() * 65))
        ends = [flags & END_STREAM for kind, flags, _, _ in until_reset(client) if kind == HEADERS]
        assert ends == [END_STREAM], "the headers came with the first answer"
        until(lambda: all(job.cancelled for job in engines.jobs))
        engines.gate.set()


def until_reset(client: Client) -> Iterator[tuple[int, int, int, bytes]]:
    for found in client.frames():
        yield found
        if found[0] == RESET:
            return


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
