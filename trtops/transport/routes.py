"""Which worker serves an engine: a page of shared memory that a supervisor writes and every client reads.

A route has :data:`BUCKETS` buckets, each held by one of its seats; a request's key picks the bucket. So a client needs
a checksum and a look into a table, in any language, and a change of weights moves only the buckets that it has to:
:func:`assign` decides which. ``docs/concepts/transport.md`` describes the page.

The page has a sequence lock over two copies. The writer fills the copy that nobody reads, then publishes it by one
store of the sequence number; a reader takes the copy that the number names and accepts it if the number is still the
same afterwards. A writer that dies leaves the last copy whole, and no reader ever waits for it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError, StorageError
from trtops.transport.fence import order
from trtops.transport.layout import NAME_BYTES, aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PAGE_MAGIC: Final = int.from_bytes(b"TRTOPSRT", "little")
PAGE_VERSION: Final = 1
PAGE: Final = struct.Struct("<QIIII")
"""magic, version, bytes before the first copy, bytes of a copy, bytes of the page."""
SEQUENCE_AT: Final = 64
_SEQUENCE: Final = SEQUENCE_AT // 8
PAGE_HEADER_BYTES: Final = 128

COPY: Final = struct.Struct("<III")
"""engines, bytes of their entries, CRC-32 of those bytes."""
COPY_HEADER_BYTES: Final = 64

ENTRY: Final = struct.Struct("<HH")
"""bytes of the engine's name, seats. The name stands at byte 64 of the entry, the seats at byte 128, then buckets."""
SEAT: Final = struct.Struct("<IIQH")
"""worker (0: none now), weight (buckets that it holds), generation of the engine there, bytes of the channel's name.
The name stands at byte 64 of the seat."""
SEAT_BYTES: Final = 128
SEAT_NAME: Final = 64
MAX_SEATS: Final = 16
SEATS_AT: Final = 128
BUCKETS: Final = 1000
BUCKETS_AT: Final = SEATS_AT + MAX_SEATS * SEAT_BYTES
ENTRY_BYTES: Final = aligned(BUCKETS_AT + BUCKETS)
MAX_ENGINES: Final = 1024

_COPY_BYTES: Final = aligned(COPY_HEADER_BYTES + MAX_ENGINES * ENTRY_BYTES)
PAGE_BYTES: Final = PAGE_HEADER_BYTES + 2 * _COPY_BYTES

_GOLDEN: Final = 0x9E3779B1
"""2**32 divided by the golden ratio, odd: multiples of it are spread evenly (Knuth, TAOCP vol. 3, 6.4)."""
_MASK: Final = 0xFFFFFFFF

# linux/fcntl.h; a page is sealed against shrinking, growing, more seals, and mappings that could write.
_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_FIXED_SIZE: Final = 0x0001 | 0x0002 | 0x0004
_FUTURE_WRITE: Final = 0x0010


@dataclass(frozen=True, slots=True)
class Seat:
    """One place where an engine is served.

    Attributes:
        identity: the same for the same place over time (a channel on a device), whichever worker it is.
        worker: number of the worker; 0: none now, its requests have to wait for the next one.
        weight: share of the buckets, relative to the other seats'.
        generation: of the engine there.
        channel: that the engine is in there.
    """

    identity: int
    worker: int
    weight: int
    generation: int = 0
    channel: str = "stable"


@dataclass(frozen=True, slots=True)
class Route:
    """Seats, and which of them holds each bucket (``table[bucket]`` is an index into ``seats``)."""

    seats: tuple[Seat, ...]
    table: bytes

    def seat(self, bucket: int) -> Seat:
        """The seat that holds a bucket."""
        return self.seats[self.table[bucket]]

    def worker(self, bucket: int) -> int:
        """Number of the worker that serves a bucket; 0: none now."""
        return self.seats[self.table[bucket]].worker


def bucket_of(key: bytes) -> int:
    """The bucket of a request's key: the same in every process and on every machine."""
    return bucket_of_number(zlib.crc32(key))


