"""What a finding means where it was found, in one word; every report uses the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.policy.verdict import Finding


def rank(finding: Finding) -> int:
    """How much it matters: 0 denies, 3 is waived."""
    if finding.blocking:
        return 0
    return 3 if finding.waived_by else 2 if finding.severity == "info" else 1


def label(finding: Finding) -> str:
    """What a finding means here: ``denied``, ``warning``, ``info`` or ``waived``."""
    return ("denied", "warning", "info", "waived")[rank(finding)]
