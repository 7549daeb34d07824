"""An executor in another process, with the calls of one in this: front ends need not know which they have."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from trtops.errors import TrtopsError
from trtops.executor.port import EngineInfo, Outcome
from trtops.tensor import TensorInfo
from trtops.transport.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from trtops.executor.port import Request
    from trtops.transport.call import Reply

log = logging.getLogger(__name__)


def infos_of(catalogue: Iterable[Mapping[str, Any]]) -> tuple[EngineInfo, ...]:
    """The engines of a catalogue, as :class:`trtops.executor.attach.Attachment` writes it."""
    return tuple(
        EngineInfo(
            name=plain["name"],
            generation=plain["generation"],
            version=plain["version"],
            digest=plain["digest"],
            backend=plain["backend"],
            inputs=tuple(TensorInfo.model_validate(tensor) for tensor in plain["inputs"]),
            outputs=tuple(TensorInfo.model_validate(tensor) for tensor in plain["outputs"]),
            max_batch=plain["max_batch"],
        )
        for plain in catalogue
    )


class RemoteEngines:
    """Submits to an executor over shared memory.

    It has the calls of :class:`trtops.executor.port.Engines` but those that load and unload, which belong to the
    executor's own process. A thread of its own polls for answers and calls back.
    """

    def __init__(
        self, path: Path | str, *, slots: int = 64, input_bytes: int = 1 << 20, output_bytes: int = 1 << 16
    ) -> None:
        """Connect.

        Args:
            path: of the executor's socket.
            slots: requests that may be in flight.
            input_bytes: bytes of all inputs of a request at most.
            output_bytes: bytes of all outputs at most.

        Raises:
            Unavailable: no executor listens there, or it refuses this user.
            InputError: it does not grant these slots.
        """
        self._client = Client(path, slots=slots, input_bytes=input_bytes, output_bytes=output_bytes)
        self._thread = threading.Thread(target=self._loop, name="trtops-answers", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Show the connection."""
        return f"RemoteEngines({self._client!r})"

    def submit(self, engine: str, request: Request, done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Queue a request; ``done`` comes from this object's thread. The inputs may change as soon as this returns.

        Raises:
            InputError: the inputs do not fit in a slot. What an engine refuses comes as the outcome's error.
            Overloaded: all slots are in use.
            Unavailable: the connection is gone.
        """
        call = self._client.submit(
            engine,
            request.inputs,
            request.rows,
            deadline=request.deadline,
            priority=request.priority,
            done=partial(_deliver, done),
        )
        return partial(self._client.cancel, call)

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is serving now.

        Raises:
            Unavailable: the connection is gone.
        """
        return infos_of(self._client.catalogue())

    def close(self) -> None:
        """Hang up; requests in flight get an error."""
        self._client.close()
        self._thread.join()

    def _loop(self) -> None:
        try:
            while True:
                self._client.poll()
        except TrtopsError as error:
            log.debug("no more answers: %s", error)


def _deliver(done: Callable[[Outcome], None], reply: Reply) -> None:
    try:
        done(Outcome(reply.outputs, reply.error, reply.generation, reply.batch, reply.queue_us, reply.compute_us))
    except Exception:
        log.exception("the callback of a request raised")
