"""The executor behind the transport: what clients in other processes send becomes requests here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtops.executor.port import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from trtops.executor.port import EngineInfo, Engines
    from trtops.transport.connection import Answer


class Attachment:
    """Passes requests of the transport to an executor. Implements ``trtops.transport.connection.Handler``."""

    def __init__(self, engines: Engines) -> None:
        """Pass to this executor."""
        self._engines = engines
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
    ) -> Callable[[], None]:
        """Queue a request.

        Raises:
            TrtopsError: as :meth:`trtops.executor.port.Engines.submit`.
        """
        return self._engines.submit(engine, Request(inputs, rows, deadline, priority), done)

    def catalogue(self) -> bytes:
        """The engines that are served, as JSON."""
        infos = self._engines.engines()
        if infos is not self._seen:
            self._catalogue = msgspec.json.encode([_plain(info) for info in infos])
            self._seen = infos
        return self._catalogue


def _plain(info: EngineInfo) -> dict[str, object]:
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
