"""What the serving benchmarks share: servers and peers that are started and stopped, rounds, tables and goals."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import serve_load as load
from serve_load import Seen, request

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
OIP = "/v2/models/sum/infer"
ROW = ",".join(str(number / 2) for number in range(16))
JSON = f'{{"inputs":[{{"name":"x","shape":[1,16],"datatype":"FP32","data":[{ROW}]}}]}}'
HEAD = (
    '{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","parameters":{"binary_data_size":64}}],'
    '"parameters":{"binary_data_output":true}}'
)
POLICY = JSON[:-1] + ',"parameters":{"priority":2,"timeout":5000000}}'
MOSEC = f'{{"x":[{ROW}]}}'
LUA = {
    "json": f"wrk.method='POST'\nwrk.body='{JSON}'\nwrk.headers['Content-Type']='application/json'\n",
    "policy": f"wrk.method='POST'\nwrk.body='{POLICY}'\nwrk.headers['Content-Type']='application/json'\n",
    "binary": f"wrk.method='POST'\nwrk.body='{HEAD}'..string.rep('\\0\\0\\128\\63',16)\n"
    f"wrk.headers['Inference-Header-Content-Length']='{len(HEAD)}'\n",
    "mosec": f"wrk.method='POST'\nwrk.body='{MOSEC}'\nwrk.headers['Content-Type']='application/json'\n",
}
PLAIN = request(OIP, JSON.encode(), Content_Type="application/json")


@dataclass
class Server:
    """A server that runs, and its process."""

    port: int
    process: psutil.Process
    ports: dict[str, int]

    def cpu(self) -> float:
        """Seconds of CPU time of its processes so far."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(one.cpu_times().user + one.cpu_times().system for one in family)

    def metric(self, name: str) -> float:
        """A number of its metrics; 0 if it is not there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['control_port']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@dataclass
class Candidate:
    """A server with one kind of request, and what was seen of it in each round."""

    name: str
    server: Server
    script: str
    seen: list[Seen] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self.server.port}{'/inference' if self.script == 'mosec' else OIP}"


@dataclass(frozen=True)
class Goal:
    """A line of the table of goals."""

    what: str
    goal: str
    found: str
    holds: bool | None


@dataclass
class Bench:
    """What all scenarios share."""

    options: argparse.Namespace
    scripts: Path
    goals: list[Goal] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def say(self, line: str = "") -> None:
        """Print a line of the report."""
        self.text.append(line)
        print(line, flush=True)

    def goal(self, what: str, goal: str, values: list[float], test: Callable[[float], bool], form: str = ".2f") -> None:
        """Note a goal by the median of what was found."""
        middle = statistics.median(values)
        found = f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"
        self.goals.append(Goal(what, goal, found, test(middle)))

    def peer(self, name: str) -> Path | None:
        """The virtual environment of a peer; None: it is not there."""
        folder = Path(self.options.peers) / name
        return folder if (folder / "bin" / "python").exists() else None

    def rounds(self, candidates: list[Candidate]) -> None:
        """Load each candidate in turn, round by round; the first time is a warm-up that does not count."""
        for one in candidates:
            load.wrk(one.url, self.scripts / f"{one.script}.lua", seconds=1.0)
        for _ in range(self.options.rounds):
            for one in candidates:
                before = one.server.cpu()
                seen = load.wrk(one.url, self.scripts / f"{one.script}.lua", seconds=self.options.seconds)
                one.seen.append(seen)
                one.cpu_us.append((one.server.cpu() - before) / seen.requests * 1e6)

    def table(self, candidates: list[Candidate], base: Candidate) -> None:
        """Print what was seen, with ratios to ``base``."""
        self.say(f"| server | requests/s | ratio to {base.name} (least to most) | p50 ms | p99 ms | CPU µs a request |")
        self.say("|---|---|---|---|---|---|")
        for one in candidates:
            ratios = ratios_of(one, base)
            middle = statistics.median
            self.say(
                f"| {one.name} | {middle(seen.rps for seen in one.seen):,.0f} | {middle(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}) | {middle(seen.p50 for seen in one.seen):.1f} "
                f"| {middle(seen.p99 for seen in one.seen):.1f} | {middle(one.cpu_us):.0f} |"
            )
        self.say()


def ratios_of(one: Candidate, base: Candidate, of: str = "rps") -> list[float]:
    """What was seen of one by what was seen of the other in the same round."""
    return [getattr(mine, of) / getattr(its, of) for mine, its in zip(one.seen, base.seen, strict=True)]


def best(candidates: list[Candidate]) -> Candidate:
    """The one with most requests a second."""
    return max(candidates, key=lambda one: statistics.median(seen.rps for seen in one.seen))


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def started(
    command: list[str], wait: Callable[[subprocess.Popen[bytes]], dict[str, int]], **env: str
) -> Iterator[Server]:
    process = subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        ports = wait(process)
        yield Server(ports["port"], psutil.Process(process.pid), ports)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        assert process.stdout is not None
        process.stdout.close()


def _ready_line(process: subprocess.Popen[bytes]) -> dict[str, int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the server did not start"
    ports: dict[str, int] = json.loads(line)
    return ports


@contextmanager
def trtops(**config: Any) -> Iterator[Server]:  # noqa: ANN401 - fields of serve_server.Config
    with started([sys.executable, str(HERE / "serve_server.py"), json.dumps(config)], _ready_line) as server:
        yield server


def _answers(port: int, path: str, body: str) -> Callable[[subprocess.Popen[bytes]], dict[str, int]]:
    def wait(process: subprocess.Popen[bytes]) -> dict[str, int]:
        end = time.monotonic() + 120
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body.encode())
        while True:
            assert process.poll() is None, f"the server on port {port} ended"
            assert time.monotonic() < end, f"nothing answers on port {port}"
            try:
                urllib.request.urlopen(asked, timeout=5).read()  # noqa: S310 - loopback
            except OSError:
                time.sleep(0.2)
            else:
                return {"port": port}

    return wait


@contextmanager
def mosec(venv: Path, port: int, cost: float, *, fast: bool) -> Iterator[Server]:
    command = [str(venv / "bin" / "python"), str(HERE / "peers" / "mosec_sum.py"), "--port", str(port)]
    env = {"COST_MS": str(cost)} | ({"FAST_JSON": "1"} if fast else {})
    with started([*command, "--address", "127.0.0.1"], _answers(port, "/inference", MOSEC), **env) as server:
        yield server


@contextmanager
def triton(venv: Path, port: int, cost: float, models: Path = HERE / "peers" / "triton_models") -> Iterator[Server]:
    command = [str(HERE / "peers" / "triton.sh"), str(venv), str(models), str(port), str(port + 1)]
    with started(command, _answers(port, OIP, JSON), COST_MS=str(cost)) as server:
        yield server


def report(bench: Bench) -> None:
    bench.say("## Goals")
    bench.say()
    bench.say("| what | goal | found (least to most) | |")
    bench.say("|---|---|---|---|")
    for goal in bench.goals:
        bench.say(f"| {goal.what} | {goal.goal} | {goal.found} | {'holds' if goal.holds else '**missed**'} |")
