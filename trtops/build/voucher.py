"""Who vouches for what builds keep for later builds: it steers native code, so nobody's word is not enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from trtops.digest import Value

    Statement = TypeVar("Statement", bound=Value)


class Voucher(Protocol):
    """Signs statements, and tells which ones are signed by a trusted builder."""

    def sign(self, statement: Value) -> bytes:
        """A signed record of a statement."""

    def opened(self, body: bytes, where: str, kind: type[Statement]) -> Statement:
        """The statement of a kind in a record.

        Raises:
            TrustError: no trusted key signed it, or it is of another kind.
        """
