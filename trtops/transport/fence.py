"""Order of memory between processes that share some, on machines that do not keep it by themselves.

x86-64 keeps loads in order, and stores in order; what it swaps is a store and a load after it. Other machines (aarch64)
swap whatever a program does not order, and Python has no word for it: taking and releasing a lock orders what is done
under the lock, and no more. So a full barrier is called there: ``atomic_thread_fence`` of libatomic (GCC's library), or
else the system call membarrier, whose first and last act is one (``MEMBARRIER_CMD_GLOBAL_EXPEDITED``, Linux 4.16),
for twice the time.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from trtops.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERED: Final = platform.machine() in {"x86_64", "AMD64"}
"""Whether this machine swaps nothing but a store and a load after it."""

_SEQ_CST: Final = 5  # memory_order_seq_cst
_GLOBAL_EXPEDITED: Final = 2  # linux/membarrier.h
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "s390x": 356}
"""Number of the system call."""


@cache
def full_fence() -> Callable[[], object]:
    """What orders all that this thread did before against all that it does after, as every process sees it.

    It keeps the GIL: letting it go costs more than the fence.

    Raises:
        Unavailable: there is nothing of that kind on this machine.
    """
    fence = _of_libatomic() or _of_the_kernel(platform.machine())
    if fence is None:
        what = f"this machine ({platform.machine()}) does not keep memory in order, and has no barrier to call"
        raise Unavailable(what, fix="install libatomic (Debian: libatomic1), or allow the system call membarrier")
    return fence


def _of_libatomic() -> Callable[[], object] | None:
    try:
        fence = ctypes.PyDLL("libatomic.so.1").atomic_thread_fence
    except (OSError, AttributeError):
        return None
    fence.argtypes, fence.restype = [ctypes.c_int], None
    return partial(fence, _SEQ_CST)


def _of_the_kernel(machine: str) -> Callable[[], object] | None:
    number = _MEMBARRIER.get(machine)
    if number is None:
        return None
    call = ctypes.PyDLL(None).syscall
    call.argtypes, call.restype = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int], ctypes.c_long
    fence = partial(call, number, _GLOBAL_EXPEDITED, 0, 0)
    return fence if fence() == 0 else None


def order() -> None:
    """Keep stores in order, and loads: nothing where the machine does, else :func:`full_fence`.

    Raises:
        Unavailable: see :func:`full_fence`.
    """
    if not ORDERED:
        full_fence()()
