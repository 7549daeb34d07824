"""What a client of gRPC can make a server hold has bounds."""

from __future__ import annotations

import gzip
import struct
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.http2 import (
    INFER,
    ROOM,
    STREAM,
    Client,
    close_sockets,
    held,
    message,
    server,
    until_reset,
)
from tests.support.serving import FakeEngines, Served, info, tensor
from tests.support.waiting import until
from trtops.serve.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTING,
    SETTINGS,
    WINDOW,
    frame,
)
from trtops.serve.grpc_messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.serve.exchange import Limits

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    yield
    close_sockets()


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
