"""A request in the planner: a struct of msgspec, which is made once a request and costs a third of an object so.

In a module of its own, since such structs cannot be compiled (docs/adr/0022).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from trtops.executor.state import Bucket  # noqa: TC004 - nobody asks a ticket for the types of its fields

NEW: Final = 0
QUEUED: Final = 1
RUNNING: Final = 2
DONE: Final = 3
_PHASES: Final = ("new", "queued", "running", "done")


class Ticket(msgspec.Struct, eq=False):
    """A request in the planner.

    Attributes:
        rows: rows that it takes of a batch.
        priority: its level, 0 the most urgent.
        deadline: monotonic seconds by which it has to be answered; None: the policy's timeout counts.
        payload: whatever the executor wants to find again.
        client: whose it is; clients are served in turn.
        phase: new, queued, running or done. Done means that its one answer is decided.
        late: it waited too long and was put behind all others.
        enqueued: when it came. ``bucket``: where it waits or waited. Both are there from its offer on.
        offset: its first row in the batch that it runs in; there from its launch on.
    """

    rows: int = 1
    priority: int = 0
    deadline: float | None = None
    payload: Any = None
    client: Hashable = ""
    phase: int = NEW
    late: bool = False
    bucket: Bucket = None  # type: ignore[assignment]  # there from its offer on
    enqueued: float = 0.0
    offset: int = 0

    def __repr__(self) -> str:
        """Show where it is."""
        due = "" if self.deadline is None else f", due {self.deadline:.6f}"
        since = f", at {self.enqueued:.6f}" if self.phase != NEW else ""
        return f"Ticket({_PHASES[self.phase]}, {self.rows} rows, priority {self.priority}{since}{due})"
