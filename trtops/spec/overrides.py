"""A spec's batching with the changes of a runtime config."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.spec.engine import Batching, BatchingOverride


def apply_override(batching: Batching, override: BatchingOverride) -> Batching:
    """A spec's batching with a runtime config's changes."""
    changes = {name: value for name in type(override).model_fields if (value := getattr(override, name)) is not None}
    if override.padding == "none":
        changes["padding"] = None
    return batching.model_copy(update=changes)


def contradiction(batching: Batching, override: BatchingOverride) -> tuple[str, str, str] | None:
    """What of a runtime config's changes cannot be kept beside the rest.

    Returns:
        the field that says so, why not, and what to do; None: all of it can be kept.
    """
    changed = apply_override(batching, override)
    touched = override.flush is not None or override.max_queue_delay is not None
    if touched and changed.flush == "adaptive" and not changed.max_queue_delay:
        field = "flush" if override.flush is not None else "max_queue_delay"
        why = "`flush: adaptive` shortens a wait, and a `max_queue_delay` of 0 leaves none"
        return field, why, "set batching.max_queue_delay, such as 2ms, or write flush: fixed"
    return None