def bucket_of_number(number: int) -> int:
    """Spread numbers over the buckets; consecutive ones evenly, which serves requests without a key."""
    return ((number * _GOLDEN & _MASK) * BUCKETS) >> 32


def assign(before: Route | None, seats: Sequence[Seat]) -> Route:
    """Give every bucket a seat, so that shares follow the weights and as few buckets as possible change theirs.

    With two seats the result depends on the weights alone, not on the way to them: a rollout that is taken back by a
    step, or a supervisor that starts again, finds the same keys in the same place.

    Args:
        before: the route until now; None: there was none.
        seats: with distinct identities, the first being the one that all buckets start at; at least one has a weight.

    Raises:
        InputError: no seat has a weight, there are more than :data:`MAX_SEATS`, or an identity stands twice.
    """
    if before is not None and before.seats == tuple(seats):
        return before
    quotas = _quotas(seats)
    first = seats[0].identity
    if before is None:
        holders = [first] * BUCKETS
    else:
        identities = [seat.identity for seat in before.seats]
        holders = [identities[index] for index in before.table]
    have = Counter(holders)
    for identity in quotas:
        _receive(identity, holders, have, quotas)
    index = {seat.identity: number for number, seat in enumerate(seats)}
    return Route(tuple(seats), bytes(index[identity] for identity in holders))


def _receive(identity: int, holders: list[int], have: Counter[int], quotas: Mapping[int, int]) -> None:
    """Let a seat take the buckets that it lacks from seats that have too many."""
    lacks = quotas[identity] - have[identity]
    if lacks <= 0:
        return
    offers = [bucket for bucket, holder in enumerate(holders) if have[holder] > quotas.get(holder, 0)]
    wanted, held = _ranks(identity), {holder: _ranks(holder) for holder in have}
    offers.sort(key=lambda bucket: (wanted[bucket] - held[holders[bucket]][bucket], bucket))
    for bucket in offers:
        holder = holders[bucket]
        if have[holder] <= quotas.get(holder, 0):
            continue
        have[holder] -= 1
        have[identity] += 1
        holders[bucket] = identity
        lacks -= 1
        if not lacks:
            return


@cache
def _ranks(identity: int) -> tuple[int, ...]:
    """How much a seat is drawn to each bucket: the lower the more. A fixed order, different for each seat."""
    return tuple(zlib.crc32(struct.pack("<II", bucket, identity)) * _GOLDEN & _MASK for bucket in range(BUCKETS))


