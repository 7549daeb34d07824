"""A server as a user starts it: a repository of one engine of the fake backend, shipped, then ``trtops serve``.

The engine sums up rows of 16 floats. What it plays is said when it is served (``TRTOPS_FAKE``), e.g. ``cost_us=5000``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from onnx import TensorProto, helper, save

from trtops.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "sum"
_ROOT = Path(__file__).parents[1]
_STARTED = 60.0
_SPEC = """\
apiVersion: trtops/v1
kind: Engine
metadata: {{name: sum, owner: benchmarks, labels: {{tier: bronze}}}}
model: {{source: "file:sum.onnx", sha256: {sha256}}}
targets: [{{backend: fake}}]
precision: {{mode: fp32}}
profiles: [{{name: default, inputs: {{x: {{min: [1, 16], opt: [16, 16], max: [16, 16]}}}}}}]
batching: {{max_batch: 16, queue: {{timeout: 10s}}}}
memory: {{workspace: 1MiB}}
interface: {{version: 1.0.0}}
accuracy: {{samples: random, atol: 1e-4, rtol: 1e-3}}
benchmark: {{batch_sizes: [1, 16], warmup: 10ms, duration: 300ms}}
"""


def ship(folder: Path) -> None:
    """Make the repository in an empty folder, and take its engine through every gate to a release.

    Raises:
        SystemExit: it was not released; with what ``trtops ship`` said.
    """
    for name in ("policies", "governance"):
        shutil.copytree(_ROOT / name, folder / name)
    shutil.copy(_ROOT / "trtops.toml", folder)
    place = folder / "engines" / ENGINE
    place.mkdir(parents=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)], ENGINE, [x], [y], [axes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, place / "sum.onnx")
    sha256 = str(Digest.of_file(place / "sum.onnx")).removeprefix("sha256:")
    (place / "engine.yaml").write_text(_SPEC.format(sha256=sha256), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "trtops", "ship", ENGINE],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"trtops ship ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "TRTOPS_HOME": str(folder / "home"), "PYTHONPATH": path}


@contextlib.contextmanager
def serving(folder: Path, *flags: str, **plays: float) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """Serve it on free ports until the block ends: the server's process and its ready line.

    Raises:
        SystemExit: it did not get ready, or did not end in order.
    """
    command = [sys.executable, "-m", "trtops", "serve", ENGINE, "--port", "0", "--control-port", "0", "--ready-json"]
    command += ["--drain", "5", *flags]
    with (folder / "serve.log").open("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder) | {"TRTOPS_FAKE": json.dumps(plays)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"trtops serve did not get ready:\n{(folder / 'serve.log').read_text()}")
            yield psutil.Process(process.pid), json.loads(line)
            process.send_signal(signal.SIGTERM)
            if code := process.wait(_STARTED):
                raise SystemExit(f"trtops serve ended with {code}:\n{(folder / 'serve.log').read_text()}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
