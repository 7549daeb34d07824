"""`trtops serve` with workers as its users meet it: a rollout with real metrics, dead workers, a broken candidate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.support.serving import scraped
from tests.support.waiting import gone, until
from trtops.serve.client import get

if TYPE_CHECKING:
    from tests.support.repository import Repository, Server

pytestmark = pytest.mark.service

PLAN = """
rollout:
  steps:
    - shadow: 100
    - analysis: {requests: 20, shadow_difference: 0.01}
    - weight: 50
    - analysis: {requests: 20, error_rate: 0.01}
"""
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]})


def status(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server.ready["control_url"], "/v2/trtops/status"))
    return found


def engine(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = status(server)["engines"]["tiny"]
    return found


def workers(server: Server, channel: str = "stable") -> list[dict[str, Any]]:
    """Workers that hold an engine of this channel which serves."""
    return [
        worker
        for worker in status(server)["workers"]
        if any(held["channel"] == channel and held["state"] == "ready" for held in worker["engines"])
    ]


def metrics(server: Server) -> dict[str, float]:
    return scraped(server.ready["control_url"])


def ask(server: Server, key: str = "") -> tuple[int, dict[str, str]]:
    address = urlsplit(server.url)
    connection = HTTPConnection(str(address.hostname), int(address.port or 0), timeout=60)
    try:
        connection.request("POST", "/v2/models/tiny/infer", BODY, {"X-Routing-Key": key} if key else {})
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_a_rollout_goes_by_what_the_server_itself_measured(shipped: Repository) -> None:
    runtime = shipped.engine / "runtime.yaml"
    with shipped.serve("tiny") as server:
        control = server.ready["control_url"]
        (stable,) = workers(server)
        runtime.write_text(runtime.read_text() + PLAN)
        shipped.edit("version: 1.0.0", "version: 1.1.0")
        shipped.call("ship", "tiny").says(0, "runs beside")
        until(lambda: workers(server, "canary"))
        candidate = engine(server)["candidate"]
        assert (candidate["status"], candidate["weight"], candidate["shadow"]) == ("ready", 0, 100)
        assert engine(server)["version"] == "1.0.0"
        shipped.call("rollout", "advance", "tiny", "--metrics", control).says(2, "20")
        counted = 'trtops_shadow_compared_total{channel="canary",engine="tiny"}'
        for _ in range(30):
            assert ask(server)[0] == 200
        until(lambda: metrics(server).get(counted, 0) >= 25)
        numbers = metrics(server)
        assert numbers['trtops_shadow_differences_total{channel="canary",engine="tiny"}'] == 0
        assert any(name.startswith('trtops_channel_info{channel="canary"') for name in numbers)
        shipped.call("rollout", "advance", "tiny", "--metrics", control).says(2, "canary 50 %")
        until(lambda: engine(server)["candidate"]["weight"] == 50)
        (moved,) = workers(server, "canary")
        for number in range(100):
            assert ask(server, f"user-{number % 50}")[0] == 200
        numbers = metrics(server)
        good = 'trtops_request_duration_seconds_count{channel="canary",code="200",engine="tiny"}'
        assert 20 <= numbers[good] <= 80
        assert numbers[good] % 2 == 0  # each user got the same release twice
        shipped.call("rollout", "advance", "tiny", "--metrics", control).says(0, "promoted")
        until(lambda: engine(server)["version"] == "1.1.0" and "candidate" not in engine(server))
        until(lambda: len(status(server)["workers"]) == 1)
        assert workers(server)[0]["pid"] == moved["pid"]  # it became stable where it was
        assert gone(stable["pid"])
        assert ask(server)[0] == 200
        assert server.stop() == 0
        assert gone(moved["pid"])
    with shipped.serve("tiny") as server:  # from the registry, and it is the new one
        assert engine(server)["version"] == "1.1.0"


def test_a_dead_worker_is_a_503_with_retry_after_and_comes_back(shipped: Repository) -> None:
    with shipped.serve("tiny") as server:
        (worker,) = workers(server)
        os.kill(worker["pid"], signal.SIGKILL)
        seen = set()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            code, headers = ask(server)
            seen.add(code)
            if code == 503:
                assert int(headers["retry-after"]) >= 1
            elif workers(server) and workers(server)[0]["pid"] != worker["pid"]:
                break
            time.sleep(0.01)
        assert seen <= {200, 503}
        assert ask(server)[0] == 200
        (held,) = workers(server)[0]["engines"]
        assert (held["restarts"], held["fault"]) == (1, "it was killed by SIGKILL")
        assert metrics(server)['trtops_worker_restarts_total{channel="stable",device="default",engine="tiny"}'] == 1
        assert server.stop() == 0


def test_a_killed_server_leaves_no_process(shipped: Repository) -> None:
    with shipped.serve("tiny") as server:
        pids = [worker["pid"] for worker in status(server)["workers"]]
        server.process.kill()
        server.process.wait(60)
        until(lambda: all(gone(number) for number in pids))


def test_in_one_process_a_candidate_is_not_served_and_says_why(shipped: Repository) -> None:
    runtime = shipped.engine / "runtime.yaml"
    with shipped.serve("tiny", "--isolation", "none") as server:
        assert "workers" not in status(server)
        runtime.write_text(runtime.read_text() + PLAN)
        shipped.edit("version: 1.0.0", "version: 1.1.0")
        shipped.call("ship", "tiny").says(0, "runs beside")
        until(lambda: "candidate" in engine(server))
        assert "serve without --isolation none" in engine(server)["candidate"]["reason"]
        assert engine(server)["status"] == "ready"
        assert ask(server)[0] == 200
        assert server.stop() == 0


def test_options_of_workers_that_make_no_sense_are_refused(shipped: Repository) -> None:
    serve = "serve", "tiny"
    shipped.call(*serve, "--device", "0", "--device", "0").says(2, "--device", "name each device once")
    shipped.call(*serve, "--isolation", "none", "--device", "0").says(2, "CUDA_VISIBLE_DEVICES instead")
    shipped.call(*serve, "--memory", "host=lots").says(2, "--memory", "4GiB")
    shipped.call(*serve, "--memory", "disk=1GiB").says(2, "host=4GiB or device=20GiB")


def test_each_engine_has_a_worker_and_is_reached_by_shared_memory(shipped: Repository) -> None:
    other = shipped.engine.parent / "other"
    shutil.copytree(shipped.engine, other)
    spec = other / "engine.yaml"
    spec.write_text(spec.read_text().replace("name: tiny", "name: other").replace("opt: [2, 4]", "opt: [4, 4]"))
    shipped.call("ship", "other").says(0, "generation 1 signed")
    socket = shipped.root / "s.sock"
    with shipped.serve("--socket", str(socket)) as server:
        held = [[one["name"] for one in worker["engines"]] for worker in status(server)["workers"]]
        assert sorted(held) == [["other"], ["tiny"]]
        for name in ("tiny", "other"):
            shipped.call("infer", name, "--socket", str(socket)).says(0, f"{name} 1.0.0")
        os.kill(next(worker["pid"] for worker in workers(server) if worker["engines"][0]["name"] == "other"), 9)
        for _ in range(20):  # the other one notices nothing
            assert ask(server)[0] == 200
        until(lambda: len(workers(server)) == 2)
        shipped.call("infer", "other", "--socket", str(socket)).says(0)
        assert server.stop() == 0
