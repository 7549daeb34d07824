"""A page for each rule, written from its ``# METADATA`` and the data that it reads: Avoid, Prefer, Why, Configure.

Rendering is pure: a policy set in, texts out. ``docs/rules/`` holds them, and a test keeps them fresh.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtops.policy.port import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtops.policy.port import PolicySet, Rule
    from trtops.policy.verdict import Severity, Stage

FOLDER = "docs/rules"
_WRITTEN = (b"<!-- Written by `trtops policy docs` from", b"<!-- Written by `python -m trtops.policy.pages` from")
"""What says that a page was written here; the second is of before there was the verb."""

_SEVERITY: Mapping[Severity, str] = {
    "deny": "**deny**: what breaks it is not let through",
    "warn": "**warn**: it is reported and blocks nothing",
    "info": "**info**: it is noted",
}
_STAGE: Mapping[Stage, str] = {
    "source": "where models, data and plugins come from, before anything is fetched",
    "spec": "`engine.yaml`, `runtime.yaml` and what preflight found",
    "evidence": "what was built, verified and measured",
    "release": "what is about to run, and who says so",
}
_DATA = re.compile(r"\bdata\.(?!trtops\b)([a-z_]+)(?:\.([a-z_]+))?")
_IMPORT = re.compile(r"^import data\.trtops\.lib\.([a-z_]+)$", re.MULTILINE)
_CALL = re.compile(r"\blimits\.(?:current\.|(?:value|bytes|microseconds)\(\")([a-z_0-9]+)")
_VERB = re.compile(r"%[svd]|%%|%\.\d+f")
_MESSAGE = re.compile(
    r'(?:"message":\s*|placed\(\s*)'
    r'(?:sprintf\(\s*"(?P<format>[^"]*)",\s*\[(?P<values>(?:[^\[\]]|\[[^\[\]]*\])*)\]|"(?P<plain>[^"]*)")'
)
_TABLE = re.compile(r"\benvironments\.of\(data\.([a-z_]+)\)")


def pages(policies: PolicySet) -> dict[str, str]:
    """Path relative to the repository's root -> text, of every page and the index."""
    found = {f"{FOLDER}/{rule.stage}/{rule.name}.md": page(rule, policies) for rule in policies.rules}
    return {f"{FOLDER}/README.md": index(policies), **found}


def index(policies: PolicySet) -> str:
    """The table of all rules, by stage."""
    parts = [
        "# Rules",
        "",
        "<!-- Written by `trtops policy docs` from the rules themselves; edit those. -->",
        "",
        "Every rule is a folder under `policies/`: the rule, its test, and the block that this page is written from.",
        "What a rule sees is described in [policy inputs](../concepts/policy-inputs.md); how strictly it holds in an",
        "environment, and who may waive it, in [governance](../concepts/governance.md).",
    ]
    for stage in STAGES:
        rules = [rule for rule in policies.rules if rule.stage == stage]
        parts += [
            "",
            f"## {stage}: {_STAGE[stage]}",
            "",
            "| rule | what it asks | severity | since |",
            "|---|---|---|---|",
        ]
        parts += [
            f"| [`{rule.name}`]({stage}/{rule.name}.md) | {_cell(rule.metadata.title)} "
            f"| {rule.metadata.severity} | {_cell(rule.metadata.since)} |"
            for rule in rules
        ]
    return "\n".join([*parts, ""])


def page(rule: Rule, policies: PolicySet) -> str:
    """One rule's page."""
    about = rule.metadata
    level = f" It asks for the level `{about.level}`." if about.level else ""
    return "\n".join(
        [
            f"# {rule.id}",
            "",
            f"<!-- Written by `trtops policy docs` from {rule.file.path}; edit that. -->",
            "",
            f"{about.title}.",
            "",
            f"{_SEVERITY[about.severity]}. Since {about.since}.{level}",
            "",
            "## Avoid",
            "",
            _avoid(rule),
            "",
            "## Prefer",
            "",
            about.remediation,
            "",
            "## Why",
            "",
            about.description,
            "",
            "## Configure",
            "",
            *_configure(rule, policies),
            "",
            f"Source: [`{rule.file.path}`](../../../{rule.file.path}), its test beside it.",
            "",
        ]
    )


