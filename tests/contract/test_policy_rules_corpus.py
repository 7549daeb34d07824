"""Every document of the corpus, through both engines: the rules that are expected complain, and in the same words."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.policies import opa_binary
from tests.support.policy_corpus import BUILDERS, KINDS, STAGES, cases, policies
from trtops.digest import digest_of
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.opa import start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.policy_corpus import Case
    from trtops.policy.port import Answer, PolicySet
    from trtops.policy.verdict import Stage

CASES: dict[Stage, tuple[Case, ...]] = {stage: tuple(cases(stage)) for stage in STAGES}
EVERY = [case for found in CASES.values() for case in found]
WARNING = {
    "spec.preflight_warnings",
    "evidence.baseline_comparable",
    "evidence.measurement_quiet",
    "release.targets_kept",
}
"""Rules that warn."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return policies(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def embedded(loaded: PolicySet) -> Mapping[Stage, list[Mapping[str, Answer]]]:
    """What the embedded engine says of every document."""
    with closing(EmbeddedEngine(loaded)) as engine:
        return {stage: engine.evaluate(stage, [case.document for case in CASES[stage]]) for stage in STAGES}


def _complaints(answer: Mapping[str, Answer]) -> set[str]:
    return {rule.partition(".")[2] for rule, values in answer.items() if values[0]}


def _words(answer: Mapping[str, Answer]) -> dict[str, list[str]]:
    """Findings as sorted text, since engines order them in their own ways."""
    return {rule: sorted(str(sorted(finding.items())) for finding in values[0]) for rule, values in answer.items()}


@pytest.mark.parametrize("stage", STAGES)
def test_the_embedded_engine_says_what_is_expected(
    stage: Stage, embedded: Mapping[Stage, list[Mapping[str, Answer]]]
) -> None:
    wrong = {
        case.id: sorted(found)
        for case, answer in zip(CASES[stage], embedded[stage], strict=True)
        if (found := _complaints(answer)) != case.expected
    }
    assert wrong == {}


@pytest.mark.service
def test_opa_says_the_same_word_for_word(
    loaded: PolicySet, embedded: Mapping[Stage, list[Mapping[str, Answer]]]
) -> None:
    with closing(start(loaded, opa_binary())) as opa:
        theirs = {stage: opa.evaluate(stage, [case.document for case in CASES[stage]]) for stage in STAGES}
    different = {
        case.id: (_words(one), _words(other))
        for stage in STAGES
        for case, one, other in zip(CASES[stage], embedded[stage], theirs[stage], strict=True)
        if _words(one) != _words(other)
    }
    assert different == {}


def test_every_finding_can_be_reported(loaded: PolicySet, embedded: Mapping[Stage, list[Mapping[str, Answer]]]) -> None:
    for stage in STAGES:
        for answer in embedded[stage]:
            assert set(answer) == {rule.id for rule in loaded.of_stage(stage)}
            for (findings,) in answer.values():
                for finding in findings:
                    assert set(finding) <= {"message", "path", "document", "fix"}
                    assert isinstance(finding["message"], str)
                    assert finding["message"]
                    assert all(isinstance(key, str | int) for key in finding["path"])
                    assert finding.get("document", "runtime") == "runtime"


def test_every_rule_is_broken_in_every_way(loaded: PolicySet) -> None:
    ways = {(f"{case.stage}.{case.rule}", case.kind) for case in EVERY}
    assert ways == {(rule.id, kind) for rule in loaded.rules for kind in KINDS}


def test_a_mutation_for_each_rule_is_denied_by_that_rule_and_no_other(loaded: PolicySet) -> None:
    """In the stages that a person writes for, what was written was changed, and not the finished input."""
    single = {
        f"{case.stage}.{case.rule}"
        for case in EVERY
        if case.kind == "bad"
        and case.expected == {case.rule}
        and (case.authored or case.stage == "release" or case.rule == "preflight_warnings")
    }
    assert single == {rule.id for rule in loaded.rules}


def test_rules_that_only_warn_are_known(loaded: PolicySet) -> None:
    assert {rule.id for rule in loaded.rules if rule.metadata.severity != "deny"} == WARNING


def test_no_document_is_another_s_copy() -> None:
    seen: dict[str, str] = {}
    for case in EVERY:
        identity = f"{case.stage} {digest_of(case.document)}"
        assert seen.setdefault(identity, case.id) == case.id
    assert len(seen) >= 200


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a document but its copies of what an author wrote, which no rule reads."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        if path or key not in ("document", "runtime_document"):
            yield (*path, key)
            yield from _places(child, (*path, key))


WRONG: tuple[Any, ...] = (None, "x", -1, 1e300, 0.5, 8.0, [], [{"a": 1}], {"a": 1}, True)
FULL: dict[Stage, dict[str, Any]] = {
    "source": {"engine": {"model.source": "pypi://a==1/m.onnx", "builder.plugins": [{"name": "ROIAlign_TRT"}]}},
    "spec": {
        "preflight": {"facts": [{"code": "c", "severity": "repaired", "message": "m", "path": ["a"], "fix": "f"}]}
    },
    "evidence": {"baseline": {}},
    "release": {},
}


def _broken(stage: Stage) -> Iterator[tuple[str, dict[str, Any]]]:
    """A good document with each of its places gone, and with each of them wrong in one of the ways, in turn."""
    good = BUILDERS[stage](FULL[stage])
    for number, path in enumerate(_places(good)):
        for how in ("gone", WRONG[number % len(WRONG)]):
            document: Any = json.loads(json.dumps(good))
            holder = document
            for key in path[:-1]:
                holder = holder[key]
            if how == "gone":
                del holder[path[-1]]
            else:
                holder[path[-1]] = how
            yield f"{stage}: {path} is {how!r}", document


@pytest.mark.service
@pytest.mark.parametrize("stage", STAGES)
def test_engines_agree_on_a_document_that_is_broken_anywhere(stage: Stage, loaded: PolicySet) -> None:
    broken = list(_broken(stage))
    documents = [document for _, document in broken]
    with closing(start(loaded, opa_binary())) as opa:
        theirs = opa.evaluate(stage, documents)
    with closing(EmbeddedEngine(loaded)) as embedded:
        ours = embedded.evaluate(stage, documents)
    different = {
        name: (_words(one), _words(other))
        for (name, _), one, other in zip(broken, ours, theirs, strict=True)
        if _words(one) != _words(other)
    }
    assert different == {}
