"""Open Inference Protocol v2 over gRPC: grpc.aio on the event loop of the HTTP front end.

Requests are read by protobuf; answers are written as bytes by :mod:`.grpc_codec`, since making a message of them only
to serialise it costs half as much again. The library bounds metadata, messages and calls at once; a call's deadline is
the request's, and a call that its client takes back is cancelled in the executor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import InputError, TrtopsError, Unavailable
from trtops.serve.faults import Fault, fault_of
from trtops.serve.grpc_codec import GrpcCodec
from trtops.serve.grpc_messages import SERVICE, messages, status_details

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from trtops.executor.port import EngineInfo, Outcome
    from trtops.serve.exchange import Limits
    from trtops.serve.inference import Inference
    from trtops.serve.oip import Codec, Decoded

log = logging.getLogger(__name__)

_CALLS: Final = 4096
_STREAMED: Final = 64
_KEPT_CODECS: Final = 64
_CODES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    406: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status of a fault -> gRPC code; INTERNAL is what is left."""


def library() -> Any:  # noqa: ANN401 - an optional library
    """The gRPC library.

    Raises:
        InputError: the extra ``grpc`` is not installed.
    """
    try:
        import google.protobuf.message_factory  # noqa: F401 - asked for here, so that its lack is told at the start
        import grpc.aio
    except ImportError as error:
        raise InputError(
            f"gRPC needs packages that are not installed ({error.name} is missing)",
            where="--grpc-port",
            fix="pip install 'trtops[grpc]'",
        ) from None
    return grpc


class Call:
    """One inference call (a :class:`trtops.serve.inference.Caller`): its answer is a future of bytes."""

    __slots__ = ("_codec_of", "_metadata", "answer", "cancel", "context", "request", "started")

    def __init__(
        self,
        request: Any,  # noqa: ANN401 - protobuf's
        answer: asyncio.Future[bytes],
        codec_of: Callable[[Codec], GrpcCodec],
        metadata: Any,  # noqa: ANN401 - the library's
    ) -> None:
        """Make a call that waits."""
        self.request = request
        self.answer = answer
        self.started = time.monotonic()
        self.cancel: Callable[[], None] | None = None
        self.context: Any = None
        self._codec_of = codec_of
        self._metadata = metadata

    def give(self, codec: Codec, decoded: Decoded, outcome: Outcome) -> None:
        """Answer with what came out."""
        data = self._codec_of(codec).encode(decoded, outcome)
        self.cancel = None
        if not self.answer.done():
            self.answer.set_result(data)

    def refuse(self, fault: Fault) -> None:
        """Answer with an error."""
        self.cancel = None
        if not self.answer.done():
            self.answer.set_exception(Refusal(fault))

    def header(self, name: bytes) -> bytes | None:
        """A value of the call's metadata."""
        wanted = name.decode()
        for key, value in self._metadata() or ():
            if key == wanted:
                return value if isinstance(value, bytes) else str(value).encode()
        return None


class Refusal(Exception):
    """A fault on its way to the client."""

    def __init__(self, fault: Fault) -> None:
        """Carry it."""
        super().__init__(fault.message)
        self.fault = fault


class GrpcInference:
    """The calls that run engines."""

    def __init__(self, inference: Inference) -> None:
        """Pass them to the same place as HTTP requests."""
        self._inference = inference
        self._codecs: dict[EngineInfo, GrpcCodec] = {}
        self._loop = asyncio.get_running_loop()
        self._response = messages()["ModelStreamInferResponse"]
        self._request = messages()["ModelInferRequest"]
        self._answer = messages()["ModelInferResponse"]

    def _codec_of(self, codec: Codec) -> GrpcCodec:
        found = self._codecs.get(codec.info)
        if found is None or found.codec is not codec:
            if len(self._codecs) >= _KEPT_CODECS:
                self._codecs.clear()
            found = self._codecs[codec.info] = GrpcCodec(codec)
        return found

    def _start(self, data: bytes, context: Any) -> Call:  # noqa: ANN401 - the library's
        request = _read(self._request, data)
        call = Call(request, self._loop.create_future(), self._codec_of, context.invocation_metadata)
        remaining = context.time_remaining()
        try:
            self._inference.take(
                call,
                request.model_name,
                request.model_version or None,
                lambda codec, call, now: self._codec_of(codec).decode(call.request, now, remaining),
            )
        except TrtopsError as error:
            call.refuse(fault_of(error))
        return call

    async def infer(self, request: bytes, context: Any) -> bytes:  # noqa: ANN401 - the library's
        """``ModelInfer``."""
        try:
            call = self._start(request, context)
        except InputError as error:
            await refuse(context, fault_of(error))
            raise
        try:
            return await call.answer
        except Refusal as refusal:
            await refuse(context, refusal.fault)
            raise
        finally:
            if call.cancel is not None:
                call.cancel()

    async def _streamed(self, call: Call) -> Any:  # noqa: ANN401 - protobuf's
        try:
            return self._response(infer_response=self._answer.FromString(await call.answer))
        except Refusal as refusal:
            failed = self._answer(id=call.request.id, model_name=call.request.model_name)
            return self._response(error_message=refusal.fault.message, infer_response=failed)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - the library's
        """``ModelStreamInfer``: requests run together, answers come in their order, an error ends no other."""
        calls: asyncio.Queue[Call | InputError | None] = asyncio.Queue(_STREAMED)

        async def read() -> None:
            try:
                async for request in requests:
                    await calls.put(self._start(request, context))
                await calls.put(None)
            except InputError as error:
                await calls.put(error)

        reader = asyncio.ensure_future(read())
        try:
            while (call := await calls.get()) is not None:
                if isinstance(call, InputError):
                    await refuse(context, fault_of(call))
                    raise call
                yield (await self._streamed(call)).SerializeToString()
        finally:
            reader.cancel()
            while not calls.empty():
                left = calls.get_nowait()
                if isinstance(left, Call) and left.cancel is not None:
                    left.cancel()