def _quotas(seats: Sequence[Seat]) -> dict[int, int]:
    """Buckets of each seat: its exact share rounded down, what is left to the largest remainders, the first seat first.

    A seat with a weight has one bucket at least.
    """
    total = sum(seat.weight for seat in seats)
    if total <= 0 or any(seat.weight < 0 for seat in seats):
        raise InputError(f"a route needs a seat with a weight: {list(seats)}")
    if len(seats) > MAX_SEATS or len({seat.identity for seat in seats}) != len(seats):
        raise InputError(f"a route has {MAX_SEATS} seats at most, each once: {list(seats)}")
    exact = {seat.identity: seat.weight * BUCKETS for seat in seats}
    quotas = {identity: max(share // total, min(share, 1)) for identity, share in exact.items()}
    by_remainder = sorted(quotas, key=lambda identity: -(exact[identity] % total))
    while (left := BUCKETS - sum(quotas.values())) > 0:
        for identity in by_remainder[:left]:
            quotas[identity] += 1
    for _ in range(-left):  # tiny shares were rounded up to a bucket
        quotas[max(quotas, key=lambda identity: quotas[identity])] -= 1
    return quotas


def encode_routes(routes: Mapping[str, Route], known: dict[str, tuple[Route, bytes]] | None = None) -> bytes:
    """The bytes of a copy.

    ``known`` holds entries that were written before, and afterwards those of this copy.

    Raises:
        InputError: too many engines, or a name is too long.
    """
    if len(routes) > MAX_ENGINES:
        raise InputError(f"{len(routes)} engines; a page of routes holds {MAX_ENGINES}")
    known = {} if known is None else known
    entries: dict[str, tuple[Route, bytes]] = {}
    for name in sorted(routes):
        route, kept = routes[name], known.get(name)
        entries[name] = kept if kept is not None and kept[0] == route else (route, _encode_entry(name, route))
    known.clear()
    known.update(entries)
    body = b"".join(entry for _, entry in entries.values())
    return COPY.pack(len(routes), len(body), zlib.crc32(body)).ljust(COPY_HEADER_BYTES, b"\0") + body


def _encode_entry(name: str, route: Route) -> bytes:
    text = _name(name)
    held = Counter(route.table)
    seats = b"".join(_encode_seat(seat, held[number]) for number, seat in enumerate(route.seats))
    head = ENTRY.pack(len(text), len(route.seats)).ljust(SEATS_AT - NAME_BYTES, b"\0") + text.ljust(NAME_BYTES, b"\0")
    return ((head + seats).ljust(BUCKETS_AT, b"\0") + route.table).ljust(ENTRY_BYTES, b"\0")


def _encode_seat(seat: Seat, buckets: int) -> bytes:
    text = _name(seat.channel)
    head = SEAT.pack(seat.worker, buckets, seat.generation, len(text)).ljust(SEAT_NAME, b"\0")
    return (head + text).ljust(SEAT_BYTES, b"\0")


def _name(name: str) -> bytes:
    text = name.encode()
    if len(text) > NAME_BYTES:
        raise InputError(f"the name {name!r} has more than {NAME_BYTES} bytes")
    return text


def decode_routes(copy: bytes, known: dict[bytes, tuple[str, Route]] | None = None) -> dict[str, Route] | None:
    """Read a copy; None: its checksum is wrong, so it was not read in one piece. A seat's identity is its index.

    ``known`` holds entries that were read before, by their bytes, and afterwards those of this copy.
    """
    count, size, checksum = COPY.unpack_from(copy)
    body = copy[COPY_HEADER_BYTES:]
    if size != count * ENTRY_BYTES or len(body) != size or zlib.crc32(body) != checksum:
        return None
    known = {} if known is None else known
    entries = [body[start : start + ENTRY_BYTES] for start in range(0, size, ENTRY_BYTES)]
    read = {entry: known.get(entry) or _decode_entry(entry) for entry in entries}
    known.clear()
    known.update(read)
    return dict(read.values())


def _decode_entry(entry: bytes) -> tuple[str, Route]:
    name_bytes, seats = ENTRY.unpack_from(entry)
    name = _text(entry, SEATS_AT - NAME_BYTES, name_bytes)
    found = [_decode_seat(entry, SEATS_AT + number * SEAT_BYTES, number) for number in range(min(seats, MAX_SEATS))]
    return name, Route(tuple(found), entry[BUCKETS_AT : BUCKETS_AT + BUCKETS])


def _decode_seat(body: bytes, start: int, number: int) -> Seat:
    worker, weight, generation, name_bytes = SEAT.unpack_from(body, start)
    return Seat(number, worker, weight, generation, _text(body, start + SEAT_NAME, name_bytes))


def _text(body: bytes, start: int, size: int) -> str:
    return body[start : start + min(size, NAME_BYTES)].decode("utf-8", "replace")


class Page:
    """The writer's end. One thread writes.

    Attributes:
        fd: the memfd, to be sent to clients, who can map it for reading only.
    """

    def __init__(self) -> None:
        """Make a page without engines.

        Raises:
            StorageError: the memory is not there.
        """
        try:
            self.fd = os.memfd_create("trtops-routes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(self.fd, PAGE_BYTES)
            self._map = mmap.mmap(self.fd, PAGE_BYTES)
            # After the map: from here on nobody can get another one that writes.
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _FIXED_SIZE | _FUTURE_WRITE)
        except OSError as error:
            raise StorageError(f"no shared memory of {PAGE_BYTES} bytes for routes: {error}") from error
        self._words = memoryview(self._map)[:PAGE_HEADER_BYTES].cast("Q")
        self._known: dict[str, tuple[Route, bytes]] = {}
        PAGE.pack_into(self._map, 0, PAGE_MAGIC, PAGE_VERSION, PAGE_HEADER_BYTES, _COPY_BYTES, PAGE_BYTES)
        self.write({})

    def __repr__(self) -> str:
        """Show how often it was written."""
        return f"Page(sequence {self.sequence})"

    @property
    def sequence(self) -> int:
        """Counts up with each change."""
        return self._words[_SEQUENCE]

    def write(self, routes: Mapping[str, Route]) -> None:
        """Replace all routes, for all clients at once.

        Raises:
            InputError: there are more engines than a page holds; it is as it was.
        """
        self.stage(encode_routes(routes, self._known))
        self.publish()

    def stage(self, copy: Iterable[int]) -> None:
        """Fill the copy that nobody reads; nothing changes for anybody."""
        body = bytes(copy)
        start = PAGE_HEADER_BYTES + (self.sequence + 1) % 2 * _COPY_BYTES
        self._map[start : start + len(body)] = body

    def publish(self) -> None:
        """Let readers see the staged copy: one store of 8 bytes, made at once.

        It comes after the copy's, and before those of the next copy, which stands where the one before was.
        """
        order()
        self._words[_SEQUENCE] = self.sequence + 1
        order()

    def close(self) -> None:
        """Give the memory back; clients keep theirs. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._words.release()
            self._map.close()


class PageView:
    """A reader's end: the routes as they are now, by a look at one number a request."""

    def __init__(self, fd: int) -> None:
        """Map a page; the descriptor is the caller's to close.

        Raises:
            InputError: it is no page of this version. Blame the supervisor.
        """
        try:
            sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _FIXED_SIZE == _FIXED_SIZE
            size = os.fstat(fd).st_size
        except OSError as error:
            raise InputError(f"not a page of routes: {error}") from error
        if not sealed or size < PAGE_HEADER_BYTES:
            raise InputError("not a page of routes: it is not sealed, and could shrink under its readers")
        self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        fields = PAGE.unpack_from(self._map)
        if fields[:2] != (PAGE_MAGIC, PAGE_VERSION) or fields[4] > size or fields[2] + 2 * fields[3] > size:
            raise InputError(f"not a page of routes of version {PAGE_VERSION}: {fields}")
        self._first, self._copy_bytes = fields[2], fields[3]
        self._words = memoryview(self._map)[:PAGE_HEADER_BYTES].cast("Q")
        self._seen = -1
        self._routes: dict[str, Route] = {}
        self._known: dict[bytes, tuple[str, Route]] = {}

    def __repr__(self) -> str:
        """Show what was read last."""
        return f"PageView(sequence {self._seen}, {len(self._routes)} engines)"

    @property
    def sequence(self) -> int:
        """Counts up with each change."""
        return self._words[_SEQUENCE]

    def find(self, engine: str) -> Route | None:
        """The route of an engine now."""
        if self._words[_SEQUENCE] != self._seen:
            return self.routes.get(engine)
        return self._routes.get(engine)

    @property
    def routes(self) -> Mapping[str, Route]:
        """All routes, of one moment. The same object until they change."""
        sequence = self._words[_SEQUENCE]
        while sequence != self._seen:
            order()  # the number before the copy
            start = self._first + sequence % 2 * self._copy_bytes
            size = min(COPY.unpack_from(self._map, start)[1], self._copy_bytes - COPY_HEADER_BYTES)
            copy = self._map[start : start + COPY_HEADER_BYTES + size]
            order()  # the copy before the number
            again = self._words[_SEQUENCE]
            # This copy is written again only after the other one was published: an unchanged number means a whole copy.
            routes = decode_routes(copy, self._known) if again == sequence else None
            if routes is not None:
                self._routes, self._seen = routes, sequence
                break
            sequence = again
        return self._routes
