"""The embedded engine: regorus, in this process. Judges at once on a machine that has nothing else.

Values cross as JSON text: regorus' conversion of Python values would turn ``False`` into ``0``.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from trtops.errors import Undecided
from trtops.policy.port import question
from trtops.policy.syntax import from_regorus, parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.policy.port import Answer, PolicyFile, PolicySet
    from trtops.policy.verdict import Stage

_QUESTION = "policies/gate.rego"


class EmbeddedEngine:
    """Evaluates with regorus. Built-in errors are strict: an error in a rule is an error of the evaluation."""

    name = "embedded"

    def __init__(self, policies: PolicySet) -> None:
        """Keep the policies; they are compiled when their stage is first asked."""
        self._policies = policies
        self._stages: dict[Stage, Any] = {}

    def __repr__(self) -> str:
        """Show what is compiled."""
        return f"EmbeddedEngine({self._policies.origin!r}, compiled={sorted(self._stages)})"

    @property
    def version(self) -> str:
        """``regorus`` with its version."""
        return f"regorus {metadata.version('celine-regorus').partition('.post')[0]}"

    def evaluate(self, stage: Stage, documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Answer]]:
        """Ask every rule of a stage about every document.

        Raises:
            Undecided: a rule is no Rego v1, or raised; names its line.
        """
        files = {file.path: file for file in self._policies.modules(stage)}
        engine = self._compiled(stage, files)
        answers: list[Mapping[str, Answer]] = []
        for document in documents:
            try:
                engine.set_input_json(json.dumps(document, allow_nan=False))
                raw = json.loads(engine.eval_rule_as_json(f"data.trtops.gate.{stage}"))
            except ValueError as error:
                raise Undecided(f"the document cannot be judged: {error}") from error
            except RuntimeError as error:
                raise from_regorus(error, files, "the rule could not be evaluated") from None
            answers.append({rule: tuple(values) for rule, values in raw.items()})
        return answers

    def _compiled(self, stage: Stage, files: Mapping[str, PolicyFile]) -> Any:  # noqa: ANN401 - an untyped package's class
        if stage in self._stages:
            return self._stages[stage]
        import regorus

        engine = regorus.Engine()
        try:
            for module in parsed(self._policies, stage):
                engine.add_policy(module.file.path, module.expanded())
            engine.add_policy(_QUESTION, question({stage: self._policies.of_stage(stage)}))
            engine.add_data_json(json.dumps(dict(self._policies.data), allow_nan=False))
        except (RuntimeError, ValueError) as error:
            raise from_regorus(error, files, "the file is not Rego v1") from None
        self._stages[stage] = engine
        return engine

    def close(self) -> None:
        """Forget what is compiled."""
        self._stages.clear()
