"""Many documents on many cores: the answers of one process, in their order, whatever happens to the others."""

from __future__ import annotations

import datetime as dt
import gc
import os
import signal
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies import document, repository, write_rule
from trtops.errors import Undecided
from trtops.policy import embedded, spread
from trtops.policy.embedded import EmbeddedEngine
from trtops.policy.gate import Gate, Subject
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


def test_an_answer_that_nobody_took_is_no_answer_to_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation here fails while the others still answer: their words must not be taken for the next ones."""
    monkeypatch.setattr(embedded, "usable_cores", lambda: 3)
    root = repository(tmp_path)
    write_rule(root, 'findings contains {"message": "x", "path": []} if 1 / input.facts.zero > 1\n', name="raises")
    good = [{**one, "facts": {"zero": 1}} for one in DOCUMENTS]
    with closing(EmbeddedEngine(load_policies(root))) as engine:
        with pytest.raises(Undecided, match=r"spec\.raises"):
            engine.evaluate("spec", [{**good[0], "facts": {"zero": 0}}, *good[1:]])  # in the share of this process
        bad = [{**one, "facts": {"zero": 0.5}} for one in good]
        assert all(len(answer["spec.raises"][0]) == 1 for answer in engine.evaluate("spec", bad))


def test_a_process_that_cannot_be_started_costs_no_answer(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refused = spread._start, [OSError("no process left")]

    def start() -> Any:
        if refused:
            raise refused.pop()
        return begin()

    monkeypatch.setattr(spread, "_start", start)
    assert engine.evaluate("spec", DOCUMENTS) == [engine.evaluate("spec", [one])[0] for one in DOCUMENTS]
    assert len(pids(engine)) == 1


def test_nothing_of_the_folder_that_is_judged_is_run(
    engine: EmbeddedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` looks for modules where it is run: in the checkout of somebody's change."""
    for module in ("regorus.py", "json.py", "trtops/__init__.py", "trtops/policy/evaluator.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    engine.evaluate("spec", DOCUMENTS)
    engine.evaluate("spec", DOCUMENTS)
    assert len(pids(engine)) == 2
    assert not (tmp_path / "ran").exists()


def test_an_engine_that_nobody_closes_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "usable_cores", lambda: 2)
    engine = EmbeddedEngine(load_policies(repository(tmp_path)))
    engine.evaluate("spec", DOCUMENTS)
    (pid,) = pids(engine)
    del engine
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nonsense_about_one_document_of_many_is_undecided_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "usable_cores", lambda: 3)
    root = repository(tmp_path)
    write_rule(root, "findings contains finding if some finding in input.facts.list\n", name="nonsense")
    subjects = [
        Subject(f"engine-{number}", f"engine-{number}", {**one, "facts": {"list": [] if number != 131 else ["x"]}})
        for number, one in enumerate(DOCUMENTS)
    ]
    policies = load_policies(root)
    with closing(EmbeddedEngine(policies)) as engine:
        gate = Gate(policies, engine, "local", dt.date(2026, 2, 1))
        with pytest.raises(Undecided, match=r"spec.nonsense: a finding is no object \(judging engine-131\)"):
            gate.judge_all("spec", subjects)


def test_an_engine_that_nobody_holds_is_freed_at_once_by_its_thread(tmp_path: Path) -> None:
    """regorus' engines may be dropped by the thread that made them only: not by a collector, wherever that runs."""
    engine = EmbeddedEngine(load_policies(repository(tmp_path)))
    engine.evaluate("spec", DOCUMENTS[:1])
    gone = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()
