"""What an agent does about a rollout's candidate: decisions by laws, and an agent with engines that have channels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.releases import digest
from trtops.errors import InputError, NotLoadable
from trtops.release.documents import Arm, Binding
from trtops.serve.beside import Adjust, Adopt, Begin, Beside, Misfortune, Withdraw, releases, step
from trtops.serve.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtops.serve.beside import Step
    from trtops.spec.engine import Batching

letters = st.sampled_from("abc")


def arm(engine: str, channel: str = "stable", weight: int = 0, shadow: int = 0) -> Arm:
    release = digest(engine)
    return Arm(channel=channel, engine_release=release, config_release=digest("c"), weight=weight, shadow=shadow)


arms = st.builds(
    lambda one, other, weight, shadow: (arm(one, weight=100 - weight), arm(other, "canary", weight, shadow))[
        : 2 if one != other else 1
    ],
    letters,
    letters,
    st.integers(0, 100),
    st.integers(0, 100),
)


def after(done: Step, *, works: bool, now: float) -> Beside:
    """What is so when a step was carried out."""
    if isinstance(done, (Adopt, Withdraw)):
        return Beside()
    if isinstance(done, Begin) and not works:
        return Beside(failure=Misfortune(releases(done.arm), "no", now, 1))
    return Beside(running=done.arm)


@given(st.lists(st.tuples(arms, st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_it_ends_where_the_pointer_says_and_stays_there(pointers: list[tuple[tuple[Arm, ...], bool, bool]]) -> None:
    state, now = Beside(), 0.0
    for pointer, works, serves in pointers:
        now += 1000.0
        stable = releases(pointer[0]) if serves else None
        for _ in range(4):
            todo = step(state, pointer, stable=stable, now=now)
            if todo is None:
                break
            # Nothing is loaded but beside a stable engine that serves, and nothing but what the pointer names.
            assert not isinstance(todo, (Begin, Adjust)) or (serves and todo.arm == pointer[1])
            state = after(todo, works=works, now=now)
        else:
            pytest.fail("it never comes to rest")
        wanted = pointer[1] if len(pointer) > 1 else None
        assert state.running is None or state.running.channel == "canary"
        if state.running is not None:
            assert wanted is not None
            assert releases(state.running) == releases(wanted)
        if serves and works and wanted is not None:
            assert state.running == wanted


def test_what_becomes_stable_is_adopted_and_what_is_aborted_is_withdrawn() -> None:
    state = Beside(running=arm("b", "canary", 50))
    promoted, aborted = (arm("b", weight=100),), (arm("a", weight=100),)
    assert step(state, promoted, stable=releases(arm("a")), now=0) == Adopt(arm("b", "canary", 50))
    assert step(state, aborted, stable=releases(arm("a")), now=0) == Withdraw(arm("b", "canary", 50))
    # It was loaded anew meanwhile: there is nothing to adopt.
    assert step(state, promoted, stable=releases(arm("b")), now=0) == Withdraw(arm("b", "canary", 50))


def test_a_candidate_that_fails_is_tried_again_with_longer_pauses() -> None:
    pointer = arm("a", weight=95), arm("b", "canary", 5)
    for attempts, pause in ((1, 2.0), (2, 4.0), (3, 8.0), (20, 300.0)):
        state = Beside(failure=Misfortune(releases(pointer[1]), "no", 10.0, attempts))
        assert step(state, pointer, stable=releases(pointer[0]), now=10.0 + pause - 0.1) is None
        assert step(state, pointer, stable=releases(pointer[0]), now=10.0 + pause) == Begin(pointer[1])
    other = arm("a", weight=95), arm("c", "canary", 5)
    assert step(state, other, stable=releases(other[0]), now=10.0) == Begin(other[1])  # another one need not wait


class Engines:
    """A supervisor's calls, written down. ``refuses`` makes a load fail, ``gone`` a promotion."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refuses = self.gone = False
        self.ails: dict[tuple[str, str], str] = {}

    def load(self, name: str, *, channel: str = "stable", generation: int, **_: Any) -> None:
        if self.refuses:
            raise NotLoadable("its worker died while it was loaded", where=f"engine {name}")
        self.calls.append(("load", name, channel, generation))

    def adjust(self, name: str, *, generation: int, batching: Batching) -> bool:
        del batching
        self.calls.append(("adjust", name, generation))
        return False

    def unload(self, name: str, channel: str | None = None) -> None:
        self.calls.append(("unload", name, channel))

    def share(self, name: str, weights: Mapping[str, int], shadows: Mapping[str, int] | None = None) -> None:
        self.calls.append(("share", name, dict(weights), dict(shadows or {})))

    def promote(self, name: str, channel: str) -> None:
        if self.gone:
            raise InputError("nothing serves there")
        self.calls.append(("promote", name, channel))

    def ailing(self) -> dict[tuple[str, str], str]:
        return self.ails

    def engines(self) -> tuple[()]:
        return ()

    def close(self, *, drain: float) -> None:
        del drain


