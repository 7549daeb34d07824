"""Processes forked off a nursery: how they begin and end, and what is left when somebody is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import gone, until

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
LONG = 60.0


def script(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a script in an interpreter of its own, which has one thread; it writes JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


CHILDREN = """
import json, os, sys, types
from trtops.executor.nursery import Nursery

def main(fds):
    with os.fdopen(int(fds[0]), "w") as out:
        out.write(json.dumps({
            "pid": os.getpid(), "parent": os.getppid(), "told": os.environ.get("TOLD"),
            "name": open("/proc/self/comm").read().strip(), "fds": len(fds),
        }))
    how = os.environ["HOW"]
    if how == "raise": raise ValueError("no")
    if how == "exit": sys.exit(5)
    if how == "kill": os.kill(os.getpid(), 9)
    return 3

sys.modules["grown"] = types.ModuleType("grown")
sys.modules["grown"].main = main
nursery = Nursery()
found = {"mine": os.getpid(), "nursery": nursery.pid, "ends": {}}
for how in ("return", "raise", "exit", "kill"):
    read, write = os.pipe()
    pid = nursery.fork("grown", "trtops-test-name-cut", [write], {"HOW": how, "TOLD": "yes"})
    os.close(write)
    told = json.loads(os.fdopen(read).read())
    assert told["pid"] == pid
    found["told"] = told
    found["ends"][how] = nursery.bury(pid)
try:
    nursery.fork("there.is.none", "x", [])
except OSError as error:
    found["missing"] = str(error)
else:
    found["missing"] = nursery.bury(nursery.fork("there.is.none", "x", []))
nursery.close()
nursery.close()
try:
    nursery.fork("grown", "x", [])
except OSError:
    found["closed"] = True
print(json.dumps(found))
"""


def test_a_child_has_what_it_is_given_and_its_end_is_told() -> None:
    found = script(CHILDREN)
    assert found["told"]["parent"] == found["nursery"] != found["mine"]
    assert (found["told"]["told"], found["told"]["fds"]) == ("yes", 1)
    assert found["told"]["name"] == "trtops-test-nam"
    assert found["ends"] == {"return": 3, "raise": 1, "exit": 5, "kill": -9}
    assert found["missing"] == 1
    assert found["closed"] is True
    assert gone(found["nursery"])


STOPPED = """
import json, logging, os, signal, sys
from trtops.executor import nursery as module
module._PATIENCE = 0.2
logging.basicConfig(stream=sys.stderr)
nursery = module.Nursery()
os.kill(nursery.pid, signal.SIGSTOP)
nursery.close()
nursery.close()
print(json.dumps({"nursery": nursery.pid}))
"""


def test_a_nursery_that_hangs_is_killed() -> None:
    assert gone(script(STOPPED)["nursery"])


SUPERVISOR = """
import json, os, signal, sys, time
from pathlib import Path
from tests.support.fleets import ONES, load
from tests.support.waiting import until
from trtops.executor.nursery import Nursery
import trtops.executor.hosting
nursery = Nursery()
from trtops.executor.remote import RemoteEngines
from trtops.executor.supervisor import Supervisor
folder = Path(sys.argv[1])
supervisor = Supervisor(folder / "s.sock", nursery=nursery)
load(supervisor, folder, 1)
remote = RemoteEngines(supervisor.path)
found = {"nursery": nursery.pid, "answer": remote.infer("e", ONES, 2).outputs["y"].tolist()}
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
(worker,) = supervisor.workers()
found["parent"] = parent(worker.pid)
os.kill(worker.pid, signal.SIGSEGV)
until(lambda: [unit.restarts for unit in supervisor.units()] == [1])
until(lambda: supervisor.units()[0].state == "ready")
found["fault"] = supervisor.units()[0].fault
os.kill(nursery.pid, signal.SIGKILL)  # its children die with it; the next ones get an interpreter of their own
until(lambda: [unit.restarts for unit in supervisor.units()] == [2])
until(lambda: supervisor.units()[0].state == "ready")
found["orphan"] = supervisor.units()[0].fault
(worker,) = supervisor.workers()
found["new parent is me"] = parent(worker.pid) == os.getpid()
until(lambda: remote.engines())
found["again"] = remote.infer("e", ONES, 2).outputs["y"].tolist()
if len(sys.argv) > 2:
    print(json.dumps(found), flush=True)
    time.sleep(600)
remote.close()
supervisor.close(drain=1)
nursery.close()
found["left"] = [pid for pid in (worker.pid,) if os.path.exists(f"/proc/{pid}")]
print(json.dumps(found))
"""


def test_workers_come_from_the_nursery_and_without_it_when_it_is_lost(tmp_path: Path) -> None:
    found = script(SUPERVISOR, str(tmp_path))
    assert found["answer"] == found["again"] == [[4.0], [4.0]]
    assert found["parent"] == found["nursery"]
    assert found["fault"] == "it was killed by SIGSEGV"
    assert found["orphan"] == "it ended, and nobody knows how"
    assert found["new parent is me"]
    assert found["left"] == []


KILLED = """
import sys, time
from pathlib import Path
from tests.support.fleets import load
from trtops.executor.nursery import Nursery
nursery = Nursery()
from trtops.executor.supervisor import Supervisor
folder = Path(sys.argv[1])
supervisor = Supervisor(folder / "s.sock", nursery=nursery)
load(supervisor, folder, 1)
print(nursery.pid, supervisor.workers()[0].pid, flush=True)
time.sleep(600)
"""


def test_who_is_killed_takes_the_nursery_and_its_children_along(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None
            pids = [int(word) for word in one.stdout.readline().split()]
            assert len(pids) == 2
            assert not any(gone(number) for number in pids)
            one.send_signal(signal.SIGKILL)
            one.wait(LONG)
            until(lambda: all(gone(number) for number in pids))
        finally:
            one.kill()
