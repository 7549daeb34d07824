"""Processes that a supervisor starts: how they begin, and how both sides make sure that none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG, prctl(2). The kernel means the thread that started the child, so that one has to live as long."""


def bind_to_parent() -> None:
    """Called first by a child: die with the process that started it, and leave the terminal's signals to that one.

    Control-C and a service manager's SIGTERM reach every process of a group; only the supervisor acts on them, and
    tells its children when they have finished.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class Child:
    """A process that runs a module of this package, with one socket.

    Attributes:
        pid: its number.
        socket: this side's end.
        pidfd: becomes readable when the process has ended.
    """

    def __init__(
        self, module: str, ours: socket.socket, theirs: socket.socket, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start ``python -m MODULE DESCRIPTOR``.

        Args:
            module: its ``__main__`` calls :func:`bind_to_parent`.
            ours: this side's end, kept.
            theirs: the child's end, closed here.
            environment: changes to this process's own.

        Raises:
            OSError: it could not be started; both ends are closed.
        """
        self.socket = ours
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **(environment or {})},
                )
        except OSError:
            ours.close()
            raise
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def __repr__(self) -> str:
        """Show the process."""
        return f"Child(pid {self.pid})"

    def kill(self) -> None:
        """SIGKILL: it may hang, or hold a device. Nothing happens if it has ended."""
        self._process.kill()

    def reap(self) -> str:
        """Take the end of a process that has ended, in words; close what belongs to it."""
        code = self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self.pidfd)
        self.socket.close()
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"
