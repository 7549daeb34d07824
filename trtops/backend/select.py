"""Backends by name, for the composition roots. Imports an adapter, and so its library, only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from trtops.errors import InputError
from trtops.spec.engine import BackendName

if TYPE_CHECKING:
    from trtops.backend.port import Backend


def known() -> tuple[str, ...]:
    """Names of all backends, installed or not."""
    return get_args(BackendName)


def backend(name: str, *, threads: int | None = None) -> Backend:
    """Make a backend.

    Args:
        name: one of :func:`known`.
        threads: threads that work on one execution, where the backend runs on CPUs; None: all CPUs.

    Raises:
        InputError: there is no such backend.
    """
    if name == "onnxruntime":
        from trtops.backend.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(threads=threads)
    if name == "tensorrt":
        from trtops.backend.tensorrt import TensorRtBackend

        return TensorRtBackend()
    if name == "tensorrt_rtx":
        from trtops.backend.tensorrt_rtx import TensorRtRtxBackend

        return TensorRtRtxBackend()
    if name == "fake":
        from trtops.backend.fake import FakeBackend

        return FakeBackend()
    raise InputError(f"there is no backend {name!r}", fix=f"take one of {', '.join(known())}")
