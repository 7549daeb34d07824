"""Timing caches in the store, one for each version of a builder and device. Builds that run at once lose nothing.

A timing cache steers what is built, and native code reads its bytes: so it is an artifact like an engine. The record
names it by its digest and is signed by a builder key; a cache that no trusted key vouches for is left out, and who has
no key keeps none.

A build starts from the cache as it is then. When it is done, it takes the lock: if nobody wrote in between, its cache
replaces the old one (it began with all of that); else the two are merged by the library, in a child process, as
everything that calls it. A cache only saves time: what cannot be read is left out, and where two cannot be merged (8.6
cannot read back the timings of some graphs), the newer one stays, which at least its own build can use again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.build.voucher import Vouched, VouchedRecord
from trtops.digest import Digest, digest_of
from trtops.errors import BuildFailed, TrtopsError

if TYPE_CHECKING:
    from trtops.build.plan import BuildPlan
    from trtops.build.voucher import Voucher
    from trtops.store import Store

TIMINGS = "timing-cache"
"""Kind of the store's records: version and device -> who vouches for which timing cache (:class:`Timed`), signed."""

MAX_TIMINGS_BYTES = 1 << 30

_BACKENDS = frozenset({"tensorrt", "fake"})
_MERGE_SECONDS = 120.0


class Timed(Vouched):
    """What a builder key signs of a timing cache.

    Attributes:
        key: version and device that it is of (:func:`timing_key`).
        cache: digest of its bytes, which are an artifact of the store.
        size_bytes: their number.
    """

    cache: Digest
    size_bytes: int


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
        now = self._record.read()
        if now is not None:
            path.write_bytes(self.store.read(now.cache, MAX_TIMINGS_BYTES))
        return None if now is None else now.cache

    def keep(self, path: Path, began: Digest | None) -> str | None:
        """Keep what a build timed, together with what others kept meanwhile.

        Args:
            path: the cache that the build wrote.
            began: what :meth:`fetch` gave it.

        Returns:
            None, or what was lost, in words: a build never fails for its timings.
        """
        import filelock

        try:
            made = path.read_bytes()
            with filelock.FileLock(self.store.folder / "locks" / f"timings-{self.key}", timeout=_MERGE_SECONDS):
                return self._replace(made, path, began)
        except (OSError, ValueError, filelock.Timeout, TrtopsError) as error:
            return f"the timing cache was not kept: {error}"

    def _replace(self, made: bytes, path: Path, began: Digest | None) -> str | None:
        """Put a build's cache in the place of what is there; returns what was lost, in words."""
        now, lost = self._trusted(), None
        if now is not None and now.cache not in {began, Digest.of_bytes(made)}:
            try:
                made = _merged(self.key.partition("-")[0], self.store.read(now.cache, MAX_TIMINGS_BYTES), path)
            except BuildFailed as error:
                lost = f"timings of another build are replaced, not merged: {error.what}"
        self._publish(made, now)
        return lost

    def _publish(self, made: bytes, now: Timed | None) -> None:
        digest = self.store.put_bytes(made)
        if now is not None and now.cache == digest:
            return
        self._record.write(Timed(key=self.key, cache=digest, size_bytes=len(made)))
        if now is not None:  # a build that starts at this moment from the old one finds it gone, and times anew
            self.store.remove(now.cache)

    @property
    def _record(self) -> VouchedRecord[Timed]:
        return VouchedRecord(self.store, TIMINGS, self.key, self.voucher, Timed)

    def _trusted(self) -> Timed | None:
        """What is there now, if it holds: a forged record, or one whose bytes are gone, is replaced."""
        try:
            now = self._record.read()
            return now if now is not None and self.store.has(now.cache) else None
        except TrtopsError:
            return None


def timing_key(plan: BuildPlan) -> str | None:
    """Name of a plan's timing cache; None where its backend times nothing or the spec turns it off.

    At optimization level 0 TensorRT takes the first kernel that works and reads no timing cache.
    """
    backend, device = plan.target.backend, plan.device
    if backend not in _BACKENDS or device is None or not plan.builder.timing_cache:
        return None
    if not plan.builder.optimization_level:
        return None
    body = device.model_dump(mode="json", include={"name", "compute_capability", "sm_count", "mig"})
    driver = (device.driver or "").partition(".")[0]
    return f"{backend}-{plan.backend_version}-{digest_of({**body, 'driver_major': driver}).short}"


def _merged(backend: str, now: bytes, path: Path) -> bytes:
    """Merge in a child: the library that does it is the one that builds.

    Raises:
        BuildFailed: it did not; says why.
    """
    import trtops

    other, out = path.with_suffix(".now"), path.with_suffix(".merged")
    other.write_bytes(now)
    package = str(Path(trtops.__file__).parent.parent)
    search = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "trtops.build.timing", backend, str(path), str(other), str(out)]
    try:
        done = subprocess.run(
            command,
            check=False,
            timeout=_MERGE_SECONDS,
            cwd=path.parent,
            env={**os.environ, "PYTHONPATH": search},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"merging them took more than {_MERGE_SECONDS:g} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BuildFailed(said[-1] if said else f"the merge ended with status {done.returncode}")
    return out.read_bytes()


def main(arguments: list[str]) -> int:
    """``python -m trtops.build.timing BACKEND ONE OTHER OUT``: merge two caches."""
    from trtops.backend.port import TimesKernels
    from trtops.backend.select import backend

    adapter = backend(arguments[0])
    one, other, out = map(Path, arguments[1:])
    try:
        if not isinstance(adapter, TimesKernels):
            raise BuildFailed(f"{adapter.name} times no kernels")
        out.write_bytes(adapter.merge_timings(one.read_bytes(), other.read_bytes()))
    except TrtopsError as error:
        sys.stderr.write(f"{error.what}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
