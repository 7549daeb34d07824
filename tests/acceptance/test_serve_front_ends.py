"""Front ends in processes of their own: spread over, counted together, killed, told of what changes."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm

from tests.acceptance.test_serve_process import Running, home, release, server, start  # noqa: F401 - a fixture
from tests.support.serving import post, read_reply, scraped
from tests.support.waiting import until
from trtops.serve import client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.service

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
REQUEST = post("/v2/models/cls/infer", BODY, close=False)


def front_ends(running: Running) -> list[psutil.Process]:
    children = psutil.Process(running.process.pid).children()
    return [child for child in children if "trtops.serve.frontend" in " ".join(child.cmdline())]


def pids(running: Running) -> set[int]:
    return {one.pid for one in front_ends(running)}


def metrics(running: Running) -> dict[str, float]:
    return scraped(running.ready["control_url"])


def ask(running: Running, times: int = 1) -> list[int]:
    import socket

    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as sock, sock.makefile("rb") as stream:
        statuses = []
        for _ in range(times):
            sock.sendall(REQUEST)
            reply = read_reply(stream)
            assert reply is not None
            statuses.append(reply.status)
        return statuses


@pytest.fixture
def running(home: Path) -> Iterator[Running]:  # noqa: F811 - the fixture
    with server(home, front_ends=2, grpc_port=0, grpc_control_port=0) as one:
        yield one


def good(running: Running) -> float:
    return metrics(running).get('trtops_request_duration_seconds_count{channel="stable",code="200",engine="cls"}', 0.0)


def test_requests_are_spread_counted_together_and_seen_by_all(running: Running) -> None:
    assert len(front_ends(running)) == 2
    for _ in range(40):
        assert ask(running, 3) == [200] * 3
    assert good(running) == 120
    assert metrics(running)["trtops_front_ends"] == 2
    for _ in range(8):  # whichever front end answers, it tells of all
        _, body = client._call(running.url, "GET", "/v2/models/cls/stats", None, {}, 10)
        assert b'"inference_count":120' in body
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{running.ready['grpc_port']}") as one:
        given = triton_grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        assert one.infer("cls", [given]).as_numpy("y") == [[4.0]]
        assert one.get_inference_statistics("cls").model_stats[0].inference_count == 121
    assert running.stop() == 0


def test_a_front_end_that_is_killed_harms_no_other_and_is_started_again(running: Running) -> None:
    for _ in range(10):
        assert ask(running) == [200]
    before = good(running)
    assert before == 10
    failed: list[Any] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with suppress(OSError, AssertionError):
                assert ask(running, 5) == [200] * 5
                continue
            failed.append(time.monotonic())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: good(running) > before)
    victim = front_ends(running)[0]
    victim.kill()
    until(lambda: metrics(running)["trtops_front_ends"] == 2 and victim.pid not in pids(running))
    before = good(running)
    until(lambda: good(running) > before)
    stop.set()
    for thread in threads:
        thread.join(60)
    # Only connections that the victim held can fail, one a thread at most; those that wait at its socket are served.
    assert len(failed) <= 4, failed
    assert metrics(running)["trtops_front_end_restarts_total"] >= 1
    assert running.stop() == 0


def test_a_front_end_that_is_stopped_is_replaced_and_gets_no_connections_meanwhile(home: Path) -> None:  # noqa: F811
    with server(home, front_ends=2, grpc_port=0, hang=12.0) as running:
        victim = front_ends(running)[0]
        victim.suspend()
        until(lambda: metrics(running)["trtops_front_ends"] == 1)
        address = f"127.0.0.1:{running.ready['grpc_port']}"
        for _ in range(12):  # half of them would wait for the one that is stopped
            assert ask(running) == [200]
            with triton_grpc.InferenceServerClient(address) as one:
                assert one.is_server_live()
        assert victim.pid in pids(running), "it was not replaced yet"
        until(lambda: victim.pid not in pids(running) and metrics(running)["trtops_front_ends"] == 2)
        assert metrics(running)["trtops_front_end_restarts_total"] == 1
        assert running.stop() == 0
        assert running.process.stderr is not None
        assert re.search(r"front end \d hangs: no sign of life for 12 s", running.process.stderr.read())


@pytest.mark.parametrize("name", ["port", "grpc_port"])
def test_another_server_gets_no_share_of_the_port(running: Running, home: Path, name: str) -> None:  # noqa: F811
    """Front ends of one server share its port; those of another one would get some of its requests."""
    taken = running.ready[name]
    changes = {"front_ends": 1} | ({"grpc_port": taken} if name == "grpc_port" else {})
    port = str(taken) if name == "port" else "0"
    process = start(home, port, json.dumps(changes))
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (2, "")
    assert err == f"port {taken} on 127.0.0.1 is in use (choose another port, or stop what listens there)\n"


def test_http_and_grpc_share_no_port(running: Running, home: Path) -> None:  # noqa: F811 - the fixture
    port = running.port
    assert running.stop() == 0
    process = start(home, str(port), json.dumps({"front_ends": 1, "grpc_port": port}))
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (2, "")
    assert err == f"HTTP and gRPC cannot share port {port} (give gRPC another port)\n"


def test_a_front_end_that_is_told_to_end_finishes_first(running: Running) -> None:
    ask(running)
    victim = front_ends(running)[1]
    os.kill(victim.pid, signal.SIGTERM)
    victim.wait(30)
    assert all(ask(running) == [200] for _ in range(10))
    assert good(running) == 11, "what it counted is kept"


def test_shared_memory_and_unloading_reach_every_front_end(running: Running) -> None:
    key = f"/trtops-test-{uuid4().hex}"
    handle = shm.create_shared_memory_region("mine", key, 64)
    control = running.ready["control_url"].removeprefix("http://")
    try:
        shm.set_shared_memory_region(handle, [np.ones((1, 4), np.float32)])
        with triton.InferenceServerClient(control) as one:
            one.register_system_shared_memory("both", key, 64)
            given = triton.InferInput("x", [1, 4], "FP32")
            given.set_shared_memory("both", 16)
            for _ in range(12):
                with triton.InferenceServerClient(f"127.0.0.1:{running.port}") as data:
                    assert data.infer("cls", [given]).as_numpy("y") == [[4.0]]
            one.unregister_system_shared_memory()
            for _ in range(12):
                with (
                    triton.InferenceServerClient(f"127.0.0.1:{running.port}") as data,
                    pytest.raises(triton.InferenceServerException, match="is not registered"),
                ):
                    data.infer("cls", [given])
            one.unload_model("cls")
            until(lambda: ask(running) == [503])
            one.load_model("cls")
            until(lambda: ask(running) == [200])
    finally:
        shm.destroy_shared_memory_region(handle)


def test_a_swap_is_seen_by_every_front_end(running: Running, home: Path) -> None:  # noqa: F811 - the fixture
    release(home, 100.0)
    until(lambda: running.status()["engines"]["cls"]["generation"] == 2)
    for _ in range(12):
        _, body = client._call(running.url, "POST", "/v2/models/cls/infer", BODY, {}, 10)
        assert b"110.0" in body


def test_front_ends_end_with_the_server(home: Path) -> None:  # noqa: F811 - the fixture
    with server(home, front_ends=2) as one:
        orphans = front_ends(one)
        one.process.kill()
        one.process.wait(30)
        _, alive = psutil.wait_procs(orphans, timeout=30)
        assert not alive
