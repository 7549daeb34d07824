"""A process that others are forked from: modules are in memory once, and a process is there in milliseconds.

It is forked itself, before there are threads, sockets or libraries that a fork would break, and has one thread: it
waits for what to fork and for whom to bury. What it forks dies with it, and it dies with the process that made it.
Whoever has no nursery, or has lost it, starts processes by an interpreter of their own.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from trtops.executor.process import bind_to_parent, die_with

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

_PACKET: Final = 1 << 16
_PATIENCE: Final = 5.0
"""Seconds that its end may take, and again after it was killed."""
_MOST: Final = 8
"""Descriptors that a process is given at most."""
_SET_NAME: Final = 15
"""PR_SET_NAME, prctl(2): the name of a process in ``ps`` and ``top``."""


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Fork a process that runs a module's ``main`` with the numbers of the descriptors beside this message."""

    module: str
    name: str
    environment: dict[str, str]


class Bury(msgspec.Struct, tag=True, frozen=True):
    """How did this process, which has ended, end?"""

    pid: int


class Done(msgspec.Struct, tag=True, frozen=True):
    """The answer: a process's number, or how it ended (negative: by this signal)."""

    number: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """It could not be done."""

    what: str


_requests: msgspec.msgpack.Decoder[Fork | Bury] = msgspec.msgpack.Decoder(Fork | Bury)
_answers: msgspec.msgpack.Decoder[Done | Failed] = msgspec.msgpack.Decoder(Done | Failed)
_encode = msgspec.msgpack.encode


class Nursery:
    """This side's end. Any thread may use it."""

    def __init__(self) -> None:
        """Fork it off this process, which should have one thread and the modules that its children need.

        Raises:
            OSError: no process, or no sockets.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        gc.freeze()  # the collector writes to what it looks at, which would make every page of a child its own
        with warnings.catch_warnings():
            # Python 3.12 counts the threads of libraries, too; those that are here (BLAS) are made for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            ours.close()
            _tend(theirs)
        theirs.close()
        self.pid = pid
        self._socket = ours
        self._lock = threading.Lock()
        self._buried = False

    def __repr__(self) -> str:
        """Show the process."""
        return f"Nursery(pid {self.pid})"

    def fork(self, module: str, name: str, fds: Sequence[int], environment: Mapping[str, str] | None = None) -> int:
        """Start a process.

        Args:
            module: its ``main`` gets the numbers of the descriptors as texts, and returns the exit code.
            name: in ``ps``, 15 bytes.
            fds: given to the process; this side's stay open.
            environment: changes to this process's own, as it was when the nursery was made.

        Returns:
            the process's number, which is its own until :meth:`bury`.

        Raises:
            OSError: there is no process, or the nursery is gone.
        """
        return self._ask(Fork(module, name, dict(environment or {})), fds)

    def bury(self, pid: int) -> int:
        """How a process that has ended did so: its exit code; negative: the signal that killed it.

        Raises:
            OSError: the nursery is gone, and took the answer along.
        """
        return self._ask(Bury(pid), ())

    def _ask(self, request: Fork | Bury, fds: Sequence[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with self._lock:
            self._socket.sendmsg([_encode(request)], rights, socket.MSG_NOSIGNAL)
            packet = self._socket.recv(_PACKET)
        if not packet:
            raise OSError("the nursery of processes is gone")
        answer = _answers.decode(packet)
        if isinstance(answer, Failed):
            raise OSError(answer.what)
        return answer.number

    def close(self) -> None:
        """End it, and with it all that it forked and that still runs. Waits 10 seconds at most. Idempotent."""
        self._socket.close()
        if self._buried:
            return  # the number could be another process's by now
        self._buried = True
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if not _ends(self.pid, _PATIENCE):
                log.warning("the nursery of processes, pid %d, does not end: it is killed", self.pid)
                os.kill(self.pid, signal.SIGKILL)
                if not _ends(self.pid, _PATIENCE):  # in a driver's uninterruptible sleep
                    log.error("the nursery of processes, pid %d, cannot be ended: it is left behind", self.pid)
                    return
            os.waitpid(self.pid, 0)


def _ends(pid: int, seconds: float) -> bool:
    """Whether a process ends within this time.

    Raises:
        ProcessLookupError: there is no such process: somebody else buried it.
    """
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1e3))
    finally:
        os.close(pidfd)


def _tend(end: socket.socket) -> NoReturn:
    """Fork and bury until the other end is closed."""
    bind_to_parent()
    _call_it("trtops-nursery")
    _leave_the_terminal()
    code = 1
    with contextlib.suppress(OSError):
        while (got := _receive(end)) is not None:
            request, fds = got
            answer: Done | Failed
            try:
                answer = Done(_fork(request, fds, end) if isinstance(request, Fork) else _bury(request))
            except OSError as error:
                answer = Failed(str(error))
            for fd in fds:
                os.close(fd)
            end.send(_encode(answer))
        code = 0
    os._exit(code)


def _receive(end: socket.socket) -> tuple[Fork | Bury, list[int]] | None:
    size = array.array("i").itemsize
    packet, ancillary, _, _ = end.recvmsg(_PACKET, socket.CMSG_SPACE(size * _MOST))
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % size])
    return (_requests.decode(packet), list(fds)) if packet else None


def _bury(request: Bury) -> int:
    _, status = os.waitpid(request.pid, 0)
    return os.waitstatus_to_exitcode(status)


def _fork(request: Fork, fds: list[int], end: socket.socket) -> int:
    nursery, pid = os.getpid(), os.fork()
    if pid:
        return pid
    die_with(nursery)
    end.close()
    code = 1
    try:
        code = _run(request, fds)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - the end of a process: told like Python tells it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(request: Fork, fds: list[int]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request.environment)
    random.seed()
    _call_it(request.name)
    code = importlib.import_module(request.module).main([str(fd) for fd in fds])
    return int(code or 0)


def _call_it(name: str) -> None:
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode()[:15])


def _leave_the_terminal() -> None:
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)


class Offspring:
    """A process of a nursery, as asyncio sees one that it started itself."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        """Watch a process that the nursery has forked."""
        self._nursery = nursery
        self._pidfd = os.pidfd_open(pid)
        self._ended: asyncio.Future[int] | None = None
        self.pid = pid
        self.returncode: int | None = None

    def __repr__(self) -> str:
        """Show the process."""
        return f"Offspring(pid {self.pid}, {'runs' if self.returncode is None else f'ended with {self.returncode}'})"

    async def wait(self) -> int:
        """Wait for its end. Returns its exit code; negative: the signal that killed it."""
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            loop.add_reader(self._pidfd, self._bury, loop)
        return await asyncio.shield(self._ended)

    def _bury(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        try:
            self.returncode = self._nursery.bury(self.pid)
        except OSError:
            self.returncode = -signal.SIGKILL  # with the nursery, which took the answer along
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.returncode)

    def kill(self) -> None:
        """SIGKILL. Nothing happens if it has ended."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
