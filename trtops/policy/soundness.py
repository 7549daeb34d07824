"""What is looked at before a rule is evaluated, whatever the engine: anything that could make it pass by accident.

regorus finds an unknown function only when it is reached, and neither engine minds a reference to data that is not
there. A document that happens not to reach the place would pass. So the syntax trees are searched first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trtops.errors import Location, Undecided
from trtops.policy.builtins import ALLOWED, banned
from trtops.policy.port import DECISION
from trtops.policy.syntax import Module, parsed, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtops.policy.port import PolicySet
    from trtops.policy.syntax import Call, Head
    from trtops.policy.verdict import Stage


_SOUND: set[tuple[str, str]] = set()
"""Digest and stage of what was looked at: the digest is of every file that decides."""


@dataclass(frozen=True, slots=True)
class Defect:
    """Something wrong with a rule.

    Attributes:
        code: stable identifier.
        rule: id of the rule or library.
        message: what was found.
        location: where.
        fix: what to write instead.
    """

    code: str
    rule: str
    message: str
    location: Location
    fix: str

    def __str__(self) -> str:
        """Render as ``file:line:column: rule: message [code]``."""
        return f"{self.location}: {self.rule}: {self.message} [{self.code}]"


def demand_sound(policies: PolicySet, stage: Stage) -> None:
    """Look at everything that judges a stage.

    Raises:
        Undecided: something could pass by accident; the first in the order of files and lines.
    """
    known = (str(policies.digest), stage)
    if known in _SOUND:
        return
    found = defects(parsed(policies, stage), policies.data)
    for defect in sorted(found, key=lambda each: (each.location.file, each.location.line, each.location.column)):
        raise Undecided(f"{defect.rule}: {defect.message}", where=defect.location, fix=defect.fix)
    _SOUND.add(known)


def defects(modules: Sequence[Module], data: Mapping[str, Any]) -> Iterator[Defect]:
    """Everything that could make a rule of these modules pass by accident."""
    functions = {
        f"data.{module.package}.{head.name}": head.arity
        for module in modules
        for head in module.heads
        if head.kind == "function"
    }
    packages = {module.package: module.names for module in modules}
    for module in modules:
        yield from _decision(module)
        yield from _conflicts(module)
        for call in module.calls:
            yield from _call(module, call, functions)
        yield from _data(module, data, packages)


def _defect(module: Module, code: str, message: str, offset: int, fix: str) -> Defect:
    return Defect(code, rule_of(module.file), message, module.at(offset), fix)


def _decision(module: Module) -> Iterator[Defect]:
    """A rule's decision is a partial set, which is never undefined, and nothing else."""
    if module.package.startswith("trtops.lib."):
        return
    found = [head for head in module.heads if head.name == DECISION]
    fix = f"write `{DECISION} contains finding if {{ … }}`"
    if not found:
        yield _defect(module, "no-decision", f"the package defines no `{DECISION}`", 0, fix)
    for head in found:
        if head.kind != "set":
            yield _defect(
                module, "decision-shape", f"`{DECISION}` is a {head.kind} rule, not a set of findings", head.offset, fix
            )


def _conflicts(module: Module) -> Iterator[Defect]:
    first: dict[str, Head] = {}
    for head in module.heads:
        kind = "value" if head.kind == "default" and not head.arity else head.kind
        kind = "function" if head.kind == "default" and head.arity else kind
        before = first.setdefault(head.name, head)
        known = "function" if before.kind == "default" and before.arity else before.kind
        known = "value" if known == "default" else known
        if {kind, known} == {"value", "object"}:
            continue  # `a.b := 1` beside `a[x] := 2`
        if kind != known or head.arity != before.arity:
            line = module.at(before.offset).line
            message = f"`{head.name}` conflicts with the rule of that name in line {line}: {kind} and {known}"
            if kind == known:
                message = f"`{head.name}` has {head.arity} arguments here and {before.arity} in line {line}"
            yield _defect(module, "conflicting-rules", message, head.offset, "give one of them another name")


def _call(module: Module, call: Call, functions: Mapping[str, int]) -> Iterator[Defect]:
    target = module.resolve(call.name)
    given = len(call.arguments)
    reason = banned(target)
    if reason is not None and target not in functions:
        yield _defect(module, "banned-builtin", f"the built-in `{target}` is banned: {reason}", call.offset, _USE)
        return
    arity = functions.get(target, ALLOWED.get(target))
    if arity is None:
        near = get_close_matches(target, [*functions, *ALLOWED], n=1)
        fix = f"did you mean `{near[0]}`?" if near else _USE
        yield _defect(module, "unknown-function", f"unknown function `{call.name}`", call.offset, fix)
    elif given not in (arity, arity + 1):
        message = f"`{call.name}` takes {arity} arguments, not {given}"
        yield _defect(module, "arguments", message, call.offset, "give what it takes")


_USE = "`trtops policy lint` lists what may be called; facts that need more belong into the input"


def _data(module: Module, data: Mapping[str, Any], packages: Mapping[str, frozenset[str]]) -> Iterator[Defect]:
    imported = [(path, module.import_offsets[name]) for name, path in module.imports.items()]
    named = [(tuple[str | None, ...](path[1:]), offset) for path, offset in imported if path[0] == "data"]
    for reference in module.references:
        path: tuple[str | None, ...] = (reference.root, *reference.segments)
        if reference.root in module.imports:
            path = (*module.imports[reference.root], *reference.segments)
        if path[0] == "data":
            named.append((path[1:], reference.offset))
    for segments, offset in named:
        problem = _missing(segments, data, packages)
        if problem:
            fix = "mend the name, or add the value to policies/data: a reference to nothing never fires"
            yield _defect(module, "missing-data", problem, offset, fix)


def _missing(
    path: tuple[str | None, ...], data: Mapping[str, Any], packages: Mapping[str, frozenset[str]]
) -> str | None:
    """What is wrong with ``data.<path>``; None if it names something."""
    if not path or path[0] is None:
        return "`data` as a whole, or by a variable: name the file"
    if path[0] == "trtops":
        return _missing_package(path, packages)
    value: Any = data
    for depth, segment in enumerate(path):
        if segment is None or not isinstance(value, Mapping):
            return None
        if segment not in value:
            return f"there is no `data.{'.'.join(str(part) for part in path[: depth + 1])}`"
        value = value[segment]
    return None


def _missing_package(path: tuple[str | None, ...], packages: Mapping[str, frozenset[str]]) -> str | None:
    name = ".".join(str(part) for part in path[:3])
    if name not in packages:
        return f"no package `{name}` judges this stage"
    if len(path) > 3 and path[3] not in {head.partition(".")[0] for head in packages[name]}:  # noqa: PLR2004 - trtops.<stage>.<rule>.<name>
        return f"`data.{name}` has no `{path[3]}`"
    return None
