"""Engines with the channels last on the GPU of this machine, against the same engine with linear bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.executors import batching
from tests.support.executors import load as load_engine
from tests.support.formats import RANGES, TAIL, build, conv, images, load, lying
from tests.support.sessions import assert_close
from tests.support.waiting import until
from trtops.backend.pinned import PAGE_LOCKED
from trtops.backend.tensorrt import TensorRtBackend
from trtops.errors import BuildFailed
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.spec.engine import Execution, Memory, Profile, Target
from trtops.transport.client import Client
from trtops.transport.server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.backend.port import Session

pytestmark = [pytest.mark.gpu, pytest.mark.service]

BACKEND = TensorRtBackend()
FAST: dict[str, Any] = {"builder": {"optimization_level": 0}, "memory": {"workspace": "256MiB"}}


@pytest.fixture(scope="module", autouse=True)
def _here() -> None:
    status = BACKEND.status(Target(backend="tensorrt"))
    if not status.can_load:
        pytest.skip(str(status.reason))


def _open(folder: Path, lies: str, kind: int = TensorProto.FLOAT, **changes: Any) -> Session:
    bindings = {name: {"format": lies} for name in "xy"}
    return load(folder, BACKEND, build(folder, BACKEND, conv(kind), bindings=bindings, **FAST, **changes))


CASES = [("hwc", TensorProto.FLOAT, "fp32"), ("hwc8", TensorProto.FLOAT16, "fp16")]


@pytest.mark.parametrize(("lies", "kind", "mode"), CASES)
@pytest.mark.parametrize("memory", ["pinned", "mapped", "managed"])
@pytest.mark.parametrize("graphs", [False, True])
def test_answers_are_those_of_the_linear_engine(
    tmp_path: Path, lies: Any, kind: int, mode: str, memory: Any, graphs: bool
) -> None:
    precision = {"precision": {"mode": mode}}
    plain, other = (_open(tmp_path / one, one, kind, **precision) for one in ("linear", lies))
    assert [info.format for info in (*other.inputs, *other.outputs)] == [lies, lies]
    lanes: Any = other.arrange(Execution(cuda_graphs=graphs), Memory(input=memory), (1, 4))  # type: ignore[attr-defined] # it is one of TensorRT
    dtype = np.float32 if kind == TensorProto.FLOAT else np.float16
    for rows in (1, 4, 3, 8):
        x = (images(rows) / 16).astype(dtype)
        expected = plain.run({"x": x})["y"]
        for given in (x, lying(x, lies)):
            y = other.run({"x": given})["y"]
            assert_close(y, expected, rtol=1e-2, atol=1e-2)
            assert not y.flags.c_contiguous
            lanes[0].enqueue([{"x": given[row : row + 1]} for row in range(rows)], rows)
            assert_close(lanes[0].collect()["y"], expected, rtol=1e-2, atol=1e-2)
    for session in (plain, *lanes):
        session.close()


def test_a_client_writes_where_the_device_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.backend.trt_session._DIRECT", 0)  # also what is as small as this
    plain, other = (_open(tmp_path / lies, lies) for lies in ("linear", "hwc"))
    executor = Executor()
    load_engine(
        executor,
        other,
        name="e",
        profiles=(Profile.model_validate({"inputs": RANGES}),),
        batching=batching(max_batch=8),
    )
    server = Server(tmp_path / "s", Attachment(executor))
    try:
        size = images(8).nbytes
        with Client(tmp_path / "s", slots=2, input_bytes=size, output_bytes=2 * size) as client:
            until(lambda: PAGE_LOCKED.any, "the slots are page-locked")
            for rows in (8, 3):
                call, views = client.reserve("e", {"x": np.empty((rows, *TAIL), np.float32)}, rows)
                assert views["x"].strides == lying(images(rows), "hwc").strides
                views["x"].transpose(0, 2, 3, 1)[...] = images(rows, 1).transpose(0, 2, 3, 1)
                client.send(call)
                reply = client.wait(call)
                assert reply.error is None
                assert_close(reply.outputs["y"], plain.run({"x": images(rows, 1)})["y"], rtol=1e-3, atol=1e-3)
    finally:
        server.close()
        executor.close(drain=5)
        plain.close()


def test_a_type_that_the_version_has_no_such_format_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"'x' is float32, and TensorRT .* has the format hwc8 for float16"):
        build(tmp_path, BACKEND, bindings={"x": {"format": "hwc8"}}, **FAST)
