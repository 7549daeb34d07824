"""Who vouches for what builds and measurements keep for later ones: the builder keys of this home, as for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.bench.device import DeviceTimeline
from trtops.build.conversions import Conversion
from trtops.build.timing import Timed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.build.voucher import Statement, Vouched
    from trtops.release.keys import Keys

PREDICATES: Mapping[type[Vouched], str] = {
    Timed: "https://github.com/trtops/trtops/predicates/timing-cache/v1",
    Conversion: "https://github.com/trtops/trtops/predicates/conversion/v1",
    DeviceTimeline: "https://github.com/trtops/trtops/predicates/device-times/v1",
}


class KeyVoucher:
    """Signs what is kept in a store with the builder key, and takes what a trusted builder key signed."""

    def __init__(self, keys: Keys) -> None:
        """Take the keys of a home."""
        self._keys = keys

    def __repr__(self) -> str:
        """Show whose keys they are."""
        return f"KeyVoucher({self._keys!r})"

    def sign(self, statement: Vouched) -> bytes:
        """A signed record of a statement.

        Raises:
            TrustError, StorageError: of the builder key.
        """
        from trtops.release.envelope import sign_statement

        return sign_statement(statement, PREDICATES[type(statement)], [self._keys.signer("builder")])

    def opened(self, body: bytes, where: str, kind: type[Statement]) -> Statement:
        """The statement of a kind in a record.

        Raises:
            TrustError: no builder key that is trusted here signed it, or it is another document.
        """
        from pydantic import ValidationError

        from trtops.digest import canonical
        from trtops.errors import TrustError
        from trtops.release.envelope import Statement as Envelope
        from trtops.release.envelope import verify_payload

        keys, threshold = self._keys.root().members("builder")
        payload, _ = verify_payload(body, keys, threshold, role="builder", where=where)
        try:
            envelope = Envelope.model_validate_json(payload)
            found = kind.model_validate_json(canonical(envelope.predicate))
        except ValidationError as error:
            raise TrustError("the record is another document", where=where) from error
        if envelope.predicateType != PREDICATES[kind] or envelope.subject[0].digest != {"sha256": found.digest().value}:
            raise TrustError("the record is another document", where=where)
        return found
