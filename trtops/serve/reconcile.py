"""What an agent does about an engine, decided without I/O: state and observation in, one action out.

Rules (design §4.8): what runs keeps running, whatever the registry says or does not say; something new is loaded only
by a pointer that was verified just now; the last-known-good is started only when nothing runs and no verified pointer
can be had; an operator's unload holds until an operator loads again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtops.digest import Digest
    from trtops.release.documents import Binding, ReleasedArtifact

RETRY_FIRST = 2.0
RETRY_MOST = 300.0


@dataclass(frozen=True, slots=True)
class Pointed:
    """What a verified pointer says should run.

    Attributes:
        generation: of the pointer.
        binding: its digest.
        engine_release, config_release: what it names. Equal ones run the same: a refreshed pointer moves nothing.
    """

    generation: int
    binding: Digest
    engine_release: Digest
    config_release: Digest

    @classmethod
    def of(cls, binding: Binding) -> Pointed:
        """Take the parts that count."""
        return cls(binding.generation, binding.digest(), binding.engine_release, binding.config_release)

    def runs_same(self, other: Pointed) -> bool:
        """Whether both run the same engine with the same config."""
        return (self.engine_release, self.config_release) == (other.engine_release, other.config_release)


@dataclass(frozen=True, slots=True)
class Failure:
    """The last thing that could not be loaded, since when in monotonic seconds, and how often it was tried."""

    pointed: Pointed
    reason: str
    at: float
    attempts: int

    @property
    def retry_at(self) -> float:
        """When it may be tried again: the pause doubles up to a bound."""
        return self.at + float(min(RETRY_FIRST * 2 ** min(self.attempts - 1, 16), RETRY_MOST))


@dataclass(frozen=True, slots=True)
class State:
    """What an agent knows of one engine.

    Attributes:
        running: what serves now; None: nothing.
        failure: what failed to load last; None once something newer was loaded.
        away_since: monotonic seconds since when no verified pointer can be had; None: the last one was good.
        problem: why, in words.
        restored: whether the last-known-good was tried.
        stopped: an operator unloaded it.
        doubt: why trusted keys vouch no more for what runs, in words; None: they do.
    """

    running: Pointed | None = None
    failure: Failure | None = None
    away_since: float | None = None
    problem: str | None = None
    restored: bool = False
    stopped: bool = False
    doubt: str | None = None

    @property
    def releases(self) -> tuple[Digest, Digest] | None:
        """Engine release and config release that serve now."""
        return (self.running.engine_release, self.running.config_release) if self.running is not None else None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the registry gave: a verified pointer, or why there is none."""

    pointed: Pointed | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load what a pointer names and swap to it."""

    pointed: Pointed


@dataclass(frozen=True, slots=True)
class Confirm:
    """The pointer moved, and what runs is what it names: only write down that it was seen."""

    pointed: Pointed


@dataclass(frozen=True, slots=True)
class Restore:
    """Start the last-known-good from this machine's disk."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Change nothing."""


Action = Load | Confirm | Restore | Keep


def noted(state: State, observed: Observed, now: float) -> State:
    """The state after a look: since when no verified pointer can be had, and why. ``now`` in monotonic seconds."""
    if observed.pointed is not None:
        return replace(state, away_since=None, problem=None)
    away = state.away_since if state.away_since is not None else now
    return replace(state, away_since=away, problem=observed.problem)


def reconcile(state: State, observed: Observed, now: float) -> Action:
    """Decide. Laws: never unloads; never loads without a verified pointer; the same inputs give the same action."""
    if state.stopped:
        return Keep()
    pointed = observed.pointed
    if pointed is None:
        return Restore() if state.running is None and not state.restored else Keep()
    if state.running is not None and state.running.runs_same(pointed):
        return Keep() if state.running == pointed else Confirm(pointed)
    failure = state.failure
    if failure is not None and failure.pointed == pointed and now < failure.retry_at:
        # A machine that starts while its newest release cannot be loaded still has its last-known-good.
        return Restore() if state.running is None and not state.restored else Keep()
    return Load(pointed)


Level = Literal["starting", "ready", "degraded", "stopped"]


def health(state: State, now: float, grace: float) -> tuple[Level, str | None]:
    """How an engine is, and why it is not better.

    Args:
        state: of the engine.
        now: monotonic seconds.
        grace: seconds that a missing pointer is borne in silence while something runs.
    """
    if state.stopped:
        return "stopped", "unloaded by an operator"
    reason = state.failure.reason if state.failure is not None else None
    if state.running is None:
        return "starting", reason or state.problem
    if reason is not None or state.doubt is not None:
        return "degraded", reason or state.doubt
    if state.away_since is not None and now - state.away_since >= grace:
        return "degraded", state.problem
    return "ready", None


def in_order(artifacts: tuple[ReleasedArtifact, ...]) -> tuple[ReleasedArtifact, ...]:
    """Artifacts in the order in which a machine tries to take one: GPUs first, the rest as the release lists it."""
    return tuple(sorted(artifacts, key=lambda artifact: artifact.sidecar.device.kind != "gpu"))
