"""What the executor tells of itself, once a batch: where metrics are hung up. It imports no metrics library."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from trtops.executor.state import Reason  # noqa: TC001 - reports travel between processes, by their annotations


class BatchReport(NamedTuple):
    """One batch that ran.

    Attributes:
        engine, generation: what ran it.
        requests, rows: in it.
        reason: why it was released.
        ok: whether the engine ran it without an error.
        queue_s: seconds that each request waited, in the order of the batch.
        gather_s: seconds of putting the inputs together.
        compute_s: seconds of the engine's run.
        depth: requests of this engine that waited when the batch ended.
        copy_out_s: seconds of making the outputs independent of the session.
    """

    engine: str
    generation: int
    requests: int
    rows: int
    reason: Reason
    ok: bool
    queue_s: tuple[float, ...]
    gather_s: float
    compute_s: float
    depth: int
    copy_out_s: float = 0.0


class Observer(Protocol):
    """Gets reports. Its methods are called from the executor's threads and must neither block nor raise."""

    def batch(self, report: BatchReport) -> None:
        """A batch ran."""

    def refused(self, engine: str, reason: str, requests: int) -> None:
        """Requests got an error instead of a result.

        ``reason`` is ``queue-full``, ``timeout``, ``deadline``, ``cancelled``, ``failed`` or ``closed``.
        """

    def loaded(self, engine: str, generation: int, seconds: float) -> None:
        """A generation serves now; opening and warming it up took this long."""

    def failed(self, engine: str, generation: int, why: str) -> None:
        """A session of this engine died."""

    def freed(self, engine: str, generation: int) -> None:
        """A generation drained and its sessions are closed."""


class Silent:
    """An observer that tells nobody."""

    def batch(self, report: BatchReport) -> None:
        """Do nothing."""

    def refused(self, engine: str, reason: str, requests: int) -> None:
        """Do nothing."""

    def loaded(self, engine: str, generation: int, seconds: float) -> None:
        """Do nothing."""

    def failed(self, engine: str, generation: int, why: str) -> None:
        """Do nothing."""

    def freed(self, engine: str, generation: int) -> None:
        """Do nothing."""
