"""Named ranges for NVIDIA's profilers (NVTX): what a device thread does, as Nsight Systems shows it above its kernels.

Off unless ``TRTOPS_NVTX=1`` is in the environment, which workers inherit: a profiler has to be there to see them.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    Named = Callable[[str], AbstractContextManager[Any]]

log = logging.getLogger(__name__)

SETTING = "TRTOPS_NVTX"


def nothing(name: str) -> AbstractContextManager[None]:
    """No range."""
    del name
    return nullcontext()


def ranges(environ: Mapping[str, str]) -> Named:
    """What opens a range of a name, in a ``with`` block; nothing at all unless it is wanted and nvtx is installed."""
    if environ.get(SETTING, "") not in {"1", "true"}:
        return nothing
    try:
        import nvtx
    except ImportError:
        log.warning("%s is set and the package nvtx is not installed (pip install 'trtops[nvtx]')", SETTING)
        return nothing
    domain: Named = lambda name: nvtx.annotate(name, domain="trtops")  # noqa: E731 - one line says it
    return domain