class _Anything:
    """Stands for what was pulled: whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def described(self) -> dict[str, str]:
        return {}


def binding(*of: Arm, generation: int = 7) -> Binding:
    class Bound:
        arms = of

    bound: Any = Bound()
    bound.generation = generation
    return bound


def pulled(_: Arm) -> Any:
    return _Anything()


def test_a_rollout_from_its_first_step_to_its_end() -> None:
    engines = Engines()
    candidates = Candidates(engines, time.monotonic)
    stable = releases(arm("a"))
    shadowed = binding(arm("a", weight=100), arm("b", "canary", 0, 10))
    assert candidates.follow("e", shadowed, stable, pulled) == "done"
    assert candidates.follow("e", shadowed, stable, pulled) is None
    weighted = binding(arm("a", weight=95), arm("b", "canary", 5))
    assert candidates.adopt("e", weighted, stable) is None
    assert candidates.follow("e", weighted, stable, pulled) is None
    described = candidates.describe("e")
    assert described is not None
    assert (described["status"], described["channel"], described["weight"]) == ("ready", "canary", 5)
    engines.ails = {("e", "canary"): "its worker died (SIGSEGV)"}
    described = candidates.describe("e")
    assert described is not None
    assert (described["status"], described["reason"]) == ("failed", "its worker died (SIGSEGV)")
    engines.ails = {}
    assert candidates.adopt("e", binding(arm("b", weight=100)), stable) is not None
    assert candidates.describe("e") is None
    assert engines.calls == [
        ("load", "e", "canary", 7),
        ("share", "e", {"stable": 100, "canary": 0}, {"canary": 10}),
        ("share", "e", {"stable": 95, "canary": 5}, {"canary": 0}),
        ("promote", "e", "canary"),
    ]


def test_an_aborted_candidate_is_taken_out_and_the_next_one_comes_in() -> None:
    engines = Engines()
    candidates = Candidates(engines, time.monotonic)
    stable = releases(arm("a"))
    candidates.follow("e", binding(arm("a", weight=50), arm("b", "canary", 50)), stable, pulled)
    candidates.follow("e", binding(arm("a", weight=90), arm("c", "canary", 10)), stable, pulled)
    candidates.follow("e", binding(arm("a", weight=100)), stable, pulled)
    begun, ended = ["load", "share"], ["share", "unload"]
    assert [call[0] for call in engines.calls] == [*begun, *ended, *begun, *ended]
    assert engines.calls[2:4] == [("share", "e", {"stable": 100}, {}), ("unload", "e", "canary")]


def test_a_candidate_that_cannot_be_loaded_is_told_and_costs_nothing() -> None:
    engines = Engines()
    engines.refuses = True
    candidates = Candidates(engines, time.monotonic)
    pointer = binding(arm("a", weight=95), arm("b", "canary", 5))
    assert candidates.follow("e", pointer, releases(arm("a")), pulled) == "failed"
    assert engines.calls == []
    described = candidates.describe("e")
    assert described is not None
    assert described["status"] == "failed"
    assert "its worker died while it was loaded" in described["reason"]
    assert len(candidates.retries()) == 1


def test_a_promotion_whose_candidate_just_died_loads_the_release_anew() -> None:
    engines = Engines()
    candidates = Candidates(engines, time.monotonic)
    candidates.follow("e", binding(arm("a", weight=50), arm("b", "canary", 50)), releases(arm("a")), pulled)
    engines.gone = True
    promoted = binding(arm("b", weight=100))
    assert candidates.adopt("e", promoted, releases(arm("a"))) is None
    # The agent loads it as any release; then the candidate's channel is left over.
    candidates.follow("e", promoted, releases(arm("b")), pulled)
    assert engines.calls[-1] == ("unload", "e", "canary")


def test_without_channels_a_candidate_is_refused_by_name() -> None:
    class Plain:
        """An executor in one process."""

    candidates = Candidates(Plain(), time.monotonic)  # type: ignore[arg-type]
    pointer = binding(arm("a", weight=95), arm("b", "canary", 5))
    assert candidates.follow("e", pointer, releases(arm("a")), pulled) is None
    described = candidates.describe("e")
    assert described is not None
    assert "serve without --isolation none" in described["reason"]
