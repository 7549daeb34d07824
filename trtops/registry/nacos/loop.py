"""An event loop in a thread of its own, for a client whose callers know no asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trtops.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

_JOIN_SECONDS = 5.0
_STOP_SECONDS = 3.0


class LoopThread:
    """Runs coroutines for other threads, each within a deadline. Starts at once, ends with :meth:`stop`."""

    def __init__(self, name: str) -> None:
        """Start the thread; it is a daemon, so that a forgotten one keeps no process alive."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_ignore)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Show whether it runs."""
        return f"LoopThread({self._thread.name!r}, {'running' if self.alive else 'stopped'})"

    @property
    def alive(self) -> bool:
        """Whether it runs in this very process: a fork has the object and not the thread."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine there and wait for it; it is cancelled when time is up, or when the caller is interrupted.

        Raises:
            Unavailable: it took longer, or the loop has ended.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the client of the registry was closed") from None
        try:
            return future.result(seconds)
        except (FutureTimeout, CancelledError):
            raise Unavailable(f"the registry did not answer within {seconds:g} s") from None
        finally:
            future.cancel()

    def start(self, work: Callable[[], None]) -> None:
        """Run a function there soon; nothing happens if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return

    def stop(self, goodbye: Callable[[], Awaitable[None]]) -> None:
        """Say goodbye there, cancel what still runs, end the thread. Takes 5 s at most. Idempotent."""
        if not self.alive:
            return
        asyncio.run_coroutine_threadsafe(self._end(goodbye), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    async def _end(self, goodbye: Callable[[], Awaitable[None]]) -> None:
        with suppress(Exception, asyncio.CancelledError):  # what a peer says at the end is of no use to anybody
            await asyncio.wait_for(goodbye(), _STOP_SECONDS)
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=1.0) if rest else None
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep what nobody awaited to itself: each failure that matters is told where it is met."""
    del loop, context
