"""``trtops policy explain RULE``: what a rule demands, how strictly where, what it reads, who is let pass."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from trtops.errors import Location
from trtops.policy.governance import ENFORCEMENT_FILE, unknown_rule
from trtops.policy.syntax import parse

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from trtops.policy.governance import Waiver
    from trtops.policy.port import PolicySet, Rule
    from trtops.policy.syntax import Module

_WIDTH = 100


def explain(policies: PolicySet, rule_id: str, *, today: dt.date) -> str:
    """A rule in words, from its metadata, ``enforcement.yaml`` and the waivers.

    Args:
        policies: what judges.
        rule_id: ``<stage>.<name>``, or ``<stage>/<name>``.
        today: the day that waivers are held against.

    Raises:
        Undecided: no such rule, or it cannot be parsed.
    """
    known = {rule.id: rule for rule in policies.rules}
    rule = known.get(rule_id.replace("/", "."))
    if rule is None:
        raise unknown_rule(rule_id, known, _origin(policies))
    return "\n".join(_lines(policies, rule, today)) + "\n"


def _origin(policies: PolicySet) -> Location:
    return Location(policies.origin)


def _lines(policies: PolicySet, rule: Rule, today: dt.date) -> Iterator[str]:
    metadata = rule.metadata
    yield f"{rule.id}: {metadata.title}"
    yield ""
    yield from _paragraph(metadata.description)
    yield ""
    yield f"severity     {metadata.severity} (since {metadata.since})"
    yield from _labelled("what to do", metadata.remediation)
    yield f"written in   {rule.file.at(rule.location.line)}"
    yield f"page         {rule.docs}"
    (module,) = parse([rule.file])
    for label, names in (("reads", _inputs(module)), ("data", _data(policies, module))):
        if names:
            yield from _labelled(label, ", ".join(names))
    yield ""
    yield f"how strictly it holds, by {ENFORCEMENT_FILE}:"
    for environment in policies.enforcement.environments:
        level, source = policies.enforcement.level_of(rule.id, metadata.level, environment)
        yield f"  {environment:<12} {level:<9} (from {source})"
    waivers = [waiver for waiver in policies.waivers if waiver.document and waiver.document.rule == rule.id]
    if waivers:
        yield ""
        yield "waivers:"
        for waiver in waivers:
            yield from _waiver(waiver, today)


def _paragraph(text: str) -> list[str]:
    blocks = text.split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(block.split()), _WIDTH) for block in blocks).splitlines()


def _labelled(label: str, text: str) -> list[str]:
    indent = " " * 13
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=f"{label:<13}", subsequent_indent=indent)


def _inputs(module: Module) -> list[str]:
    """The fields of the input that the rule itself names."""
    named: set[str] = set()
    for reference in module.references:
        if reference.root == "input" and reference.segments:
            named.add(".".join("[_]" if part is None else part for part in reference.segments))
    return sorted(named)


def _data(policies: PolicySet, module: Module) -> list[str]:
    stems = {path[1] for path in module.imports.values() if path[0] == "data" and len(path) > 1}
    stems |= {str(entry.segments[0]) for entry in module.references if entry.root == "data" and entry.segments}
    return [policies.data_files[stem] for stem in sorted(stems) if stem in policies.data_files]


def _waiver(waiver: Waiver, today: dt.date) -> Iterator[str]:
    document = waiver.document
    if document is None:
        return
    defect = waiver.defect_on(today)
    state = f"does not count: {defect.message}" if defect else f"until {document.expires}"
    yield f"  {waiver.id}: {document.selector.engine} at {document.selector.path}, {state}"
    yield f"    {document.reason} (owner {document.owner}, approved by {document.approver})"
