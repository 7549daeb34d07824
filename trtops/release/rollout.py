"""A progressive release as a state machine: what a channel binds in, what it binds next out. No clock, no I/O.

States are the bindings themselves (:class:`~trtops.release.documents.Bound`), so the chain of signed bindings is the
ledger of every move. ::

    release ──► step 0 ──► step 1 ──► … ──► promoted      advance: once what the present step asks for is there
                  │ ▲
           pause  ▼ │ resume
                 paused ─────────────────► aborted       abort, or an analysis that fails

Laws (``tests/property/test_release_rollout_laws.py``): steps are visited one by one, so a repeated call skips none; no
move leads out of ``promoted`` or ``aborted``; the candidate's weight never goes down before the end, is all of the
traffic after a promotion and nothing after an abort; nothing moves while it is paused; what was aborted is bound again
by no verb until it is readmitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtops.errors import Denied, InputError
from trtops.release.documents import MAX_REJECTED, STABLE, Bound, Rollout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtops.digest import Digest
    from trtops.release.documents import Binding, EngineRelease
    from trtops.spec.engine import RolloutPlan, RolloutStep

_ALL = 100
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Pair:
    """What one arm of a binding runs: digests of an engine release and of a config release."""

    engine_release: Digest
    config_release: Digest


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an analysis found.

    Attributes:
        generation: of the binding that it was made for; it decides nothing about any other.
        passed: None if it cannot be decided.
        reasons: every bound with what was measured, in words.
    """

    generation: int
    passed: bool | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The channel is to bind this now, for this reason."""

    bound: Bound
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """Nothing moves.

    Attributes:
        why: in words.
        kind: ``promoted``, ``aborted``: it has ended so; ``waiting``: for time or a person; ``said``: it is so already;
            ``undecided``: an analysis could not decide.
    """

    why: str
    kind: Literal["promoted", "aborted", "waiting", "said", "undecided"]


def stable_of(bound: Bound | Binding) -> Pair:
    """What the stable arm runs."""
    return Pair(bound.engine_release, bound.config_release)


def candidate_of(bound: Bound | Binding) -> Pair | None:
    """What the candidate of an open rollout is; None if none is open."""
    rollout = bound.rollout
    return Pair(rollout.engine_release, rollout.config_release) if rollout is not None and rollout.open else None


def released(present: Bound | None, wanted: Pair, plan: RolloutPlan | None, now: int) -> Bound | None:
    """What a channel binds once something is released to it; None if it says so already.

    The first release of a channel, and every one without a plan, takes all traffic at once.

    Args:
        present: what it binds now; None: nothing yet.
        wanted: what is released.
        plan: how; None: at once.
        now: epoch seconds.

    Raises:
        InputError: a rollout of something else is open.
    """
    if present is None:
        return Bound(engine_release=wanted.engine_release, config_release=wanted.config_release)
    if present.rollout is not None and present.rollout.open:
        if wanted == candidate_of(present):
            return None
        what = f"a rollout of {present.rollout.engine_release.short} is at {at(present.rollout)}"
        raise InputError(what, fix="let it finish (trtops rollout advance) or end it (trtops rollout abort) first")
    if wanted == stable_of(present):
        return None
    if plan is None:
        return Bound(
            engine_release=wanted.engine_release, config_release=wanted.config_release, rejected=present.rejected
        )
    rollout = Rollout(
        engine_release=wanted.engine_release, config_release=wanted.config_release, step=0, since=now, plan=plan
    )
    weights = {STABLE: _ALL, plan.channel: 0}
    return _entered(present.model_copy(update={"rollout": rollout, "weights": weights}), 0, now)


def advance(present: Binding, judgement: Judgement | None, now: int, marks: Sequence[Digest] = ()) -> Moved | Held:
    """Take the next step, if what the present one asks for is there: one step at most. Abort, if its analysis fails.

    Args:
        present: what the channel binds now.
        judgement: of the metrics, for a step that is an analysis.
        now: epoch seconds.
        marks: as for :func:`abort`.

    Raises:
        InputError: the channel has no rollout.
    """
    rollout = _rollout(present)
    if not rollout.open:
        return Held(f"it has ended: {rollout.phase}", "aborted" if rollout.phase == "aborted" else "promoted")
    if rollout.phase == "paused":
        return Held(f"it is paused at {at(rollout)}: trtops rollout resume", "waiting")
    step = rollout.plan.steps[rollout.step]
    if isinstance(step.pause, int) and now < (until := rollout.since + -(-step.pause // _MICROSECONDS)):
        return Held(f"{at(rollout)} has {until - now} s to go", "waiting")
    if step.analysis is not None:
        if judgement is None or judgement.generation != present.generation:
            return Held(f"{at(rollout)} needs metrics: give --metrics URL or FILE", "undecided")
        if judgement.passed is None:
            return Held(f"{at(rollout)} cannot be decided: {'; '.join(judgement.reasons)}", "undecided")
        if not judgement.passed:
            return abort(present, marks, "; ".join(judgement.reasons))
    reasons = f" ({'; '.join(judgement.reasons)})" if judgement is not None and step.analysis is not None else ""
    if rollout.step + 1 == len(rollout.plan.steps):
        return Moved(_ended(present.bound, "promoted"), f"rollout: promoted after {at(rollout)}{reasons}")
    bound = _entered(present.bound, rollout.step + 1, now)
    assert bound.rollout is not None  # noqa: S101 - it was entered
    return Moved(bound, f"rollout: {at(bound.rollout)}{f' after {words(step)}{reasons}' if reasons else ''}")


def pause(present: Binding, why: str = "") -> Moved | Held:
    """Hold an open rollout where it is, until it is resumed.

    Raises:
        InputError: no rollout is open.
    """
    rollout = _open(present)
    if rollout.phase == "paused":
        return Held(f"it is paused already, at {at(rollout)}", "said")
    return Moved(_with(present.bound, rollout, phase="paused"), because(f"rollout: paused at {at(rollout)}", why))


@dataclass(frozen=True, slots=True)
class Pausing:
    """Why a rollout is paused.

    Attributes:
        binding: the move that paused it: who, when and why.
        planned: whether its plan asks for a person at this step; False: somebody paused it.
    """

    binding: Binding
    planned: bool


def paused_by(chain: Iterable[Binding]) -> Pausing | None:
    """The move that paused a rollout; None if it is not paused.

    Args:
        chain: bindings of a channel, newest first. Moves that only refresh the pointer are looked through. No further
            is read than that takes.
    """
    found, before = None, None
    for binding in chain:
        if binding.rollout is None or binding.rollout.phase != "paused":
            before = binding.rollout
            break
        found = binding
    if found is None or found.rollout is None:
        return None
    stood = before is not None and before.open and before.step == found.rollout.step
    return Pausing(found, planned=not stood)


def resume(present: Binding, why: str = "") -> Moved | Held:
    """Let a paused rollout go on. It moves no step: the next :func:`advance` does.

    Raises:
        InputError: no rollout is open.
    """
    rollout = _open(present)
    if rollout.phase == "progressing":
        return Held(f"it is not paused: it is at {at(rollout)}", "said")
    return Moved(_with(present.bound, rollout, phase="progressing"), because(f"rollout: resumed at {at(rollout)}", why))


def abort(present: Binding, marks: Sequence[Digest] = (), why: str = "") -> Moved | Held:
    """End a rollout: all traffic to the stable release, the candidate in quarantine.

    Args:
        present: what the channel binds now.
        marks: of the candidate (:meth:`EngineRelease.marks`), less those of the stable release.
        why: in words, for the ledger.

    Raises:
        InputError: no rollout is open, and none was aborted.
    """
    rollout = _rollout(present)
    if rollout.phase == "aborted":
        return Held(f"it was aborted already, at {at(rollout)}", "said")
    rollout = _open(present)
    candidate = Pair(rollout.engine_release, rollout.config_release)
    rejected = quarantined(present.bound, candidate, stable_of(present), marks)
    bound = _ended(present.bound, "aborted").model_copy(update={"rejected": rejected})
    return Moved(bound, because(f"rollout: aborted at {at(rollout)}", why))


def readmit(present: Binding, digests: Iterable[Digest], why: str = "") -> Moved | Held:
    """Take digests out of quarantine."""
    lifted = [digest for digest in digests if digest in present.rejected]
    if not lifted:
        return Held("nothing of it is in quarantine", "said")
    rejected = tuple(digest for digest in present.rejected if digest not in lifted)
    bound = present.bound.model_copy(update={"rejected": rejected})
    return Moved(bound, because(f"readmitted {', '.join(digest.short for digest in lifted)}", why))


def brought_back(present: Bound, wanted: Pair, marks: Sequence[Digest] = (), *, reject: bool = False) -> Bound:
    """What a channel binds after a rollback: one release with all traffic. A rollout that is open is aborted by it.

    Args:
        present: what the channel binds now.
        wanted: what ran before.
        marks: of what is rejected, less those of ``wanted``.
        reject: put what runs now in quarantine.
    """
    bad = candidate_of(present) or (stable_of(present) if reject else None)
    rejected = present.rejected if bad in (None, wanted) else quarantined(present, bad, wanted, marks)
    return Bound(engine_release=wanted.engine_release, config_release=wanted.config_release, rejected=rejected)


def quarantined(present: Bound, bad: Pair, good: Pair, marks: Sequence[Digest]) -> tuple[Digest, ...]:
    """The quarantine with what is bad about a pair: its engine release, or its config if both have one engine.

    The newest :data:`~trtops.release.documents.MAX_REJECTED` digests are kept.
    """
    engine = bad.engine_release != good.engine_release
    new = (bad.engine_release, *marks) if engine else (bad.config_release,)
    return (*(digest for digest in present.rejected if digest not in new), *dict.fromkeys(new))[-MAX_REJECTED:]


def check_admitted(rejected: Iterable[Digest], release: EngineRelease, pair: Pair) -> None:
    """Refuse what was aborted before: by its digest, its config's, or one of its marks.

    Args:
        rejected: the channel's quarantine.
        release: the engine release that is about to be bound.
        pair: its digest and that of the config release beside it.

    Raises:
        Denied: it is in quarantine.
    """
    known, name = set(rejected), release.engine
    found = [f"{kind} {digest.short}" for kind, digest in _named(pair) if digest in known]
    found += [f"the engine {one.sidecar.artifact.short} ({one.target})" for one in release.artifacts
              if one.sidecar.artifact in known]  # fmt: skip
    if release.content() in known:
        found.append("this very release, measured at another time,")
    if not found:
        return
    marks = (pair.engine_release, pair.config_release, *sorted(release.marks()))
    digest = next(one for one in marks if one in known)
    fix = f"release something else, or take it out of quarantine: trtops rollout readmit {name} {digest}"
    raise Denied(f"{found[0]} of {name} was aborted before", fix=fix)


def _named(pair: Pair) -> tuple[tuple[str, Digest], ...]:
    return ("release", pair.engine_release), ("config", pair.config_release)


def words(step: RolloutStep) -> str:
    """A step for people: ``weight 5 %``, ``pause of 600 s``, ``manual pause``, ``analysis``."""
    if step.weight is not None:
        return f"weight {step.weight} %"
    if step.shadow is not None:
        return f"shadow {step.shadow} %"
    if step.pause is not None:
        return "manual pause" if step.pause == "manual" else f"pause of {step.pause / _MICROSECONDS:g} s"
    return "analysis"


def _entered(bound: Bound, number: int, now: int) -> Bound:
    """Into a step: what it says takes effect."""
    rollout = bound.rollout
    assert rollout is not None  # noqa: S101 - callers have one
    step = rollout.plan.steps[number]
    changes: dict[str, object] = {"step": number, "since": now}
    if step.shadow is not None:
        changes["shadow"] = step.shadow
    if step.pause == "manual":
        changes["phase"] = "paused"
    entered = _with(bound, rollout, **changes)
    if step.weight is None:
        return entered
    return entered.model_copy(update={"weights": {STABLE: _ALL - step.weight, rollout.plan.channel: step.weight}})


def _ended(bound: Bound, phase: Literal["promoted", "aborted"]) -> Bound:
    rollout = bound.rollout
    assert rollout is not None  # noqa: S101 - callers have one
    ended = _with(bound, rollout, phase=phase, shadow=0).model_copy(update={"weights": {STABLE: _ALL}})
    if phase == "aborted":
        return ended
    return ended.model_copy(update={"engine_release": rollout.engine_release, "config_release": rollout.config_release})


def _with(bound: Bound, rollout: Rollout, **changes: object) -> Bound:
    return bound.model_copy(update={"rollout": rollout.model_copy(update=changes)})


def _rollout(present: Binding) -> Rollout:
    if present.rollout is None:
        what = f"no rollout was begun in {present.where} since its last release"
        fix = "write `rollout:` in runtime.yaml, then trtops release"
        raise InputError(what, fix=fix)
    return present.rollout


def _open(present: Binding) -> Rollout:
    rollout = _rollout(present)
    if not rollout.open:
        fix = "go back with trtops rollback" if rollout.phase == "promoted" else "release again with trtops release"
        raise InputError(f"the rollout in {present.where} has ended: {rollout.phase}", fix=fix)
    return rollout


def at(rollout: Rollout) -> str:
    """Where a rollout is: ``step 2 of 5 (weight 5 %)``."""
    step = rollout.plan.steps[rollout.step]
    return f"step {rollout.step + 1} of {len(rollout.plan.steps)} ({words(step)})"


def because(what: str, why: str) -> str:
    """A reason for the ledger, with what a person said of it."""
    return f"{what}: {why}" if why else what
