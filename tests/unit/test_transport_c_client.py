"""The C client, which was written from docs/concepts/transport.md: it holds the document to what the executor does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.executors import LONG, Session, batching
from tests.support.waiting import until
from trtops.errors import InputError, StorageError
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.transport.bells import Handed, clients_bell
from trtops.transport.catalogue import Listing
from trtops.transport.client import Client
from trtops.transport.limits import Limits
from trtops.transport.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service

SOURCES = Path(__file__).parents[2] / "clients" / "c"
STRICT = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


@pytest.fixture(scope="module")
def infer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with the client in it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("a C compiler is needed")
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("c") / "infer"
    sources = [str(SOURCES / name) for name in ("trtops_client.c", "infer.c")]
    subprocess.run([compiler, *STRICT, "-o", str(program), *sources], check=True, timeout=LONG)
    return program


class Lists:
    """Serves a list of so many engines and nothing else."""

    def __init__(self, number: int) -> None:
        self.listed = json.dumps([{"name": f"engine-{index:04}", "text": '"size":7 ä' * 20} for index in range(number)])

    def submit(self, *_: Any) -> Any:
        raise InputError("it serves nothing")

    def start(self, *, relief: Any = None) -> None:
        """Nothing waits."""

    def mapped(self, memory: Any) -> None:
        """Nothing reads it."""

    def catalogue(self) -> bytes:
        return self.listed.encode()


class Served:
    """An executor with an engine that doubles, on a socket."""

    def __init__(self, path: Path, **queue: Any) -> None:
        self.path = path
        self.session = Session()
        self.executor = Executor()
        self.executor.load(
            "double",
            generation=7,
            version="1.0.0",
            digest="sha256:" + "0" * 64,
            backend="fake",
            batching=batching(**queue),
            instances=1,
            open_session=lambda: self.session,
        )
        self.server = Server(path, Attachment(self.executor), limits=Limits(slots=8))

    def close(self) -> None:
        self.session.gate.set()
        self.server.close()
        self.executor.close(drain=1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "s.sock")
    yield served
    served.close()


def run(infer: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([infer, *map(str, words)], capture_output=True, text=True, timeout=LONG, check=False)


def test_c_sends_and_reads_tensors_in_slots(infer: Path, served: Served) -> None:
    done = run(infer, served.path, "double", "x", 2, 4, 100)
    assert done.stdout == "y 0 2 4 6 8 10 12 14 (generation 7, batch 2)\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert served.server.held().in_use == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing", "x", 1, 4), "\"no engine 'nothing' is loaded\""),
        (("double", "z", 1, 4), "z"),
        (("double", "x", 1, 5), "[1, 5]"),
        (("double", "x", 0, 4), "rows"),
    ],
)
def test_c_is_told_what_is_wrong(infer: Path, served: Served, words: tuple[Any, ...], said: str) -> None:
    done = run(infer, served.path, *words)
    assert done.returncode == 2
    assert done.stdout.startswith('status 1: {"what":')
    assert said in done.stdout


def test_c_is_told_how_many_requests_a_full_queue_takes(infer: Path, tmp_path: Path) -> None:
    served = Served(tmp_path / "full.sock", queue={"timeout": "60s", "max_size": 1})
    served.session.hold()
    x = {"x": np.zeros((1, 4), np.float32)}
    try:
        with Client(served.path, slots=2, input_bytes=4096) as client:
            first = client.submit("double", x, 1)
            served.session.wait_entered()
            second = client.submit("double", x, 1)
            until(lambda: served.server.held().in_use == 2, "both have crossed")
            done = run(infer, served.path, "double", "x", 1, 4)
            served.session.gate.set()
            assert client.wait(second).error is None
            assert client.wait(first).error is None
        assert done.returncode == 2
        assert "status 2: " in done.stdout
        assert done.stdout.endswith("s; until then 1 at a time\n")
    finally:
        served.close()


@pytest.mark.parametrize("number", [0, 1, 1000])
def test_c_lists_any_number_of_engines(infer: Path, tmp_path: Path, number: int) -> None:
    """In a packet, or in memory beside it."""
    server = Server(tmp_path / "s.sock", Lists(number))
    try:
        done = run(infer, tmp_path / "s.sock")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == json.loads(server._handler.catalogue())
    finally:
        server.close()


def test_c_is_told_why_engines_cannot_be_listed(infer: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise StorageError("no memory for the list", fix="ask again later")

    monkeypatch.setattr(Listing, "send", none)
    done = run(infer, served.path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the executor could not tell its engines" in done.stderr
    assert '{"what":"no memory for the list","where":null,"fix":"ask again later"}' in done.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_c_speaks_to_an_executor_of_an_older_version(
    infer: Path, served: Served, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose bell is to be read."""
    monkeypatch.setattr("trtops.transport.wire.VERSIONS", (version,))
    heard: list[int] = []

    def bell(spoken: int) -> tuple[int, Callable[[], object], Handed]:
        heard.append(spoken)
        return clients_bell(spoken)

    monkeypatch.setattr("trtops.transport.server.clients_bell", bell)
    done = run(infer, served.path, "double", "x", 2, 4, 400)
    assert done.stdout == "y 0 2 4 6 8 10 12 14 (generation 7, batch 2)\n"
    assert heard == [version]
    assert json.loads(run(infer, served.path).stdout)[0]["name"] == "double"


def test_c_says_when_nobody_is_there_or_the_name_is_too_long(infer: Path, served: Served, tmp_path: Path) -> None:
    nobody = run(infer, tmp_path / "none.sock", "double", "x", 1, 4)
    assert (nobody.returncode, nobody.stderr) == (1, f"infer: {tmp_path}/none.sock: No such file or directory\n")
    long = run(infer, served.path, "e" * 65, "x", 1, 4)
    assert "does not fit" in long.stderr


def test_c_sees_the_executor_go_and_the_executor_sees_c_go(infer: Path, served: Served) -> None:
    served.session.hold()
    words = [str(infer), str(served.path), "double", "x", "1", "4"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as waiting:
        served.session.wait_entered()
        served.server.close()
        assert waiting.wait(LONG) == 1
        assert waiting.stderr is not None
        assert waiting.stderr.read().endswith("the executor went away: connect again\n")


def test_c_killed_with_a_request_in_flight_leaves_nothing(infer: Path, served: Served) -> None:
    served.session.hold()
    with subprocess.Popen([infer, str(served.path), "double", "x", "1", "4"]) as victim:
        served.session.wait_entered()
        victim.send_signal(signal.SIGKILL)
        victim.wait(LONG)
    served.session.gate.set()
    assert run(infer, served.path, "double", "x", 1, 4).returncode == 0
    assert served.server.held().in_use == 0
