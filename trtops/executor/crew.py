"""The processes of a supervisor: started, spoken to, listened to, ended, buried. It decides nothing."""

from __future__ import annotations

import contextlib
import logging
import select
from typing import TYPE_CHECKING

import msgspec

from trtops.executor import orders
from trtops.executor.process import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtops.executor.nursery import Nursery

log = logging.getLogger(__name__)


class Crew:
    """Workers by number. One thread uses it, the one that starts the processes."""

    def __init__(self, module: str, epoll: select.epoll, nursery: Nursery | None = None) -> None:
        """Start none.

        Args:
            module: what a worker runs.
            epoll: watches what comes from them.
            nursery: where they are forked; None: each gets an interpreter of its own.
        """
        self._module = module
        self._nursery = nursery
        self._epoll = epoll
        self._children: dict[int, Child] = {}
        self._by_fd: dict[int, int] = {}
        self._whys: dict[int, str] = {}

    def __repr__(self) -> str:
        """Show the processes."""
        return f"Crew({self.pids()})"

    def __len__(self) -> int:
        """Processes that have not been buried."""
        return len(self._children)

    def pids(self) -> dict[int, int]:
        """Worker -> its process."""
        return {worker: child.pid for worker, child in self._children.items()}

    def of(self, fd: int) -> int | None:
        """The worker that a descriptor belongs to."""
        return self._by_fd.get(fd)

    def start(self, worker: int, device: str) -> None:
        """Start a process.

        Args:
            worker: its number.
            device: for ``CUDA_VISIBLE_DEVICES``; "" leaves that as it is.

        Raises:
            OSError: it could not be started, or not be watched; then it is ended again.
        """
        ours, theirs = orders.pair()
        ours.settimeout(0)
        child = Child(self._module, ours, theirs, {"CUDA_VISIBLE_DEVICES": device} if device else None, self._nursery)
        self._children[worker] = child
        try:
            for fd in (child.socket.fileno(), child.pidfd):
                self._epoll.register(fd, select.EPOLLIN)
                self._by_fd[fd] = worker
        except OSError:
            self.kill(worker, "it could not be watched")
            self.bury(worker)
            raise
        log.info("worker %d starts: pid %d", worker, child.pid)

    def send(self, worker: int, order: orders.FromSupervisor, fd: int | None = None) -> bool:
        """Give an order, with a descriptor beside it. False: it is dead, which is news of its own."""
        child = self._children.get(worker)
        if child is None:
            return False
        try:
            orders.send(child.socket, order, fd)
        except BlockingIOError:
            self.kill(worker, "it hangs: it takes no orders")
            return False
        except OSError:
            return False
        return True

    def listen(self, worker: int) -> Iterator[orders.FromWorker]:
        """All that a worker has said. One that speaks no sense is killed."""
        child = self._children[worker]
        while True:
            try:
                news = orders.next_news(child.socket)
            except BlockingIOError:
                return
            except (msgspec.MsgspecError, OSError) as error:
                self.kill(worker, f"it does not speak the protocol: {error}")
                return
            if news is None:
                fd = child.socket.fileno()
                if self._by_fd.pop(fd, None) is not None:
                    self._epoll.unregister(fd)
                return  # its end follows; if not, it shows no life any more
            yield news

    def ended(self, worker: int, fd: int) -> bool:
        """Whether a descriptor that became readable tells the process's end."""
        return fd == self._children[worker].pidfd

    def note(self, worker: int, why: str) -> None:
        """Remember why it ends, in its own words."""
        self._whys.setdefault(worker, why)

    def kill(self, worker: int, why: str) -> None:
        """End a process at once. Nothing happens if it has ended."""
        child = self._children.get(worker)
        if child is not None:
            self.note(worker, why)
            child.kill()

    def kill_all(self) -> None:
        """End all of them."""
        for worker in self._children:
            self.kill(worker, "the supervisor ends")

    def bury(self, worker: int) -> str:
        """Take leave of a process that has ended. Returns why it did, in words."""
        child = self._children.pop(worker)
        for fd in (child.socket.fileno(), child.pidfd):
            if self._by_fd.pop(fd, None) is not None:
                with contextlib.suppress(OSError):
                    self._epoll.unregister(fd)
        ended = child.reap()
        why = self._whys.pop(worker, None)
        return ended if why is None else f"{why} ({ended})"

    def close(self) -> None:
        """Kill and bury all."""
        self.kill_all()
        for worker in list(self._children):
            self.bury(worker)
