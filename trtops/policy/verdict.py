"""What policies said, as a value."""

from __future__ import annotations

from typing import Literal

from trtops.digest import Digest, Value

Stage = Literal["source", "spec", "evidence", "release"]
Severity = Literal["deny", "warn", "info"]
Level = Literal["advisory", "soft", "hard"]
Decision = Literal["allow", "warn", "deny"]


class SourceLocation(Value):
    """A position in a file; counts from 1, 0 is unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Render as ``file:line:column``."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Finding(Value):
    """One rule's complaint.

    Attributes:
        rule: ``<stage>.<rule>``, e.g. ``spec.workspace_bounded``.
        severity: what the rule says; :attr:`blocking` says what it means here.
        level: enforcement: ``advisory`` never blocks, ``soft`` can be waived, ``hard`` cannot.
        path: where in the judged document.
        location: the line of the value that broke the rule.
        fix: what to do.
        docs: link to the rule's page.
        waived_by: id of the waiver that lets it pass; it stays visible.
    """

    rule: str
    stage: Stage
    severity: Severity
    level: Level = "hard"
    message: str
    path: tuple[str | int, ...] = ()
    location: SourceLocation | None = None
    fix: str | None = None
    docs: str | None = None
    waived_by: str | None = None

    @property
    def blocking(self) -> bool:
        """Whether this finding denies."""
        return self.severity == "deny" and self.level != "advisory" and self.waived_by is None


class Verdict(Value):
    """What a stage's policies said of one document.

    Attributes:
        stage: which policies.
        subject: what was judged, e.g. the engine's name or ``ppocr-cls/onnxruntime``.
        environment: whose enforcement levels were used.
        engine: what evaluated, with its version, e.g. ``embedded regorus 0.9.1`` or ``opa 1.22.3``.
        policies: digest of policies, data, enforcement and waivers.
        input: digest of the judged document.
        rules: every rule that was evaluated; never empty.
        findings: complaints, waived ones too.
    """

    stage: Stage
    subject: str
    environment: str
    engine: str
    policies: Digest
    input: Digest
    rules: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def decision(self) -> Decision:
        """``deny`` if a finding blocks, ``warn`` if any is left, else ``allow``."""
        if any(finding.blocking for finding in self.findings):
            return "deny"
        return "warn" if any(finding.severity != "info" for finding in self.findings) else "allow"
