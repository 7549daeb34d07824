"""Open Inference Protocol v2 over gRPC, on the event loop of the HTTP front end (ADR 0016: why not the library's).

Requests are read by protobuf, answers written as bytes by :mod:`.grpc_codec`. A call's deadline is the request's, and a
call that its client takes back is cancelled in the executor.
"""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import InputError, TrtopsError
from trtops.serve.faults import Fault, fault_of
from trtops.serve.grpc_codec import GrpcCodec
from trtops.serve.grpc_messages import SERVICE
from trtops.serve.grpc_streams import Infer, Nothing, Streaming, Unary
from trtops.serve.http2 import Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from trtops.executor.port import EngineInfo
    from trtops.serve.exchange import Limits
    from trtops.serve.inference import Inference
    from trtops.serve.oip import Codec, Decoded
    from trtops.serve.streams import Headers, Receiver, Stream

_TICK: Final = 0.25
_KEPT_CODECS: Final = 64
_EXTRA: Final = ("google.protobuf", "hpack")


def check_extra() -> None:
    """Tell early that the extra ``grpc`` is missing.

    Raises:
        InputError: it is.
    """
    for package in _EXTRA:
        try:
            there = find_spec(package) is not None
        except (ImportError, ValueError):  # a part of its name is not there, or is hidden
            there = False
        if not there:
            raise InputError(
                f"gRPC needs packages that are not installed ({package} is missing)",
                where="--grpc-port",
                fix="pip install 'trtops[grpc]'",
            )


class GrpcPort:
    """A listening gRPC port: the owner of its connections (:class:`trtops.serve.http2.Owner`)."""

    def __init__(
        self,
        inference: Inference,
        calls: Mapping[str, Callable[[Any], Awaitable[Any]]],
        limits: Limits,
        refused: Callable[[int], None],
    ) -> None:
        """Put it together; call from within the event loop.

        Args:
            inference: where requests go.
            calls: method -> what answers it, all but those that run engines; see :mod:`.grpc_calls`.
            limits: bounds of what clients may ask for.
            refused: told the HTTP status of each call that never reached an engine.

        Raises:
            InputError: the extra ``grpc`` is not installed.
        """
        check_extra()
        self.limits = limits
        self.now = time.monotonic
        self.connections: set[Connection] = set()
        self.buffered = 0
        self._inference = inference
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._codecs: dict[EngineInfo, GrpcCodec] = {}
        self._dirty: list[Connection] = []
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        prefix = f"/{SERVICE}/".encode()
        self._methods: dict[bytes, Callable[[Stream, Headers], Receiver]] = {
            prefix + b"ModelInfer": lambda stream, headers: Infer(self, stream, headers),
            prefix + b"ModelStreamInfer": lambda stream, headers: Streaming(self, stream, headers),
            b"/grpc.health.v1.Health/Check": self._unary("ServerReady", _health(calls["ServerReady"])),
        }
        for name, call in calls.items():
            self._methods[prefix + name.encode()] = self._unary(name, call)

    def _unary(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Stream, Headers], Receiver]:
        return lambda stream, headers: Unary(self, stream, headers, name, call)

    def __repr__(self) -> str:
        """Show what is open and held."""
        return f"<GrpcPort connections={len(self.connections)} buffered={self.buffered}>"

    # What connections ask (trtops.serve.http2.Owner).

    def open(self, stream: Stream, headers: Headers) -> Receiver:
        """A call begins: find out what it asks for."""
        found = dict(headers)
        if sum(len(name) + len(value) + 32 for name, value in headers) > self.limits.header_bytes:
            text = f"the metadata is too large: {self.limits.header_bytes} bytes are allowed"
            return Nothing(self, stream, headers, Fault(431, "malformed", text))
        if found.get(b":method") != b"POST" or not found.get(b"content-type", b"").startswith(b"application/grpc"):
            return Nothing(self, stream, headers, Fault(415, "malformed", "no gRPC call: POST application/grpc is"))
        path = found.get(b":path", b"")
        make = self._methods.get(path)
        if make is None:
            text = f"no such method: {path[:200].decode('ascii', 'replace')}"
            return Nothing(self, stream, headers, Fault(501, "unsupported", text))
        return make(stream, headers)

    def soon(self, connection: Connection) -> None:
        """Flush a connection at the end of this turn of the loop."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def refused(self, fault: Fault) -> None:
        """Count a call that never reached an engine."""
        if fault.reason in {"malformed", "too_large"}:
            self._refused(fault.status)

    # Inference.

    def codec_of(self, codec: Codec) -> GrpcCodec:
        """The gRPC codec of an engine."""
        found = self._codecs.get(codec.info)
        if found is None or found.codec is not codec:
            if len(self._codecs) >= _KEPT_CODECS:
                self._codecs.clear()
            found = self._codecs[codec.info] = GrpcCodec(codec)
        return found

    def infer(self, call: Infer) -> None:
        """Pass a request to the executor."""
        try:
            self._inference.take(call, call.request.model_name, call.request.model_version or None, self._decode)
        except TrtopsError as error:
            call.refuse(fault_of(error))

    def _decode(self, codec: Codec, call: Infer, now: float) -> Decoded:
        return self.codec_of(codec).decode(call.request, now, call.remaining)

    # Life.

    async def listen(self, **where: Any) -> int:  # noqa: ANN401 - asyncio's
        """Open the port; ``where``: ``host`` and ``port``, or ``sock``, as of ``asyncio.loop.create_server``.

        Returns:
            its number.

        Raises:
            OSError: it cannot be opened.
        """
        server = self._server = await self._loop.create_server(lambda: Connection(self), backlog=1024, **where)
        self._tick()
        return int(server.sockets[0].getsockname()[1])

    def _tick(self) -> None:
        now = self.now()
        for connection in tuple(self.connections):
            connection.look(now)
        self._timer = self._loop.call_later(_TICK, self._tick)

    async def close(self, drain: float) -> None:
        """Take no new calls, give those in flight ``drain`` seconds, close."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.go_away()
        end = self.now() + drain
        while self.connections and self.now() < end:  # noqa: ASYNC110 - a few times, at the end
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._timer is not None:
            self._timer.cancel()


def _health(ready: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[bytes]]:
    """``grpc.health.v1.Health/Check``, as Kubernetes' probes ask it: serving (1) or not (2)."""

    async def check(request: Any) -> bytes:  # noqa: ANN401 - a message
        return b"\x08\x01" if (await ready(request)).ready else b"\x08\x02"

    return check
