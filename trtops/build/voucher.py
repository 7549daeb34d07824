"""Who vouches for what builds keep for later builds: it steers native code, so nobody's word is not enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtops.backend.port import Sidecar
    from trtops.digest import Digest, Value

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


@runtime_checkable
class EngineVoucher(Voucher, Protocol):
    """Vouches also for the engines of one plan: loading an engine runs its code, so that nobody's is not taken."""

    def sidecars(self) -> Collection[Digest]:
        """Digests of the sidecars that a trusted builder vouches for at this moment; each names its artifact.

        The artifact alone is not enough: its sidecar says which libraries are loaded along.
        """

    def vouch(self, sidecar: Sidecar) -> None:
        """Vouch for what was just built.

        Raises:
            TrustError, StorageError: it could not be signed, or its record not kept.
        """
