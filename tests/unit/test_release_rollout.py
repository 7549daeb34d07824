"""A rollout over a registry: what is published, moved, refused and read back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.releases import CHANNEL, NOW, bundle, digest, has_all, ring, runtime, spec
from trtops.errors import Conflict, Denied, InputError, TrustError, Unavailable
from trtops.registry.memory import MemoryRegistry
from trtops.release import layout
from trtops.release.documents import MAX_REJECTED, Binding, Bound
from trtops.release.fetch import fetch, fetch_arm, fetch_proofs, history, own_marks, status
from trtops.release.keys import KeyRing, Signer
from trtops.release.publish import Published, move, publish, refresh
from trtops.release.rollback import rollback
from trtops.release.rollout import (
    Held,
    Judgement,
    Moved,
    Pair,
    Pausing,
    abort,
    advance,
    candidate_of,
    pause,
    paused_by,
    quarantined,
    readmit,
    resume,
    stable_of,
)
from trtops.release.trust import TrustedChannel
from trtops.spec.engine import RolloutPlan

PLAN = RolloutPlan.model_validate({"steps": [{"shadow": 10}, {"weight": 5}, {"pause": "60s"}, {"weight": 50}]})


class Scene:
    """One engine in one environment, with stable generation 1."""

    def __init__(self) -> None:
        self.keys = ring()
        self.registry = MemoryRegistry()
        self.now = NOW
        self.release("engine 1")

    def release(self, artifact: str, plan: RolloutPlan | None = None, **changes: Any) -> Published:
        made = bundle(self.keys, artifact=artifact, **({"created": self.now} | changes))
        made = type(made)(made.engine_release, made.config_release, made.spec_verdict, made.candidates, {}, None, plan)
        return publish(self.registry, self.keys, CHANNEL, made, now=self.now, has_artifact=has_all)

    def move(self, decide: Any) -> Binding | Held:
        return move(self.registry, self.keys, CHANNEL, decide, now=self.now)

    def advance(self, passed: bool | None = True) -> Binding | Held:
        return self.move(lambda b: advance(b, Judgement(b.generation, passed, ("p99 9 ms",)), self.now))

    def abort(self) -> Binding | Held:
        present = self.present
        bad = candidate_of(present)
        assert bad is not None
        marks = own_marks(self.registry, self.keys.root(), "cls", bad.engine_release, present.engine_release)
        return self.move(lambda b: abort(b, marks, "it is slow"))

    @property
    def present(self) -> Binding:
        found = status(self.registry, self.keys.root(), CHANNEL, self.now)
        assert found.state == "released", found.problem
        assert found.binding is not None
        return found.binding


def _words(binding: Binding | Held) -> str:
    return binding.reason if isinstance(binding, Binding) else binding.why


def test_a_release_runs_beside_the_stable_one_until_its_steps_are_over() -> None:
    scene = Scene()
    first = scene.present
    done = scene.release("engine 2", PLAN)
    assert (done.generation, done.new, done.rollout) == (2, True, True)
    begun = scene.present
    assert stable_of(begun) == stable_of(first)
    assert [(arm.channel, arm.weight, arm.shadow) for arm in begun.arms] == [("stable", 100, 0), ("canary", 0, 10)]
    assert _words(scene.advance()) == "rollout: step 2 of 4 (weight 5 %)"
    assert scene.present.weights == {"stable": 95, "canary": 5}
    assert _words(scene.advance()) == "rollout: step 3 of 4 (pause of 60 s)"
    assert _words(scene.advance()) == "step 3 of 4 (pause of 60 s) has 60 s to go"
    scene.now += 60
    assert _words(scene.advance()) == "rollout: step 4 of 4 (weight 50 %)"
    assert _words(scene.advance()) == "rollout: promoted after step 4 of 4 (weight 50 %)"
    assert scene.present.engine_release == done.release
    assert [arm.channel for arm in scene.present.arms] == ["stable"]
    assert scene.advance() == Held("it has ended: promoted", "promoted")
    assert len(history(scene.registry, scene.keys.root(), CHANNEL)) == scene.present.generation == 6


def test_a_service_verifies_a_candidate_like_the_stable_release() -> None:
    scene = Scene()
    done = scene.release("engine 2", PLAN)
    trusted = fetch(TrustedChannel(scene.keys.root(), CHANNEL), scene.registry, NOW)
    stable, canary = trusted.binding.arms
    candidate = fetch_arm(trusted.beside(canary), scene.registry)
    fetch_proofs(candidate, scene.registry, "onnxruntime")
    assert candidate.engine_release.digest() == done.release == canary.engine_release
    assert trusted.engine_release.digest() == stable.engine_release != done.release
    # Mix and match: the stable release's document is not taken for the candidate's.
    with pytest.raises(TrustError, match="expected"):
        trusted.beside(canary).update_engine_release(
            scene.registry.read(layout.engine_release("cls", stable.engine_release))
        )
    with pytest.raises(ValueError, match="no such arm"):
        trusted.beside(canary.model_copy(update={"engine_release": stable.engine_release}))


def test_to_release_the_candidate_again_begins_nothing() -> None:
    scene = Scene()
    first = scene.release("engine 2", PLAN)
    scene.now += 5
    again = scene.release("engine 2", PLAN)
    assert (again.new, again.rollout, again.generation, again.release) == (False, True, 2, first.release)
    refresh(scene.registry, scene.keys, CHANNEL, now=scene.now, lifetime=10)
    scene.now += 20  # expired: the same is bound anew, at the step that it had come to
    again = scene.release("engine 2", PLAN)
    assert (again.new, again.generation) == (True, 4)
    assert scene.present.rollout == history(scene.registry, scene.keys.root(), CHANNEL)[2].rollout


def test_while_a_rollout_is_open_nothing_else_is_released() -> None:
    scene = Scene()
    scene.release("engine 2", PLAN)
    for artifact, plan in (("engine 3", PLAN), ("engine 3", None), ("engine 1", None)):
        with pytest.raises(InputError, match=r"a rollout of .* is at step 1 of 4 .*abort"):
            scene.release(artifact, plan)
    assert scene.present.generation == 2


def test_a_config_alone_is_rolled_out_too() -> None:
    scene = Scene()
    scene.release("engine 1", PLAN, config=runtime(limit=2))
    stable, canary = scene.present.arms
    assert (canary.engine_release == stable.engine_release, canary.config_release == stable.config_release) == (
        True,
        False,
    )
    scene.abort()
    with pytest.raises(Denied, match=r"config .* was aborted before"):
        scene.release("engine 1", None, config=runtime(limit=2))
    assert scene.release("engine 2", None, config=runtime(limit=3)).new  # neither the engine nor another config


def test_what_was_aborted_is_released_by_nothing_until_it_is_readmitted() -> None:
    scene = Scene()
    bad = scene.release("engine 2", PLAN).release
    assert _words(scene.abort()) == "rollout: aborted at step 1 of 4 (shadow 10 %): it is slow"
    assert scene.present.weights == {"stable": 100}
    assert scene.advance() == Held("it has ended: aborted", "aborted")
    assert _words(scene.move(abort)) == "it was aborted already, at step 1 of 4 (shadow 10 %)"
    for plan in (PLAN, None):
        with pytest.raises(Denied, match=r"was aborted before .*trtops rollout readmit cls sha256:"):
            scene.release("engine 2", plan)
        with pytest.raises(Denied, match=r"the engine .* was aborted before"):
            scene.release("engine 2", plan, created=NOW + 77, config=runtime(other=1))  # as measured again
    scene.release("engine 3")
    with pytest.raises(InputError, match="no generation 9"):
        rollback(scene.registry, scene.keys, CHANNEL, to=9, now=NOW)
    rejected = scene.present.rejected
    assert rejected[0] == bad
    assert _words(scene.move(lambda b: readmit(b, rejected, "the metrics were wrong"))).startswith("readmitted ")
    assert scene.release("engine 2", PLAN).rollout


def test_a_release_that_is_only_measured_again_is_known_by_its_content() -> None:
    scene = Scene()
    of = spec(batching={"max_batch": 8})  # the bytes of the stable release, batched otherwise
    scene.release("engine 1", PLAN, of=of)
    scene.abort()
    assert len(scene.present.rejected) == 2
    with pytest.raises(Denied, match="this very release, measured at another time, of cls was aborted before"):
        scene.release("engine 1", of=spec(batching={"max_batch": 8}, metadata={"name": "cls", "owner": "others"}))
    assert scene.release("engine 1", of=spec(batching={"max_batch": 16})).new


def test_an_analysis_that_fails_aborts() -> None:
    scene = Scene()
    plan = RolloutPlan.model_validate({"steps": [{"weight": 5}, {"analysis": {"p99": "5ms"}}, {"weight": 50}]})
    scene.release("engine 2", plan)
    scene.advance()
    stuck = scene.advance(passed=None)
    assert isinstance(stuck, Held)
    assert (stuck.kind, stuck.why) == ("undecided", "step 2 of 3 (analysis) cannot be decided: p99 9 ms")
    assert _words(scene.move(lambda b: advance(b, None, NOW))).endswith("needs metrics: give --metrics URL or FILE")
    assert _words(scene.advance(passed=False)) == "rollout: aborted at step 2 of 3 (analysis): p99 9 ms"
    assert scene.present.rejected


def test_a_pause_holds_until_it_is_resumed() -> None:
    scene = Scene()
    scene.release("engine 2", RolloutPlan.model_validate({"steps": [{"pause": "manual"}, {"weight": 50}]}))
    assert _words(scene.advance()).startswith("it is paused at step 1 of 2")
    assert _words(scene.move(pause)).startswith("it is paused already")
    assert (
        _words(scene.move(lambda b: resume(b, "looks good")))
        == "rollout: resumed at step 1 of 2 (manual pause): looks good"
    )
    assert _words(scene.move(resume)).startswith("it is not paused")
    assert _words(scene.move(lambda b: pause(b, "lunch"))).endswith(": lunch")
    assert isinstance(scene.advance(), Held)
    scene.move(resume)
    assert _words(scene.advance()) == "rollout: step 2 of 2 (weight 50 %)"


def test_who_paused_it_is_found_behind_what_came_since() -> None:
    scene = Scene()
    scene.release("engine 2", PLAN)
    assert paused_by(history(scene.registry, scene.keys.root(), CHANNEL)) is None
    scene.move(lambda present: pause(present, "lunch"))
    moved = scene.present
    refresh(scene.registry, scene.keys, CHANNEL, now=NOW + 60, lifetime=60)
    refresh(scene.registry, scene.keys, CHANNEL, now=NOW + 120, lifetime=60)
    assert paused_by(history(scene.registry, scene.keys.root(), CHANNEL)) == Pausing(moved, planned=False)


def test_a_plan_that_asks_for_a_person_paused_it_itself() -> None:
    scene = Scene()
    scene.release("engine 2", RolloutPlan.model_validate({"steps": [{"pause": "manual"}, {"weight": 50}]}))
    assert paused_by(history(scene.registry, scene.keys.root(), CHANNEL)) == Pausing(scene.present, planned=True)
    scene.move(resume)
    assert paused_by(history(scene.registry, scene.keys.root(), CHANNEL)) is None
    scene.move(pause)
    assert paused_by(history(scene.registry, scene.keys.root(), CHANNEL)) == Pausing(scene.present, planned=False)


def test_a_rollback_ends_a_rollout_and_goes_back_in_one_command() -> None:
    scene = Scene()
    first = scene.present
    bad = scene.release("engine 2", PLAN).release
    back = rollback(scene.registry, scene.keys, CHANNEL, now=NOW).binding
    assert (back.reason, stable_of(back), back.rollout) == ("rollback to the stable release", stable_of(first), None)
    assert bad in back.rejected
    with pytest.raises(Denied):
        scene.release("engine 2")
    scene.release("engine 3")
    scene.release("engine 4", PLAN)
    back = rollback(scene.registry, scene.keys, CHANNEL, to=1, now=NOW).binding
    assert (back.reason, stable_of(back)) == ("rollback to generation 1", stable_of(first))
    assert len(back.weights) == 1


def test_a_rollback_puts_what_it_leaves_in_quarantine_if_asked() -> None:
    scene = Scene()
    scene.release("engine 2")
    scene.release("engine 3")
    back = rollback(scene.registry, scene.keys, CHANNEL, now=NOW, reject="wrong labels").binding
    assert back.reason == "rollback to generation 2: wrong labels"
    with pytest.raises(Denied, match="was aborted before"):
        rollback(scene.registry, scene.keys, CHANNEL, to=3, now=NOW)
    again = rollback(scene.registry, scene.keys, CHANNEL, now=NOW).binding
    assert again.reason == "rollback to generation 1"  # past what is in quarantine


def test_a_candidate_with_a_lost_document_can_still_be_aborted() -> None:
    scene = Scene()
    bad = scene.release("engine 2", PLAN).release
    scene.registry.put(layout.engine_release("cls", bad), b"damaged")
    assert _words(scene.abort()).startswith("rollout: aborted")
    assert scene.present.rejected == (bad,)


def test_somebody_else_moves_first() -> None:
    scene = Scene()
    scene.release("engine 2", PLAN)

    def late(binding: Binding) -> Any:
        scene.advance()
        return pause(binding)

    with pytest.raises(Conflict, match=r"was moved to generation 3 .* \(rollout: step 2 of 4 \(weight 5 %\)\)"):
        scene.move(late)
    assert scene.present.generation == 3


def test_a_key_that_is_not_trusted_moves_nothing() -> None:
    scene = Scene()
    scene.release("engine 2", PLAN)
    other = KeyRing({"channel": Signer.generate()}, scene.keys.root())
    for verb in (pause, abort):
        writes = len(scene.registry.writes)
        with pytest.raises(TrustError, match="channel keys that are trusted here"):
            move(scene.registry, other, CHANNEL, verb, now=NOW)
        assert len(scene.registry.writes) == writes
    with pytest.raises(TrustError, match="channel keys that are trusted here"):
        refresh(scene.registry, other, CHANNEL, now=NOW, lifetime=9)
    assert scene.present.generation == 2


def test_there_has_to_be_a_rollout() -> None:
    scene = Scene()
    for verb in (lambda b: advance(b, None, NOW), pause, resume, abort):
        with pytest.raises(InputError, match="no rollout was begun"):
            scene.move(verb)
    scene.release("engine 2", RolloutPlan.model_validate({"steps": [{"weight": 100}]}))
    scene.advance()
    for verb in (pause, resume, abort):
        with pytest.raises(InputError, match=r"has ended: promoted \(go back with trtops rollback\)"):
            scene.move(verb)
    with pytest.raises(Unavailable, match="nothing is released"):
        move(MemoryRegistry(), scene.keys, CHANNEL, pause, now=NOW)


def test_the_quarantine_keeps_the_newest() -> None:
    bound = Bound(engine_release=digest("a"), config_release=digest("c"))
    good = Pair(digest("a"), digest("c"))
    for number in range(MAX_REJECTED + 3):
        rejected = quarantined(bound, Pair(digest(f"bad {number}"), digest("c")), good, ())
        bound = bound.model_copy(update={"rejected": rejected})
    assert len(bound.rejected) == MAX_REJECTED
    assert bound.rejected[-1] == digest(f"bad {MAX_REJECTED + 2}")


def test_a_quarantine_that_is_full_still_fits_into_a_document() -> None:
    scene = Scene()
    many = tuple(digest(f"bad {number}") for number in range(MAX_REJECTED))
    plan = RolloutPlan.model_validate({"steps": [{"analysis": {"p99": "5ms", "p99_ratio": 1.25}}] * 32})

    def fill(binding: Binding) -> Any:
        moved = pause(binding)
        assert isinstance(moved, Moved)
        return Moved(binding.bound.model_copy(update={"rejected": many}), "filled")

    scene.release("engine 2", plan)
    assert isinstance(scene.move(fill), Binding)
    assert scene.present.rejected == many
