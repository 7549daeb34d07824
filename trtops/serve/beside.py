"""What an agent does about the candidate of a rollout, decided without I/O: a release beside the stable one.

Rules: a candidate is loaded only beside a stable engine that serves, by a pointer that was verified just now; one that
cannot be loaded costs the stable engine nothing and is tried again with the same pauses; a candidate that becomes the
stable release stays where it is; what is no longer wanted is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops.serve.reconcile import RETRY_FIRST, RETRY_MOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtops.digest import Digest
    from trtops.release.documents import Arm


@dataclass(frozen=True, slots=True)
class Misfortune:
    """A candidate that could not be loaded: which, why, when in monotonic seconds, and how often it was tried."""

    releases: tuple[Digest, Digest]
    reason: str
    at: float
    attempts: int

    @property
    def retry_at(self) -> float:
        """When it may be tried again: the pause doubles up to a bound."""
        return self.at + float(min(RETRY_FIRST * 2 ** min(self.attempts - 1, 16), RETRY_MOST))


@dataclass(frozen=True, slots=True)
class Beside:
    """What an agent knows of one engine's candidate.

    Attributes:
        running: the arm that is loaded, with the shares that it has now; None: none.
        generation: of the pointer that it was loaded by.
        failure: the last that could not be loaded.
        doubt: why trusted keys vouch no more for what runs, in words; None: they do. It serves on, as a stable one.
    """

    running: Arm | None = None
    generation: int = 0
    failure: Misfortune | None = None
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Load a candidate, then give it its shares."""

    arm: Arm


@dataclass(frozen=True, slots=True)
class Adjust:
    """Give the candidate that runs other shares."""

    arm: Arm


@dataclass(frozen=True, slots=True)
class Adopt:
    """The candidate that runs is the stable release now."""

    arm: Arm


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the candidate that runs out."""

    arm: Arm


Step = Begin | Adjust | Adopt | Withdraw


def releases(arm: Arm) -> tuple[Digest, Digest]:
    """What an arm runs."""
    return arm.engine_release, arm.config_release


def _place(arm: Arm) -> tuple[str, Digest, Digest]:
    return (arm.channel, *releases(arm))


def step(state: Beside, arms: Sequence[Arm], *, stable: tuple[Digest, Digest] | None, now: float) -> Step | None:
    """What to do next; None: nothing. Done again until it says None, each step but a failure brings that nearer.

    Args:
        state: of the candidate.
        arms: of the pointer that was verified just now, the stable one first.
        stable: releases that serve as stable now; None: nothing does.
        now: monotonic seconds.
    """
    running = state.running
    wanted = arms[1] if len(arms) > 1 else None
    if running is not None and (wanted is None or _place(wanted) != _place(running)):
        promoted = releases(arms[0]) == releases(running) and stable != releases(running)
        return Adopt(running) if promoted else Withdraw(running)
    if wanted is None or stable is None:
        return None
    if running is None:
        failure = state.failure
        waits = failure is not None and failure.releases == releases(wanted) and now < failure.retry_at
        return None if waits else Begin(wanted)
    return Adjust(wanted) if wanted != running else None
