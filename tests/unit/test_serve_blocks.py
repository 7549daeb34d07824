"""Header blocks mean what the library says, whether they are remembered or not, and little is remembered."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.serve.blocks import Blocks
from trtops.serve.frames import Fault


def literal(name: str, value: str, *, indexed: bool) -> bytes:
    """A header as it is, not packed; with ``indexed`` it enters the table (RFC 7541, 6.2)."""
    key, text = name.encode(), value.encode()
    length = hpack.hpack.encode_integer(len(text), 7)
    return (b"\x40" if indexed else b"\x00") + bytes([len(key)]) + key + bytes(length) + text


PIECES = [
    literal("a", "x" * 3000, indexed=True),  # two of these do not fit in a table at once
    literal("b", "y" * 3000, indexed=True),
    literal("c", "z", indexed=True),
    literal("c", "z" * 5000, indexed=True),  # empties the table
    literal("d", "once", indexed=False),
    b"\xbe",  # the newest entry of the table
    b"\xbf",  # the one before it
    b"\x82",  # of the static table
]
RESIZES = [b"", b"", b"", b"\x20", b"\x3f\xe1\x1f"]


@given(
    st.lists(
        st.tuples(st.sampled_from(RESIZES), st.lists(st.sampled_from(PIECES), min_size=1, max_size=3)),
        min_size=1,
        max_size=30,
    )
)
def test_blocks_mean_what_the_library_says(sent: list[tuple[bytes, list[bytes]]]) -> None:
    blocks, library = Blocks(), hpack.Decoder(max_header_list_size=1 << 16)
    for resize, pieces in sent:
        block = resize + b"".join(pieces)
        try:
            expected: Any = tuple((bytes(key), bytes(value)) for key, value in library.decode(block, raw=True))
        except hpack.HPACKError:
            with pytest.raises(Fault):
                blocks.read(block)
            return
        assert blocks.read(block) == expected


def test_what_a_block_points_at_is_looked_up_again_when_the_table_has_another_entry() -> None:
    """Two entries that take one's place leave as many as there were, perhaps at the very address of the first."""
    first, second, newest = PIECES[0], PIECES[1] + PIECES[0].replace(b"x", b"w"), b"\xbe"
    for _ in range(50):
        blocks = Blocks()
        blocks.read(first)
        assert blocks.read(newest) == ((b"a", b"x" * 3000),)
        blocks.read(second)
        assert blocks.read(newest) == ((b"a", b"w" * 3000),)


def test_few_bytes_are_remembered() -> None:
    blocks = Blocks()
    for number in range(200):
        value = f"{number:04}" * 1000
        block = literal("a", value, indexed=False)
        for _ in range(2):
            assert blocks.read(block) == ((b"a", value.encode()),)
            assert blocks.held <= 1 << 16
    blocks = Blocks()
    small = [literal("a", f"{number}", indexed=False) for number in range(1000)]
    for block in small:
        blocks.read(block)
        assert blocks.held <= 257 * len(small[-1])
