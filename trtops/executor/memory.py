"""Memory of fixed sizes: taken at load, or refused there by name; never asked for while a request runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from trtops.errors import NotLoadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT: Final = 64
"""Bytes: a cache line, and what AVX-512 loads want."""

_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def readable(size: int) -> str:
    """Write a size for people: ``1.5 MiB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def aligned(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes, uint8[size], at an address that is a multiple of 64."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    shift = -raw.ctypes.data % ALIGNMENT
    return raw[shift : shift + size]


class Pool:
    """A pool of one size that pieces are cut from, once, while an engine is loaded."""

    def __init__(self, name: str, size: int, *, setting: str) -> None:
        """Make a pool.

        Args:
            name: for messages, e.g. ``pinned pool of ppocr-cls``.
            size: bytes.
            setting: where a person changes the size, e.g. ``memory.pinned_pool``.
        """
        self.name = name
        self.size = size
        self.used = 0
        self._setting = setting
        self._memory: NDArray[np.uint8] | None = None

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"Pool({self.name}: {readable(self.used)} of {readable(self.size)})"

    def take(self, size: int, what: str) -> NDArray[np.uint8]:
        """Cut off ``size`` bytes, uint8[size], 64-byte aligned.

        Raises:
            NotLoadable: the pool is too small; says by how much it has to grow. Blame the spec.
        """
        need = self.used + aligned(size)
        if need > self.size:
            raise NotLoadable(
                f"{what} needs {readable(size)}, the {self.name} has {readable(self.size - self.used)} left",
                fix=f"set {self._setting} to {readable(need)} ({need}B) or more, or lower batching.max_batch",
            )
        if self._memory is None:
            self._memory = aligned_bytes(self.size)
        piece = self._memory[self.used : self.used + size]
        self.used = need
        return piece


class Budget:
    """What all pools of an executor may hold together. Two generations count both while one replaces the other."""

    def __init__(self, name: str, size: int | None) -> None:
        """Make a budget of ``size`` bytes; None: no bound."""
        self.name = name
        self.size = size
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Show what is held."""
        bound = "unbounded" if self.size is None else readable(self.size)
        return f"Budget({self.name}: {readable(self.used)} of {bound})"

    @property
    def used(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(self._held.values())

    def hold(self, holder: str, size: int) -> None:
        """Hold ``size`` bytes more for a holder.

        Raises:
            NotLoadable: they are not there; names who holds the rest.
        """
        with self._lock:
            free = None if self.size is None else self.size - sum(self._held.values())
            if free is not None and size > free:
                others = ", ".join(f"{name} {readable(held)}" for name, held in sorted(self._held.items()))
                raise NotLoadable(
                    f"{holder} needs {readable(size)} of {self.name}, {readable(free)} of {readable(self.size or 0)} "
                    f"are free (held by: {others or 'nobody'})",
                    fix="lower its pools or batching.max_batch, unload another engine, or raise the executor's bound",
                )
            self._held[holder] = self._held.get(holder, 0) + size

    def release(self, holder: str) -> None:
        """Give back all that a holder has. Idempotent."""
        with self._lock:
            self._held.pop(holder, None)
