"""Laws of a rollout, whoever calls what, in whatever order, and however often."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.releases import CHANNEL, NOW, digest, ring
from tests.support.releases import bundle as made
from trtops.errors import Denied, InputError
from trtops.release.assemble import next_binding, rollback_binding, rollback_targets
from trtops.release.documents import Binding
from trtops.release.rollout import (
    Held,
    Judgement,
    Moved,
    Pair,
    abort,
    advance,
    candidate_of,
    check_admitted,
    pause,
    readmit,
    released,
    resume,
    stable_of,
)
from trtops.spec.engine import Analysis, RolloutPlan, RolloutStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtops.digest import Digest
    from trtops.release.documents import Bound, EngineRelease

SECOND = 1_000_000
RELEASES: tuple[EngineRelease, ...] = tuple(made(ring(), artifact=f"engine {n}").engine_release for n in range(4))
BY_DIGEST = {release.digest(): release for release in RELEASES}
PAIRS = tuple(Pair(release, digest(f"config {n}")) for release in BY_DIGEST for n in range(2))

steps = st.one_of(
    st.integers(0, 100).map(lambda share: {"shadow": share}),
    st.just({"pause": "manual"}),
    st.integers(0, 20).map(lambda seconds: {"pause": f"{seconds}s"}),
    st.just({"analysis": {"error_rate": 0.01}}),
)


@st.composite
def plans(draw: st.DrawFn) -> RolloutPlan:
    """Any plan: weights that rise, with anything before, between and behind them."""
    written: list[dict[str, Any]] = draw(st.lists(steps, max_size=4))
    for weight in sorted(draw(st.lists(st.integers(1, 100), max_size=4))):
        written += [{"weight": weight}, *draw(st.lists(steps, max_size=2))]
    return RolloutPlan.model_validate({"steps": written or [{"weight": 1}]})


VERBS = [*["advance"] * 5, *["release", "resume", "wait"] * 2, "pause", "abort", "readmit", "rollback"]


class Rollouts(RuleBasedStateMachine):
    """A channel with every verb that moves it. Each call may come twice, as after a lost answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.chain: list[Binding] = []
        self.checked = 0
        self.judged: dict[int, bool | None] = {}

    @property
    def present(self) -> Binding:
        return self.chain[-1]

    @property
    def bound(self) -> Bound | None:
        return self.chain[-1].bound if self.chain else None

    def bind(self, bound: Bound, reason: str) -> None:
        before = self.chain[-1] if self.chain else None
        self.chain.append(next_binding(before, CHANNEL, bound, reason=reason, actor="k", now=self.now))

    def twice(self, verb: Callable[[], Moved | Held], *, retried: bool) -> None:
        for _ in range(1 + retried):
            try:
                decided = verb()
            except InputError:
                assert candidate_of(self.present) is None
                return
            if isinstance(decided, Moved):
                self.bind(decided.bound, decided.reason)

    @initialize(pair=st.sampled_from(PAIRS), candidate=st.sampled_from(PAIRS), plan=plans())
    def first(self, pair: Pair, candidate: Pair, plan: RolloutPlan) -> None:
        bound = released(None, pair, plan, self.now)
        assert bound == released(None, pair, None, self.now), "there is nothing to run beside"
        assert bound is not None
        self.bind(bound, "release")
        self.release(candidate, plan, retried=False)

    @rule(verb=st.sampled_from(VERBS), data=st.data())
    def call(self, verb: str, data: st.DataObject) -> None:
        """One rule for all: a machine that leaves rules out would often leave out what begins a rollout."""
        retried = data.draw(st.booleans())
        if verb == "release":
            plan = data.draw(st.none() | plans())
            self.release(data.draw(st.sampled_from(PAIRS)), plan, retried=retried)
        elif verb == "advance":
            passed, stale = data.draw(st.sampled_from([True, True, None, False])), data.draw(st.integers(0, 5)) == 0
            self.advance(passed, stale=stale, retried=retried)
        elif verb == "wait":
            self.now += data.draw(st.integers(0, 15))
        elif verb == "readmit":
            if self.present.rejected:
                self.readmit(data.draw(st.sampled_from(self.present.rejected)))
        elif verb == "rollback":
            to = data.draw(st.none() | st.integers(1, len(self.chain)))
            self.rollback(to, data.draw(st.sampled_from([None, "bad"])))
        elif self.present.rollout is not None:
            {"pause": self.pause, "resume": self.resume, "abort": self.abort}[verb](retried=retried)

    def release(self, pair: Pair, plan: RolloutPlan | None, *, retried: bool) -> None:
        for _ in range(1 + retried):
            rejected = {pair.engine_release, pair.config_release} & set(self.present.rejected)
            try:
                check_admitted(self.present.rejected, BY_DIGEST[pair.engine_release], pair)
                bound = released(self.bound, pair, plan, self.now)
            except Denied:
                assert rejected
                return
            except InputError:
                assert candidate_of(self.present) not in {None, pair}
                return
            assert not rejected
            if bound is None:
                assert pair in {stable_of(self.present), candidate_of(self.present)}
            else:
                self.bind(bound, "release")

    def advance(self, passed: bool | None, *, stale: bool, retried: bool) -> None:
        def verb() -> Moved | Held:
            generation = self.present.generation - stale
            self.judged[generation] = passed
            judgement = Judgement(generation, passed, ("error rate",))
            rollout = self.present.rollout
            decided = advance(self.present, judgement, self.now)
            if rollout is not None and rollout.phase != "progressing":
                assert isinstance(decided, Held), "paused, or over: nothing moves"
            return decided

        self.twice(verb, retried=retried)

    def pause(self, *, retried: bool) -> None:
        self.twice(lambda: pause(self.present), retried=retried)

    def resume(self, *, retried: bool) -> None:
        step = self.present.rollout.step if self.present.rollout else None
        self.twice(lambda: resume(self.present), retried=retried)
        if step is not None and self.present.rollout is not None:
            assert self.present.rollout.step == step, "to resume is not to move on"

    def abort(self, *, retried: bool) -> None:
        bad, good = candidate_of(self.present), stable_of(self.present)
        marks = _own(bad, good) if bad is not None else ()
        self.twice(lambda: abort(self.present, marks), retried=retried)
        assert candidate_of(self.present) is None
        if bad is not None:
            assert {bad.engine_release, bad.config_release} & set(self.present.rejected)

    def readmit(self, lifted: Digest) -> None:
        decided = readmit(self.present, [lifted, *_marks(lifted)])
        assert isinstance(decided, Moved)
        assert lifted not in decided.bound.rejected
        self.bind(decided.bound, decided.reason)

    def rollback(self, to: int | None, reject: str | None) -> None:
        history = self.chain[::-1]
        try:
            target = rollback_targets(history, to)[0]
            wanted, bad = target[0], candidate_of(self.present) or stable_of(self.present)
            marks = _own(bad, wanted)
            binding = rollback_binding(self.present, target, actor="k", now=self.now, marks=marks, reject=reject)
            check_admitted(binding.rejected, BY_DIGEST[wanted.engine_release], wanted)
        except (InputError, Denied):
            return
        assert stable_of(binding) == wanted
        assert candidate_of(binding) is None
        self.chain.append(binding)

    @invariant()
    def holds(self) -> None:
        for before, after in itertools.pairwise(self.chain[self.checked :]):
            _lawful(before, after)
            self._gated(before, after)
        self.checked = max(0, len(self.chain) - 1)

    def _gated(self, before: Binding, after: Binding) -> None:
        """A step is left only once what it asks for is there."""
        old, new = before.rollout, after.rollout
        if old is None or new is None or not old.open or new.phase == "aborted":
            return
        if new.open and new.step == old.step:
            return
        step = old.plan.steps[old.step]
        if isinstance(step.pause, int):
            assert after.created >= old.since + step.pause / SECOND
        if step.analysis is not None:
            assert self.judged[before.generation] is True


