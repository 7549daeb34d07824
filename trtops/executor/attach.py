"""The executor behind the transport: what clients in other processes send becomes requests here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from trtops.backend.pinned import PAGE_LOCKED
from trtops.executor.port import Offers, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.executor.port import EngineInfo, Engines, Relief
    from trtops.transport.connection import Answer


_SPARE: Final = 1e-4
"""Seconds of a batch up to which a thread that works for clients runs the next one, too, in place of the lane's thread:
about as long as it takes to wake that one."""


class Attachment:
    """Passes requests of the transport to an executor. Implements ``trtops.transport.connection.Handler``."""

    def __init__(self, engines: Engines) -> None:
        """Pass to this executor."""
        self._engines = engines
        self._starts = engines if isinstance(engines, Offers) else None
        self._submit = engines.offer if isinstance(engines, Offers) else engines.submit
        self._seen: tuple[EngineInfo, ...] | None = None
        self._catalogue = b"[]"

    def submit(
        self,
        engine: str,
        inputs: Mapping[str, NDArray[np.generic]],
        rows: int,
        deadline: float | None,
        priority: int,
        done: Callable[[Answer], None],
        client: str = "",
    ) -> Callable[[], None]:
        """Queue a request; :meth:`start` follows.

        Raises:
            TrtopsError: as :meth:`trtops.executor.port.Engines.submit`.
        """
        return self._submit(engine, Request(inputs, rows, deadline, priority, client=client), done)

    def start(self, *, relief: Relief | None = None) -> None:
        """Start what was queued, see :meth:`trtops.executor.port.Offers.start`."""
        if self._starts is not None:
            self._starts.start(relief=relief, spare=_SPARE if relief is not None else 0.0)

    def mapped(self, memory: NDArray[np.uint8]) -> None:
        """Have a client's segment page-locked, so that a device reads inputs from where they are."""
        PAGE_LOCKED.adopt(memory)

    def catalogue(self) -> bytes:
        """The engines that are served, as JSON."""
        infos = self._engines.engines()
        if infos is not self._seen:
            self._catalogue = msgspec.json.encode([plain_info(info) for info in infos])
            self._seen = infos
        return self._catalogue


def plain_info(info: EngineInfo) -> dict[str, object]:
    """An engine as a catalogue says it, in JSON's types."""
    return {
        "name": info.name,
        "generation": info.generation,
        "version": info.version,
        "digest": info.digest,
        "backend": info.backend,
        "inputs": [tensor.model_dump(mode="json") for tensor in info.inputs],
        "outputs": [tensor.model_dump(mode="json") for tensor in info.outputs],
        "max_batch": info.max_batch,
    }
