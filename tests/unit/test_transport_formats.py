"""Clients that write tensors as the engine has them in memory: through shared memory, over HTTP, by older versions."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from tests.support.cuda import Cudart, Engine, Library
from tests.support.executors import LONG, batching
from tests.support.executors import load as load_engine
from tests.support.fleets import load as load_fleet
from tests.support.formats import RANGES, TAIL, build, images, load, lying
from tests.support.releases import sidecar
from tests.support.serving import serving
from tests.support.waiting import until
from trtops.backend.fake import FakeSession
from trtops.backend.pinned import PageLocked
from trtops.backend.trt_session import TensorRtSession
from trtops.errors import InputError, Retryable, Unavailable
from trtops.executor.attach import Attachment
from trtops.executor.executor import Executor
from trtops.executor.remote import RemoteEngines
from trtops.spec.engine import Profile
from trtops.tensor import TensorInfo, stored_elements
from trtops.transport.client import Client
from trtops.transport.greeting import connect
from trtops.transport.layout import SLOT_HEADERS
from trtops.transport.server import Server
from trtops.transport.wire import Ask, Catalogue, Hello, Welcome, decode_from_executor, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtops.backend.port import Session
    from trtops.executor.port import Outcome
    from trtops.executor.supervisor import Supervisor

    Array = np.ndarray[Any, Any]

PROFILE = Profile.model_validate({"inputs": RANGES})
FORMATS = ["linear", "hwc", "hwc8"]


def info(name: str, lies: Any, channels: int = 3) -> TensorInfo:
    return TensorInfo(name=name, dtype="float32", shape=("n", channels, *TAIL[1:]), format=lies)


class Seen(FakeSession):
    """A fake that keeps what it was given."""

    def __init__(self, x: str, y: str) -> None:
        super().__init__((info("x", x),), (info("y", y, 4),), profiles=(PROFILE,))
        self.given: list[Array] = []

    def run(self, inputs: Any) -> Any:
        self.given.append(inputs["x"])
        return super().run(inputs)


class Served:
    """An executor behind a server, with one engine ``e``."""

    def __init__(self, folder: Path, *sessions: Session, **options: Any) -> None:
        self.path = folder / "s"
        self.executor = Executor()
        self.load(*sessions, **options)
        self.server = Server(self.path, Attachment(self.executor))

    def load(self, *sessions: Session, generation: int = 1, **options: Any) -> None:
        options = {"batching": batching(), "profiles": (PROFILE,), **options}
        load_engine(self.executor, *sessions, name="e", generation=generation, **options)

    def client(self, **options: Any) -> Client:
        return Client(self.path, slots=4, input_bytes=1 << 16, output_bytes=1 << 16, **options)

    def close(self) -> None:
        self.server.close()
        self.executor.close(drain=5)


@contextmanager
def served(folder: Path, *sessions: Session, **options: Any) -> Iterator[Served]:
    made = Served(folder, *sessions, **options)
    try:
        yield made
    finally:
        made.close()


def is_lying(array: Array, lies: Any) -> bool:
    return array.strides == lying(array, lies).strides


@pytest.mark.parametrize("backend", ["fake", "onnxruntime"])
@pytest.mark.parametrize(("x", "y"), [("hwc", "linear"), ("hwc8", "hwc"), ("linear", "hwc8"), ("hwc", "hwc")])
def test_answers_are_those_of_the_linear_engine(tmp_path: Path, backend: str, x: str, y: str) -> None:
    given = images(2)
    plain = load(tmp_path / "plain", backend, build(tmp_path / "plain", backend))
    expected = plain.run({"x": given})["y"]
    plain.close()
    made = build(tmp_path / "made", backend, bindings={"x": {"format": x}, "y": {"format": y}})
    with served(tmp_path, load(tmp_path / "made", backend, made)) as stack, stack.client() as client:
        for one in (given, lying(given, "hwc"), lying(given, "hwc8")):
            reply = client.infer("e", {"x": one}, 2)
            np.testing.assert_array_equal(reply.outputs["y"], expected)
            assert is_lying(reply.outputs["y"], "hwc" if y == "hwc8" else y)  # a copy keeps no gaps
        calls = [client.submit("e", {"x": given[row : row + 1]}, 1) for row in range(2)]
        rows = [client.wait(call).outputs["y"] for call in calls]
        np.testing.assert_array_equal(np.concatenate(rows), expected)


@pytest.mark.parametrize("lies", FORMATS)
def test_views_of_a_slot_lie_as_the_engine_takes_them(tmp_path: Path, lies: Any) -> None:
    session = Seen(lies, lies)
    with served(tmp_path, session) as stack, stack.client(copy=False) as client:
        like = {"x": np.empty((2, *TAIL), np.float32)}
        call, views = client.reserve("e", like, 2)
        view = views["x"]
        assert view.shape == (2, *TAIL)
        assert is_lying(view, lies)
        assert view.__array_interface__["data"][0] % 64 == 0
        session.given.clear()
        view[...] = images(2)
        client.send(call)
        reply = client.wait(call)
        (given,) = session.given
        assert given.strides == view.strides
        assert not given.flags.owndata  # it is the slot
        np.testing.assert_array_equal(given, images(2))
        assert is_lying(reply.outputs["y"], "hwc" if lies == "hwc8" else lies)  # a copy keeps no gaps
        del reply


@pytest.mark.parametrize("versions", [(1,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("lies", ["hwc", "hwc8"])
def test_a_client_that_knows_no_formats_goes_on_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...], lies: str
) -> None:
    session = Seen(lies, lies)
    monkeypatch.setattr("trtops.transport.greeting.VERSIONS", versions)
    with served(tmp_path, session) as stack, stack.client(copy=False) as client:
        call, views = client.reserve("e", {"x": np.empty((2, *TAIL), np.float32)}, 2)
        assert views["x"].flags.c_contiguous
        views["x"][...] = images(2)
        client.send(call)
        y = client.wait(call).outputs["y"]
        assert y.flags.c_contiguous
        sums = images(2).reshape(2, -1).sum(axis=1)
        np.testing.assert_array_equal(y, np.broadcast_to(sums[:, None, None, None], y.shape))
        del y
        if versions != (1, 2, 3):
            assert "format" not in json.dumps(client.catalogue())


def _ask(path: Path, versions: list[int]) -> tuple[Welcome, Any]:
    with connect(path, LONG) as sock:
        sock.send(encode(Hello(versions, 1, 4096, 4096)))
        packet, rights, _, _ = sock.recvmsg(1 << 17, socket.CMSG_SPACE(16))
        for _, _, data in rights:
            for fd in memoryview(data[: len(data) - len(data) % 4]).cast("i"):
                socket.close(fd)
        welcome = decode_from_executor(packet)
        assert isinstance(welcome, Welcome)
        sock.send(encode(Ask(1)))
        said = decode_from_executor(sock.recv(1 << 17))
        assert isinstance(said, Catalogue)
        return welcome, msgspec.json.decode(said.engines)


def test_formats_are_told_to_those_who_know_them(tmp_path: Path) -> None:
    with served(tmp_path, Seen("hwc", "hwc8")) as stack:
        welcome, engines = _ask(stack.path, [1, 2, 3, 4])
        assert (welcome.version, welcome.formats) == (4, {"e": {"x": "hwc"}})
        assert engines[0]["inputs"][0]["format"] == "hwc"
        assert engines[0]["outputs"][0]["format"] == "hwc8"
        welcome, engines = _ask(stack.path, [1, 2, 3])
        assert (welcome.version, welcome.formats) == (3, {})
        assert "format" not in engines[0]["inputs"][0]
        assert engines[0]["inputs"][0]["name"] == "x"


def test_linear_engines_are_told_as_before(tmp_path: Path) -> None:
    with served(tmp_path, Seen("linear", "linear")) as stack:
        for versions in ([1, 2, 3], [1, 2, 3, 4]):
            welcome, engines = _ask(stack.path, versions)
            assert encode(welcome) == encode(Welcome(versions[-1]))
            assert engines[0]["inputs"][0].keys() == {"name", "dtype", "shape"}


def test_a_catalogue_tells_of_another_format(tmp_path: Path) -> None:
    first, second = Seen("linear", "linear"), Seen("hwc8", "linear")
    like = {"x": np.empty((1, *TAIL), np.float32)}
    with served(tmp_path, first) as stack, stack.client() as client:
        call, views = client.reserve("e", like, 1)
        assert is_lying(views["x"], "linear")
        stack.load(second, generation=2)
        views["x"][...] = images(1)
        client.send(call)  # in the old format, to the new engine
        reply = client.wait(call)
        assert (reply.error, reply.generation) == (None, 2)
        assert reply.outputs["y"][0, 0, 0, 0] == images(1).sum()
        client.catalogue()
        call, views = client.reserve("e", like, 1)
        assert is_lying(views["x"], "hwc8")
        client.abandon(call)


def test_what_fills_a_slot_up_is_zero_whatever_was_there(tmp_path: Path) -> None:
    session = Seen("hwc8", "linear")
    with served(tmp_path, session) as stack, stack.client() as client:
        noise = np.full((1, 64, 8, 8), np.nan, np.float32)
        for _ in range(4):  # of every slot
            assert client.wait(client.submit("e", {"x": noise}, 1)).error is not None
        session.given.clear()
        for _ in range(4):
            assert client.infer("e", {"x": images(2)}, 2).error is None
        assert len(session.given) == 4
        for given in session.given:
            whole = np.lib.stride_tricks.as_strided(given, (2, 8, 8, 8), (given.strides[0], *given.strides[2:], 4))
            assert (whole[..., 3:] == 0).all()


def test_a_slot_without_room_for_what_fills_a_tensor_up_takes_it_as_it_is(tmp_path: Path) -> None:
    session, given = Seen("hwc8", "linear"), images(2)
    with served(tmp_path, session) as stack:
        with Client(stack.path, slots=1, input_bytes=given.nbytes, output_bytes=1 << 16) as client:
            call, views = client.reserve("e", {"x": given}, 2)
            assert is_lying(views["x"], "linear")
            client.abandon(call)
            session.given.clear()
            assert client.infer("e", {"x": given}, 2).error is None
        np.testing.assert_array_equal(session.given[0], given)
        with Client(stack.path, slots=1, input_bytes=given.nbytes // 2, output_bytes=1 << 16) as client:
            with pytest.raises(InputError, match=f"need {given.nbytes} bytes") as caught:
                client.submit("e", {"x": given}, 2)
            assert f"{given.nbytes} bytes or more" in str(caught.value.fix)


def test_an_array_of_another_rank_is_refused_by_the_engine(tmp_path: Path) -> None:
    with served(tmp_path, Seen("hwc", "linear")) as stack, stack.client() as client:
        reply = client.wait(client.submit("e", {"x": np.zeros((1, 3), np.float32)}, 1))
        assert "input 'x' has shape [1, 3]" in str(reply.error)


@pytest.mark.parametrize("lies", FORMATS)
def test_over_http_a_request_is_transposed_on_its_way_into_the_slot(tmp_path: Path, lies: Any) -> None:
    session = Seen(lies, lies)
    given = images(2)
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": given.shape, "data": given.ravel().tolist()}]}
    )
    with served(tmp_path, session) as stack:
        remote = RemoteEngines(stack.path)
        try:
            with serving(_Kept(remote)) as front:  # type: ignore[arg-type] # it has the calls that a server makes
                session.given.clear()
                connection = HTTPConnection("127.0.0.1", front.port, timeout=LONG)
                connection.request("POST", "/v2/models/e/infer", body)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                connection.close()
        finally:
            remote.close()
    assert answer.status == 200, document
    (output,) = document["outputs"]
    y = np.array(output["data"], np.float32).reshape(output["shape"])
    np.testing.assert_array_equal(y, np.broadcast_to(given.reshape(2, -1).sum(axis=1)[:, None, None, None], y.shape))
    (seen,) = session.given
    np.testing.assert_array_equal(seen, given)
    assert is_lying(seen, lies)


class _Kept:
    """Engines that stay open when the server in front of them ends."""

    def __init__(self, engines: RemoteEngines) -> None:
        self.engines = engines.engines
        self.submit = engines.submit

    def close(self, *, drain: float) -> None:
        """Their owner closes them."""


def test_workers_of_a_supervisor_take_formats(supervisor: Supervisor, remote: RemoteEngines, tmp_path: Path) -> None:
    """Also one that comes in place of another, and is connected to before it has loaded its engine."""
    sides = (info("x", "hwc"),), (info("y", "hwc", 4),)
    given = images(2)
    load_fleet(supervisor, tmp_path, 1, sides=sides)
    until(lambda: [one.inputs[0].format for one in remote.engines()] == ["hwc"])
    for _ in range(2):
        (outcome,) = sent(remote, given)
        np.testing.assert_array_equal(outcome.outputs["y"][:, 0, 0, 0], given.reshape(2, -1).sum(axis=1))
        assert is_lying(outcome.outputs["y"], "hwc")
        (client,) = remote._links._links.values()
        call, views = client.reserve("e", {"x": np.empty_like(given)}, 2)
        assert is_lying(views["x"], "hwc")
        client.abandon(call)
        os.kill(supervisor.workers()[0].pid, signal.SIGKILL)
        until(lambda: not remote._links.workers(), "the connection has ended")


def sent(remote: RemoteEngines, given: Array) -> list[Outcome]:
    """The answer, once a worker gives one."""
    outcomes: list[Outcome] = []

    def answered() -> bool:
        with suppress(Unavailable, Retryable):
            outcomes.append(remote.infer("e", {"x": given}, 2))
        return bool(outcomes)

    until(answered)
    return outcomes


def test_large_tensors_that_are_filled_up_find_a_slot(tmp_path: Path) -> None:
    shape = ("n", 1, 64, 64)
    one = TensorInfo(name="x", dtype="float32", shape=shape, format="hwc8")
    out = TensorInfo(name="y", dtype="float32", shape=shape, format="hwc8")
    with served(tmp_path, FakeSession((one,), (out,)), profiles=()) as stack:
        remote = RemoteEngines(stack.path, input_bytes=1 << 16, output_bytes=1 << 16)
        try:
            x = images(2, tail=(1, 64, 64))
            outcome = remote.infer("e", {"x": x}, 2)
            np.testing.assert_array_equal(outcome.outputs["y"][:, 0, 0, 0], x.reshape(2, -1).sum(axis=1))
        finally:
            remote.close()


# -- zero copy on a device ---------------------------------------------------------------------------------------------

WIDE = (3, 64, 64)
SPAN = {"min": [1, *WIDE], "opt": [2, *WIDE], "max": [4, *WIDE]}


@pytest.mark.parametrize("lies", ["hwc", "hwc8"])
def test_the_device_copies_a_request_from_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: Any) -> None:
    cudart, locked = Cudart(strict=True), PageLocked()
    engine = Engine(1, shape=(-1, *WIDE), formats={"x": lies, "y": lies})
    engine.cudart = cudart
    monkeypatch.setattr("trtops.backend.cuda_device.runtime", lambda: cudart)
    for place in ("trtops.backend.trt_session", "trtops.executor.attach"):
        monkeypatch.setattr(f"{place}.PAGE_LOCKED", locked)
    monkeypatch.setattr(Library, "engine", engine)
    monkeypatch.setattr("trtops.backend.trt_stream.CORES_TO_SPIN", 1 << 20)
    (tmp_path / "engine").write_bytes(b"engine")
    x, y = (TensorInfo(name=name, dtype="float32", shape=("n", *WIDE), format=lies) for name in "xy")
    profile = Profile.model_validate({"inputs": {"x": SPAN}})
    about = sidecar(inputs=(x,), outputs=(y,), profiles=(profile,))
    session = TensorRtSession(Library(), tmp_path / "engine", about)
    size = stored_elements((2, *WIDE), lies) * 4
    options: Any = {"slots": 1, "input_bytes": size, "output_bytes": size, "copy": False}
    with (
        served(tmp_path, session, profiles=(profile,), batching=batching(max_batch=4)) as stack,
        Client(stack.path, **options) as client,
    ):
        until(lambda: cudart.registered and locked.any, "the slots are page-locked")
        cudart.direct.clear()
        cudart.direct_from.clear()
        call, views = client.reserve("e", {"x": np.empty((2, *WIDE), np.float32)}, 2)
        views["x"][...] = images(2, tail=WIDE)
        client.send(call)
        reply = client.wait(call)
        assert reply.error is None
        np.testing.assert_array_equal(reply.outputs["y"], 2 * images(2, tail=WIDE))
        assert is_lying(reply.outputs["y"], "hwc")
        (start,) = cudart.registered
        area = start + client._segment.starts[0] + SLOT_HEADERS
        assert (cudart.direct, cudart.direct_from) == ([size], [area])
        assert _bytes_at(area, size) == _stored(images(2, tail=WIDE), lies)
        del reply


def _bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _stored(array: Array, lies: Any) -> bytes:
    """The bytes of a C array ``[N, H, W, C]``, filled up where the format is."""
    last = array.transpose(0, 2, 3, 1)
    filled = np.zeros((*last.shape[:3], 8 if lies == "hwc8" else 3), array.dtype)
    filled[..., :3] = last
    return filled.tobytes()