def _lawful(before: Binding, after: Binding) -> None:
    assert (after.generation, after.previous) == (before.generation + 1, before.digest())
    assert Binding.model_validate_json(after.canonical_bytes()) == after, "what is signed is what is read"
    assert sum(after.weights.values()) == sum(arm.weight for arm in after.arms) == 100
    for arm in after.arms:
        assert not {arm.engine_release, arm.config_release} & set(after.rejected), "quarantined, and bound"
        assert not set(_marks(arm.engine_release)) & set(after.rejected)
    old, new = before.rollout, after.rollout
    if old is not None and new is not None and old.open:
        assert new.plan == old.plan, "an open rollout gave way to another one"
    if old is None or not old.open or new is None:
        if new is not None and new.open:
            assert new.step == 0, "a rollout begins at its first step"
            assert stable_of(after) == stable_of(before)
        return
    assert Pair(new.engine_release, new.config_release) == candidate_of(before)
    share = before.weights.get(old.plan.channel, 0)
    if new.open:
        assert new.step - old.step in {0, 1}, "a step was skipped, or taken back"
        assert after.weights[new.plan.channel] >= share
        assert stable_of(after) == stable_of(before)
        if new.step != old.step:
            assert old.phase == "progressing", "it moved while paused"
    elif new.phase == "promoted":
        assert (old.step, old.phase) == (len(old.plan.steps) - 1, "progressing")
        assert stable_of(after) == candidate_of(before)
        assert after.weights == {"stable": 100}
    else:
        assert stable_of(after) == stable_of(before)
        assert after.weights == {"stable": 100}


