"""Host memory that is page-locked for the device: the slots of clients, so that their tensors need no copy before it.

``cudaHostRegister`` belongs to a process, as does its CUDA context: all sessions share one table. Memory that came
before the first session is registered when that opens. Registering is slow (half a second a gigabyte), so it is done
beside, and until it is done tensors there are copied like any other.
"""

from __future__ import annotations

import logging
import threading
import weakref
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger(__name__)


class PageLocked:
    """The table. Its methods may be called from any thread."""

    def __init__(self) -> None:
        """Begin with nothing, and with no device."""
        self._lock = threading.RLock()  # memory may be let go by the garbage collector, inside of a locked part
        self._runtime: Callable[[], Any] | None = None
        self._wanted: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._changes = 0
        self._areas: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __repr__(self) -> str:
        """Show how much there is."""
        ready = sum(end - start for start, end in zip(*self._areas, strict=True))
        return f"PageLocked({len(self._wanted)} areas, {ready} bytes registered)"

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Page-lock memory for as long as this array, or a view of it, lives; as soon as there is a device."""
        address, size = int(memory.ctypes.data), int(memory.nbytes)
        weakref.finalize(memory, self._let_go, address).atexit = False
        with self._lock:
            self._wanted[address] = size
            active = self._runtime is not None
        if active:
            threading.Thread(target=self._register, args=(address, size), name="trtops-pin", daemon=True).start()

    def activate(self, runtime: Callable[[], Any]) -> None:
        """There is a device now: register what waits. Only the first call does something."""
        with self._lock:
            if self._runtime is not None:
                return
            self._runtime = runtime
            waiting = list(self._wanted.items())
        for address, size in waiting:
            self._register(address, size)

    @property
    def any(self) -> bool:
        """Whether anything is registered."""
        return bool(self._areas[0])

    def covers(self, address: int, size: int) -> bool:
        """Whether these bytes are registered, so that the device may read them by itself."""
        starts, ends = self._areas
        index = bisect_right(starts, address) - 1
        return index >= 0 and address + size <= ends[index]

    def _register(self, address: int, size: int) -> None:
        with self._lock:
            if self._runtime is None or self._wanted.get(address) != size:
                return  # its client went already
            cudart = self._runtime()
            flags = cudart.cudaHostRegisterPortable | cudart.cudaHostRegisterMapped
            status = cudart.cudaHostRegister(address, size, flags)[0]
            if int(status) != 0:
                cudart.cudaGetLastError()
                log.warning("a client's %d bytes cannot be page-locked (%s): they are copied", size, status)
                return
            self._held[address] = size
            self._publish()

    def _let_go(self, address: int) -> None:
        with self._lock:
            self._wanted.pop(address, None)
            if self._held.pop(address, None) is not None and self._runtime is not None:
                self._publish()
                self._runtime().cudaHostUnregister(address)

    def _publish(self) -> None:
        """Replace the table that readers look at without a lock."""
        self._changes += 1
        changes = 0
        while changes != self._changes:  # the garbage collector let something go meanwhile
            changes = self._changes
            held = sorted(self._held.items())
            self._areas = tuple(at for at, _ in held), tuple(at + size for at, size in held)


PAGE_LOCKED = PageLocked()
"""The table of this process."""
