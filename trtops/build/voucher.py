"""Who vouches for what builds and measurements keep for later ones, and records in the store that say so.

It steers native code, or what people decide by, so nobody's word is not enough: a record is a statement that a builder
key signed, of the kind and key that it lies under. What no trusted key vouches for is not taken; a later one replaces
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from trtops.digest import Value
from trtops.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtops.backend.port import Sidecar
    from trtops.digest import Digest
    from trtops.store import Store


class Vouched(Value):
    """What a builder key signs of a record.

    Attributes:
        key: of the record: a statement that was moved to another key is none.
    """

    key: str


Statement = TypeVar("Statement", bound=Vouched)


class Voucher(Protocol):
    """Signs statements, and tells which ones are signed by a trusted builder."""

    def sign(self, statement: Vouched) -> bytes:
        """A signed record of a statement."""

    def opened(self, body: bytes, where: str, kind: type[Statement]) -> Statement:
        """The statement of a kind in a record.

        Raises:
            TrustError: no trusted key signed it, or it is of another kind.
        """


@dataclass(frozen=True, slots=True)
class VouchedRecord(Generic[Statement]):
    """One signed record of a store.

    Attributes:
        store: where.
        kind: of the record.
        key: of the record.
        voucher: signs and verifies.
        of: what it says.
    """

    store: Store
    kind: str
    key: str
    voucher: Voucher
    of: type[Statement]

    def read(self) -> Statement | None:
        """What it says; None: there is none.

        Raises:
            StorageError: it is of another key, or the store cannot be read.
            TrustError: no trusted key signed it.
        """
        body = self.store.record(self.kind, self.key)
        if body is None:
            return None
        where = f"record {self.kind} {self.key}"
        statement = self.voucher.opened(body, where, self.of)
        if statement.key != self.key:
            raise StorageError(f"the record is of another key: {statement.key}", where=where)
        return statement

    def write(self, statement: Statement) -> None:
        """Put a statement in the place of what is there.

        Raises:
            StorageError, TrustError: it could not be signed, or not be kept.
        """
        self.store.keep(self.kind, self.key, self.voucher.sign(statement))


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
