"""Who may connect, and what each client may have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trtops.errors import InputError
from trtops.transport.layout import MIN_OUTPUT_BYTES, Layout, aligned

if TYPE_CHECKING:
    from trtops.transport.wire import Hello

_NUMBERS: Final = 1 << 20
"""Slots in a hello are checked against this before anything is computed with them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may have.

    Attributes:
        clients: connected at once.
        slots: of one client.
        bytes: of one client's segment.
        users: user ids that may connect; None: the executor's own and root.
        groups: group ids whose members may connect as well (by their primary group).
        mode: permissions of the socket's file.
    """

    clients: int = 64
    slots: int = 256
    bytes: int = 256 << 20
    users: frozenset[int] | None = None
    groups: frozenset[int] = frozenset()
    mode: int = 0o600

    def allow(self, uid: int, gid: int) -> bool:
        """Tell whether a user may connect."""
        users = {0, os.getuid()} if self.users is None else self.users
        return uid in users or gid in self.groups


def agree(hello: Hello, limits: Limits) -> Layout:
    """The segment that a client gets who says this.

    Raises:
        InputError: it wants more than it may have. Blame the client.
    """
    sizes = hello.input_bytes, hello.output_bytes
    if not 0 < hello.slots <= min(limits.slots, _NUMBERS) or not all(0 <= size <= limits.bytes for size in sizes):
        raise InputError(
            f"{hello.slots} slots of {sizes[0]} + {sizes[1]} bytes were asked for",
            fix=f"a client may have {limits.slots} slots and {limits.bytes} bytes",
        )
    layout = Layout(hello.slots, aligned(sizes[0]), aligned(max(sizes[1], MIN_OUTPUT_BYTES)))
    if layout.total > limits.bytes:
        raise InputError(
            f"{hello.slots} slots of {sizes[0]} + {sizes[1]} bytes need {layout.total} bytes",
            fix=f"a client may have {limits.bytes} bytes: ask for fewer or smaller slots",
        )
    return layout
