"""Header blocks of one HTTP/2 connection: read by the library (hpack), remembered where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trtops.serve.frames import COMPRESSION, Fault

if TYPE_CHECKING:
    from trtops.serve.streams import Headers

HEADER_LIST: Final = 1 << 16
"""Bytes of a block at most, packed or not."""
_KNOWN: Final = 256
_KNOWN_BYTES: Final = 1 << 16
"""Of the blocks that a connection remembers: what a client repeats is short."""


class Blocks:
    """Reads header blocks in the order in which they come.

    A block that changes nothing in the library's table is read once and then known by its bytes, as long as the table
    stays as it was.
    """

    def __init__(self) -> None:
        """Begin with an empty table."""
        from hpack import Decoder

        self._decoder: Any = Decoder(max_header_list_size=HEADER_LIST)
        self._known: dict[bytes, Headers] = {}
        self.held = 0

    def __repr__(self) -> str:
        """Show what is remembered."""
        return f"<Blocks {len(self._known)} known, {self.held} bytes>"

    def read(self, block: bytes) -> Headers:
        """Name and value of each header.

        Raises:
            Fault: it cannot be read, or is too large. The connection cannot go on.
        """
        return self._known.get(block) or self._decode(block)

    def _decode(self, block: bytes) -> Headers:
        from hpack import HPACKError

        table = self._decoder.header_table
        before = _state(table)
        try:
            headers: Headers = tuple(
                (bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)
            )
        except (HPACKError, UnicodeDecodeError) as error:
            raise Fault(COMPRESSION, f"a header block that cannot be read: {error}") from None
        more = self.held + len(block)
        if _same(before, _state(table)) and len(self._known) < _KNOWN and more <= _KNOWN_BYTES:
            self._known[block] = headers
            self.held = more
        else:
            self._known.clear()
            self.held = 0
        return headers


def _state(table: Any) -> tuple[int, object, int]:  # noqa: ANN401 - the library's
    entries = table.dynamic_entries
    return len(entries), entries[0] if entries else None, table.maxsize


def _same(before: tuple[int, object, int], now: tuple[int, object, int]) -> bool:
    """Whether nothing entered or left. ``before`` holds the newest entry: no later one takes its place in memory."""
    return before[0] == now[0] and before[1] is now[1] and before[2] == now[2]
