"""From files to a :class:`PolicySet`: what is where it must be, names what it must name, and is known.

Whatever would make a rule vanish in silence is an error here: a folder without its ``rule.rego``, a file that nothing
would evaluate, a package of another name, an enforcement level of a rule that is gone.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from trtops.digest import Digest
from trtops.document import hidden_character, parse_document
from trtops.errors import InputError, Location, Undecided
from trtops.policy.governance import (
    ENFORCEMENT_FILE,
    WAIVER_FOLDER,
    parse_enforcement,
    parse_waiver,
    unknown_environment,
)
from trtops.policy.metadata import package_line, read_metadata
from trtops.policy.port import STAGES, PolicyFile, PolicySet, Rule, frozen
from trtops.policy.source import Tree, read_folder, read_revision, read_waivers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trtops.policy.governance import Enforcement, Waiver
    from trtops.policy.verdict import Stage

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RULE_FILES = ("rule.rego", "rule_test.rego")
_PAGES = (".md", ".txt")


def load_policies(root: Path, *, revision: str | None = None) -> PolicySet:
    """Read everything that decides, once.

    Args:
        root: the repository's root.
        revision: read from this git revision instead of the working tree (``--policies-from``).

    Raises:
        Undecided: something is missing, in the wrong place, or cannot be understood; names the file and line.
    """
    return assemble(read_folder(root) if revision is None else read_revision(root, revision))


def with_proposed(policies: PolicySet, root: Path) -> PolicySet:
    """Policies of a revision, and beside them the waivers of the working tree that their approvers signed.

    A pull request may so bring a waiver that counts before it is merged; whose signature counts, the revision says.

    Raises:
        Undecided: the working tree's waivers cannot be read.
    """
    known = {rule.id for rule in policies.rules}
    merged = {waiver.document for waiver in policies.waivers}
    found: list[Waiver] = []
    for path, content in read_waivers(root).items():
        try:
            waiver = parse_waiver(content, path, path, known)
        except Undecided:
            continue  # for a rule that the revision does not have: nothing finds what it would let pass
        if waiver.document is not None and waiver.document.signature is not None and waiver.document not in merged:
            found.append(waiver)
    return replace(policies, proposed=tuple(found))


def assemble(tree: Tree) -> PolicySet:
    """Make a policy set of files.

    Raises:
        Undecided: as :func:`load_policies`.
    """
    folders: dict[tuple[str, str], dict[str, PolicyFile]] = {}
    data_files: dict[str, bytes] = {}
    for path, content in tree.files.items():
        parts = path.split("/")
        if parts[0] != "policies" or path.endswith(_PAGES):
            continue
        if parts[1] == "data" and len(parts) == 3:  # noqa: PLR2004 - policies/data/<file>
            data_files[parts[2]] = content
        elif len(parts) == 4 and parts[1] in (*STAGES, "lib"):  # noqa: PLR2004 - policies/<stage>/<rule>/<file>
            folders.setdefault((parts[1], parts[2]), {})[parts[3]] = _rego(tree, path, content)
        else:
            raise _stray(tree, path)
    rules = tuple(
        _rule(tree, cast("Stage", stage), name, files)
        for (stage, name), files in sorted(folders.items())
        if stage != "lib"
    )
    libraries = [_library(tree, name, files) for (stage, name), files in sorted(folders.items()) if stage == "lib"]
    known = {rule.id for rule in rules}
    enforcement = parse_enforcement(*_enforcement(tree), known)
    return PolicySet(
        origin=tree.origin,
        merged=tree.merged,
        rules=tuple(sorted(rules, key=lambda rule: rule.id)),
        libraries=tuple(file for file, _ in libraries),
        library_tests=tuple(test for _, test in libraries if test is not None),
        data=frozen(_data(tree, data_files)),
        data_files=frozen({_stem(name): tree.label(f"policies/data/{name}") for name in data_files if _is_data(name)}),
        enforcement=enforcement,
        waivers=_waivers(tree, known, enforcement),
        digest=_digest(tree),
        files=frozen(tree.files),
    )


def _rego(tree: Tree, path: str, content: bytes) -> PolicyFile:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        label = f"{tree.label(path)}:{line}"
        raise Undecided("the file is not UTF-8", where=label, fix="save it as UTF-8") from None
    hidden = hidden_character(text)
    if hidden is not None:
        what, line = hidden
        fix = "remove it: what is reviewed must be what judges"
        raise Undecided(
            f"the file holds the character {what}, which is not shown", where=Location(tree.label(path), line), fix=fix
        )
    return PolicyFile(path, tree.label(path), text)


def _stray(tree: Tree, path: str) -> Undecided:
    parts = path.split("/")
    stages = ", ".join(STAGES)
    if len(parts) > 2 and parts[1] not in (*STAGES, "lib", "data"):  # noqa: PLR2004 - policies/<folder>/…
        what, fix = f"unknown stage {parts[1]!r}", f"stages are {stages}; shared Rego is in lib, values in data"
    else:
        what, fix = (
            "nothing would evaluate this file",
            "move it to policies/<stage>/<rule>/rule.rego, or out of policies",
        )
    return Undecided(what, where=tree.label(path), fix=fix)


def _rule(tree: Tree, stage: Stage, name: str, files: Mapping[str, PolicyFile]) -> Rule:
    folder = tree.label(f"policies/{stage}/{name}")
    if not _NAME.fullmatch(name):
        raise Undecided(f"{name!r} is no name of a rule", where=folder, fix="use lower case, digits and _")
    for file in files:
        if file not in _RULE_FILES:
            raise Undecided(
                f"the folder of the rule {stage}.{name} holds a file that nothing would evaluate",
                where=f"{folder}/{file}",
                fix=f"a rule has {' and '.join(_RULE_FILES)}; shared Rego goes to policies/lib/<name>/<name>.rego",
            )
    if "rule.rego" not in files:
        raise Undecided(
            f"the folder of the rule {stage}.{name} has no rule.rego",
            where=folder,
            fix="restore the file, or delete the folder",
        )
    rule = files["rule.rego"]
    expected = f"trtops.{stage}.{name}"
    _package(rule, expected)
    test = files.get("rule_test.rego")
    if test is not None:
        _package(test, f"{expected}_test")
    return Rule(f"{stage}.{name}", stage, name, rule, test, read_metadata(rule))


def _library(tree: Tree, name: str, files: Mapping[str, PolicyFile]) -> tuple[PolicyFile, PolicyFile | None]:
    folder = tree.label(f"policies/lib/{name}")
    allowed = (f"{name}.rego", f"{name}_test.rego")
    for file in files:
        if file not in allowed:
            raise Undecided("nothing would evaluate this file", where=f"{folder}/{file}", fix=f"name it {allowed[0]}")
    if allowed[0] not in files:
        raise Undecided(f"the library {name} has no {allowed[0]}", where=folder, fix="restore it, or delete the folder")
    _package(files[allowed[0]], f"trtops.lib.{name}")
    test = files.get(allowed[1])
    if test is not None:
        _package(test, f"trtops.lib.{name}_test")
    return files[allowed[0]], test


def _package(file: PolicyFile, expected: str) -> None:
    found, line = package_line(file)
    if found != expected:
        raise Undecided(
            f"the package is {found}, but its folder demands {expected}",
            where=file.at(line),
            fix=f"write `package {expected}`, or move the folder",
        )


def _is_data(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _data(tree: Tree, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Read and validate the data files.

    Raises:
        Undecided: a file is no mapping, has no schema, does not meet it, or is no data at all.
    """
    values: dict[str, Any] = {}
    for name, content in files.items():
        label = tree.label(f"policies/data/{name}")
        if name.endswith(".schema.json"):
            stem = name.removesuffix(".schema.json")
            if f"{stem}.yaml" not in files:
                raise Undecided("a schema of no data file", where=label, fix=f"add {stem}.yaml, or delete the schema")
            continue
        stem = _stem(name)
        if not name.endswith(".yaml") or not _NAME.fullmatch(stem) or stem == "trtops":
            raise Undecided("not a data file", where=label, fix="name it <lower_case>.yaml (`trtops` is taken)")
        schema = files.get(f"{stem}.schema.json")
        if schema is None:
            fix = f"add {stem}.schema.json, so that a wrong value is refused before a rule sees it"
            raise Undecided("the data file has no schema", where=label, fix=fix)
        values[stem] = _validated(content, label, schema, tree.label(f"policies/data/{stem}.schema.json"))
    return values


