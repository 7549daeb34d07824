"""A ring of 32-bit numbers between two processes: one writes, one reads, no lock.

Each end keeps its own index and only publishes it; what the other end published is read once and checked. The reader
announces that it is about to sleep; only then does the writer ring its doorbell. Who is about to ring takes the
announcement away first: what is written until the reader is awake needs no second ring.

Order of memory: the writer stores the slot and the entry, then the tail; the reader loads the tail, then the entry and
the slot. x86-64 keeps both orders. The announcement needs a full barrier at both ends (store, then load): taking and
releasing a lock, which is this end's own and never waited for, is one there (locked instructions). On other machines
:class:`FencedWriter` and :class:`FencedReader` call a barrier in each of these places; :func:`writer` and
:func:`reader` choose. The head needs no order: a ring is never full, so nobody waits for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from trtops.transport.fence import ORDERED, full_fence
from trtops.transport.layout import RING_ENTRIES, RING_HEAD, RING_SLEEPS, RING_TAIL

if TYPE_CHECKING:
    from collections.abc import Callable

_MASK: Final = 0xFFFFFFFF


class Violation(Exception):
    """A peer broke the protocol; it is disconnected."""


class Writer:
    """The end that writes. ``entries`` is at least the number of slots, so it never overruns what was not read."""

    __slots__ = ("_entries", "_fence", "_first", "_mask", "_sleeps", "_tail", "_tail_at", "_words")

    def __init__(self, words: memoryview, offset: int, entries: int) -> None:
        """Write to the ring at a byte offset of a segment, seen as 32-bit words."""
        self._words = words
        self._tail_at = (offset + RING_TAIL) // 4
        self._sleeps = (offset + RING_SLEEPS) // 4
        self._first = (offset + RING_ENTRIES) // 4
        self._mask = entries - 1
        self._entries = entries
        self._fence = threading.Lock()
        self._tail = 0

    def __repr__(self) -> str:
        """Show the index."""
        return f"Writer(tail {self._tail} of {self._entries} entries)"

    def push(self, number: int) -> bool:
        """Write one entry. True: the reader sleeps, ring its doorbell."""
        words, tail = self._words, self._tail
        words[self._first + (tail & self._mask)] = number
        words[self._tail_at] = self._tail = (tail + 1) & _MASK
        self._fence.acquire()
        self._fence.release()
        if words[self._sleeps]:
            words[self._sleeps] = 0  # the caller rings now: once for all that is written until the reader looks
            return True
        return False


class Reader:
    """The end that reads."""

    __slots__ = ("_entries", "_fence", "_first", "_head", "_head_at", "_mask", "_sleeps", "_tail_at", "_words")

    def __init__(self, words: memoryview, offset: int, entries: int) -> None:
        """Read from the ring at a byte offset of a segment, seen as 32-bit words."""
        self._words = words
        self._head_at = (offset + RING_HEAD) // 4
        self._tail_at = (offset + RING_TAIL) // 4
        self._sleeps = (offset + RING_SLEEPS) // 4
        self._first = (offset + RING_ENTRIES) // 4
        self._mask = entries - 1
        self._entries = entries
        self._fence = threading.Lock()
        self._head = 0

    def __repr__(self) -> str:
        """Show the index."""
        return f"Reader(head {self._head} of {self._entries} entries)"

    def pending(self) -> bool:
        """Whether something is there."""
        return self._words[self._tail_at] != self._head

    def pop(self) -> list[int]:
        """All entries that are there, oldest first.

        Raises:
            Violation: the writer's index is further ahead than the ring is long.
        """
        words, head = self._words, self._head
        ahead = (words[self._tail_at] - head) & _MASK
        if not ahead:
            return []
        if ahead == 1:  # the commonest by far
            numbers = [words[self._first + (head & self._mask)]]
        elif ahead > self._entries:
            raise Violation(f"a ring of {self._entries} entries claims to hold {ahead}")
        else:
            first, mask = self._first, self._mask
            numbers = [words[first + ((head + step) & mask)] for step in range(ahead)]
        words[self._head_at] = self._head = (head + ahead) & _MASK
        return numbers

    def announce_sleep(self) -> bool:
        """Ask for the doorbell. False: something came meanwhile; read it first."""
        words = self._words
        words[self._sleeps] = 1
        self._fence.acquire()
        self._fence.release()
        return words[self._tail_at] == self._head

    def announce_awake(self) -> None:
        """No doorbell is needed for now."""
        self._words[self._sleeps] = 0


class FencedWriter(Writer):
    """The end that writes, on a machine that does not keep the order of memory."""

    __slots__ = ("_order",)

    def __init__(self, words: memoryview, offset: int, entries: int, order: Callable[[], object]) -> None:
        """Write to the ring at a byte offset of a segment; ``order`` is a full barrier."""
        super().__init__(words, offset, entries)
        self._order = order

    def push(self, number: int) -> bool:
        """Write one entry. True: the reader sleeps, ring its doorbell."""
        words, tail = self._words, self._tail
        words[self._first + (tail & self._mask)] = number
        self._order()  # slot and entry before the tail
        words[self._tail_at] = self._tail = (tail + 1) & _MASK
        self._order()  # the tail before a look at who sleeps
        if words[self._sleeps]:
            words[self._sleeps] = 0  # before the ring, which orders it: the kernel takes locks for it
            return True
        return False


class FencedReader(Reader):
    """The end that reads, on a machine that does not keep the order of memory."""

    __slots__ = ("_order",)

    def __init__(self, words: memoryview, offset: int, entries: int, order: Callable[[], object]) -> None:
        """Read from the ring at a byte offset of a segment; ``order`` is a full barrier."""
        super().__init__(words, offset, entries)
        self._order = order

    def pop(self) -> list[int]:
        """All entries that are there, oldest first.

        Raises:
            Violation: the writer's index is further ahead than the ring is long.
        """
        words, head = self._words, self._head
        ahead = (words[self._tail_at] - head) & _MASK
        if not ahead:
            return []
        if ahead > self._entries:
            raise Violation(f"a ring of {self._entries} entries claims to hold {ahead}")
        self._order()  # the tail before entries and slots
        first, mask = self._first, self._mask
        numbers = [words[first + ((head + step) & mask)] for step in range(ahead)]
        words[self._head_at] = self._head = (head + ahead) & _MASK
        return numbers

    def announce_sleep(self) -> bool:
        """Ask for the doorbell. False: something came meanwhile; read it first."""
        words = self._words
        words[self._sleeps] = 1
        self._order()  # the announcement before another look at the tail
        return words[self._tail_at] == self._head


def writer(words: memoryview, offset: int, entries: int) -> Writer:
    """The end that writes, as this machine needs it.

    Raises:
        Unavailable: the machine needs a barrier, and has none.
    """
    return Writer(words, offset, entries) if ORDERED else FencedWriter(words, offset, entries, full_fence())


def reader(words: memoryview, offset: int, entries: int) -> Reader:
    """The end that reads, as this machine needs it.

    Raises:
        Unavailable: the machine needs a barrier, and has none.
    """
    return Reader(words, offset, entries) if ORDERED else FencedReader(words, offset, entries, full_fence())