def _avoid(rule: Rule) -> str:
    """What the rule says of it, with the name of each value; a document that cannot be read is left out."""
    said = dict.fromkeys(_messages(rule.file.text))
    if not said:
        return "What the finding says; its words come from what was judged."
    return "\n".join(f"- {text}" for text in said)


def _messages(text: str) -> list[str]:
    """Every message that is written in a rule, in its order."""
    return [
        _filled(found["format"], found["values"]) if found["format"] is not None else found["plain"]
        for found in _MESSAGE.finditer(text)
    ]


def _filled(text: str, values: str) -> str:
    """A format with each verb replaced by the name of its value: ``*size*``."""
    names = iter(_names(values))
    return _VERB.sub(lambda verb: "%" if verb[0] == "%%" else f"*{next(names, '…')}*", text)


def _names(values: str) -> list[str]:
    """What the values of a format are called: the last word of each, or ``limit`` for what is read from the data."""
    parts = [""]
    depth = 0
    for letter in values:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [_name(part) for part in parts if part.strip()]


def _name(value: str) -> str:
    if re.search(r"\blimits\.(?!tier)|\bbound\(", value):
        return "limit"
    words = re.findall(r"[a-z][a-z_0-9]*", value)
    return words[-1].replace("_", " ") if words else "…"


def _libraries(rule: Rule, policies: PolicySet) -> dict[str, str]:
    """Texts of the libraries that a rule imports, and of those that they import."""
    texts = {file.path.split("/")[2]: file.text for file in policies.libraries}
    found: dict[str, str] = {}
    wanted = _IMPORT.findall(rule.file.text)
    while wanted:
        name = wanted.pop()
        if name in texts and name not in found:
            found[name] = texts[name]
            wanted += _IMPORT.findall(texts[name])
    return found


def _configure(rule: Rule, policies: PolicySet) -> list[str]:
    """Which data the rule reads: the platform owner's knobs."""
    knobs: dict[str, set[str]] = {}
    for key in _limit_keys(rule.file.text):
        knobs.setdefault("limits", set()).add(f"`{key}` of each tier")
    reads = [rule.file.text, *(text for name, text in _libraries(rule, policies).items() if name != "limits")]
    for text in reads:
        for table in _TABLE.findall(text):
            knobs.setdefault(table, set()).add("the environment's entry")
        for stem, key in _DATA.findall(text):
            if stem in policies.data and key:
                knobs.setdefault(stem, set()).add(f"`{key}`")
            elif stem in policies.data:
                knobs.setdefault(stem, set())
    if "limits" in rule.file.text and re.search(r"\blimits\.(known|tier)\b", rule.file.text):
        knobs.setdefault("limits", set()).add("its tiers")
    if not knobs:
        return [_levels(rule)]
    lines = ["A platform owner changes these with no Rego:", ""]
    for stem in sorted(knobs):
        keys = ", ".join(sorted(knobs[stem]))
        lines.append(
            f"- [`policies/data/{stem}.yaml`](../../../policies/data/{stem}.yaml)" + (f": {keys}" if keys else "")
        )
    return [*lines, "", _levels(rule)]


def _limit_keys(text: str) -> list[str]:
    keys = list(_CALL.findall(text))
    if re.search(r"\blimits\.current\[key\]", text):
        keys += re.findall(r'"([a-z_]+_mib)"', text)
    return keys


def _levels(rule: Rule) -> str:
    return (
        f"How strictly it holds in an environment: `{rule.id}` in "
        "[`governance/enforcement.yaml`](../../../governance/enforcement.yaml)."
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write(policies: PolicySet, root: Path) -> tuple[tuple[str, ...], int]:
    """Write all pages below a repository's root, and remove those of rules that are gone; pages of people stay.

    Returns:
        Paths of the pages that differ from what was there, or are gone, relative to the root; and how many there are.

    Raises:
        OSError: a page cannot be written.
    """
    texts = pages(policies)
    changed = []
    for old in sorted((root / FOLDER).glob("*/*.md")):
        path = old.relative_to(root).as_posix()
        if path not in texts and any(mark in old.read_bytes() for mark in _WRITTEN):
            old.unlink()
            changed.append(path)
    for path, text in texts.items():
        target = root / path
        if target.is_file() and target.read_bytes() == text.encode():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        changed.append(path)
    return tuple(changed), len(texts)
