"""System shared memory of clients: regions by name, read and written through their file, never mapped.

A client that truncates a region under a mapping would kill the server with SIGBUS; through the file it gets an error.
The bytes are copied once, as they would be from a socket.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trtops.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is on Linux
_MAX_REGIONS: Final = 1024
_MAX_NAME: Final = 255
_MAX_BYTES: Final = 2**63 - 1

PARAMETERS: Final = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


@dataclass(frozen=True, slots=True)
class Registered:
    """What a client registered: a name of its choice for bytes of a POSIX shared memory object."""

    name: str
    key: str
    offset: int
    byte_size: int


class Region:
    """An open region. A request that uses it keeps it open, whatever is unregistered meanwhile."""

    __slots__ = ("_fd", "about")

    def __init__(self, about: Registered) -> None:
        """Open it.

        Raises:
            InputError: there is no such object, it may not be opened, or it is shorter than what is registered.
        """
        self._fd = -1
        self.about = about
        where = f"shared memory region '{about.name:.100}'"
        key = about.key.removeprefix("/")
        if not key or "/" in key or "\0" in key or key in {".", ".."} or len(os.fsencode(key)) > _MAX_NAME:
            raise InputError(f"{where}: '{about.key:.100}' is no name of a shared memory object", fix="write /NAME")
        try:
            self._fd = os.open(_FOLDER / key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise InputError(
                f"{where}: cannot open shared memory object '{about.key:.100}': {error.strerror}",
                fix="create it before it is registered, on the server's host",
            ) from None
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode) or about.offset + about.byte_size > found.st_size:
            raise InputError(
                f"{where}: object '{about.key:.100}' has {found.st_size} bytes, "
                f"{about.byte_size} from {about.offset} on are registered"
            )

    def __del__(self) -> None:
        """Close it with the last request that uses it."""
        if self._fd >= 0:
            os.close(self._fd)

    def __repr__(self) -> str:
        """Show what it is."""
        return f"Region({self.about.name!r}, {self.about.byte_size} bytes)"

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of it.

        Raises:
            InputError: its owner made it shorter meanwhile.
        """
        data = os.pread(self._fd, size, self.about.offset + offset)
        if len(data) != size:
            raise InputError(f"shared memory region '{self.about.name}' became shorter than it was registered")
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes to it; it never grows.

        Raises:
            InputError: its owner made it shorter meanwhile.
        """
        at = self.about.offset + offset
        if at + len(data) > os.fstat(self._fd).st_size:
            raise InputError(f"shared memory region '{self.about.name}' became shorter than it was registered")
        os.pwrite(self._fd, data, at)


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a region that a tensor is read from or written to."""

    region: Region
    offset: int
    size: int

    def write(self, output: str, data: bytes) -> int:
        """Write an output to it.

        Returns:
            bytes that were written.

        Raises:
            InputError: it does not fit there, or the region became shorter.
        """
        if len(data) > self.size:
            raise InputError(
                f"output '{output}' has {len(data)} bytes, its place in shared memory {self.size}",
                fix="give it a larger place",
            )
        self.region.write(self.offset, data)
        return len(data)


class UnknownRegion(InputError):
    """A question about a region that is not registered."""


class Regions:
    """The regions that are registered. Any thread may call."""

    def __init__(self) -> None:
        """Begin with none."""
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Show how many there are."""
        return f"<Regions {len(self._regions)}>"

    def register(self, about: Registered) -> None:
        """Open a region and give it a name.

        Raises:
            InputError: the name is taken by another region, or it cannot be opened.
        """
        if not 0 < len(about.name) <= _MAX_NAME:
            raise InputError(f"a region's name has 1 to {_MAX_NAME} characters, got {len(about.name)}")
        if not (0 <= about.offset <= _MAX_BYTES and 0 < about.byte_size <= _MAX_BYTES):
            raise InputError(
                f"region '{about.name}': offset and byte_size are {about.offset} and {about.byte_size}",
                fix="give an offset of 0 or more and a size of 1 or more",
            )
        region = Region(about)
        with self._lock:
            if about.name in self._regions:
                raise InputError(
                    f"shared memory region '{about.name}' is registered already", fix="unregister it first"
                )
            if len(self._regions) >= _MAX_REGIONS:
                raise InputError(f"{_MAX_REGIONS} regions are registered, as many as may be", fix="unregister some")
            self._regions[about.name] = region

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all; requests that use it finish. One that is not there is no error (as in Triton)."""
        with self._lock:
            if name:
                self._regions.pop(name, None)
            else:
                self._regions.clear()

    def replace(self, wanted: tuple[Registered, ...]) -> None:
        """Have exactly these; one that cannot be opened any more is left out."""
        with self._lock:
            have = {region.about: region for region in self._regions.values()}
        fresh: dict[str, Region] = {}
        for about in wanted:
            with suppress(InputError):
                fresh[about.name] = have.get(about) or Region(about)
        with self._lock:
            self._regions = fresh

    def registered(self, name: str = "") -> tuple[Registered, ...]:
        """What is registered: all, or the one of this name.

        Raises:
            UnknownRegion: there is none of this name.
        """
        with self._lock:
            regions = dict(self._regions)
        if not name:
            return tuple(region.about for region in regions.values())
        if name not in regions:
            raise UnknownRegion(f"shared memory region '{name:.100}' is not registered", fix="register it first")
        return (regions[name].about,)

    def place(self, parameters: Mapping[str, Any], where: str) -> Place | None:
        """The place that a tensor's parameters name; None: they name none.

        Raises:
            InputError: no such region, or the place is not inside it.
        """
        name = parameters.get("shared_memory_region")
        if name is None:
            return None
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise _unknown(str(name), where)
        size, offset = parameters.get("shared_memory_byte_size", 0), parameters.get("shared_memory_offset", 0)
        for key, value in (("shared_memory_byte_size", size), ("shared_memory_offset", offset)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_BYTES:
                raise InputError(f"{where}parameter '{key}': expected a whole number, got {value!r:.80}")
        if not size or offset + size > region.about.byte_size:
            raise InputError(
                f"{where}{size} bytes from {offset} on are not inside region '{name}' of {region.about.byte_size} bytes"
            )
        return Place(region, offset, size)


def _unknown(name: str, where: str = "") -> InputError:
    return InputError(f"{where}shared memory region '{name:.100}' is not registered", fix="register it first")
