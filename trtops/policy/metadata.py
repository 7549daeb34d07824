"""The ``# METADATA`` block above a rule's package, as OPA's annotations write it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast, get_args

from trtops.document import Document, parse_document
from trtops.errors import InputError, Location, Undecided
from trtops.policy.port import RuleMetadata
from trtops.policy.verdict import Level, Severity

if TYPE_CHECKING:
    from trtops.policy.port import PolicyFile

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
LEVELS: tuple[Level, ...] = get_args(Level)

_PACKAGE = re.compile(r"package\s+([A-Za-z_][\w.]*)\s*(?:#.*)?")
_KEYS = frozenset({"scope", "title", "description", "custom", "authors", "related_resources", "organizations"})
_CUSTOM = frozenset({"severity", "remediation", "since", "level"})
_EXAMPLE = "begin the file with a block like that of `trtops policy new`"


def package_line(file: PolicyFile) -> tuple[str, int]:
    """Name and line of a file's package.

    Raises:
        Undecided: the first statement is no package.
    """
    for number, line in enumerate(file.text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _PACKAGE.fullmatch(line.strip())
        if match is None:
            break
        return match[1], number
    raise Undecided("the file does not begin with its package", where=file.at(1), fix="write `package trtops.…` first")


def read_metadata(file: PolicyFile) -> RuleMetadata:
    """Read the block of a rule.

    Raises:
        Undecided: there is no block, it is not YAML, or a part is missing, unknown or of the wrong kind.
    """
    document, first = _block(file)
    data = document.data
    _known(data, _KEYS, file, document, (), first)
    if data.get("scope") != "package":
        raise _wrong(file, document, ("scope",), first, "the block is not of the package", "write `scope: package`")
    custom = data.get("custom")
    if not isinstance(custom, dict):
        raise _wrong(file, document, ("custom",), first, "the metadata has no `custom` mapping", _EXAMPLE)
    _known(custom, _CUSTOM, file, document, ("custom",), first)
    for path in (("title",), ("description",), ("custom", "remediation"), ("custom", "since")):
        holder = data if len(path) == 1 else custom
        value = holder.get(path[-1])
        if not isinstance(value, str) or not value.strip():
            name = ".".join(path)
            raise _wrong(file, document, path, first, f"the metadata has no text under `{name}`", f"write `{name}`")
    severity = _choice(custom.get("severity"), SEVERITIES, file, document, ("custom", "severity"), first)
    level = custom.get("level")
    if level is not None:
        level = _choice(level, LEVELS, file, document, ("custom", "level"), first)
    return RuleMetadata(
        title=data["title"].strip(),
        description=data["description"].strip(),
        severity=cast("Severity", severity),
        remediation=custom["remediation"].strip(),
        since=custom["since"].strip(),
        level=cast("Level | None", level),
        line=first,
    )


def _block(file: PolicyFile) -> tuple[Document, int]:
    lines = file.text.splitlines()
    package_at = package_line(file)[1]
    starts = [number for number in range(1, package_at) if lines[number - 1].rstrip() == "# METADATA"]
    if not starts:
        raise Undecided("no `# METADATA` block above the package", where=file.at(1), fix=_EXAMPLE)
    if len(starts) > 1:
        raise Undecided("two `# METADATA` blocks above the package", where=file.at(starts[1]), fix="keep one")
    first = starts[0]
    body = lines[first : package_at - 1]
    if any(not line.startswith("#") for line in body):
        gap = next(number for number, line in enumerate(body, start=first + 1) if not line.startswith("#"))
        raise Undecided(
            "the `# METADATA` block does not reach the package, so engines leave it out",
            where=file.at(gap),
            fix="remove the line between them",
        )
    text = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in body)
    try:
        return parse_document(text, file=file.label), first
    except InputError as error:
        where = error.problems[0].location if error.problems else Location(file.label)
        raise Undecided(
            f"the metadata cannot be read: {error.problems[0].message if error.problems else error.what}",
            where=file.at(first + max(where.line, 1), where.column and where.column + 2),
            fix=error.fix,
        ) from error


def _wrong(file: PolicyFile, document: Document, path: tuple[str, ...], first: int, what: str, fix: str) -> Undecided:
    depth = document.depth(path)
    line = document.locate(path).line if depth else 1
    return Undecided(what, where=file.at(first + line if depth else first), fix=fix)


def _known(
    found: dict[str, Any],
    allowed: frozenset[str],
    file: PolicyFile,
    document: Document,
    path: tuple[str, ...],
    first: int,
) -> None:
    for key in found:
        if key not in allowed:
            fix = f"allowed here: {', '.join(sorted(allowed))}"
            raise _wrong(file, document, (*path, key), first, f"the metadata has an unknown key `{key}`", fix)


def _choice(
    value: object,
    allowed: tuple[str, ...],
    file: PolicyFile,
    document: Document,
    path: tuple[str, ...],
    first: int,
) -> str:
    if value not in allowed:
        name = ".".join(path)
        shown = "missing" if value is None else f"{value!r}"
        raise _wrong(file, document, path, first, f"`{name}` is {shown}", f"write one of {', '.join(allowed)}")
    return str(value)
