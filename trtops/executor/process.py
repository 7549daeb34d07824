"""Processes that a supervisor starts: how they begin, and how both sides make sure that none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from trtops.interpreter import module_command

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from trtops.executor.nursery import Nursery

log = logging.getLogger(__name__)

_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG, prctl(2). The kernel means the thread that started the child, so that one has to live as long."""


def bind_to_parent() -> None:
    """Called first by a child: die with the process that started it, and leave the terminal's signals to that one.

    Control-C and a service manager's SIGTERM reach every process of a group; only the supervisor acts on them, and
    tells its children when they have finished.
    """
    die_with(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Called by a child: be killed when the process that started it ends."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(0)


class Child:
    """A process that runs a module of this package, with one socket.

    Attributes:
        pid: its number.
        socket: this side's end.
        pidfd: becomes readable when the process has ended.
    """

    def __init__(
        self,
        module: str,
        ours: socket.socket,
        theirs: socket.socket,
        environment: Mapping[str, str] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        """Start ``python -m MODULE DESCRIPTOR``, or fork it off a nursery.

        Args:
            module: its ``__main__`` calls :func:`bind_to_parent`.
            ours: this side's end, kept.
            theirs: the child's end, closed here.
            environment: changes to this process's own.
            nursery: where it is forked; None, or one that is gone: it gets an interpreter of its own.

        Raises:
            OSError: it could not be started; both ends are closed.
        """
        self.socket = ours
        self._nursery: Nursery | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with theirs:
                self.pid = self._fork(nursery, module, theirs, environment) or self._start(module, theirs, environment)
            self.pidfd = self._watched()
        except OSError:
            ours.close()
            raise

    def __repr__(self) -> str:
        """Show the process."""
        return f"Child(pid {self.pid})"

    def _fork(
        self, nursery: Nursery | None, module: str, theirs: socket.socket, environment: Mapping[str, str] | None
    ) -> int:
        if nursery is None:
            return 0
        try:
            pid = nursery.fork(f"{module}.__main__", "trtops-worker", [theirs.fileno()], environment)
        except OSError as error:
            log.warning("a worker gets an interpreter of its own: %s", error)
            return 0
        self._nursery = nursery
        return pid

    def _start(self, module: str, theirs: socket.socket, environment: Mapping[str, str] | None) -> int:
        self._process = subprocess.Popen(
            module_command(module, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **(environment or {})},
        )
        return self._process.pid

    def _watched(self) -> int:
        try:
            return os.pidfd_open(self.pid)
        except OSError:  # no descriptor is left: nobody would ever learn of its end
            os.kill(self.pid, signal.SIGKILL)  # still its own number: nobody has buried it
            if self._process is not None:
                self._process.wait()
            else:
                self._bury()
            raise

    def kill(self) -> None:
        """SIGKILL: it may hang, or hold a device. Nothing happens if it has ended."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> str:
        """Take the end of a process that has ended or was killed, in words; close what belongs to it."""
        try:
            code = self._process.wait() if self._process is not None else self._bury()
        except OSError:
            return "it ended, and nobody knows how"
        finally:
            with contextlib.suppress(OSError):
                os.close(self.pidfd)
            self.socket.close()
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"

    def _bury(self) -> int:
        if self._nursery is None:
            raise ChildProcessError
        return self._nursery.bury(self.pid)
