"""A repository of engines in a folder of its own, and trtops run in it as its users run it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.builds import linear, save
from trtops.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).parents[2]
READY_SECONDS = 60.0

SPEC = """\
apiVersion: trtops/v1
kind: Engine
metadata:
  name: tiny
  owner: team
  labels: {tier: bronze}
model:
  source: file:model.onnx
  sha256: SHA256
targets:
  - backend: onnxruntime
precision:
  mode: fp32
profiles:
  - name: default
    inputs:
      x:
        min: [1, 4]
        opt: [2, 4]
        max: [8, 4]
batching:
  max_batch: 8
  preferred: [4, 8]
  max_queue_delay: 1ms
  queue: {max_size: 512, timeout: 10s, on_timeout: reject}
memory:
  workspace: 64MiB
  device_pool: 16MiB
  pinned_pool: 4MiB
interface:
  version: 1.0.0
builder:
  optimization_level: 3
accuracy:
  samples: file:samples.npz
  atol: 1e-5
  rtol: 1e-4
benchmark:
  batch_sizes: [1, 8]
  warmup: 20ms
  duration: 100ms
"""
"""``engines/tiny/engine.yaml``: y [n, 3] = relu(x [n, 4] @ w + b)."""

RUNTIME = """\
apiVersion: trtops/v1
kind: Runtime
server:
  host: 127.0.0.1
  port: 8000
features: {scores: true}
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def says(self, code: int, *words: str) -> Done:
        """Check the exit code, that there is no traceback, and what it says on either stream; returns itself."""
        assert "Traceback" not in self.err, self.err
        assert self.code == code, self
        for word in words:
            assert word in self.out + self.err, f"{word!r} is not in:\n{self.out}{self.err}"
        return self

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """Rows of ``--json`` of a shipment by stage."""
        return {row["stage"]: row for row in json.loads(self.out)["stages"]}


