"""The embedded engine: regorus, in this process. Judges at once on a machine that has nothing else.

Many documents are spread over the cores (:mod:`trtops.policy.spread`). Values cross as JSON text: regorus would turn
``False`` into ``0`` when it converts Python values.
"""

from __future__ import annotations

import json
from functools import cached_property, partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from trtops.errors import Undecided
from trtops.policy.native import NativeEngine
from trtops.policy.port import DECISION, question
from trtops.policy.spread import Evaluators, processes_for, usable_cores
from trtops.policy.syntax import RegorusPanic, from_regorus, panics, parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.policy.port import Answer, PolicyFile, PolicySet, Rule
    from trtops.policy.verdict import Stage

_QUESTION = "policies/gate.rego"
_GATE = "data.trtops.gate."


class EmbeddedEngine:
    """Evaluates with regorus. Built-in errors are strict: an error in a rule is an error of the evaluation."""

    name = "embedded"

    def __init__(self, policies: PolicySet) -> None:
        """Keep the policies; they are compiled when their stage is first asked."""
        self._policies = policies
        self._stages: dict[Stage, NativeEngine] = {}
        self._evaluators = Evaluators(partial(_program, policies))

    def __repr__(self) -> str:
        """Show what is compiled."""
        return f"EmbeddedEngine({self._policies.origin!r}, compiled={sorted(self._stages)})"

    @cached_property
    def version(self) -> str:
        """``regorus`` with its version."""
        return f"regorus {metadata.version('celine-regorus').partition('.post')[0]}"

    def evaluate(self, stage: Stage, documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Answer]]:
        """Ask every rule of a stage about every document.

        Raises:
            Undecided: a rule is no Rego v1, or raised; names its line.
        """
        files = {file.path: file for file in self._policies.modules(stage)}
        texts = [_json(document) for document in documents]
        beside = processes_for(len(texts), usable_cores())
        if not beside:
            raw = self._evaluated(stage, files, texts)
        else:
            self._compiled(stage, files)  # what is wrong with the policies is found here
            asked = partial(self._evaluated, stage, files)
            raw = self._evaluators.evaluate(f"{_GATE}{stage}", texts, beside, asked)
        return [self._answer(text) for text in raw]

    def _answer(self, text: str) -> Mapping[str, Answer]:
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise Undecided("the decision is undefined", where=self._policies.origin, fix="this is a defect of trtops")
        return {rule: tuple(values) for rule, values in raw.items()}

    def _evaluated(self, stage: Stage, files: Mapping[str, PolicyFile], texts: Sequence[str]) -> list[str]:
        return [self._decided(stage, text, files) for text in texts]

    def _decided(self, stage: Stage, document: str, files: Mapping[str, PolicyFile]) -> str:
        try:
            return self._ask(stage, document, f"{_GATE}{stage}", files)
        except RegorusPanic as panic:
            culprit = self._culprit(stage, document, files)
            raise Undecided(
                f"{culprit.id if culprit else stage}: regorus broke down: {panic}",
                where=culprit.location if culprit else self._policies.origin,
                fix="guard the rule against such a value, or judge with OPA",
            ) from None

    def _ask(self, stage: Stage, document: str, path: str, files: Mapping[str, PolicyFile]) -> str:
        engine = self._compiled(stage, files)
        try:
            with panics():
                engine.set_input_json(document)
                return engine.eval_rule_as_json(path)
        except RuntimeError as error:
            raise from_regorus(error, files, "the rule could not be evaluated") from None
        except RegorusPanic:
            self._stages.pop(stage, None)  # nothing is known of its state
            raise

    def _culprit(self, stage: Stage, document: str, files: Mapping[str, PolicyFile]) -> Rule | None:
        """The rule that regorus breaks down at, found by asking each alone."""
        for rule in self._policies.of_stage(stage):
            if self._breaks(stage, document, rule, files):
                return rule
        return None

    def _breaks(self, stage: Stage, document: str, rule: Rule, files: Mapping[str, PolicyFile]) -> bool:
        try:
            self._ask(stage, document, f"data.{rule.package}.{DECISION}", files)
        except RegorusPanic:
            return True
        except Undecided:
            return False
        return False

    def _compiled(self, stage: Stage, files: Mapping[str, PolicyFile]) -> NativeEngine:
        known = self._stages.get(stage)
        if known is not None and known.usable:
            return known
        engine = NativeEngine()
        try:
            for path, text in _modules(self._policies, stage):
                engine.add_policy(path, text)
            engine.add_data_json(json.dumps(dict(self._policies.data), allow_nan=False))
        except (RuntimeError, ValueError) as error:
            raise from_regorus(error, files, "the file is not Rego v1") from None
        self._stages[stage] = engine
        return engine

    def close(self) -> None:
        """Forget what is compiled, and stop what was started."""
        self._stages.clear()
        self._evaluators.close()


def _modules(policies: PolicySet, stage: Stage) -> list[tuple[str, str]]:
    modules = [(module.file.path, module.expanded()) for module in parsed(policies, stage)]
    return [*modules, (_QUESTION, question({stage: policies.of_stage(stage)}))]


def _program(policies: PolicySet, rule: str) -> dict[str, Any]:
    stage = cast("Stage", rule.removeprefix(_GATE))
    return {"modules": _modules(policies, stage), "data": dict(policies.data)}


def _json(document: Mapping[str, Any]) -> str:
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError as error:
        raise Undecided(f"the document cannot be judged: {error}", fix="it has to be JSON") from error
