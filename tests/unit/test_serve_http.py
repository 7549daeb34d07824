"""The HTTP front end over real sockets: framing, limits, order, slow and vanishing clients."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import zlib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.serving import (
    FakeEngines,
    Served,
    add_up,
    echo,
    exchange,
    info,
    post,
    read_reply,
    request_json,
    serving,
    tensor,
)
from trtops.errors import DeadlineExceeded, Retryable, Unavailable
from trtops.serve.exchange import HttpError, Limits, decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service

INFER = "/v2/models/sum/infer"
QUICK = Limits(header_bytes=2048, headers=20, body_bytes=100_000, header_time=0.5, body_time=0.5, idle_time=0.5)


@contextmanager
def both(limits: Limits | None = None, **engine: Any) -> Iterator[tuple[Served, FakeEngines]]:
    engines = FakeEngines(**engine)
    engines.add(info(), add_up)
    with serving(engines, limits) as served:
        yield served, engines


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with both(QUICK) as (one, _):
        yield one


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def total(reply: Any) -> list[float]:
    return json.loads(reply.body)["outputs"][0]["data"]


HEAD = b"Host: t\r\n"
REFUSED: list[tuple[str, bytes, int]] = [
    (
        "length and coding",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "coding and length",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("two lengths", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    (
        "the same length twice",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        400,
    ),
    ("a list of lengths", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5, 5\r\n\r\nhello", 400),
    ("a signed length", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: +5\r\n\r\nhello", 400),
    ("an empty length", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length:\r\n\r\nhello", 400),
    ("a length beyond 64 bits", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    ("an unknown coding", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    ("two codings", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (
        "coding twice",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("chunked in HTTP/1.0", b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("a folded header", b"GET /v2 HTTP/1.1\r\n" + HEAD + b"X: 1\r\n 2\r\n\r\n", 400),
    ("space before the colon", b"GET /v2 HTTP/1.1\r\nHost : t\r\n\r\n", 400),
    ("a bare line feed", b"GET /v2 HTTP/1.1\nHost: t\n\n", 400),
    ("a bare carriage return", b"GET /v2 HTTP/1.1\r\nHost: t\rX: 1\r\n\r\n", 400),
    ("a NUL", b"GET /v2 HTTP/1.1\r\nHost: t\x00\r\n\r\n", 400),
    ("no host", b"GET /v2 HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("an unknown method", b"BREW /v2 HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
    ("a method not taken", b"DELETE /v2 HTTP/1.1\r\n" + HEAD + b"\r\n", 405),
    ("a tunnel", b"CONNECT t:1 HTTP/1.1\r\n" + HEAD + b"\r\n", 405),
    ("HTTP/2 at once", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("another version", b"GET /v2 HTTP/1.2\r\n" + HEAD + b"\r\n", 400),
    ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (
        "a chunk that lies",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
        400,
    ),
    (
        "a chunk without end",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        400,
    ),
    ("a body after a GET", b"GET /v2 HTTP/1.1\r\n" + HEAD + b"\r\nhello", 400),
    ("a long header", b"GET /v2 HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 5000 + b"\r\n\r\n", 431),
    ("a header without end", b"GET /v2 HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 5000, 431),
    ("a long path", b"GET /" + b"a" * 5000, 431),
    ("many headers", b"GET /v2 HTTP/1.1\r\n" + HEAD + b"".join(b"X%d: 1\r\n" % n for n in range(50)) + b"\r\n", 431),
    ("a large body", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 100001\r\n\r\n", 413),
    (
        "a large chunked body",
        b"POST /v2 HTTP/1.1\r\n"
        + HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"fff\r\n"
        + b"a" * 4095
        + b"\r\n"
        + (b"fff\r\n" + b"a" * 4095 + b"\r\n") * 30,
        413,
    ),
    ("an unknown expectation", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nExpect: gold\r\n\r\n", 417),
    ("a header that never ends", b"GET /v2 HTTP/1.1\r\nHost:", 408),
    ("a body that never ends", b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhe", 408),
    (
        "long trailers",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        431,
    ),
]


@pytest.mark.parametrize(("raw", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_framing_is_answered_once_and_ends_the_connection(served: Served, raw: bytes, status: int) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"
    replies = exchange(served, raw if status == 408 else raw + smuggled)
    assert [reply.status for reply in replies if reply.status != 200] == [status]
    assert replies[-1].status == status
    assert replies[-1].headers["connection"] == "close"
    assert replies[-1].error
    assert not any(reply.status == 404 for reply in replies), "the bytes behind the fault were read as a request"


ANSWERS: list[tuple[str, bytes, int, str]] = [
    ("unknown path", b"GET /v3 HTTP/1.1\r\n", 404, "/v3"),
    ("root", b"GET / HTTP/1.1\r\n", 404, "no such path"),
    ("unknown model", b"GET /v2/models/nope HTTP/1.1\r\n", 404, "unknown model 'nope': served here: 'sum'"),
    ("unknown model infers", b"POST /v2/models/nope/infer HTTP/1.1\r\n", 404, "unknown model 'nope'"),
    ("unknown version", b"GET /v2/models/sum/versions/9 HTTP/1.1\r\n", 404, "version '1.0.0' is served"),
    ("unknown verb", b"GET /v2/models/sum/fly HTTP/1.1\r\n", 404, "no such path"),
    ("get infers", b"GET /v2/models/sum/infer HTTP/1.1\r\n", 405, "POST"),
    ("post metadata", b"POST /v2/models/sum HTTP/1.1\r\n", 405, "GET"),
    ("load at the data port", b"POST /v2/repository/models/sum/load HTTP/1.1\r\n", 403, "control port"),
    ("odd escapes", b"GET /v2/models/%ff%00%2e HTTP/1.1\r\n", 404, "unknown model"),
    ("empty name", b"GET /v2/models//infer HTTP/1.1\r\n", 405, "POST"),
]


@pytest.mark.parametrize(
    ("line", "status", "message"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS]
)
def test_wrong_requests_get_their_status(served: Served, line: bytes, status: int, message: str) -> None:
    (reply,) = exchange(served, line + b"Host: t\r\nConnection: close\r\n\r\n")
    assert reply.status == status
    assert message in reply.error


def test_a_wrong_tensor_is_400_and_the_connection_goes_on(served: Served) -> None:
    replies = exchange(
        served,
        post(INFER, request_json(shape=[1, 5]), close=False)
        + post(INFER, b"{", close=False)
        + post(INFER, request_json()),
    )
    assert [reply.status for reply in replies] == [400, 400, 200]
    assert "input 'x': expected shape [-1,4], got [1,5]" in replies[0].error
    assert "not JSON" in replies[1].error


@pytest.mark.parametrize("value", ["x", "-1", "1e3", "", "9" * 30])
def test_a_bad_header_length_is_400(served: Served, value: str) -> None:
    (reply,) = exchange(served, post(INFER, request_json(), f"Inference-Header-Content-Length: {value}"))
    assert reply.status == 400
    assert "Inference-Header-Content-Length" in reply.error


def test_reading_routes(served: Served) -> None:
    def get(path: str) -> Any:
        (reply,) = exchange(served, f"GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
        assert reply.status == 200, reply
        return json.loads(reply.body or b"null")

    assert get("/v2")["name"] == "trtops"
    assert get("http://t/v2/?q=1")["name"] == "trtops"
    assert get("/v2/health/live") is None
    assert get("/v2/health/ready") is None
    assert get("/v2/models/sum")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert get("/v2/models/s%75m/versions/1.0.0")["versions"] == ["1.0.0"]
    assert get("/v2/models/sum/ready") is None
    assert get("/v2/models/sum/config")["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    assert get("/v2/repository/index") == [{"name": "sum", "version": "1.0.0", "state": "READY", "reason": ""}]
    assert get("/v2/models/stats")["model_stats"][0]["name"] == "sum"


def test_head_has_the_length_and_no_body(served: Served) -> None:
    raw = b"HEAD /v2 HTTP/1.1\r\nHost: t\r\n\r\nHEAD /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    first, second = exchange(served, raw, head=True)
    assert (first.status, first.body) == (200, b"")
    assert int(first.headers["content-length"]) > 20
    assert second.headers["content-length"] == "0"


def test_http_1_0_closes_unless_asked(served: Served) -> None:
    (reply,) = exchange(served, b"GET /v2 HTTP/1.0\r\n\r\n")
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    first, second = exchange(served, b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /v2 HTTP/1.0\r\n\r\n")
    assert (first.headers["connection"], second.headers["connection"]) == ("keep-alive", "close")


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_bodies(served: Served, size: int) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    (reply,) = exchange(served, head + chunked(request_json(), size))
    assert total(reply) == [10.0]


def test_a_request_byte_by_byte(served: Served) -> None:
    with served.connect() as sock, sock.makefile("rb") as stream:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(INFER, request_json(), close=False):
            sock.send(bytes([byte]))
        assert total(read_reply(stream)) == [10.0]


def test_expect_continue_is_answered_before_the_body(served: Served) -> None:
    body = request_json()
    with served.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(
            post(INFER, b"", f"Content-Length: {len(body)}", "Expect: 100-continue").replace(
                b"Content-Length: 0\r\n", b""
            )
        )
        reply = read_reply(stream)
        assert reply is not None
        assert reply.status == 100
        sock.sendall(body)
        assert total(read_reply(stream)) == [10.0]


def test_expect_continue_waits_for_the_answer_before_it() -> None:
    body = request_json()
    with both() as (served, engines), served.connect() as sock, sock.makefile("rb") as stream:
        engines.gate.clear()
        asking = post(INFER, b"", f"Content-Length: {len(body)}", "Expect: 100-continue").replace(
            b"Content-Length: 0\r\n", b""
        )
        sock.sendall(post(INFER, body, close=False) + asking)
        until(lambda: len(engines.taken) == 1)
        engines.gate.set()
        assert [read_reply(stream).status for _ in range(2)] == [200, 100]  # type: ignore[union-attr]
        sock.sendall(body)
        assert total(read_reply(stream)) == [10.0]


def test_an_offer_of_another_protocol_is_ignored_and_the_body_read(served: Served) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    replies = exchange(
        served, post(INFER, request_json(), *upgrade, close=False) + post(INFER, request_json(data=[0] * 4))
    )
    assert [total(reply) for reply in replies] == [[10.0], [0.0]]


def test_compressed_bodies(served: Served) -> None:
    body = request_json()
    for name, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("identity", body)):
        (reply,) = exchange(served, post(INFER, data, f"Content-Encoding: {name}"))
        assert total(reply) == [10.0]
    for name, data, status in (
        ("br", body, 415),
        ("gzip", body, 400),
        ("gzip", gzip.compress(body)[:-1], 400),
        ("gzip", gzip.compress(body) * 2, 400),
        ("gzip", gzip.compress(bytes(10_000_000)), 413),
    ):
        (reply,) = exchange(served, post(INFER, data, f"Content-Encoding: {name}"))
        assert reply.status == status, name


def test_a_bomb_is_never_unpacked_beyond_the_limit() -> None:
    import tracemalloc

    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as caught:
            decompress(bomb, b"gzip", 100_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413


def test_pipelined_answers_come_in_order_whatever_finishes_first() -> None:
    with both() as (served, engines), served.connect() as sock, sock.makefile("rb") as stream:
        engines.gate.clear()
        fast = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
        for n in range(40):
            sock.sendall(post(INFER, request_json(data=[n, 0, 0, 0], id=str(n)), close=False) + fast)
        until(lambda: len(engines.taken) >= 4)
        time.sleep(0.05)
        assert len(engines.taken) <= 16, "no more are worked on at once than the limit says"
        engines.gate.set()
        for n in range(40):
            reply = read_reply(stream)
            assert reply is not None
            assert json.loads(reply.body)["id"] == str(n)
            assert total(reply) == [float(n)]
            live = read_reply(stream)
            assert live is not None
            assert (live.status, live.body) == (200, b"")


def test_too_many_pipelined_requests_are_refused_after_those_before() -> None:
    with (
        both(Limits(pipelined=2, queued=5)) as (served, engines),
        served.connect() as sock,
        sock.makefile("rb") as stream,
    ):
        engines.gate.clear()
        sock.sendall(post(INFER, request_json(), close=False) * 20)
        until(lambda: len(engines.taken) == 2)
        engines.gate.set()
        statuses = []
        while (reply := read_reply(stream)) is not None:
            statuses.append(reply.status)
        assert statuses[-1] == 429
        assert set(statuses[:-1]) == {200}
        assert 5 <= len(statuses) <= 20


def test_statuses_of_the_executor() -> None:
    with both() as (served, engines):
        for error, status, retry in (
            (DeadlineExceeded("too late"), 504, None),
            (Retryable("the worker died"), 503, "1"),
            (Unavailable("closing"), 503, "1"),
            (ValueError("secret detail"), 500, None),
        ):
            engines.error = error
            (reply,) = exchange(served, post(INFER, request_json()))
            assert (reply.status, reply.headers.get("retry-after")) == (status, retry)
            assert "secret" not in reply.error
        engines.error = None
        engines.limit = 0
        (reply,) = exchange(served, post(INFER, request_json()))
        assert (reply.status, reply.headers["retry-after"]) == (429, "2")
        meter = served.server.meters.engine("sum")
        assert meter.rejected == {"deadline": 1, "retryable": 1, "unavailable": 1, "internal": 1, "overloaded": 1}
        assert meter.in_flight == 0


def test_a_client_that_vanishes_takes_its_requests_back() -> None:
    with both() as (served, engines):
        engines.gate.clear()
        for _ in range(20):
            with served.connect() as sock:
                sock.sendall(post(INFER, request_json(), close=False) * 3)
                until(lambda: bool(engines.taken))
        until(lambda: engines.cancelled == len(engines.taken) and not served.server.data.connections)
        engines.gate.set()
        assert total(exchange(served, post(INFER, request_json()))[0]) == [10.0]
        until(lambda: served.server.meters.engine("sum").in_flight == 0)
        assert served.server.data.buffered == 0


@pytest.mark.parametrize("stage", [10, 60, 120])
def test_a_client_that_vanishes_in_the_middle_of_a_request_leaves_nothing(stage: int) -> None:
    with both() as (served, _):
        for _ in range(50):
            with served.connect() as sock:
                sock.sendall(post(INFER, request_json(), close=False)[:stage])
        until(lambda: not served.server.data.connections)
        assert served.server.data.buffered == 0


def test_a_client_that_does_not_read_is_not_read_and_then_cut() -> None:
    engines = FakeEngines()
    engines.add(info("echo", (tensor("in", shape=("n", 250_000)),), (tensor("out", shape=("n", 250_000)),)), echo)
    entry = {"name": "in", "shape": [1, 250_000], "datatype": "FP32", "parameters": {"binary_data_size": 1_000_000}}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    one = post(
        "/v2/models/echo/infer", text + bytes(1_000_000), f"Inference-Header-Content-Length: {len(text)}", close=False
    )
    with serving(engines, Limits(write_time=1.0)) as served, served.connect() as sock:
        sock.settimeout(0.5)
        sent = 0
        try:
            for _ in range(100):
                sock.sendall(one)
                sent += 1
        except (TimeoutError, ConnectionError):
            pass
        assert sent < 60, "the server went on reading"
        assert len(engines.taken) <= sent
        until(lambda: not served.server.data.connections)
        assert served.server.data.buffered == 0


def test_a_slow_reader_gets_everything() -> None:
    engines = FakeEngines()
    engines.add(info("echo", (tensor("in", shape=("n", 250_000)),), (tensor("out", shape=("n", 250_000)),)), echo)
    data = np.arange(250_000, dtype=np.float32)
    entry = {"name": "in", "shape": [1, 250_000], "datatype": "FP32", "parameters": {"binary_data_size": 1_000_000}}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    one = post(
        "/v2/models/echo/infer", text + data.tobytes(), f"Inference-Header-Content-Length: {len(text)}", close=False
    )
    with serving(engines) as served, served.connect() as sock:
        sender = threading.Thread(target=sock.sendall, args=(one * 20,))
        sender.start()
        time.sleep(0.3)
        with sock.makefile("rb") as stream:
            for _ in range(20):
                reply = read_reply(stream)
                assert reply is not None
                assert reply.body[int(reply.headers["inference-header-content-length"]) :] == data.tobytes()
        sender.join(20)


def test_an_idle_connection_is_closed_in_silence(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n")
        with sock.makefile("rb") as stream:
            assert read_reply(stream) is not None
            assert stream.read() == b""


def test_a_connection_that_never_speaks_is_closed(served: Served) -> None:
    with served.connect() as sock:
        assert sock.recv(100) == b""


def test_too_many_connections_are_told() -> None:
    with both(Limits(connections=3)) as (served, _):
        held = [served.connect() for _ in range(3)]
        until(lambda: len(served.server.data.connections) == 3)
        (reply,) = exchange(served, b"")
        assert reply.status == 503
        for sock in held:
            sock.close()
        until(lambda: not served.server.data.connections)
        assert exchange(served, post(INFER, request_json()))[0].status == 200


def test_bodies_of_all_connections_together_are_bounded() -> None:
    with both(Limits(buffered_bytes=50_000)) as (served, _):
        (reply,) = exchange(served, post(INFER, bytes(60_000)))
        assert reply.status == 503
        assert served.server.data.buffered == 0
        (reply,) = exchange(served, post(INFER, gzip.compress(bytes(60_000)), "Content-Encoding: gzip"))
        assert reply.status == 503
        assert served.server.data.buffered == 0
        assert exchange(served, post(INFER, request_json()))[0].status == 200


def test_draining_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    with both() as (served, engines), served.connect() as sock, served.connect() as idle:
        engines.gate.clear()
        sock.sendall(post(INFER, request_json(), close=False))
        until(lambda: len(engines.taken) == 1)
        cut: list[int] = []
        drain = threading.Thread(target=lambda: cut.append(served.drain(20)))
        drain.start()
        assert idle.recv(10) == b"", "a connection with nothing due is closed at once"
        until(lambda: served.server.data.draining)
        with pytest.raises(ConnectionRefusedError):
            served.connect()
        engines.gate.set()
        with sock.makefile("rb") as stream:
            reply = read_reply(stream)
            assert reply is not None
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert stream.read() == b""
        sock.close()
        idle.close()
        drain.join(20)
        assert cut == [0]


def test_draining_is_bounded() -> None:
    with both() as (served, engines), served.connect() as sock:
        engines.gate.clear()
        sock.sendall(post(INFER, request_json(), close=False))
        until(lambda: len(engines.taken) == 1)
        assert served.drain(0.2) == 1
        engines.gate.set()


def test_not_ready_is_503_and_still_live(served: Served) -> None:
    try:
        served.steady.reason = "engine 'sum' does not serve yet: loading"
        (reply,) = exchange(served, b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
        assert (reply.status, reply.error) == (503, "engine 'sum' does not serve yet: loading")
        (reply,) = exchange(served, b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert reply.status == 200
    finally:
        served.steady.reason = None


def at_control(served: Served, raw: bytes) -> Any:
    (reply,) = exchange(replace(served, port=served.control), raw)
    return reply


def test_the_control_port() -> None:
    with both() as (served, engines):
        exchange(served, post(INFER, request_json()))
        exchange(served, post(INFER, b"{"))
        reply = at_control(served, b"GET /metrics HTTP/1.0\r\n\r\n")
        text = reply.body.decode()
        assert reply.headers["content-type"].startswith("text/plain")
        assert 'trtops_request_duration_seconds_count{channel="stable",code="200",engine="sum"} 1.0' in text
        assert 'trtops_request_duration_seconds_count{channel="stable",code="400",engine="sum"} 1.0' in text
        assert 'trtops_requests_rejected_total{engine="sum",reason="bad_request"} 1.0' in text
        assert 'trtops_request_queue_seconds_bucket{engine="sum",le="0.0001"} 1.0' in text
        assert 'trtops_request_batch_rows_sum{engine="sum"} 1.0' in text
        assert 'trtops_engine_generation{engine="sum"} 1.0' in text
        assert json.loads(at_control(served, b"GET /v2/trtops/status HTTP/1.0\r\n\r\n").body) == {"status": "ready"}
        assert at_control(served, b"POST /v2/repository/models/sum/load HTTP/1.0\r\n\r\n").status == 200
        served.steady.error = Unavailable("no release")
        reply = at_control(served, b"POST /v2/repository/models/sum/unload HTTP/1.0\r\n\r\n")
        assert (reply.status, reply.error) == (503, "no release")
        assert served.steady.calls == [("load", "sum"), ("unload", "sum")]
        # One address is enough for a client on this host: what is not control is answered as on the data port.
        assert total(at_control(served, post(INFER, request_json()))) == [10.0]
        assert at_control(served, b"GET /nowhere HTTP/1.0\r\n\r\n").status == 404
        assert at_control(served, b"DELETE /metrics HTTP/1.0\r\n\r\n").status == 405
        assert at_control(served, b"GET /v2/repository/models/sum/load HTTP/1.0\r\n\r\n").status == 405
        assert engines.running


def test_names_that_clients_invent_make_no_metrics(served: Served) -> None:
    for n in range(50):
        exchange(served, post(f"/v2/models/nope{n}/infer", b"{}"))
    assert set(served.server.meters.engines) <= {"sum"}


def test_a_swap_between_reading_and_answering_is_told_by_version() -> None:
    with both() as (served, engines):
        engines.gate.clear()
        replies: list[Any] = []
        client = threading.Thread(target=lambda: replies.extend(exchange(served, post(INFER, request_json()))))
        client.start()
        until(lambda: len(engines.taken) == 1)
        engines.add(replace(info(generation=2), version="2.0.0"), add_up)
        engines.gate.set()
        client.join(20)
        assert json.loads(replies[0].body)["model_version"] == "2.0.0"
        assert total(replies[0]) == [10.0]