@dataclass
class Server:
    """A ``trtops serve`` process."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.ready["port"])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@dataclass(frozen=True)
class Repository:
    """A repository's root, and the home that commands in it use."""

    root: Path
    home: Path

    @property
    def engine(self) -> Path:
        return self.root / "engines" / "tiny"

    @property
    def spec(self) -> Path:
        return self.engine / "engine.yaml"

    def environment(self, **changes: str) -> dict[str, str]:
        """The test's own, with no setting of the tool but these."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRTOPS_")}
        mine = {
            "TRTOPS_HOME": str(self.home),
            "TRTOPS_ENGINE": "embedded",
            "NO_COLOR": "1",
            "PYTHONPATH": str(CHECKOUT),
        }
        return kept | mine | {"PYTHONWARNINGS": "error"} | changes

    def call(self, *arguments: str, stdin: str | None = None, **environment: str) -> Done:
        """Run a command in this process: the same code, without the time that an interpreter takes to start."""
        from typer.testing import CliRunner

        from trtops.cli.main import app

        wanted = self.environment(**environment)
        names = set(os.environ) | set(wanted)
        with _inside(self.root):
            result = CliRunner().invoke(
                app, list(arguments), input=stdin, env={name: wanted.get(name) for name in names}
            )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, *arguments: str, pipes: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own."""
        to = subprocess.PIPE if pipes else subprocess.DEVNULL
        command = [sys.executable, "-m", "trtops", *arguments]
        return subprocess.Popen(command, cwd=self.root, env=self.environment(**environment), stdout=to, stderr=to)

    def run(self, *arguments: str, timeout: float = 90, **environment: str) -> Done:
        """Run a command in a process of its own."""
        with self.start(*arguments, pipes=True, **environment) as process:
            return finished(process, timeout)

    @contextlib.contextmanager
    def serve(self, *arguments: str, **environment: str) -> Iterator[Server]:
        """A server on free ports; killed at the end if it is still there."""
        command = [sys.executable, "-m", "trtops", "serve", *arguments]
        command += ["--host", "127.0.0.1", "--port", "0", "--control-port", "0", "--ready-json"]
        log = self.root / "serve.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, cwd=self.root, env=self.environment(**environment), stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            try:
                yield Server(process, _ready(process, log), log)
            finally:
                if process.poll() is None:
                    process.kill()

    def edit(self, old: str, new: str, *, at: str | None = None, file: Path | None = None) -> str:
        """Replace the one occurrence of a text in the spec.

        Returns:
            ``file:line:column`` of the new text, or of ``at`` within it, as messages write it.
        """
        path = file or self.spec
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        begin = text.index(old)
        text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        place = begin + (new.index(at) if at else 0)
        line = text.count("\n", 0, place) + 1
        return f"{path.relative_to(self.root)}:{line}:{place - text.rfind(chr(10), 0, place)}"

    def generations(self) -> list[int]:
        """What the engine's history tells, newest first."""
        done = self.call("history", "tiny", "--json").says(0)
        return [binding["generation"] for binding in json.loads(done.out)["bindings"]]

    def artifact(self) -> Path:
        """The file of the one engine that was built, in the store."""
        (record,) = (self.home / "store" / "records" / "sidecar").iterdir()
        digest = Digest.parse(json.loads(record.read_bytes())["artifact"])
        return self.home / "store" / digest.algorithm / digest.value[:2] / digest.value

    def files(self) -> list[str]:
        """Every file of the home but locks and logs, relative to it."""
        found = [path for path in self.home.rglob("*") if path.is_file()]
        kept = [
            path for path in found if path.parent.name not in {"locks", "logs"} and path.suffix not in {".log", ".lock"}
        ]
        return sorted(str(path.relative_to(self.home)) for path in kept)

    def half_written(self) -> list[str]:
        """Temporary files and folders that something left behind."""
        marks = (".tmp-", "build-", "trtops-fetch-")
        found = [path for path in self.home.rglob("*") if path.name.startswith(marks)]
        return [str(path.relative_to(self.home)) for path in found if path.parent.name not in {"locks", "logs"}]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def finished(process: subprocess.Popen[bytes], timeout: float = 90) -> Done:
    """Wait for a process; kill it if it takes longer."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not done within {timeout} s:\n{out!r}\n{err!r}") from None
    return Done(process.returncode, out.decode(), err.decode())


def _ready(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    end = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.2)[0]:
            line = process.stdout.readline()
            if line:
                ready: dict[str, Any] = json.loads(line)
                return ready
            break
    raise AssertionError(f"no ready line: {log.read_text()}")


def make_repository(root: Path, *, engine: bool = True) -> Repository:
    """A root with the checkout's policies and governance and, unless told otherwise, the engine ``tiny``."""
    (root / "engines").mkdir(parents=True)
    (root / "trtops.toml").touch()
    for name in ("policies", "governance"):
        shutil.copytree(CHECKOUT / name, root / name)
    quiet(root)
    made = Repository(root, root / "home")
    if engine:
        write_engine(made.engine)
    return made


def quiet(root: Path) -> None:
    """Judge no speed against an earlier release's: a shared machine makes any of two measurements the slower one."""
    limits = root / "policies" / "data" / "limits.yaml"
    text = limits.read_text(encoding="utf-8")
    loud = "regression: {p50_percent: 50, p99_percent: null, throughput_percent: 50}"
    assert text.count(loud) == 1
    limits.write_text(
        text.replace(loud, "regression: {p50_percent: null, p99_percent: null, throughput_percent: null}")
    )


def write_engine(folder: Path, text: str = SPEC, runtime: str | None = RUNTIME) -> None:
    """An engine's folder: model, samples, spec and runtime config."""
    path = save(linear(), folder / "model.onnx")
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    np.savez(folder / "samples.npz", x=rows)
    (folder / "engine.yaml").write_text(text.replace("SHA256", Digest.of_file(path).value), encoding="utf-8")
    if runtime is not None:
        (folder / "runtime.yaml").write_text(runtime, encoding="utf-8")


def copy_of(template: Repository, root: Path) -> Repository:
    """A repository with the same files, its home included."""
    shutil.copytree(template.root, root, symlinks=True)
    return Repository(root, root / template.home.relative_to(template.root))
