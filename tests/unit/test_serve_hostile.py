"""Hostile clients in numbers: a corpus, ten thousand malformed requests over HTTP and gRPC each, a thousand slow ones.

Each test ends in a bounded time, and after it the server holds nothing and serves as before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import hpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.serving import FakeEngines, Served, add_up, exchange, info, post, request_json, serving
from trtops.serve.exchange import Limits
from trtops.serve.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    PREFACE,
    RESET,
    SETTING,
    SETTINGS,
    frame,
)
from trtops.serve.grpc_messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.service, pytest.mark.timeout(180)]

_GOLDEN = Path(__file__).parents[1] / "golden/serve"
CORPUS, CALLS = (
    [json.loads(line) for line in (_GOLDEN / name).read_text().splitlines()] for name in ("http.jsonl", "grpc.jsonl")
)
INFER = "/v2/models/sum/infer"
GOOD = post(INFER, request_json(), close=False)
LIMITS = Limits(
    header_bytes=2048,
    headers=50,
    body_bytes=100_000,
    header_time=1.5,
    body_time=1.5,
    idle_time=1.5,
    write_time=1.5,
    connections=700,
)
TOGETHER = 64
PATIENCE = 0.05


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    engines = FakeEngines()
    engines.add(info(), add_up)
    with serving(engines, LIMITS, grpc=True) as one:
        yield one


def well(served: Served) -> None:
    """The server serves, and holds nothing of those that went."""
    assert [reply.status for reply in exchange(served, post(INFER, request_json()))] == [200]
    end = time.monotonic() + 60
    while (
        served.server.data.connections
        or served.server.data.buffered
        or any(port.buffered for port in served.server._grpc)
    ):
        assert time.monotonic() < end, (served.server.data, served.server._grpc)
        time.sleep(0.01)


@pytest.mark.parametrize("row", CORPUS, ids=[row["what"] for row in CORPUS])
def test_the_corpus(served: Served, row: dict[str, Any]) -> None:
    """One answer to each, of the right kind; the connection ends after a fault of framing, so nothing is smuggled."""
    data = row["bytes"].encode("latin-1")
    with served.connect() as sock:
        sock.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = sock.recv(65536)
            assert piece, "no answer"
            answer += piece
        status = int(answer.split()[1])
        assert status in row["status"], answer
        head, _, body = answer.partition(b"\r\n\r\n")
        if b"Connection: close" in head:
            while piece := sock.recv(65536):
                body += piece
        assert body.count(b"\r\n\r\n") == 0, "a second answer"
        assert "error" in json.loads(body)


@pytest.mark.parametrize("row", CALLS, ids=[row["what"] for row in CALLS])
def test_the_corpus_of_messages(served: Served, row: dict[str, Any]) -> None:
    """Each message gets its status, and an explanation where it is not served."""
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            call(bytes.fromhex(row["hex"]), timeout=20)
            found, why = "OK", "served"
        except grpc.RpcError as error:
            found, why = error.code().name, error.details()
    assert found in row["status"], why
    assert why


async def _send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(4096), PATIENCE)
    except (TimeoutError, asyncio.TimeoutError, ConnectionError):
        pass  # an unfinished request, whose client now goes away
    finally:
        writer.transport.abort()
    return answer


def send_all(port: int, requests: list[bytes]) -> list[bytes]:
    async def run() -> list[bytes]:
        gate = asyncio.Semaphore(TOGETHER)

        async def one(data: bytes) -> bytes:
            async with gate:
                return await _send(port, data)

        return await asyncio.gather(*map(one, requests))

    return asyncio.run(run())


def mutate(data: bytes, dice: random.Random) -> bytes:
    """Change a few bytes: flip, cut, double, insert, swap."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        at, span = dice.randrange(len(out) + 1), dice.choice((1, 1, 2, 4, 16, 200))
        kind = dice.randrange(5)
        if kind == 0:
            out[at : at + 1] = bytes((dice.randrange(256),))
        elif kind == 1:
            del out[at : at + span]
        elif kind == 2:
            out[at:at] = out[at : at + span]
        elif kind == 3:
            out[at:at] = dice.choice(
                (b"\r\n", b"\0", b"\r\n\r\n", b"\xff" * 9, b": ", b"[" * 99, b"0\r\n\r\n", b"1e999")
            )
        else:
            other = dice.randrange(len(out) + 1)
            out[at : at + span], out[other : other + span] = out[other : other + span], out[at : at + span]
    return bytes(out)


PLENTY = settings(max_examples=40, suppress_health_check=list(HealthCheck), database=None)


@PLENTY
@given(st.integers(0, 2**32))
def test_ten_thousand_malformed_http_requests(served: Served, seed: int) -> None:
    dice = random.Random(seed)
    seeds = [GOOD, *(row["bytes"].encode("latin-1") for row in CORPUS)]
    requests = [mutate(dice.choice(seeds), dice) for _ in range(250)]
    answers = send_all(served.port, requests)
    for asked, answer in zip(requests, answers, strict=True):
        assert not answer or answer.startswith(b"HTTP/1.1 "), (asked, answer)
        assert not answer.startswith(b"HTTP/1.1 500"), (asked, answer)
    well(served)


