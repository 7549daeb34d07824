"""Timing caches: what kernels took on a device, so that a later build need not time them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtops.backend.trt_log import logger, meaning
from trtops.errors import BuildFailed


def attach(config: Any, path: str | None) -> Any:  # noqa: ANN401 - TensorRT has no types
    """Give a builder's config the timings of a file; a file of another version or device counts as empty.

    Returns:
        the cache, which has to live until the engine is built; None where there is no file.
    """
    if path is None:
        return None
    known = Path(path).read_bytes() if Path(path).exists() else b""
    cache = config.create_timing_cache(known)
    if cache is None or not config.set_timing_cache(cache, False):  # noqa: FBT003 - the binding's own parameter
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)  # noqa: FBT003
    return cache


def detach(config: Any, path: str | None) -> None:  # noqa: ANN401 - TensorRT has no types
    """Write what the config's timing cache holds after a build."""
    cache = config.get_timing_cache() if path is not None else None
    if path is not None and cache is not None:
        Path(path).write_bytes(memoryview(cache.serialize()))


def merge(trt: Any, one: bytes, other: bytes) -> bytes:  # noqa: ANN401 - TensorRT has no types
    """Timings of two caches of the same version and device; where both timed a kernel, those of the first.

    Raises:
        BuildFailed: TensorRT does not merge them, with its reason. 8.5 and 8.6 cannot read back the timings of some
            graphs, their own of the same machine included ("Myelin error from unknown graph").
    """
    log = logger(trt)
    log.errors = []
    config = trt.Builder(log).create_builder_config()
    into, more = config.create_timing_cache(one), config.create_timing_cache(other)
    if into is None or more is None or not into.combine(more, False):  # noqa: FBT003 - the binding's own parameter
        what = f"TensorRT {trt.__version__} does not merge two timing caches: {meaning(log.errors)[0]}"
        raise BuildFailed(what, fix="nothing to do: builds time those kernels again")
    return bytes(memoryview(into.serialize()))
