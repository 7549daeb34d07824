"""Heads of requests that were read before: a client that keeps its connection sends the same bytes again and again.

A head is kept only after the parser took it, and only where its framing is plain: a length or no body, no chunks, no
`Expect`, no other protocol, and the connection goes on. The same bytes at the same place of a connection then mean the
same request, so that looking them up is as strict as parsing them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.serve.exchange import Exchange

_END: Final = b"\r\n\r\n"
_KEPT: Final = 1024
_LONGEST: Final = 2048
_UNPLAIN: Final = (b"transfer-encoding", b"expect", b"upgrade")


@dataclass(frozen=True, slots=True)
class Head:
    """A head and what it means. ``size`` is its bytes, ``whole`` also counts the body after it."""

    text: bytes
    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    size: int
    whole: int


class Heads:
    """The heads that a front end knows. Clients choose them, so their number and size are bounded."""

    def __init__(self) -> None:
        """Know none."""
        self._kept: dict[bytes, Head] = {}

    def __repr__(self) -> str:
        """Show how many are known."""
        return f"<Heads {len(self._kept)}>"

    def find(self, data: bytes) -> Head | None:
        """The head that ``data`` begins with, if it is known and ``data`` is exactly one whole request; else None."""
        at = data.find(_END) + 4
        head = self._kept.get(data[:at])
        return head if head is not None and len(data) == head.whole else None

    def keep(self, data: bytes, exchange: Exchange) -> None:
        """Keep the head of a request that was read, if it came alone and whole in ``data`` and is plain."""
        headers, size = exchange.headers, data.find(_END) + 4
        if (
            size <= _LONGEST
            and exchange.keep_alive
            and not exchange.old
            and size + len(exchange.body) == len(data)
            and int(headers.get(b"content-length", b"0")) == len(exchange.body)
            and not any(name in headers for name in _UNPLAIN)
        ):
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            text = data[:size]
            self._kept[text] = Head(text, exchange.method, exchange.target, headers, size, len(data))