def _validated(content: bytes, label: str, schema: bytes, schema_label: str) -> dict[str, Any]:
    from trtops.policy.schema import check

    try:
        document = parse_document(content, file=label)
    except InputError as error:
        first = error.problems[0] if error.problems else None
        what, where = (first.message, first.location) if first else (error.what, error.where)
        raise Undecided(what, where=where, fix=first.fix if first else error.fix) from error
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise Undecided(f"the schema is not JSON: {error}", where=schema_label, fix="write JSON Schema") from error
    check(document, parsed, schema_label)
    return document.data


def _enforcement(tree: Tree) -> tuple[bytes, str]:
    label = tree.label(ENFORCEMENT_FILE)
    content = tree.files.get(ENFORCEMENT_FILE)
    if content is None:
        raise Undecided(
            "nothing says how strictly the rules hold",
            where=label,
            fix="write the file: environments, and who evaluates in each (docs/concepts/governance.md)",
        )
    return content, label


def _waivers(tree: Tree, known: set[str], enforcement: Enforcement) -> tuple[Waiver, ...]:
    """Read the waivers.

    Raises:
        Undecided: a file that is none, or one for a rule or an environment that does not exist.
    """
    waivers: list[Waiver] = []
    for path in _under(tree.files, WAIVER_FOLDER):
        if path.endswith(_PAGES):
            continue
        if not path.endswith(".yaml") or path.count("/") != 2:  # noqa: PLR2004 - governance/waivers/<file>
            raise Undecided("not a waiver", where=tree.label(path), fix=f"name it {WAIVER_FOLDER}/<name>.yaml")
        waiver = parse_waiver(tree.files[path], path, tree.label(path), known)
        for name in (waiver.document and waiver.document.selector.environments) or ():
            if name not in enforcement.environments:
                raise unknown_environment(name, enforcement.environments, waiver.at("selector"))
        waivers.append(waiver)
    return tuple(sorted(waivers, key=lambda waiver: waiver.id))


def _under(paths: Iterable[str], folder: str) -> list[str]:
    return [path for path in paths if path.startswith(f"{folder}/")]


def _decides(path: str) -> bool:
    return not path.endswith((*_PAGES, "_test.rego"))


def _digest(tree: Tree) -> Digest:
    """Digest of all files that decide: their paths with the digests of their bytes, in order."""
    lines = (
        f"{Digest.of_bytes(content)} {path}\n".encode()
        for path, content in sorted(tree.files.items())
        if _decides(path)
    )
    return Digest.of_chunks(lines)
