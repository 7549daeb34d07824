"""Who vouches for timing caches: the builder keys of this home, as for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.build.timing import Timed

if TYPE_CHECKING:
    from trtops.release.keys import Keys

PREDICATE = "https://github.com/trtops/trtops/predicates/timing-cache/v1"


class KeyVoucher:
    """Signs timing caches with the builder key, and takes those that a trusted builder key signed."""

    def __init__(self, keys: Keys) -> None:
        """Take the keys of a home."""
        self._keys = keys

    def __repr__(self) -> str:
        """Show whose keys they are."""
        return f"KeyVoucher({self._keys!r})"

    def sign(self, statement: Timed) -> bytes:
        """A signed record of a statement.

        Raises:
            TrustError, StorageError: of the builder key.
        """
        from trtops.release.envelope import sign_statement

        return sign_statement(statement, PREDICATE, [self._keys.signer("builder")])

    def opened(self, body: bytes, where: str) -> Timed:
        """The statement in a record.

        Raises:
            TrustError: no builder key that is trusted here signed it, or it is another document.
        """
        from pydantic import ValidationError

        from trtops.digest import canonical
        from trtops.errors import TrustError
        from trtops.release.envelope import Statement, verify_payload

        keys, threshold = self._keys.root().members("builder")
        payload, _ = verify_payload(body, keys, threshold, role="builder", where=where)
        try:
            statement = Statement.model_validate_json(payload)
            timed = Timed.model_validate_json(canonical(statement.predicate))
        except ValidationError as error:
            raise TrustError("the record is about no timing cache", where=where) from error
        if statement.predicateType != PREDICATE or statement.subject[0].digest != {"sha256": timed.digest().value}:
            raise TrustError("the record is about no timing cache", where=where)
        return timed
