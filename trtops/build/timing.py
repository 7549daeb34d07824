"""Timing caches in the store, one for each version of a builder and device. Builds that run at once lose nothing.

A build starts from the cache as it is then. When it is done, it takes the lock: if nobody wrote in between, its cache
replaces the old one (it began with all of that); else the two are merged by the library, in a child process, as
everything that calls it. A cache only saves time: what cannot be read or merged is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.digest import digest_of
from trtops.errors import StorageError, TrtopsError

if TYPE_CHECKING:
    from trtops.build.plan import BuildPlan
    from trtops.store import Store

TIMINGS = "timing-cache"
"""Kind of the store's records: version and device -> the builder's timing cache, as the library writes it."""

_BACKENDS = frozenset({"tensorrt", "fake"})
_MERGE_SECONDS = 120.0


def timing_key(plan: BuildPlan) -> str | None:
    """Name of a plan's timing cache; None where its backend times nothing or the spec turns it off."""
    backend, device = plan.target.backend, plan.device
    if backend not in _BACKENDS or device is None or not plan.builder.timing_cache:
        return None
    body = device.model_dump(mode="json", include={"name", "compute_capability", "sm_count", "mig"})
    driver = (device.driver or "").partition(".")[0]
    return f"{backend}-{plan.backend_version}-{digest_of({**body, 'driver_major': driver}).short}"


def fetch_timings(store: Store, key: str, path: Path) -> bytes | None:
    """Write the cache as it is now to a path, for a build to start from. Returns its bytes; None if there is none."""
    try:
        known = store.record(TIMINGS, key)
    except StorageError:
        return None
    if known is not None:
        path.write_bytes(known)
    return known


def keep_timings(store: Store, key: str, path: Path, began: bytes | None) -> str | None:
    """Keep what a build timed, together with what others kept meanwhile.

    Args:
        store: where.
        key: from :func:`timing_key`.
        path: the cache that the build wrote.
        began: what :func:`fetch_timings` gave it.

    Returns:
        None, or why nothing was kept, in words: a build never fails for its timings.
    """
    import filelock

    try:
        made = path.read_bytes()
        lock = filelock.FileLock(store.folder / "locks" / f"timings-{key}", timeout=_MERGE_SECONDS)
        with lock:
            now = store.record(TIMINGS, key)
            if now not in {None, began, made}:
                made = _merged(key.partition("-")[0], now, path)
            if made != now:
                store.keep(TIMINGS, key, made)
    except (OSError, ValueError, filelock.Timeout, TrtopsError, subprocess.SubprocessError) as error:
        return f"the timing cache was not kept: {error}"
    return None


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
