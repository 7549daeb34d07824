"""The port of a registry: named small documents, immutable or moved by compare-and-swap.

A registry knows names and bytes and nothing else; what a document means, and whether it can be trusted, is decided
in ``release/`` from the bytes alone: a service trusts no registry (design §4.4).

Names are ``/``-separated segments of ``[A-Za-z0-9._-]`` (no empty one, no ``.`` or ``..``), 200 characters at most.
Documents are 100 KB at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DOCUMENT_BYTES = 100_000


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop it. No callback starts after this returns. Idempotent."""


class Registry(Protocol):
    """Named documents of one environment."""

    def read(self, name: str) -> bytes | None:
        """The newest bytes; None if there are none. Read-after-write.

        Raises:
            Unavailable: the registry is away.
        """

    def create(self, name: str, body: bytes) -> bool:
        """Write once. True if written, False if the same bytes are there already.

        Raises:
            Conflict: other bytes are there.
            StorageError: it could not be written; nothing changed.
            Unavailable: the registry is away.
        """

    def swap(self, name: str, body: bytes, expected: bytes | None) -> None:
        """Replace ``expected`` (None: absent) by ``body``, atomically.

        Raises:
            Conflict: something else is there now; nothing changed.
            StorageError: it could not be written; nothing changed.
            Unavailable: the registry is away.
        """

    def remove(self, name: str, expected: bytes) -> bool:
        """Delete a document that nothing names any more. True if this call did it, False if it was gone already.

        Raises:
            Conflict: other bytes are there.
            StorageError: it could not be deleted.
            Unavailable: the registry is away.
        """

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Names that start with a prefix, sorted.

        Raises:
            Unavailable: the registry is away.
        """

    def watch(self, name: str, changed: Callable[[bytes | None], None]) -> Watch:
        """Call ``changed`` with the present bytes at once, then with the newest after each change.

        Intermediate versions may be skipped, the newest never is. An exception of ``changed`` is logged and the
        watch goes on. Calls come from a thread of the registry, one at a time.
        """
