"""A front end in a process of its own: HTTP and gRPC on one side, the executor's shared memory on the other.

``python -m trtops.serve.frontend CHANNEL HTTP [GRPC]`` with the numbers of descriptors: of the server's channel and of
the sockets that listen; the server starts it. It ends when the server tells it to, or is gone.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from trtops.errors import TrtopsError, Unavailable
from trtops.executor.remote import RemoteEngines
from trtops.interpreter import module_command
from trtops.serve.backstage import (
    Ask,
    Begin,
    Channel,
    Counted,
    Drain,
    Failed,
    FromServer,
    Leaving,
    Listening,
    State,
    Sums,
    Taken,
    Told,
    Want,
    from_server,
)
from trtops.serve.logs import to_json
from trtops.serve.ports import SWITCH_INTERVAL, HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.serve.measure import Meters

_SLOTS = 256
_INPUT_BYTES = 256 << 10
_OUTPUT_BYTES = 64 << 10


class Watcher:
    """The event loop as what takes answers (:class:`trtops.transport.links.Watcher`): no thread, no wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch nothing yet."""
        self._loop = loop
        self._watched: set[int] = set()
        self.soon: Callable[[Callable[[], None]], object] = loop.call_soon

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` whenever ``fd`` is readable."""
        self._watched.add(fd)
        self._loop.call_soon_threadsafe(self._begin, fd, ready)

    def _begin(self, fd: int, ready: Callable[[], None]) -> None:
        if fd in self._watched:
            self._loop.add_reader(fd, ready)
            ready()

    def unwatch(self, fd: int) -> None:
        """Stop."""
        self._watched.discard(fd)
        self._loop.remove_reader(fd)


class NoControl:
    """Control calls are the server's own (:class:`trtops.serve.desk.Control`)."""

    def load(self, name: str) -> None:
        """Refuse."""
        raise Unavailable(f"'{name:.100}' cannot be loaded by a front end", fix="ask the control port")

    def unload(self, name: str) -> None:
        """Refuse."""
        self.load(name)


class FrontEnd:
    """One front end, from its first word to its last."""

    def __init__(self, channel: Channel, begin: Begin) -> None:
        """Connect to the executor.

        Raises:
            TrtopsError: it is not there, or a package is missing.
        """
        tracer = None
        if begin.otel:
            from trtops.serve.trace import from_environment

            tracer = from_environment()
        self._channel = channel
        self._begin = begin
        self._told = Told()
        self._numbers = itertools.count(1)
        self._wanted: dict[int, Callable[[Meters], None]] = {}
        self._tracer = tracer
        self._engines = RemoteEngines(
            begin.executor,
            slots=_SLOTS,
            input_bytes=_INPUT_BYTES,
            output_bytes=_OUTPUT_BYTES,
            watcher=Watcher(asyncio.get_running_loop()),
        )
        control = NoControl()
        self._server = HttpServer(
            self._engines, self._told, control, limits=begin.limits, tracer=tracer, numbers=self._want, one_thread=True
        )

    def _want(self, done: Callable[[Meters], None]) -> None:
        number = next(self._numbers)
        self._wanted[number] = done
        self._channel.send(Want(number))

    async def listen(self, http: socket.socket, grpc: socket.socket | None = None) -> None:
        """Serve on sockets that listen."""
        if grpc is not None:
            await self._server.listen_grpc_on(grpc)
        await self._server.listen_on(http)

    async def obey(self, stop: asyncio.Event) -> None:
        """Do what the server says until it says to end, is gone, or ``stop`` is set; then drain."""
        seconds = 0.0
        stopping = asyncio.ensure_future(stop.wait())
        while True:
            line = asyncio.ensure_future(self._channel.line())
            await asyncio.wait((line, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
                seconds = self._begin.limits.body_time
                self._channel.send(Leaving(seconds))
                break
            message = from_server.decode(line.result()) if line.result() else Drain(0.0)
            if isinstance(message, Drain):
                seconds = message.seconds
                break
            self._hear(message)
        stopping.cancel()
        await self.close(seconds)

    async def close(self, seconds: float) -> None:
        """Give what is in flight these seconds, say what was counted, hang up."""
        await self._server.close(seconds)
        self._counted(0)
        await self._channel.close()
        self._engines.close()
        if self._tracer is not None:
            self._tracer.close()

    def _counted(self, number: int) -> None:
        reaches = {info.name: info.generation for info in self._server.desk.infos()}
        self._channel.send(Counted(number, self._server.snapshot(), reaches))

    def _hear(self, message: FromServer) -> None:
        if isinstance(message, State):
            self._told.state = message
            self._server.desk.regions.replace(message.regions)
            self._channel.send(Taken(message.number))
        elif isinstance(message, Ask):
            self._counted(message.number)
        elif isinstance(message, Sums):
            done = self._wanted.pop(message.number, None)
            if done is not None:
                done(message.meters)


async def _main(channel: Channel, sockets: list[socket.socket]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal's: the server hears it too, and says what to do
    begin = from_server.decode(await channel.line())
    assert isinstance(begin, Begin)  # noqa: S101 - the server's first word
    if begin.json_logs:
        to_json()
    front: FrontEnd | None = None
    try:
        front = FrontEnd(channel, begin)
        await front.listen(*sockets)
    except TrtopsError as error:
        channel.send(Failed(error.what, error.fix))
        await (channel.close() if front is None else front.close(0.0))
        for sock in sockets:
            sock.close()
        return error.exit_code
    gc.collect()
    gc.freeze()
    channel.send(Listening())
    await front.obey(stop)
    return 0


def main(arguments: list[str]) -> int:
    """Serve on the descriptors of these numbers."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL)
    channel, *listeners = (socket.socket(fileno=int(number)) for number in arguments)

    async def run() -> int:
        return await _main(await Channel.of(channel), listeners)

    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(run()))
    finally:
        loop.close()


def command(channel: int, *listeners: int) -> list[Any]:
    """How a front end is started."""
    return [*module_command("trtops.serve.frontend", *map(str, (channel, *listeners)))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