def _read(kind: Any, data: bytes) -> Any:  # noqa: ANN401 - protobuf's
    """A message of its bytes.

    Raises:
        InputError: they are none. Blame the client.
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        raise InputError(f"not a {kind.DESCRIPTOR.name}: the message's bytes are no such protobuf") from None


async def refuse(context: Any, fault: Fault) -> None:  # noqa: ANN401 - the library's
    """End a call with an error; one that may be tried again says when, in both ways that clients know."""
    import grpc

    code = grpc.StatusCode[_CODES.get(fault.status, "INTERNAL")]
    trailers: tuple[tuple[str, str | bytes], ...] = ()
    if fault.retry_after is not None:
        details = status_details(code.value[0], fault.message, fault.retry_after)
        trailers = (("retry-after", f"{fault.retry_after:g}"), ("grpc-status-details-bin", details))
    await context.abort(code, fault.message, trailers)


def answering(
    kind: Any,  # noqa: ANN401 - protobuf's
    call: Callable[[Any], Awaitable[Any]],
) -> Callable[[bytes, Any], Awaitable[Any]]:
    """A handler of the library for a call that needs its request alone; errors of trtops become statuses.

    Args:
        kind: class of the request.
        call: gives the answer, a message.
    """

    async def handle(data: bytes, context: Any) -> Any:  # noqa: ANN401 - the library's
        try:
            return await call(_read(kind, data))
        except Exception as error:
            if not isinstance(error, TrtopsError):
                log.exception("a gRPC call failed")
            await refuse(context, fault_of(error))

    return handle


class GrpcServer:
    """A listening gRPC port."""

    def __init__(
        self, inference: Inference, calls: Mapping[str, Callable[[Any], Awaitable[Any]]], limits: Limits
    ) -> None:
        """Put it together; call from within the event loop.

        Args:
            inference: where requests go.
            calls: method -> what answers it, all but those that run engines; see :mod:`.grpc_calls`.
            limits: bounds of what clients may ask for.

        Raises:
            InputError: the extra ``grpc`` is not installed.
        """
        grpc = library()
        running = GrpcInference(inference)
        options = (
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.header_bytes),
            ("grpc.absolute_max_metadata_size", limits.header_bytes),
            ("grpc.max_concurrent_streams", limits.queued),
            ("grpc.server_handshake_timeout_ms", round(limits.header_time * 1e3)),
            ("grpc.max_connection_idle_ms", round(limits.idle_time * 1e3) * 4),
            ("grpc.keepalive_time_ms", round(limits.idle_time * 1e3)),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ("grpc.so_reuseport", 1),
        )
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_CALLS)
        self._server.add_generic_rpc_handlers(
            (_inference_handlers(grpc, running), _handlers(grpc, calls), _health(grpc, calls))
        )

    async def listen(self, host: str, port: int) -> int:
        """Open a port and serve.

        Returns:
            its number.

        Raises:
            Unavailable: it is in use.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            found = self._server.add_insecure_port(address)
        except RuntimeError:
            found = 0
        if not found:
            raise Unavailable(
                f"cannot listen for gRPC at {address}", fix="choose another port, or stop what listens there"
            )
        await self._server.start()
        return int(found)

    async def close(self, drain: float) -> None:
        """Take no new calls, give those in flight ``drain`` seconds, close."""
        await self._server.stop(drain)


def _inference_handlers(grpc: Any, running: GrpcInference) -> Any:  # noqa: ANN401 - the library's
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(running.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(running.stream),
        },
    )


def _handlers(grpc: Any, calls: Mapping[str, Callable[[Any], Awaitable[Any]]]) -> Any:  # noqa: ANN401 - the library's
    known = messages()
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                answering(known[f"{name}Request"], call),
                response_serializer=known[f"{name}Response"].SerializeToString,
            )
            for name, call in calls.items()
        },
    )


def _health(grpc: Any, calls: Mapping[str, Callable[[Any], Awaitable[Any]]]) -> Any:  # noqa: ANN401 - the library's
    """``grpc.health.v1.Health/Check``, as Kubernetes' probes ask it: serving (1) or not (2)."""
    ready = partial(calls["ServerReady"], None)

    async def check(_request: bytes, _context: Any) -> bytes:  # noqa: ANN401 - the library's
        return b"\x08\x01" if (await ready()).ready else b"\x08\x02"

    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
