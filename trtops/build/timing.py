"""Timing caches in the store, one for each version of a builder and device. Builds that run at once lose nothing.

A timing cache steers what is built, and native code reads its bytes: so it is an artifact like an engine. The record
names it by its digest and is signed by a builder key; a cache that no trusted key vouches for is left out, and who has
no key keeps none.

A build starts from the cache as it is then. When it is done, it takes the lock: if nobody wrote in between, its cache
replaces the old one (it began with all of that); else the two are merged by the library, in a child process, as
everything that calls it. A cache only saves time: what cannot be read or merged is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtops.digest import Digest, Value, digest_of
from trtops.errors import StorageError, TrtopsError

if TYPE_CHECKING:
    from trtops.build.plan import BuildPlan
    from trtops.store import Store

TIMINGS = "timing-cache"
"""Kind of the store's records: version and device -> who vouches for which timing cache (:class:`Timed`), signed."""

MAX_TIMINGS_BYTES = 1 << 30

_BACKENDS = frozenset({"tensorrt", "fake"})
_MERGE_SECONDS = 120.0


class Timed(Value):
    """What a builder key signs of a timing cache.

    Attributes:
        key: version and device that it is of (:func:`timing_key`).
        cache: digest of its bytes, which are an artifact of the store.
        size_bytes: their number.
    """

    key: str
    cache: Digest
    size_bytes: int


class Voucher(Protocol):
    """Signs timing caches, and tells which ones are signed by a trusted builder."""

    def sign(self, statement: Timed) -> bytes:
        """A signed record of a statement."""

    def opened(self, body: bytes, where: str) -> Timed:
        """The statement in a record.

        Raises:
            TrustError: no trusted key signed it.
        """


@dataclass(frozen=True, slots=True)
class Timings:
    """The timing cache of a version and device in a store.

    Attributes:
        store: where.
        key: from :func:`timing_key`.
        voucher: signs and verifies.
    """

    store: Store
    key: str
    voucher: Voucher

    def fetch(self, path: Path) -> Digest | None:
        """Write the cache as it is now to a path, for a build to start from.

        Returns:
            its digest; None if there is none.

        Raises:
            TrustError, StorageError, IntegrityError, FetchFailed: what is there cannot be used; says why.
        """
        now = self._now()
        if now is not None:
            path.write_bytes(self.store.read(now.cache, MAX_TIMINGS_BYTES))
        return None if now is None else now.cache

    def keep(self, path: Path, began: Digest | None) -> str | None:
        """Keep what a build timed, together with what others kept meanwhile.

        Args:
            path: the cache that the build wrote.
            began: what :meth:`fetch` gave it.

        Returns:
            None, or why nothing was kept, in words: a build never fails for its timings.
        """
        import filelock

        try:
            made = path.read_bytes()
            with filelock.FileLock(self.store.folder / "locks" / f"timings-{self.key}", timeout=_MERGE_SECONDS):
                self._replace(made, path, began)
        except (OSError, ValueError, filelock.Timeout, TrtopsError, subprocess.SubprocessError) as error:
            return f"the timing cache was not kept: {error}"
        return None

    def _replace(self, made: bytes, path: Path, began: Digest | None) -> None:
        now = self._trusted()
        if now is not None and now.cache not in {began, Digest.of_bytes(made)}:
            made = _merged(self.key.partition("-")[0], self.store.read(now.cache, MAX_TIMINGS_BYTES), path)
        digest = self.store.put_bytes(made)
        if now is not None and now.cache == digest:
            return
        statement = Timed(key=self.key, cache=digest, size_bytes=len(made))
        self.store.keep(TIMINGS, self.key, self.voucher.sign(statement))
        if now is not None:  # a build that starts at this moment from the old one finds it gone, and times anew
            self.store.remove(now.cache)

    def _now(self) -> Timed | None:
        body = self.store.record(TIMINGS, self.key)
        if body is None:
            return None
        where = f"record {TIMINGS} {self.key}"
        statement = self.voucher.opened(body, where)
        if statement.key != self.key:
            raise StorageError(f"the record is of another device or version: {statement.key}", where=where)
        return statement

    def _trusted(self) -> Timed | None:
        """What is there now, if it holds: a forged record, or one whose bytes are gone, is replaced."""
        try:
            now = self._now()
            return now if now is not None and self.store.has(now.cache) else None
        except TrtopsError:
            return None


def timing_key(plan: BuildPlan) -> str | None:
    """Name of a plan's timing cache; None where its backend times nothing or the spec turns it off."""
    backend, device = plan.target.backend, plan.device
    if backend not in _BACKENDS or device is None or not plan.builder.timing_cache:
        return None
    body = device.model_dump(mode="json", include={"name", "compute_capability", "sm_count", "mig"})
    driver = (device.driver or "").partition(".")[0]
    return f"{backend}-{plan.backend_version}-{digest_of({**body, 'driver_major': driver}).short}"


def _merged(backend: str, now: bytes, path: Path) -> bytes:
    """Merge in a child: the library that does it is the one that builds."""
    import trtops

    other, out = path.with_suffix(".now"), path.with_suffix(".merged")
    other.write_bytes(now)
    package = str(Path(trtops.__file__).parent.parent)
    search = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "trtops.build.timing", backend, str(path), str(other), str(out)]
    subprocess.run(
        command,
        check=True,
        timeout=_MERGE_SECONDS,
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": search},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return out.read_bytes()


def main(arguments: list[str]) -> int:
    """``python -m trtops.build.timing BACKEND ONE OTHER OUT``: merge two caches."""
    from trtops.backend.port import TimesKernels
    from trtops.backend.select import backend

    adapter = backend(arguments[0])
    if not isinstance(adapter, TimesKernels):
        return 2
    one, other, out = map(Path, arguments[1:])
    out.write_bytes(adapter.merge_timings(one.read_bytes(), other.read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
