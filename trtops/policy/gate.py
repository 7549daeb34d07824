"""The gate: raw answers of an engine into a verdict, closed against every way of passing by accident.

``Undecided`` (exit code 2) is raised wherever a rule was not evaluated to a well-formed set of findings. A verdict is
made only of answers of every rule of the stage; a finding keeps the line of the value that broke the rule, the level of
``enforcement.yaml``, and the waiver that lets it pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.digest import digest_of
from trtops.errors import Undecided
from trtops.policy.soundness import demand_sound
from trtops.policy.verdict import Finding, SourceLocation, Verdict

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtops.digest import Digest
    from trtops.errors import Location
    from trtops.policy.governance import Waiver, WaiverDocument
    from trtops.policy.port import Answer, PolicyEngine, PolicySet, Rule
    from trtops.policy.verdict import Stage

    Path = tuple[str | int, ...]
    Locate = Callable[[Path, str], Location | None]
    Refusal = Callable[[WaiverDocument], str | None]

DOCUMENTS = ("engine", "runtime")
_KEYS = frozenset({"message", "path", "document", "fix"})


def _nowhere(path: Path, document: str) -> None:
    del path, document


def _nobody(waiver: WaiverDocument) -> str | None:
    return f"nobody here knows the key of {waiver.approver}"


@dataclass(frozen=True, slots=True)
class Subject:
    """One document to judge.

    Attributes:
        name: what reports call it: the engine's name, or ``ppocr-cls/onnxruntime``.
        engine: the engine's name, which waivers select by.
        document: the input of the stage.
        locate: path and document (``engine`` or ``runtime``) -> where the value is written; None where it is not.
    """

    name: str
    engine: str
    document: Mapping[str, Any]
    locate: Locate = field(default=_nowhere)


@dataclass(frozen=True, slots=True)
class Gate:
    """Judges documents by a policy set, with an engine, for an environment, on a day.

    Attributes:
        policies: what judges.
        engine: what evaluates; made with the same policies.
        environment: whose levels count.
        today: the day (UTC) that waivers are held against.
        refusal: why a waiver's signature does not make it count; None where it does.
    """

    policies: PolicySet
    engine: PolicyEngine
    environment: str
    today: dt.date
    refusal: Refusal = field(default=_nobody)

    def judge(self, stage: Stage, subject: Subject) -> Verdict:
        """The verdict on one document.

        Raises:
            Undecided: as :meth:`judge_all`.
        """
        return self.judge_all(stage, [subject])[0]

    def judge_all(self, stage: Stage, subjects: Sequence[Subject], *, whole: bool = False) -> tuple[Verdict, ...]:
        """The verdicts on many documents, in their order.

        Args:
            stage: which policies.
            subjects: the documents.
            whole: these are all documents there are, so that a waiver of many engines which none of them needs is
                unused. A waiver of one engine is held against that engine's verdict alone.

        Raises:
            Undecided: a rule of the stage could not be evaluated on a document, or answered nonsense; names the rule,
                its line and the document.
        """
        here = self.policies.enforcement.environment(self.environment)
        if here.engine == "opa" and self.engine.name != "opa":
            raise Undecided(
                f"the environment {self.environment!r} demands the engine opa, not {self.engine.name}",
                fix="run with --engine opa",
            )
        rules = self.policies.of_stage(stage)
        demand_sound(self.policies, stage)
        digests = [_digest(subject) for subject in subjects]
        answers = self._ask(stage, subjects)
        waivers = _Waivers(self, stage)
        findings = [
            [waivers.applied(found, subject) for found in self._findings(rules, subject, answer)]
            for subject, answer in zip(subjects, answers, strict=True)
        ]
        return tuple(
            Verdict(
                stage=stage,
                subject=subject.name,
                environment=self.environment,
                engine=f"{self.engine.name} {self.engine.version}"
                if self.engine.name != "opa"
                else self.engine.version,
                policies=self.policies.digest,
                input=digest,
                rules=tuple(rule.id for rule in rules),
                findings=(*found, *waivers.notices(subject, whole=whole)),
            )
            for subject, digest, found in zip(subjects, digests, findings, strict=True)
        )

    def _ask(self, stage: Stage, subjects: Sequence[Subject]) -> list[Mapping[str, Answer]]:
        documents = [subject.document for subject in subjects]
        try:
            answers = self.engine.evaluate(stage, documents)
        except Undecided:
            if len(subjects) > 1:
                self._name_culprit(stage, subjects)
            raise
        if len(answers) != len(subjects):
            raise Undecided("the engine did not answer for each document", where=self.engine.name)
        return answers

    def _name_culprit(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        """Ask once more, one by one, so that the error names the document."""
        for subject in subjects:
            self._ask_named(stage, subject)

    def _ask_named(self, stage: Stage, subject: Subject) -> None:
        try:
            self.engine.evaluate(stage, [subject.document])
        except Undecided as error:
            raise Undecided(f"{error.what} (judging {subject.name})", where=error.where, fix=error.fix) from error

    def _findings(self, rules: Sequence[Rule], subject: Subject, answer: Mapping[str, Answer]) -> Iterator[Finding]:
        unknown = set(answer) - {rule.id for rule in rules}
        if unknown:
            raise Undecided(f"the engine answered for unknown rules: {', '.join(sorted(unknown))}", where=subject.name)
        for rule in rules:
            values = answer.get(rule.id, ())
            if len(values) != 1:
                raise Undecided(
                    f"{rule.id}: the decision is undefined (judging {subject.name})",
                    where=rule.location,
                    fix="`findings` has to be a set of findings for every document, the empty set included",
                )
            level = self.policies.enforcement.level_of(rule.id, rule.metadata.level, self.environment)[0]
            found = [self._finding(rule, subject, value, level) for value in _listed(rule, subject, values[0])]
            unique = {(finding.path, finding.message, str(finding.location)): finding for finding in found}
            yield from (unique[key] for key in sorted(unique, key=lambda key: (_sortable(key[0]), key[1:])))

    def _finding(self, rule: Rule, subject: Subject, value: Any, level: Any) -> Finding:  # noqa: ANN401 - any JSON value
        problem = _malformed(value)
        if problem:
            raise Undecided(
                f"{rule.id}: a finding {problem} (judging {subject.name})",
                where=rule.location,
                fix='a finding is {"message": text, "path": [keys and indices]}, and may have "document" and "fix"',
            )
        path = tuple(value["path"])
        place = subject.locate(path, value.get("document", "engine"))
        return Finding(
            rule=rule.id,
            stage=rule.stage,
            severity=rule.metadata.severity,
            level=level,
            message=value["message"],
            path=path,
            location=SourceLocation(file=place.file, line=place.line, column=place.column) if place else None,
            fix=value.get("fix", rule.metadata.remediation),
            docs=rule.docs,
        )


def _digest(subject: Subject) -> Digest:
    try:
        return digest_of(subject.document)
    except (ValueError, TypeError) as error:
        raise Undecided(f"the document of {subject.name} is not JSON: {error}") from error


def _listed(rule: Rule, subject: Subject, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    if not isinstance(value, list):
        raise Undecided(
            f"{rule.id}: the decision is {type(value).__name__}, not a set (judging {subject.name})",
            where=rule.location,
            fix="write `findings contains finding if { … }`",
        )
    return value


def _malformed(value: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """What is wrong with a finding; None if it is one."""
    if not isinstance(value, dict):
        return "is no object"
    unknown = sorted(set(value) - _KEYS)
    if unknown:
        return f"has an unknown key {unknown[0]!r}"
    message = value.get("message")
    if not isinstance(message, str) or not message.strip():
        return "has no message"
    if "%!" in message:
        return f"has a message that sprintf could not fill in: {message!r}"
    path = value.get("path")
    if not isinstance(path, list):
        return "has no path (a list; empty for the whole document)"
    for part in path:
        if isinstance(part, bool) or not isinstance(part, str | int) or (isinstance(part, int) and part < 0):
            return f"has a path with {part!r} in it, which is neither a key nor an index"
    if value.get("document", "engine") not in DOCUMENTS:
        return f"is of an unknown document {value['document']!r} (known: {', '.join(DOCUMENTS)})"
    if "fix" in value and (not isinstance(value["fix"], str) or not value["fix"].strip()):
        return "has a fix that is no text"
    return None


def _sortable(path: Path) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in path)


class _Waivers:
    """The waivers of a stage: which of them let a finding pass, and what has to be said of the others."""

    def __init__(self, gate: Gate, stage: Stage) -> None:
        self._gate = gate
        self._stage = stage
        here = gate.policies.enforcement.environment(gate.environment)
        self._free = gate.policies.merged or here.waivers == "any"
        self._used: set[Waiver] = set()
        self._refused: dict[str, set[Waiver]] = {}
        self._refusals: dict[Waiver, str | None] = {}
        self._waivers = [
            waiver
            for waiver in (*gate.policies.waivers, *gate.policies.proposed)
            if waiver.document is None or waiver.document.rule.partition(".")[0] == stage
        ]

    def _counts(self, waiver: Waiver) -> bool:
        if waiver.document is None or waiver.defect_on(self._gate.today) is not None:
            return False
        return self._refusal(waiver, waiver.document) is None

    def _refusal(self, waiver: Waiver, document: WaiverDocument) -> str | None:
        """Why a waiver that is right in itself does not count; None where it does."""
        if self._free and waiver not in self._gate.policies.proposed:
            return None
        if document.signature is None:
            return "it is neither merged on the base revision nor signed by its approver"
        if waiver not in self._refusals:
            self._refusals[waiver] = self._gate.refusal(document)
        return self._refusals[waiver]

    def applied(self, finding: Finding, subject: Subject) -> Finding:
        """The finding, waived if a waiver that counts covers it."""
        by: str | None = None
        for waiver in self._waivers:
            if not waiver.concerns(subject.engine, self._gate.environment) or not waiver.covers(
                finding.rule, finding.path
            ):
                continue
            self._used.add(waiver)
            if finding.level == "hard":
                self._refused.setdefault(subject.name, set()).add(waiver)
            elif self._counts(waiver) and by is None:
                by = waiver.id
        return finding if by is None else finding.model_copy(update={"waived_by": by})

    def notices(self, subject: Subject, *, whole: bool) -> Iterator[Finding]:
        """What has to be said of waivers that concern a document."""
        for waiver in self._waivers:
            if waiver.concerns(subject.engine, self._gate.environment):
                notice = self._notice(waiver, subject, whole=whole)
                if notice is not None:
                    yield notice

    def _notice(self, waiver: Waiver, subject: Subject, *, whole: bool) -> Finding | None:
        defect = waiver.defect_on(self._gate.today)
        if defect is not None:
            return self._said(f"waiver_{defect.kind}", waiver, defect.message, defect.location, defect.fix)
        if waiver in self._refused.get(subject.name, ()):
            message = f"{_rule(waiver)} is hard in {self._gate.environment}: no waiver lifts it"
            fix = "mend the finding and delete the waiver, or have the level changed in enforcement.yaml"
            return self._said("waiver_refused", waiver, message, waiver.at("rule"), fix)
        refusal = None if waiver.document is None else self._refusal(waiver, waiver.document)
        if refusal is not None:
            fix = (
                f"have its approver sign it (trtops policy approve {waiver.id} --as KEY), or merge it and judge by the "
            )
            fix += "revision that has it: TRTOPS_POLICIES_FROM=REF, or check --policies-from REF"
            return self._said("waiver_unapproved", waiver, refusal, waiver.at("approver"), fix)
        if waiver not in self._used and (whole or waiver.exact):
            message = f"{_rule(waiver)} finds nothing here that needs it"
            return self._said("waiver_unused", waiver, message, waiver.at("rule"), "delete the file")
        return None

    def _said(self, name: str, waiver: Waiver, message: str, where: Location, fix: str) -> Finding:
        return Finding(
            rule=f"governance.{name}",
            stage=self._stage,
            severity="warn",
            level="advisory",
            message=f"the waiver {waiver.id} does not count: {message}",
            location=SourceLocation(file=where.file, line=where.line, column=where.column),
            fix=fix,
            docs="docs/concepts/governance.md",
        )


def _rule(waiver: Waiver) -> str:
    return waiver.document.rule if waiver.document is not None else "its rule"
