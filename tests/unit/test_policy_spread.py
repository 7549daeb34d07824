"""Many documents on many cores: the answers of one process, in their order, whatever happens to the others."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies import document, repository, write_rule
from trtops.errors import Undecided
from trtops.policy import embedded
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.loader import load_policies
from trtops.policy.spread import WORTH, processes_for

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [document(owner="a", memory={"workspace": 99 + number % 4}) for number in range(3 * WORTH + 1)]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(embedded, "usable_cores", lambda: 3)
    engine = EmbeddedEngine(load_policies(repository(tmp_path)))
    yield engine
    engine.close()


def pids(engine: EmbeddedEngine) -> list[int]:
    return [child.process.pid for child in engine._evaluators._children]


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_a_process_is_started_only_for_documents_enough_and_a_core_of_its_own(documents: int, cores: int) -> None:
    beside = processes_for(documents, cores)
    assert 0 <= beside < max(1, cores)
    assert beside == 0 or documents >= WORTH * (beside + 1)


def test_the_answers_are_those_of_one_process(engine: EmbeddedEngine) -> None:
    alone = [engine.evaluate("spec", [one])[0] for one in DOCUMENTS]
    assert pids(engine) == []
    assert engine.evaluate("spec", DOCUMENTS) == alone
    assert len({str(answer) for answer in alone}) > 1
    assert len(pids(engine)) == 2
    assert engine.evaluate("spec", DOCUMENTS) == alone


def test_a_process_that_dies_costs_no_answer(engine: EmbeddedEngine) -> None:
    alone = engine.evaluate("spec", DOCUMENTS)
    before = pids(engine)
    os.kill(before[0], signal.SIGKILL)
    assert engine.evaluate("spec", DOCUMENTS) == alone
    assert engine.evaluate("spec", DOCUMENTS) == alone
    assert len(pids(engine)) == 2
    assert before[0] not in pids(engine)


def test_none_is_left_behind(engine: EmbeddedEngine) -> None:
    engine.evaluate("spec", DOCUMENTS)
    before = pids(engine)
    engine.close()
    for pid in before:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rule_that_raises_in_another_process_is_told_as_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "usable_cores", lambda: 2)
    root = repository(tmp_path)
    write_rule(root, 'findings contains {"message": "x", "path": []} if 1 / input.facts.zero > 0\n', name="raises")
    engine = EmbeddedEngine(load_policies(root))
    documents = [{**one, "facts": {"zero": 1}} for one in DOCUMENTS]
    documents[1]["facts"] = {"zero": 0}  # in the share of the other process
    with pytest.raises(Undecided, match=r"spec.raises: .*divi"):
        engine.evaluate("spec", documents)
    engine.close()