def _marks(release: Digest) -> tuple[Digest, ...]:
    found = BY_DIGEST.get(release)
    return tuple(sorted(found.marks())) if found else ()


def _own(bad: Pair, good: Pair) -> tuple[Digest, ...]:
    return tuple(one for one in _marks(bad.engine_release) if one not in _marks(good.engine_release))


Rollouts.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestRollouts = Rollouts.TestCase


def _run(present: Binding, now: int) -> Binding:
    """Advance until something holds, as the command does; every analysis passes."""
    for _ in range(100):
        decided = advance(present, Judgement(present.generation, passed=True, reasons=()), now)
        if isinstance(decided, Held):
            return present
        present = next_binding(present, CHANNEL, decided.bound, reason=decided.reason, actor="k", now=now)
    raise AssertionError("it never ends")


def _begun(plan: RolloutPlan) -> Binding:
    first = next_binding(None, CHANNEL, released(None, PAIRS[0], None, NOW), reason="r", actor="k", now=NOW)  # type: ignore[arg-type]
    begun = released(first.bound, PAIRS[2], plan, NOW)
    assert begun is not None
    return next_binding(first, CHANNEL, begun, reason="r", actor="k", now=NOW)


@given(plans())
def test_to_advance_again_at_once_changes_nothing(plan: RolloutPlan) -> None:
    once = _run(_begun(plan), NOW)
    assert _run(once, NOW) == once


@given(plans())
def test_with_every_gate_open_all_steps_are_visited_in_order_and_it_is_promoted(plan: RolloutPlan) -> None:
    present, visited, now = _begun(plan), [0], NOW
    while present.rollout is not None and present.rollout.open:
        decided: Moved | Held = resume(present)
        if isinstance(decided, Held):
            decided = advance(present, Judgement(present.generation, passed=True, reasons=()), now)
        if isinstance(decided, Held):
            assert decided.kind == "waiting"
            now += 1
            continue
        present = next_binding(present, CHANNEL, decided.bound, reason=decided.reason, actor="k", now=now)
        assert present.rollout is not None
        if present.rollout.open and present.rollout.step != visited[-1]:
            visited.append(present.rollout.step)
    assert visited == list(range(len(plan.steps)))
    assert stable_of(present) == PAIRS[2]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "at least 1"),
        ([{"weight": 50}, {"weight": 20}], "must not go down"),
        ([{"weight": 5, "pause": "1s"}], "exactly one of"),
        ([{}], "exactly one of"),
        ([{"weight": 0}], "greater than or equal to 1"),
        ([{"analysis": {}}], "at least one of"),
    ],
)
def test_plans_that_make_no_sense_are_refused(steps: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RolloutPlan.model_validate({"steps": steps})


def test_a_candidate_is_not_called_stable() -> None:
    with pytest.raises(ValueError, match="cannot be called stable"):
        RolloutPlan(channel="stable", steps=(RolloutStep(weight=1),))


def test_an_analysis_knows_its_bounds() -> None:
    assert Analysis(error_rate=0.0, p99_ratio=1.5).bounds == ("error_rate", "p99_ratio")
