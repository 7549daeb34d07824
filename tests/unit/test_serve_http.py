"""The HTTP front end over real sockets: framing, bodies, statuses, the control port."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from dataclasses import replace
from typing import Any

import pytest

from tests.support.serving import (
    INFER,
    Served,
    add_up,
    exchange,
    info,
    post,
    read_reply,
    request_json,
    summing,
    total,
)
from tests.support.waiting import until
from trtops.errors import Unavailable
from trtops.serve.exchange import HttpError, Limits, decompress

pytestmark = pytest.mark.service

LIMITS = Limits(header_bytes=2048, headers=20, body_bytes=100_000)


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
    (
        "long trailers",
        b"POST /v2 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        431,
    ),
]


@pytest.mark.parametrize(("raw", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_framing_is_answered_once_and_ends_the_connection(served: Served, raw: bytes, status: int) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"
    replies = exchange(served, raw + smuggled)
    assert [reply.status for reply in replies if reply.status != 200] == [status]
    assert replies[-1].status == status
    assert replies[-1].headers["connection"] == "close"
    assert replies[-1].error
    assert not any(reply.status == 404 for reply in replies), "the bytes behind the fault were read as a request"


@pytest.mark.parametrize("rest", [b"Host:", HEAD + b"Content-Length: 5\r\n\r\nhe"], ids=["header", "body"])
def test_a_request_that_never_ends_is_cut_short(rest: bytes) -> None:
    with summing(replace(LIMITS, header_time=0.5, body_time=0.5)) as (served, _):
        (reply,) = exchange(served, b"POST /v2 HTTP/1.1\r\n" + rest)
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert reply.error


ANSWERS: list[tuple[str, bytes, int, str]] = [
    ("unknown path", b"GET /v3 HTTP/1.1\r\n", 404, "/v3"),
    ("root", b"GET / HTTP/1.1\r\n", 404, "no such path"),
    ("unknown model", b"GET /v2/models/nope HTTP/1.1\r\n", 404, "'nope' is not found; served here: 'sum'"),
    ("unknown model infers", b"POST /v2/models/nope/infer HTTP/1.1\r\n", 404, "unknown model: 'nope'"),
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
    with summing() as (served, engines), served.connect() as sock, sock.makefile("rb") as stream:
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
    with summing() as (served, engines):
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
    with summing() as (served, engines):
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
