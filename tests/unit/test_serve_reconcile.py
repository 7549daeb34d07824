"""What the agent decides, without an agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.releases import DEVICE, candidate, digest, sidecar
from trtops.device import Device
from trtops.release.documents import ReleasedArtifact
from trtops.serve.reconcile import (
    Confirm,
    Failure,
    Keep,
    Load,
    Observed,
    Pointed,
    Restore,
    State,
    health,
    in_order,
    reconcile,
)


def pointed(generation: int, release: str = "", config: str = "config") -> Pointed:
    return Pointed(
        generation, digest(f"binding {generation}"), digest(release or f"release {generation}"), digest(config)
    )


ONE, TWO = pointed(1), pointed(2)
RUNS_ONE = State(running=ONE)
FAILED_TWO = Failure(TWO, "no", at=100.0, attempts=1)


@pytest.mark.parametrize(
    ("state", "observed", "action"),
    [
        (State(), Observed(ONE), Load(ONE)),
        (RUNS_ONE, Observed(ONE), Keep()),
        (RUNS_ONE, Observed(TWO), Load(TWO)),
        (RUNS_ONE, Observed(pointed(2, "release 1")), Confirm(pointed(2, "release 1"))),
        (
            RUNS_ONE,
            Observed(pointed(2, "release 1", "another config")),
            Load(pointed(2, "release 1", "another config")),
        ),
        (RUNS_ONE, Observed(None, "away"), Keep()),
        (State(), Observed(None, "away"), Restore()),
        (State(restored=True), Observed(None, "away"), Keep()),
        (replace(RUNS_ONE, failure=FAILED_TWO), Observed(TWO), Keep()),
        (replace(RUNS_ONE, failure=FAILED_TWO), Observed(pointed(3)), Load(pointed(3))),
        (State(failure=FAILED_TWO), Observed(TWO), Restore()),
        (State(failure=FAILED_TWO, restored=True), Observed(TWO), Keep()),
        (State(stopped=True), Observed(ONE), Keep()),
        (State(stopped=True), Observed(None), Keep()),
    ],
)
def test_decisions(state: State, observed: Observed, action: Any) -> None:
    assert reconcile(state, observed, 100.5) == action


def test_a_failure_is_tried_again_with_growing_pauses() -> None:
    state = replace(RUNS_ONE, failure=FAILED_TWO)
    assert reconcile(state, Observed(TWO), 102.1) == Load(TWO)
    pauses = [Failure(TWO, "no", 0.0, attempts).retry_at for attempts in range(1, 60)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[1], pauses[-1]) == (2.0, 4.0, 300.0)


POINTED = st.builds(pointed, st.integers(1, 4), st.sampled_from(["", "a", "b"]), st.sampled_from(["config", "other"]))
STATES = st.builds(
    State,
    running=st.none() | POINTED,
    failure=st.none() | st.builds(Failure, POINTED, st.just("no"), st.floats(0, 100), st.integers(1, 40)),
    away_since=st.none() | st.floats(0, 100),
    restored=st.booleans(),
    stopped=st.booleans(),
)


@given(STATES, st.builds(Observed, st.none() | POINTED), st.floats(0, 1000))
def test_laws(state: State, observed: Observed, now: float) -> None:
    action = reconcile(state, observed, now)
    assert action == reconcile(state, observed, now)
    if isinstance(action, Load | Confirm):
        assert action.pointed == observed.pointed, "only what was verified just now is loaded"
        assert not state.stopped
    if isinstance(action, Restore):
        assert state.running is None
        assert not state.restored
    if isinstance(action, Load) and state.running is not None:
        assert not action.pointed.runs_same(state.running), "what runs is not loaded again"
    if observed.pointed is not None and not state.stopped and isinstance(action, Keep):
        settled = state.running == observed.pointed
        assert settled or (state.failure is not None and state.failure.pointed == observed.pointed)


@given(STATES, st.floats(0, 1000), st.floats(0, 100))
def test_health_is_degraded_only_while_something_runs(state: State, now: float, grace: float) -> None:
    level, reason = health(state, now, grace)
    assert (level == "starting") == (state.running is None and not state.stopped)
    if level == "degraded":
        assert state.running is not None
    if level == "ready":
        assert reason is None
        assert state.failure is None


def test_grace_is_borne_in_silence() -> None:
    state = replace(RUNS_ONE, away_since=100.0, problem="the registry is away")
    assert health(state, 109.0, 10.0) == ("ready", None)
    assert health(state, 110.0, 10.0) == ("degraded", "the registry is away")


def test_gpus_come_first_and_else_the_order_stays() -> None:
    gpu = Device(kind="gpu", name="NVIDIA H200", compute_capability="9.0")
    made = [sidecar(0, device=device, artifact=str(n)) for n, device in enumerate((DEVICE, gpu, DEVICE, gpu))]
    one = candidate()
    artifacts = tuple(
        ReleasedArtifact(target=f"t{n}", sidecar=side, evidence=one.evidence.digest(), verdict=one.verdict.digest())
        for n, side in enumerate(made)
    )
    assert [artifact.target for artifact in in_order(artifacts)] == ["t1", "t3", "t0", "t2"]
