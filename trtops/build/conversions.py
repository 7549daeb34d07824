"""Models that were brought into a precision, kept in the store: measuring ranges and quantizing is done once.

The targets of a spec, a rebuild with another option of the builder, and ``trtops precision`` all need the same file,
which takes seconds to make. It decides what an engine computes, and native code parses it: so it is an artifact like an
engine, named by a record that a builder key signed. What no trusted key vouches for is left out and replaced, and who
has no key keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.build.plan import counted_precision
from trtops.build.voucher import Vouched, VouchedRecord
from trtops.digest import Digest, digest_of
from trtops.errors import TrtopsError

if TYPE_CHECKING:
    from pathlib import Path

    from trtops.build.plan import BuildPlan
    from trtops.build.voucher import Voucher
    from trtops.store import Store

CONVERSIONS = "conversion"
"""Kind of the store's records: key of a conversion -> who vouches for which file (:class:`Conversion`), signed."""

MAX_CONVERTED_BYTES = 2 << 30


class Conversion(Vouched):
    """What a builder key signs of a converted model.

    Attributes:
        key: of what it was made from (:func:`conversion_key`).
        model: digest of its bytes, which are an artifact of the store.
        steps: what was done, in words.
    """

    model: Digest
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversions:
    """The converted model of a plan in a store.

    Attributes:
        store: where.
        key: from :func:`conversion_key`.
        voucher: signs and verifies.
    """

    store: Store
    key: str
    voucher: Voucher

    def fetch(self, path: Path) -> tuple[str, ...] | None:
        """Write the converted model to a path.

        Returns:
            the steps that made it; None if there is none, and nothing is written.

        Raises:
            TrustError, StorageError, IntegrityError, FetchFailed: what is there cannot be used; says why.
        """
        statement = self._record.read()
        if statement is None:
            return None
        path.write_bytes(self.store.read(statement.model, MAX_CONVERTED_BYTES))
        return statement.steps

    def keep(self, path: Path, steps: tuple[str, ...]) -> str | None:
        """Keep a converted model.

        Returns:
            None, or what was lost, in words: a build never fails for it.
        """
        try:
            self._record.write(Conversion(key=self.key, model=self.store.put_file(path), steps=steps))
        except (OSError, TrtopsError) as error:
            return f"the converted model was not kept: {error}"
        return None

    @property
    def _record(self) -> VouchedRecord[Conversion]:
        return VouchedRecord(self.store, CONVERSIONS, self.key, self.voucher, Conversion)


def conversion_key(plan: BuildPlan) -> str | None:
    """Name of what a plan's precision makes of its model; None where it makes nothing, or the backend only plays."""
    if plan.precision.mode in {"fp32", "tf32"} or plan.target.backend == "fake":
        return None
    body = plan.model_dump(mode="json", include={"model", "calibration", "profiles", "converters", "repairs"})
    # No backend: what the file becomes is the same for all of them.
    body["precision"] = counted_precision(plan.precision, "")
    return str(digest_of(body))
