"""Making and mapping a shared segment: anonymous memory (memfd) of a fixed, sealed size."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from trtops.errors import InputError, StorageError
from trtops.transport.layout import HEADER_BYTES, SLOT_HEADERS, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

# linux/fcntl.h; fcntl has names for them on Linux only since 3.8, and type stubs lack some.
_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # no more seals, no shrinking (it would kill the peer by SIGBUS), no growing


class Segment:
    """A mapped segment. It is unmapped when nothing refers to it or to a view of it any more.

    Attributes:
        layout: where everything is.
        bytes: all of it; a slice is a copy. ``memory``: the same as a view. ``words``: the same as 32-bit words.
        whole: the same as an array, uint8[total], which every view of a slot refers to.
        starts: offset of each slot.
        inputs, outputs: the areas of each slot, uint8[input_bytes] and uint8[output_bytes]; views of them keep the
            mapping alive.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        """Map a descriptor, which may be closed afterwards."""
        self.layout = layout
        self.bytes = mmap.mmap(fd, layout.total)
        self.memory = memoryview(self.bytes)
        self.words = self.memory[: layout.total // 4 * 4].cast("I")
        self.starts = [layout.slot(number) for number in range(layout.slots)]
        self.whole: NDArray[np.uint8] = np.frombuffer(self.bytes, np.uint8)
        whole = self.whole
        first = [start + SLOT_HEADERS for start in self.starts]
        self.inputs = [whole[at : at + layout.input_bytes] for at in first]
        first = [at + layout.input_bytes for at in first]
        self.outputs = [whole[at : at + layout.output_bytes] for at in first]

    def __repr__(self) -> str:
        """Show the sizes."""
        layout = self.layout
        return f"Segment({layout.slots} slots of {layout.input_bytes} + {layout.output_bytes} bytes)"


def create(layout: Layout) -> tuple[int, Segment]:
    """Make a sealed segment with its header written; the descriptor is the caller's to close.

    Raises:
        StorageError: the memory is not there.
    """
    fd = os.memfd_create("trtops-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(fd, layout.total)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
        segment = Segment(fd, layout)
    except OSError as error:
        os.close(fd)
        raise StorageError(f"no shared memory of {layout.total} bytes: {error}") from error
    segment.memory[: len(layout.header())] = layout.header()
    return fd, segment


def attach(fd: int) -> Segment:
    """Map a segment that an executor made; the descriptor is the caller's to close.

    Raises:
        InputError: it is no sealed segment of this version. Blame the executor.
    """
    if fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS != _SEALS:
        raise InputError("the executor's segment is not sealed: it could shrink under its clients")
    return Segment(fd, Layout.read(os.pread(fd, HEADER_BYTES, 0), os.fstat(fd).st_size))
