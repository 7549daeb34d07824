"""``trtops policy lint``: what a rule may not do although an engine would take it.

Everything that the gate itself refuses, and what only a person can be told before it bites: engines that differ, rules
without tests, names and metadata that a reader stumbles over.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.errors import Location, Undecided
from trtops.policy.negation import undefined_under_not
from trtops.policy.port import STAGES
from trtops.policy.shapes import Scope, of_schema
from trtops.policy.soundness import Defect, defects
from trtops.policy.syntax import Module, Node, dotted, parse, references, rule_of, whole_span

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from trtops.policy.port import PolicyFile, PolicySet, Rule
    from trtops.policy.shapes import Shape

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_SINCE = re.compile(r"\d+\.\d+(\.\d+)?|\d{4}-\d{2}-\d{2}")
_VERB = re.compile(r"%(\.\d{1,2}f|.)", re.DOTALL)
_VERBS = re.compile(r"[vsd%]|\.\d{1,2}f")
_CLASSES = re.compile(r"\\[dDwWsSbBpP]|\[\[:")
_MAX_TITLE = 80
_PREFIXES = frozenset({"startswith", "endswith", "strings.any_prefix_match", "strings.any_suffix_match"})
_PATTERNS = frozenset({"regex.match", "regex.replace", "regex.split", "regex.find_n"})


def lint(policies: PolicySet, *, today: dt.date | None = None) -> tuple[Defect, ...]:
    """Every defect of a policy set, in the order of files and lines.

    Args:
        policies: what is looked at.
        today: the day that waivers are held against; None leaves them out.
    """
    found: list[Defect] = []
    modules: dict[str, Module] = {}
    for file in (*policies.libraries, *(rule.file for rule in policies.rules)):
        module = _parsed(file, found)
        if module is not None:
            modules[file.path] = module
    for rule in policies.rules:
        found += _rule(rule)
    shapes = _schemas()
    libraries = [modules[file.path] for file in policies.libraries if file.path in modules]
    for stage in STAGES:
        rules = [
            modules[rule.file.path] for rule in policies.rules if rule.stage == stage and rule.file.path in modules
        ]
        found += defects([*libraries, *rules], policies.data)
        found += _negations(rules, libraries, {module.package: (shapes[stage],) for module in rules})
        for module in rules:
            found += _unknown_inputs(module, shapes[stage])
    found += _negations(libraries, libraries, {module.package: tuple(shapes.values()) for module in libraries})
    for module in modules.values():
        found += _module(module)
    found += _unused_data(policies, list(modules.values()))
    if today is not None:
        found += _waivers(policies, today)
    return tuple(sorted(set(found), key=_order))


def _order(defect: Defect) -> tuple[str, int, int, str]:
    return defect.location.file, defect.location.line, defect.location.column, defect.code


def _parsed(file: PolicyFile, found: list[Defect]) -> Module | None:
    try:
        return parse([file])[0]
    except Undecided as error:
        where = error.where if isinstance(error.where, Location) else file.at(1)
        message = error.what.removeprefix(f"{rule_of(file)}: ")
        found.append(Defect("syntax", rule_of(file), message, where, error.fix or "mend it"))
        return None


@cache
def _schemas() -> dict[str, Shape]:
    from trtops.policy.inputs import input_model

    return {stage: of_schema(input_model(stage).model_json_schema(mode="serialization")) for stage in STAGES}


def _rule(rule: Rule) -> Iterator[Defect]:
    where = rule.file.at(rule.metadata.line)
    if rule.test is None:
        fix = "write rule_test.rego beside it (`trtops policy new` shows its form)"
        yield Defect("no-test", rule.id, "the rule has no test", rule.file.at(1), fix)
    if len(rule.metadata.title) > _MAX_TITLE or rule.metadata.title.endswith("."):
        fix = f"write {_MAX_TITLE} characters at most, with no full stop"
        yield Defect("title", rule.id, "the title is no headline", where, fix)
    if not _SINCE.fullmatch(rule.metadata.since):
        message = f"`since` is {rule.metadata.since!r}"
        yield Defect("since", rule.id, message, where, "write a version (0.1.0) or a day (2026-01-31)")


def _module(module: Module) -> Iterator[Defect]:
    def defect(code: str, message: str, offset: int, fix: str) -> Defect:
        return Defect(code, rule_of(module.file), message, module.at(offset), fix)

    for head in module.heads:
        if not _NAME.fullmatch(head.name):
            yield defect("name", f"`{head.name}` is not in snake_case", head.offset, "use lower case, digits and _")
    for name, path in module.imports.items():
        if path[:2] == ("future", "keywords"):
            fix = "remove it: they are part of Rego v1"
            yield defect("future-keywords", "keywords are imported", module.import_offsets[name], fix)
    for call in module.calls:
        name = module.resolve(call.name)
        if name == "sprintf":
            problem = _sprintf(call.arguments)
            if problem:
                yield defect(
                    "sprintf", problem, call.offset, "engines print other verbs, and wrong counts, differently"
                )
        if name in _PATTERNS and _CLASSES.search(_literal(call.arguments[:1])):
            fix = "write the characters out, [0-9] or [a-z]: OPA means ASCII by a class, regorus all of Unicode"
            yield defect("regex-class", "a character class that engines read differently", call.offset, fix)
    yield from _bodies(module)


def _bodies(module: Module) -> Iterator[Defect]:
    def defect(code: str, message: str, span: Mapping[str, int], fix: str) -> Defect:
        return Defect(code, rule_of(module.file), message, module.at(span["start"]), fix)

    for rule in module.rules:
        for subject, name, span in _unguarded(module, rule):
            fix = f"put `is_string({subject})` before it: OPA skips the rule in silence where it is no text"
            yield defect("unguarded-prefix", f"`{name}` of a value that may be no text", span, fix)
        for kind, body in _nodes(rule):
            if kind == "with_mods":
                ((_, refr),) = body[0]["refr"].items()
                fix = "pass it to a function; `with` is for tests"
                yield defect("with", "a rule replaces its input", refr["span"], fix)
            elif kind == "ArithExpr" and any(_fraction(body[side]) for side in ("lhs", "rhs")):
                fix = "work with whole numbers (per mille, microseconds): engines round fractions differently"
                yield defect("fraction", "arithmetic with a fraction", body["span"], fix)


def _unguarded(module: Module, rule: Node) -> Iterator[tuple[str, str, Mapping[str, int]]]:
    """Tests of a prefix that OPA puts into its rule index: statements of a rule's own body; functions have none."""
    spec = rule.get("Spec")
    if spec is None or "Func" in spec["head"]:
        return
    for body in spec["bodies"]:
        guarded: set[str] = set()
        for statement in body["query"]["stmts"]:
            call = statement["literal"].get("Expr", {}).get("expr", {}).get("Call")
            if call is None or not call["params"]:
                continue
            name, subject = dotted(call["fcn"]), module.text(whole_span(call["params"][0]))
            if name == "is_string":
                guarded.add(subject)
            elif name in _PREFIXES and subject not in guarded:
                yield subject, name, call["span"]


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a part of a syntax tree
    """Every node below that says something: its kind and body."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            for kind, body in part.items():
                if body and kind != "span":
                    yield kind, body
                    pending.append(body)


def _fraction(node: Node) -> bool:
    number = node.get("Number", {}).get("value")
    return isinstance(number, float) and not number.is_integer()


def _literal(nodes: Sequence[Node]) -> str:
    for node in nodes:
        for kind in ("String", "RawString"):
            if kind in node:
                return str(node[kind]["value"])
    return ""


def _sprintf(arguments: Sequence[Node]) -> str | None:
    """What is wrong with a call of sprintf; None if nothing is."""
    if not any(kind in arguments[0] for kind in ("String", "RawString")):
        return "the format is not written out"
    text = _literal(arguments[:1])
    verbs = _VERB.findall(text)
    for verb in verbs:
        if not _VERBS.fullmatch(verb):
            return f"the verb %{verb}"
    if text.replace("%%", "").count("%") != len([verb for verb in verbs if verb != "%"]):
        return "a % with no verb"
    values = arguments[1].get("Array") if len(arguments) > 1 else None
    wanted = len([verb for verb in verbs if verb != "%"])
    if values is not None and len(values["items"]) != wanted:
        return f"{wanted} verbs for {len(values['items'])} values"
    return None


def _negations(
    modules: Sequence[Module], libraries: Sequence[Module], documents: Mapping[str, Sequence[Shape]]
) -> Iterator[Defect]:
    together = [*modules, *(library for library in libraries if library not in modules)]
    for module, offset, source in undefined_under_not(together, documents):
        if module in modules:
            yield Defect(
                "undefined-under-not",
                rule_of(module.file),
                f"`{source}` may be undefined below `not`",
                module.at(offset),
                "bind it to a variable before, or give it a default: OPA stays silent where it is undefined",
            )


def _unknown_inputs(module: Module, document: Shape) -> Iterator[Defect]:
    for rule in module.rules:
        scope = Scope(document, rule)
        for reference in references(rule):
            shape = scope.shape(reference)
            if shape is not None and shape.presence == "never":
                path = ".".join((reference.root, *("[_]" if part is None else part for part in reference.segments)))
                yield Defect(
                    "unknown-input",
                    rule_of(module.file),
                    f"the input has no `{path}`",
                    module.at(reference.offset),
                    "docs/concepts/policy-inputs.md names every field",
                )


def _unused_data(policies: PolicySet, modules: Sequence[Module]) -> Iterator[Defect]:
    used: set[str | None] = set()
    for module in modules:
        used |= {path[1] for path in module.imports.values() if path[0] == "data" and len(path) > 1}
        used |= {
            reference.segments[0] for reference in module.references if reference.root == "data" and reference.segments
        }
    for stem in policies.data:
        if stem not in used:
            where = Location(policies.data_files[stem], 1)
            yield Defect("unused-data", f"data.{stem}", "no rule reads this file", where, "delete it, or use it")


def _waivers(policies: PolicySet, today: dt.date) -> Iterator[Defect]:
    for waiver in policies.waivers:
        defect = waiver.defect_on(today)
        if defect is not None:
            rule = waiver.document.rule if waiver.document else f"waiver.{waiver.id}"
            yield Defect(f"waiver-{defect.kind}", rule, defect.message, defect.location, defect.fix)


def strict_check(policies: PolicySet, binary: Path) -> tuple[Defect, ...]:
    """What ``opa check --strict`` says of every file, tests included.

    Raises:
        Undecided: OPA cannot be run.
    """
    files = {file.path: file for file in (*policies.libraries, *policies.library_tests)}
    for rule in policies.rules:
        files |= {file.path: file for file in (rule.file, rule.test) if file is not None}
    with tempfile.TemporaryDirectory(prefix="trtops-check-") as folder:
        for path, file in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.text, encoding="utf-8")
        command = [str(binary), "check", "--strict", "--format=json", "--max-errors=0", "policies"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Undecided(f"opa check cannot be run: {error}", where=str(binary), fix="install OPA 1.x") from error
    if done.returncode == 0:
        return ()
    try:
        errors = json.loads(done.stderr or done.stdout)["errors"]
    except (ValueError, KeyError, TypeError):
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise Undecided(f"opa check failed: {said[:300]}", where=str(binary), fix="is it OPA 1.x?") from None
    return tuple(sorted((_strict(entry, files) for entry in errors), key=_order))


def _strict(entry: Mapping[str, Any], files: Mapping[str, PolicyFile]) -> Defect:
    location = entry.get("location") or {}
    file = files.get(str(location.get("file")))
    where = file.at(int(location.get("row", 1)), int(location.get("col", 0))) if file else Location("policies")
    rule = rule_of(file) if file else "policies"
    return Defect("opa-strict", rule, str(entry.get("message")).splitlines()[0], where, "mend what `opa check` names")
