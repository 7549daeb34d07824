"""What gets into a release, what is left out and why, and how channels move."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.releases import (
    CHANNEL,
    NOW,
    accuracy,
    candidate,
    digest,
    evidence,
    runtime,
    sidecar,
    spec,
    verdict,
)
from trtops.errors import Denied, InputError, IntegrityError
from trtops.release.assemble import (
    Candidate,
    config_release,
    engine_release,
    next_binding,
    provenance_of,
    refreshed_binding,
    rollback_binding,
    rollback_targets,
    same_release,
)
from trtops.release.documents import Binding, Bound, Channel, EngineRelease

ONE, TWO = "onnxruntime", "tensorrt_rtx-sm8.6"


def _release(*candidates: Candidate, **changes: Any) -> EngineRelease:
    fields: dict[str, Any] = {"skipped": {}, "commit": "abc123", "trtops": "0.1.0"}
    return engine_release(spec(), changes.pop("spec_verdict", verdict("spec")), candidates, **(fields | changes))


def _bound(text: str) -> Bound:
    return Bound(engine_release=digest(text), config_release=digest("config"))


def _move(previous: Binding | None, text: str) -> Binding:
    return next_binding(previous, CHANNEL, _bound(text), reason="release", actor="k", now=NOW)


def _chain(*texts: str) -> list[Binding]:
    """Bindings of these releases, newest first."""
    found: list[Binding] = []
    for text in texts:
        found.insert(0, _move(found[0] if found else None, text))
    return found


def test_all_verified_targets_get_in_sorted() -> None:
    release = _release(candidate(1), candidate(0))
    assert [artifact.target for artifact in release.artifacts] == [ONE, TWO]
    assert release.skipped == {}
    assert release.artifacts[0].provenance == candidate(0).provenance.digest()
    assert release.artifacts[0].evidence == candidate(0).evidence.digest()
    assert release.spec_verdict == verdict("spec").digest()


def test_a_target_that_was_not_built_says_why() -> None:
    assert _release(candidate(0), skipped={TWO: "no tensorrt_rtx here"}).skipped == {TWO: "no tensorrt_rtx here"}
    assert _release(candidate(0)).skipped == {TWO: "it was not built"}


def test_unverified_targets_stay_out() -> None:
    made = sidecar(1)
    unverified = candidate(1, sidecar=made, evidence=evidence(made, accuracy=None, unverified="needs sm 8.6"))
    release = _release(candidate(0), unverified)
    assert [artifact.target for artifact in release.artifacts] == [ONE]
    assert release.skipped == {TWO: "not verified: needs sm 8.6"}


def test_inaccurate_targets_stay_out_whatever_the_verdict_says() -> None:
    made = sidecar(1)
    wrong = candidate(1, sidecar=made, evidence=evidence(made, accuracy=accuracy(passed=False)))
    assert "tolerance" in _release(candidate(0), wrong).skipped[TWO]


def test_denied_targets_stay_out_with_the_rule() -> None:
    denied = candidate(1, verdict=verdict(deny=True))
    assert _release(candidate(0), denied).skipped == {TWO: "denied: p99 is 9 ms, 5 ms are allowed [evidence.slow]"}


def test_nothing_left_is_denied_with_every_reason() -> None:
    with pytest.raises(Denied, match=r"onnxruntime: denied: p99.*tensorrt_rtx-sm8.6: it was not built") as caught:
        _release(candidate(0, verdict=verdict(deny=True)))
    assert caught.value.exit_code == 1


def test_a_denied_spec_is_not_released() -> None:
    with pytest.raises(Denied, match=r"spec\.slow"):
        _release(candidate(0), spec_verdict=verdict("spec", deny=True))
    with pytest.raises(Denied, match="stage evidence"):
        _release(candidate(0), spec_verdict=verdict("evidence"))


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("evidence", {"artifact": digest("better")}),
        ("evidence", {"spec": digest("laxer")}),
        ("evidence", {"plan": digest("other")}),
        ("evidence", {"model": digest("other")}),
        ("evidence", {"engine": "other"}),
        ("evidence", {"target": spec().targets[1]}),
        ("provenance", {"artifact": digest("other")}),
        ("provenance", {"sidecar": digest("other")}),
        ("provenance", {"engine": "other"}),
        ("provenance", {"target": TWO}),
        ("verdict", {"stage": "spec"}),
    ],
)
def test_parts_of_different_builds_are_refused(part: str, changes: dict[str, Any]) -> None:
    good = candidate(0)
    mixed = good.model_copy(update={part: getattr(good, part).model_copy(update=changes)})
    with pytest.raises(IntegrityError, match=part):
        _release(mixed)


def test_another_model_than_the_specs_is_refused() -> None:
    made = sidecar(model=digest("other"))
    with pytest.raises(IntegrityError, match="model of the sidecar"):
        _release(candidate(0, sidecar=made))


def test_a_target_twice_or_unknown_is_refused() -> None:
    with pytest.raises(InputError, match="built twice"):
        _release(candidate(0), candidate(0))
    other = spec(targets=[{"backend": "fake"}])
    with pytest.raises(InputError, match="target fake"):
        _release(candidate(0, of=other))


def test_created_is_the_newest_evidence_so_that_a_rerun_gives_the_same_document() -> None:
    made = sidecar(1)
    late = candidate(1, sidecar=made, evidence=evidence(made, created=NOW - 7))
    assert _release(candidate(0), late).created == NOW - 7
    assert _release(candidate(0)).digest() == _release(candidate(0)).digest()


def test_same_release_ignores_only_the_time() -> None:
    release = _release(candidate(0), created=NOW)
    assert same_release(release, _release(candidate(0), created=NOW + 1))
    assert not same_release(release, _release(candidate(0), created=NOW, commit="def"))
    assert not same_release(release, _release(candidate(0), candidate(1), created=NOW))
    config = config_release("cls", "dev", runtime(), created=NOW)
    assert same_release(config, config_release("cls", "dev", runtime(), created=NOW + 1))
    assert not same_release(config, config_release("cls", "dev", runtime(a=1), created=NOW))
    assert not same_release(config, release)


def test_provenance_says_who_built_what_from_what() -> None:
    made = sidecar()
    found = provenance_of(spec(), made, builder="key", commit="abc-dirty", trtops="0.1.0")
    assert (found.builder, found.commit, found.model, found.target) == ("key", "abc-dirty", made.model, ONE)
    assert (found.artifact, found.sidecar, found.plan) == (made.artifact, made.digest(), made.plan)


def test_generations_count_up_and_chain() -> None:
    second, first = _chain("a", "b")
    assert (first.generation, first.previous) == (1, None)
    assert (second.generation, second.previous) == (2, first.digest())


def test_a_lifetime_sets_the_expiry() -> None:
    fields: dict[str, Any] = {"reason": "release", "actor": "k", "now": NOW}
    assert next_binding(None, CHANNEL, _bound("a"), lifetime=60, **fields).expires == NOW + 60
    assert next_binding(None, CHANNEL, _bound("a"), **fields).expires is None


def test_a_chain_is_of_one_channel() -> None:
    elsewhere = Channel(engine="cls", environment="prod")
    with pytest.raises(ValueError, match="cls/stable in dev"):
        next_binding(_move(None, "a"), elsewhere, _bound("b"), reason="r", actor="k", now=NOW)


def test_weights_must_sum_to_100() -> None:
    with pytest.raises(ValueError, match="sum to 100, not 90"):
        Binding.model_validate(_move(None, "a").model_dump() | {"weights": {"stable": 60, "canary": 30}})


def _rolled_back(chain: list[Binding], to: int | None, *, actor: str = "k", now: int = NOW) -> Binding:
    return rollback_binding(chain[0], rollback_targets(chain, to)[0], actor=actor, now=now)


def test_rollback_skips_what_binds_the_same() -> None:
    chain = _chain("a", "b")
    chain.insert(0, refreshed_binding(chain[0], actor="k", now=NOW, lifetime=60))
    back = _rolled_back(chain, None, actor="me", now=NOW + 5)
    assert (back.generation, back.engine_release, back.reason) == (4, digest("a"), "rollback to generation 1")
    assert (back.previous, back.actor, back.created) == (chain[0].digest(), "me", NOW + 5)


def test_rollback_to_a_generation_brings_back_all_that_it_bound() -> None:
    first = next_binding(
        None, CHANNEL, Bound(engine_release=digest("a"), config_release=digest("c")), reason="r", actor="k", now=NOW
    )
    chain = [_move(_move(first, "b"), "c"), _move(first, "b"), first]
    assert _rolled_back(chain, 1).bound == first.bound


@pytest.mark.parametrize(
    ("texts", "to", "reason"),
    [
        (("a",), None, "never run anything else"),
        (("a", "a"), None, "never run anything else"),
        (("a", "b"), 7, "no generation 7"),
        (("a", "b"), 2, "binds what runs already"),
        (("a", "b", "a"), 1, "binds what runs already"),
    ],
)
def test_rollback_to_nowhere_is_refused(texts: tuple[str, ...], to: int | None, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _rolled_back(_chain(*texts), to)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.data())
def test_rollback_and_back_again_is_where_it_was(texts: list[str], data: st.DataObject) -> None:
    chain = _chain(*texts)
    wanted = data.draw(st.sampled_from(chain))
    if wanted.bound == chain[0].bound:
        return
    back = _rolled_back(chain, wanted.generation)
    assert back.bound == wanted.bound
    again = _rolled_back([back, *chain], None)
    assert again.bound == chain[0].bound
    assert again.generation == len(texts) + 2
