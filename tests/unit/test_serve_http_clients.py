"""The HTTP front end and its clients: those that pipeline, vanish, read slowly, come in crowds; and its end."""

from __future__ import annotations

import gzip
import json
import threading
import time

import numpy as np
import pytest

from tests.support.serving import (
    INFER,
    FakeEngines,
    Served,
    echo,
    exchange,
    info,
    post,
    read_reply,
    request_json,
    serving,
    summing,
    tensor,
    total,
)
from tests.support.waiting import until
from trtops.errors import DeadlineExceeded, Retryable, Unavailable
from trtops.serve.exchange import Limits

pytestmark = pytest.mark.service

LIMITS = Limits(header_time=2.0, body_time=2.0, idle_time=2.0)


def test_pipelined_answers_come_in_order_whatever_finishes_first() -> None:
    with summing() as (served, engines), served.connect() as sock, sock.makefile("rb") as stream:
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
        summing(Limits(pipelined=2, queued=5)) as (served, engines),
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
    with summing() as (served, engines):
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
    with summing() as (served, engines):
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
    with summing() as (served, _):
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
    with summing(Limits(connections=3)) as (served, _):
        held = [served.connect() for _ in range(3)]
        until(lambda: len(served.server.data.connections) == 3)
        (reply,) = exchange(served, b"")
        assert reply.status == 503
        for sock in held:
            sock.close()
        until(lambda: not served.server.data.connections)
        assert exchange(served, post(INFER, request_json()))[0].status == 200


def test_bodies_of_all_connections_together_are_bounded() -> None:
    with summing(Limits(buffered_bytes=50_000)) as (served, _):
        (reply,) = exchange(served, post(INFER, bytes(60_000)))
        assert reply.status == 503
        assert served.server.data.buffered == 0
        (reply,) = exchange(served, post(INFER, gzip.compress(bytes(60_000)), "Content-Encoding: gzip"))
        assert reply.status == 503
        assert served.server.data.buffered == 0
        assert exchange(served, post(INFER, request_json()))[0].status == 200


def test_draining_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    with summing() as (served, engines), served.connect() as sock, served.connect() as idle:
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
    with summing() as (served, engines), served.connect() as sock:
        engines.gate.clear()
        sock.sendall(post(INFER, request_json(), close=False))
        until(lambda: len(engines.taken) == 1)
        assert served.drain(0.2) == 1
        engines.gate.set()
