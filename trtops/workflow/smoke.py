"""Starts a server process from what was released, asks it one question, compares the answer, stops it."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from trtops.errors import TrtopsError, Unavailable
from trtops.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.workflow.check import Checked
    from trtops.workflow.workspace import Workspace

    Array = NDArray[np.generic]

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
_CHUNK = 65_536
_LAST_LINES = 12


@dataclass(frozen=True)
class Smoke:
    """One answer from a server process of its own.

    Attributes:
        url: where it listened.
        generation: of the channel that answered.
        target: whose artifact answered.
        sample: number of the sample that was asked.
        outputs: name -> array.
        seconds: from sending to the answer.
        excess: largest difference from the reference, in units of the spec's tolerance; at most 1 is equal.
    """

    url: str
    generation: int
    target: str
    sample: int
    outputs: Mapping[str, Array]
    seconds: float
    excess: float


def smoke(workspace: Workspace, checked: Checked) -> Smoke:
    """Ask what is released one question over HTTP.

    Raises:
        Unavailable: the server did not start, did not become ready, or did not stop in order; with its last words.
        TrtopsError: the answer is an error, or differs from the reference.
    """
    from trtops.serve.client import describe, infer

    name = checked.spec.name
    with _server(workspace, name) as ready:
        engine = ready["engines"][name]
        if "generation" not in engine:
            raise Unavailable(f"the server does not serve {name}: {engine['reason']}", fix="see trtops status")
        model = describe(ready["url"], name)
        question = _question(checked, model.inputs)
        start = time.perf_counter()
        outputs = infer(ready["url"], name, question, model=model)
        seconds = time.perf_counter() - start
        excess = _excess(checked, question, outputs)
        if not excess <= 1:
            raise TrtopsError(
                f"the served answer differs from ONNX Runtime's by {excess:.3g} times the tolerance",
                where=f"{name} at {ready['url']}",
                fix="run trtops verify; compare the batching and the profile of the runtime config",
            )
        return Smoke(ready["url"], engine["generation"], engine["target"], 0, outputs, seconds, excess)


def _question(checked: Checked, inputs: Any) -> dict[str, Array]:  # noqa: ANN401 - tuple[TensorInfo, ...]
    """The first sample, one row, at the first profile's optimum."""
    from trtops.accuracy import load_samples
    from trtops.spec.engine import Accuracy

    settings = checked.spec.accuracy or Accuracy()
    samples = load_samples(settings.samples, base=checked.folder, inputs=inputs)
    profile = checked.spec.profiles[0]
    shapes = {}
    for info in inputs:
        range_of = profile.inputs.get(info.name)
        shape = range_of.opt if range_of else tuple(size for size in info.shape if isinstance(size, int))
        first = max(1, range_of.min[0]) if range_of else shape[0]
        shapes[info.name] = (first, *shape[1:])
    return samples.batch(shapes)


def _excess(checked: Checked, question: Mapping[str, Array], outputs: Mapping[str, Array]) -> float:
    """Largest ``|served - reference| / (atol + rtol |reference|)``."""
    import numpy as np

    from trtops.accuracy.elements import decode
    from trtops.backend.onnxruntime import OnnxRuntimeBackend
    from trtops.spec.engine import Accuracy

    assert checked.model is not None  # noqa: S101 - it was released from this model
    settings = checked.spec.accuracy or Accuracy()
    worst = 0.0
    with closing(OnnxRuntimeBackend().reference(checked.model)) as reference:
        expected = reference.run(question)
        for info in reference.outputs:
            want = decode(info.dtype, expected[info.name])
            have = decode(info.dtype, outputs[info.name])
            tolerance = settings.atol + settings.rtol * np.abs(want)
            difference = np.abs(have - want)
            ratio = np.where(difference == 0, 0.0, difference / np.maximum(tolerance, np.finfo(np.float64).tiny))
            worst = max(worst, float(np.max(ratio, initial=0.0)))
    return worst


@contextmanager
def _server(workspace: Workspace, name: str) -> Iterator[dict[str, Any]]:
    """A server process on free loopback ports, stopped by SIGTERM; it must end with exit code 0."""
    command = module_command("trtops", "serve", name, "--env", workspace.environment)
    command += ["--host", "127.0.0.1", "--port", "0", "--control-port", "0", "--ready-json"]
    log = workspace.resolved.home / "smoke.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, cwd=workspace.root, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            line = _ready_line(process.stdout, READY_SECONDS)
            if line is None:
                raise _died("the server did not become ready", process, log)
            yield json.loads(line)
            process.send_signal(signal.SIGTERM)
            if process.wait(STOP_SECONDS) != 0:
                raise _died("the server did not stop in order", process, log)
        except subprocess.TimeoutExpired:
            raise _died(f"the server did not stop within {STOP_SECONDS:g} s", process, log) from None
        finally:
            if process.poll() is None:
                process.kill()


def _ready_line(stream: IO[bytes], seconds: float) -> bytes | None:
    """The first line, or None if the stream ends or the time is over before it is whole."""
    end = time.monotonic() + seconds
    data = b""
    while b"\n" not in data:
        left = end - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return None
        chunk = stream.read1(_CHUNK)  # type: ignore[attr-defined]
        if not chunk:
            return None
        data += chunk
    return data.partition(b"\n")[0]


def _died(what: str, process: subprocess.Popen[bytes], log: Any) -> Unavailable:  # noqa: ANN401 - Path
    code = process.poll()
    ended = "" if code is None else f" (exit code {code})"
    last = log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
    words = ": " + " | ".join(last) if last else ""
    return Unavailable(f"{what}{ended}{words}", where=str(log), fix="start it by hand: trtops serve")