@PLENTY
@given(st.integers(0, 2**32))
def test_ten_thousand_malformed_grpc_requests(served: Served, seed: int) -> None:
    dice = random.Random(seed)
    asked = messages()["ModelInferRequest"](model_name="sum", raw_input_contents=[bytes(16)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    asked.parameters["timeout"].int64_param = 10**7
    asked.outputs.add(name="y")
    seeds = [asked.SerializeToString(), *(bytes.fromhex(row["hex"]) for row in CALLS if len(row["hex"]) < 4000)]

    async def run() -> list[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

            async def one(data: bytes) -> grpc.StatusCode:
                try:
                    await call(data, timeout=20)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            return await asyncio.gather(*(one(mutate(dice.choice(seeds), dice)) for _ in range(250)))

    codes = grpc.StatusCode
    allowed = {codes.OK, codes.INVALID_ARGUMENT, codes.NOT_FOUND, codes.DEADLINE_EXCEEDED, codes.RESOURCE_EXHAUSTED}
    found = set(asyncio.run(run()))
    assert found <= allowed, found
    well(served)


def test_what_is_no_http2_does_the_grpc_port_no_harm(served: Served) -> None:
    dice = random.Random(5)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    frames = [
        struct.pack(">I", dice.randrange(1 << 14))[1:]
        + bytes((dice.randrange(12), dice.randrange(256)))
        + dice.randbytes(40)
        for _ in range(600)
    ]
    send_all(
        served.grpc,
        [GOOD, bytes(99), *(preface + frame for frame in frames), *(mutate(preface, dice) for _ in range(200))],
    )
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"


def _slow(number: int, sock: socket.socket) -> None:
    """What one of the slow and vanishing clients does, once it is connected."""
    kind = number % 6
    if kind == 0:
        return  # says nothing
    if kind == 1:
        sock.sendall(GOOD[: 10 + number % 90])  # part of the head
    elif kind == 2:
        sock.sendall(GOOD[:-5])  # part of the body
    elif kind == 3:
        sock.sendall(GOOD)  # asks, and is gone
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    elif kind == 4:
        sock.sendall(GOOD * 20)  # asks, and reads nothing
    else:
        sock.sendall(b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")


def test_a_thousand_slow_and_vanishing_clients(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trtops")
    for wave in range(4):
        sockets = []
        for number in range(250):
            sock = served.connect()
            sockets.append(sock)
            _slow(wave + number, sock)
        for _ in range(20):  # others are served all the while
            assert [reply.status for reply in exchange(served, post(INFER, request_json()))] == [200]
        end = time.monotonic() + 60
        while served.server.data.connections:
            assert time.monotonic() < end, served.server.data
            time.sleep(0.02)
        for sock in sockets:
            sock.close()
    well(served)
    assert not [record for record in caplog.records if record.exc_info]


def _call(path: str) -> bytes:
    """Headers of a call."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "t")]
    block: bytes = hpack.Encoder().encode([*pairs, ("te", "trailers"), ("content-type", "application/grpc")])
    return block


def _slow_call(number: int, sock: socket.socket) -> None:
    """The same over gRPC."""
    asked = messages()["ModelInferRequest"](model_name="sum", raw_input_contents=[bytes(16)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    data = asked.SerializeToString()
    whole = b"\0" + struct.pack(">I", len(data)) + data
    hello = PREFACE + frame(SETTINGS, 0, 0)
    kind = number % 8
    opened = hello + frame(HEADERS, END_HEADERS, 1, _call("/inference.GRPCInferenceService/ModelInfer"))
    streamed = hello + frame(HEADERS, END_HEADERS, 1, _call("/inference.GRPCInferenceService/ModelStreamInfer"))
    if kind == 0:
        sock.sendall(PREFACE[: number % 20])  # greets in part
    elif kind == 1:
        sock.sendall(hello)  # asks nothing
    elif kind == 2:
        sock.sendall(hello + frame(HEADERS, 0, 1, b"\x83"))  # headers with no end
    elif kind == 3:
        sock.sendall(opened + frame(DATA, 0, 1, whole[:9]))  # part of a message
    elif kind == 4:
        sock.sendall(opened + frame(DATA, END_STREAM, 1, whole))  # asks, and is gone
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    elif kind == 5:
        shut = PREFACE + frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW, 0))  # takes no answer
        sock.sendall(opened.replace(hello, shut) + frame(DATA, END_STREAM, 1, whole))
    elif kind == 6:
        sock.sendall(opened + frame(DATA, END_STREAM, 1, whole) + frame(RESET, 0, 1, bytes(4)))
    else:
        sock.sendall(streamed + frame(DATA, 0, 1, whole * 20 + whole[:7]))  # a stream that goes on with nothing
        sock.shutdown(socket.SHUT_WR)


def test_a_thousand_slow_and_vanishing_grpc_clients(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trtops")
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for wave in range(4):
            sockets = []
            for number in range(250):
                sock = socket.create_connection(("127.0.0.1", served.grpc), timeout=20)
                sockets.append(sock)
                _slow_call(wave + number, sock)
            for _ in range(20):  # others are served all the while
                assert check(b"", timeout=20) == b"\x08\x01"
            end = time.monotonic() + 30
            while any(len(port.connections) > 1 for port in served.server._grpc):  # the one that checks stays
                assert time.monotonic() < end, served.server._grpc
                time.sleep(0.02)
            for sock in sockets:
                sock.close()
    well(served)
    assert not [record for record in caplog.records if record.exc_info]
