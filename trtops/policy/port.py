"""The port of policy engines, and the values that cross it: rules, policy sets, raw answers.

An engine is handed a whole :class:`PolicySet`, which was read once: nothing that changes on disk while a check runs can
reach it. What an engine answers is raw; whether that is a verdict is decided in :mod:`trtops.policy.gate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, get_args

from trtops.errors import Location, Undecided
from trtops.policy.verdict import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtops.digest import Digest
    from trtops.policy.governance import Enforcement, Waiver
    from trtops.policy.verdict import Level, Severity

STAGES: tuple[Stage, ...] = get_args(Stage)
"""The four stages, in the order in which a release passes them."""

DECISION = "findings"
"""The rule of every package that is asked for."""

Answer = tuple[Any, ...]
"""What one rule said of one document: empty where the decision is undefined, else one JSON value."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A Rego file as it was read.

    Attributes:
        path: relative to the repository's root, with ``/``.
        label: what messages call it: a path that can be opened, or ``REVISION:path``.
        text: its content.
    """

    path: str
    label: str
    text: str

    def at(self, line: int, column: int = 0) -> Location:
        """A position in this file."""
        return Location(self.label, line, column)


@dataclass(frozen=True, slots=True)
class RuleMetadata:
    """The ``# METADATA`` block of a rule.

    Attributes:
        title: one line.
        description: why the rule is there.
        severity: what a finding means: ``deny``, ``warn`` or ``info``.
        remediation: what to do about a finding; a finding's own ``fix`` comes first.
        since: version of trtops or date since when the rule holds, as text.
        level: enforcement level that the rule asks for where ``enforcement.yaml`` says nothing of it.
        line: of the block.
    """

    title: str
    description: str
    severity: Severity
    remediation: str
    since: str
    level: Level | None
    line: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its folder's Rego file with its metadata.

    Attributes:
        id: ``<stage>.<name>``.
        stage, name: of the folder.
        file: ``rule.rego``.
        test: ``rule_test.rego``; None where it is missing.
        metadata: the block above the package.
    """

    id: str
    stage: Stage
    name: str
    file: PolicyFile
    test: PolicyFile | None
    metadata: RuleMetadata

    @property
    def package(self) -> str:
        """The package that the folder demands."""
        return f"trtops.{self.id}"

    @property
    def location(self) -> Location:
        """The line of the decision's first rule head; the package's where it has none."""
        lines = self.file.text.splitlines()
        for prefix in (f"{DECISION} contains", DECISION, "package "):
            for number, line in enumerate(lines, start=1):
                if line.startswith(prefix):
                    return self.file.at(number)
        return self.file.at(1)

    @property
    def docs(self) -> str:
        """Path of the rule's page, relative to the repository's root."""
        return f"docs/rules/{self.stage}/{self.name}.md"


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Everything that decides, as it was at one moment.

    Attributes:
        origin: where it came from, for people: a folder, or ``REVISION (commit)``.
        merged: whether it is of a revision, so that what it says was reviewed and merged.
        rules: every rule of every stage, sorted by id.
        libraries: shared Rego, and their tests.
        data: what rules see under ``data``: file stem -> value.
        data_files: file stem -> what messages call the file.
        enforcement: ``governance/enforcement.yaml``.
        waivers: the files under ``governance/waivers``, sorted by id, the invalid ones too.
        digest: of all files that decide (tests and pages are left out).
        files: every file that was read: path -> bytes.
        proposed: signed waivers of a working tree beside policies of a revision: these count by their signature alone,
            and are no part of the digest.
    """

    origin: str
    merged: bool
    rules: tuple[Rule, ...]
    libraries: tuple[PolicyFile, ...]
    library_tests: tuple[PolicyFile, ...]
    data: Mapping[str, Any]
    data_files: Mapping[str, str]
    enforcement: Enforcement
    waivers: tuple[Waiver, ...]
    digest: Digest
    files: Mapping[str, bytes]
    proposed: tuple[Waiver, ...] = ()

    def of_stage(self, stage: Stage) -> tuple[Rule, ...]:
        """The rules of a stage, sorted by id.

        Raises:
            Undecided: there is none. Nothing evaluated is never a pass.
        """
        found = tuple(rule for rule in self.rules if rule.stage == stage)
        if not found:
            raise Undecided(
                f"no rule for the stage {stage!r}",
                where=self.origin,
                fix=f"add one with `trtops policy new {stage}/NAME`: a stage with no rule never passes",
            )
        return found

    def modules(self, stage: Stage) -> tuple[PolicyFile, ...]:
        """The Rego files that judge a stage: its rules, and every library."""
        return (*self.libraries, *(rule.file for rule in self.of_stage(stage)))

    def rule(self, rule_id: str) -> Rule:
        """The rule of this id.

        Raises:
            KeyError: there is none.
        """
        return {rule.id: rule for rule in self.rules}[rule_id]


class PolicyEngine(Protocol):
    """Evaluates the rules of a policy set. Made with the set; one thread uses it at a time."""

    @property
    def name(self) -> str:
        """``embedded`` or ``opa``."""

    @property
    def version(self) -> str:
        """What evaluates, with its version: ``regorus 0.9.1``, ``opa 1.22.3``."""

    def evaluate(self, stage: Stage, documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Answer]]:
        """Ask every rule of a stage about every document.

        Returns one mapping a document, in their order: rule id -> what its decision is.

        Raises:
            Undecided: a rule could not be evaluated; the error names it and its line where the engine tells.
        """

    def close(self) -> None:
        """Free what it holds; stop what it started. Idempotent."""


def frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A view that cannot be written."""
    return MappingProxyType(dict(mapping))


def question(rules: Mapping[Stage, Sequence[Rule]]) -> str:
    """The module that asks all rules of a stage at once; both engines are asked through it.

    Each decision comes back in an array, so that an undefined one is an empty array and never makes the rest vanish.
    ``<stage>`` answers for the input, ``batch_<stage>`` for each of ``input.documents``.
    """
    lines = ["package trtops.gate", ""]
    for stage, members in rules.items():
        lines.append(f"{stage} := {{")
        lines += [f'\t"{rule.id}": [v | v := data.{rule.package}.{DECISION}],' for rule in members]
        lines += [
            "}",
            "",
            f"batch_{stage} := [a | some document in input.documents; a := {stage} with input as document]",
            "",
        ]
    return "\n".join(lines)
