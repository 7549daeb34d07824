# ruff: noqa: SLF001, N815 - the bare script runs on context and buffers of the session beside it; names of CUDA
"""What ``Session.run`` of a TensorRT engine costs the host beyond a bare script of the same calls. Needs no GPU.

    python benchmarks/tensorrt_host.py

TensorRT and CUDA are stood in for by calls that return at once, so that what remains is Python: CPU time of the
process, the least of several rounds, in nanoseconds a request. On a device the caches are cold after each wait, and the
same instructions take several times as long: the figures are for comparing versions of the adapter.
"""

from __future__ import annotations

import enum
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cuda import Context, Cudart, Engine, Library
from tests.support.releases import sidecar
from trtops.backend import cuda_device, trt_stream
from trtops.backend.trt_session import TensorRtSession
from trtops.spec.engine import Execution, Memory, Profile
from trtops.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, REQUESTS = 7, 10_000
ROWS = (1, 2048)


class Status(enum.IntEnum):
    """As cuda-python tells how a call went."""

    cudaSuccess = 0


class Kind(enum.IntEnum):
    """Directions of copies."""

    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


_DONE = (Status.cudaSuccess,)


class Instant(Cudart):
    """A runtime whose calls on a stream cost nothing."""

    cudaMemcpyKind = Kind  # type: ignore[assignment]

    def __init__(self) -> None:
        """Replace them."""
        super().__init__()
        for name in ("cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize", "cudaStreamSynchronize"):
            setattr(self, name, lambda *_: _DONE)
        self.cudaGraphLaunch = lambda *_: _DONE  # type: ignore[method-assign]


def opened(cudart: Instant, folder: Path, rows: int, *, graph: bool) -> TensorRtSession:
    x = TensorInfo(name="x", dtype="float32", shape=("n", 4))
    span = {"min": [1, 4], "opt": [1, 4], "max": [8192, 4]}
    profile = Profile.model_validate({"name": "default", "inputs": {"x": span}})
    about = sidecar(inputs=(x,), outputs=(x.model_copy(update={"name": "y"}),), profiles=(profile,))
    Library.engine = Engine(1)
    (folder / "engine").write_bytes(b"engine")
    cuda_device.runtime = lambda: cudart
    session = TensorRtSession(Library(), folder / "engine", about)
    return session.arrange(Execution(cuda_graphs=graph), Memory(), (rows,))[0]


def bare(cudart: Any, session: TensorRtSession, feed: dict[str, Any]) -> Callable[[], object]:  # noqa: ANN401
    """Copy in, execute, copy out, wait, hand out a copy."""
    prepared = session.prepare(feed)
    (view, device, host, size), (_, out, from_device, to, out_size) = prepared.sources[0], prepared.results[0]
    context, stream, array = session._context, session._stream.handle, feed["x"]
    inward, outward = Kind.cudaMemcpyHostToDevice, Kind.cudaMemcpyDeviceToHost

    def work() -> object:
        np.copyto(view, array)
        cudart.cudaMemcpyAsync(device, host, size, inward, stream)
        context.execute_async_v3(int(stream))
        cudart.cudaMemcpyAsync(to, from_device, out_size, outward, stream)
        cudart.cudaStreamSynchronize(stream)
        return out.copy()

    return work


def nanoseconds(work: Callable[[], object]) -> float:
    begin = time.process_time_ns()
    for _ in range(REQUESTS):
        work()
    return (time.process_time_ns() - begin) / REQUESTS


def main() -> int:
    Context.execute_async_v3 = lambda *_: True  # type: ignore[method-assign]
    cudart = Instant()
    print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores; ns of CPU time a request\n")
    print("| input | waits | graph | bare script | Session.run | beyond it |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            for spins in (True, False):
                for graph in (False, True):
                    trt_stream.CORES_TO_SPIN = 0 if spins else sys.maxsize
                    session = opened(cudart, Path(folder), rows, graph=graph)
                    feed = {"x": np.ones((rows, 4), np.float32)}
                    alone = bare(cudart, session, feed)
                    pairs = [(nanoseconds(alone), nanoseconds(lambda: session.run(feed))) for _ in range(ROUNDS)]  # noqa: B023
                    one, two = (min(times) for times in zip(*pairs, strict=True))
                    words = "spinning" if spins else "asleep"
                    size = feed["x"].nbytes
                    print(
                        f"| {size} B | {words} | {'yes' if graph else 'no'} | {one:.0f} | {two:.0f} | {two - one:.0f} |"
                    )
                    session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
