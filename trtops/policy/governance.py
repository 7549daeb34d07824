"""``governance/``: how strictly each rule holds where, who evaluates, and who may pass in spite of a rule.

These files stand outside ``policies/``, where OPA would merge them as data. The nearest statement of a level counts::

    environments.<environment>.rules.<rule>  >  rules.<rule>  >  the rule's own metadata
                                             >  environments.<environment>.level  >  level
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from trtops.digest import Value, canonical
from trtops.document import Document, describe, parse_document
from trtops.errors import InputError, Location, Undecided
from trtops.policy.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

ENFORCEMENT_FILE = "governance/enforcement.yaml"
WAIVER_FOLDER = "governance/waivers"
MAX_WAIVER_DAYS = 90

RuleId = Annotated[str, StringConstraints(pattern=r"^(source|spec|evidence|release)\.[a-z][a-z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"\S")]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
RepositoryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")]
"""By which signatures tell repositories apart, e.g. ``github.com/acme/engines``."""
_Model = TypeVar("_Model", bound=Value)

_ADDRESS = re.compile(r"[^\s<>@,;]+@[^\s<>@,;]+")

_MISSING = "a field that is needed is missing"
_UNKNOWN = "unknown key"


class EnvironmentRules(Value):
    """What holds in one environment.

    Attributes:
        engine: ``opa``: only a real OPA may judge here; ``any``: the embedded engine may too.
        waivers: ``merged``: a waiver counts as merged on the revision that policies are read from, or with its
            approver's signature; ``any``: a file in the working tree is enough.
        level: of rules that nothing nearer names.
        rules: rule -> level.
    """

    engine: Literal["any", "opa"] = "opa"
    waivers: Literal["any", "merged"] = "merged"
    level: Level | None = None
    rules: dict[RuleId, Level] = Field(default_factory=dict)


class Enforcement(Value):
    """``governance/enforcement.yaml``.

    Attributes:
        repository: its name, for which waivers are signed; None: none can be signed here.
        level: of every rule and environment that says nothing else.
        rules: rule -> level.
        environments: environment -> who evaluates there, which waivers count, levels.
    """

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document
    kind: Literal["Enforcement"]
    repository: RepositoryName | None = None
    level: Level
    rules: dict[RuleId, Level] = Field(default_factory=dict)
    environments: Annotated[dict[str, EnvironmentRules], Field(min_length=1)]

    def environment(self, name: str) -> EnvironmentRules:
        """What holds in an environment.

        Raises:
            Undecided: the file does not name it.
        """
        found = self.environments.get(name)
        if found is None:
            raise unknown_environment(name, self.environments, ENFORCEMENT_FILE)
        return found

    def level_of(self, rule: str, asked: Level | None, environment: str) -> tuple[Level, str]:
        """The level of a rule in an environment, and which statement it comes from.

        Args:
            rule: its id.
            asked: level of the rule's own metadata.
            environment: name.
        """
        here = self.environment(environment)
        statements: tuple[tuple[Level | None, str], ...] = (
            (here.rules.get(rule), f"environments.{environment}.rules.{rule}"),
            (self.rules.get(rule), f"rules.{rule}"),
            (asked, "the rule's metadata"),
            (here.level, f"environments.{environment}.level"),
        )
        for level, source in statements:
            if level is not None:
                return level, source
        return self.level, "level"


class Selector(Value):
    """What a waiver is for: engine by name or glob; place in the document by its dotted path or a glob of it."""

    engine: Annotated[str, StringConstraints(pattern=r"^[a-z0-9*?\[\]!-]{1,63}$")]
    path: Annotated[str, StringConstraints(min_length=1, max_length=500)] = "*"
    environments: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


class WaiverSignature(Value):
    """The approver's consent: the public half of an ed25519 key, and its signature (64 bytes), both hexadecimal.

    ``repository`` is what it was given for (:attr:`Enforcement.repository`); None in those of version 0.1, which were
    given for none.
    """

    repository: RepositoryName | None = None
    public: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    value: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class WaiverDocument(Value):
    """A file of ``governance/waivers``. Days are UTC; the last one counts whole.

    Attributes:
        rule: whose findings pass.
        selector: which of them.
        reason: why; for whoever reads the report.
        owner: who has to mend it until then.
        approver: who let it pass; somebody else.
        granted, expires: days, 90 apart at most.
        signature: the approver's, over :meth:`signed_bytes`.
    """

    apiVersion: Literal["trtops/v1"]  # noqa: N815 - the field's name in every document
    kind: Literal["Waiver"]
    rule: RuleId
    selector: Selector
    reason: Text
    owner: Text
    approver: Text
    granted: Day
    expires: Day
    signature: WaiverSignature | None = None

    def signed_bytes(self, repository: str | None) -> bytes:
        """What the approver signs: the canonical bytes of everything else, told apart from all else that keys sign.

        Args:
            repository: for which; None: as version 0.1 did, for whichever has such a file.
        """
        plain = self.model_copy(update={"signature": None})
        if repository is None:
            return b"trtops waiver v1\n" + plain.canonical_bytes()
        both = {"repository": repository, "waiver": plain.model_dump(mode="json")}
        return b"trtops waiver v2\n" + canonical(both)


@dataclass(frozen=True, slots=True)
class Defect:
    """Why a waiver does not count: ``kind`` is ``invalid`` or ``expired``."""

    kind: Literal["invalid", "expired"]
    message: str
    location: Location
    fix: str


@dataclass(frozen=True, slots=True)
class Waiver:
    """A waiver's file.

    Attributes:
        id: the file's stem.
        label: what messages call the file.
        document: None where the file is no waiver.
        defect: why it is none.
        lines: first segment of a path -> line of its value.
    """

    id: str
    label: str
    document: WaiverDocument | None
    defect: Defect | None
    lines: tuple[tuple[str, int], ...] = ()

    def at(self, key: str) -> Location:
        """Position of a top-level key's value."""
        return Location(self.label, dict(self.lines).get(key, 1))

    def concerns(self, engine: str, environment: str) -> bool:
        """Whether its selector takes an engine of an environment. A file that is no waiver concerns all."""
        if self.document is None:
            return True
        selector = self.document.selector
        if selector.environments is not None and environment not in selector.environments:
            return False
        return fnmatchcase(engine, selector.engine)

    def covers(self, rule: str, path: Iterable[str | int]) -> bool:
        """Whether it is for a rule's finding at a path."""
        if self.document is None or self.document.rule != rule:
            return False
        return fnmatchcase(".".join(str(part) for part in path), self.document.selector.path)

    @property
    def exact(self) -> bool:
        """Whether it names one engine, so that it is unused if this engine's verdict does not need it."""
        return self.document is not None and not re.search(r"[*?\[]", self.document.selector.engine)

    def defect_on(self, today: dt.date) -> Defect | None:
        """Why it does not count today; None if it counts."""
        if self.document is None or self.defect is not None:
            return self.defect
        expires = dt.date.fromisoformat(self.document.expires)
        granted = dt.date.fromisoformat(self.document.granted)
        if granted > today:
            return Defect("invalid", f"it is granted only from {granted}", self.at("granted"), "wait, or mend the date")
        if today > expires:
            return Defect("expired", f"it expired on {expires}", self.at("expires"), _EXPIRED_FIX)
        return None


_EXPIRED_FIX = "mend what it was for and delete the file, or have it approved anew"


def parse_enforcement(content: bytes, label: str, rules: Collection[str]) -> Enforcement:
    """Read ``enforcement.yaml``.

    Raises:
        Undecided: it is not one, or it names a rule that does not exist (a rule that was renamed would lose its level).
    """
    try:
        document = parse_document(content, file=label)
        enforcement = _validated(Enforcement, document)
    except InputError as error:
        raise _undecided(error) from error
    named: list[tuple[tuple[str, ...], str]] = [(("rules", rule), rule) for rule in enforcement.rules]
    for name, environment in enforcement.environments.items():
        named += [(("environments", name, "rules", rule), rule) for rule in environment.rules]
    for path, rule in named:
        if rule not in rules:
            raise unknown_rule(rule, rules, document.locate_key(path))
    return enforcement


def parse_waiver(content: bytes, path: str, label: str, rules: Collection[str]) -> Waiver:
    """Read a waiver. One that is wrong is kept with its defect: it lets nothing pass, and is reported.

    Raises:
        Undecided: it is well formed and for a rule that does not exist.
    """
    stem = path.rpartition("/")[2].rpartition(".")[0]
    try:
        document = parse_document(content, file=label)
        waiver = _validated(WaiverDocument, document)
    except InputError as error:
        first = error.problems[0] if error.problems else None
        location = first.location if first else Location(label)
        fix = (first.fix if first else error.fix) or "mend or delete the file"
        return Waiver(stem, label, None, Defect("invalid", first.message if first else error.what, location, fix))
    if waiver.rule not in rules:
        raise unknown_rule(waiver.rule, rules, document.locate(("rule",)))
    lines = tuple((key, document.locate((key,)).line) for key in document.data)
    return Waiver(stem, label, waiver, _defect(waiver, document), lines)


def unknown_environment(name: str, known: Collection[str], where: Location | str) -> Undecided:
    """The error for an environment that ``enforcement.yaml`` does not name."""
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return Undecided(
        f"unknown environment {name!r}{hint}",
        where=where,
        fix=f"known are {', '.join(known)}; add it under `environments` of {ENFORCEMENT_FILE}",
    )


def unknown_rule(rule: str, rules: Collection[str], where: Location) -> Undecided:
    """The error for a rule id that no folder has."""
    near = get_close_matches(rule, rules, n=1)
    fix = f"did you mean {near[0]!r}?" if near else f"known rules: {', '.join(sorted(rules)) or 'none'}"
    return Undecided(f"unknown rule {rule!r}", where=where, fix=fix)


def _defect(waiver: WaiverDocument, document: Document) -> Defect | None:
    granted, expires = _day(waiver.granted), _day(waiver.expires)
    if granted is None:
        return Defect("invalid", f"{waiver.granted} is no day", document.locate(("granted",)), "write YYYY-MM-DD")
    if expires is None:
        return Defect("invalid", f"{waiver.expires} is no day", document.locate(("expires",)), "write YYYY-MM-DD")
    length = (expires - granted).days
    if not 0 <= length <= MAX_WAIVER_DAYS:
        return Defect(
            "invalid",
            f"it holds for {length} days",
            document.locate(("expires",)),
            f"let it expire from 0 to {MAX_WAIVER_DAYS} days after `granted`",
        )
    if same_person(waiver.owner, waiver.approver):
        return Defect(
            "invalid", "its owner approved it", document.locate(("approver",)), "have somebody else approve it"
        )
    return None


def same_person(one: str, other: str) -> bool:
    """Whether two spellings name the same person or group.

    Case, width, white space and characters that nobody sees tell nobody apart; ``Ann <ann@example.org>`` is
    ``ann@example.org``, and so is ``ann``.
    """
    names = (_folded(one), _folded(other))
    if names[0] == names[1]:
        return True
    addresses = [{_folded(address) for address in _ADDRESS.findall(text)} for text in (one, other)]
    if addresses[0] and addresses[1]:
        return bool(addresses[0] & addresses[1])
    bare, full = names if addresses[1] else names[::-1], addresses[1] or addresses[0]
    return any(address.startswith(f"{bare[0]}@") for address in full)


def _folded(text: str) -> str:
    seen = (mark for mark in unicodedata.normalize("NFKC", text) if unicodedata.category(mark)[0] not in "CZ")
    return unicodedata.normalize("NFKC", "".join(seen).casefold())


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _validated(model: type[_Model], document: Document) -> _Model:
    """Turn a document into its model.

    Raises:
        InputError: with every problem.
    """
    from trtops.document import invalid
    from trtops.errors import Problem

    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = []
        for entry in error.errors(include_url=False):
            path = tuple(entry["loc"])
            message, fix = _explain(entry["type"], entry["msg"], path, entry.get("input"), model)
            locate = document.locate_key if entry["type"] == "extra_forbidden" else document.locate
            problems.append(Problem("governance.invalid", message, locate(path), fix))
        raise invalid(document.file, problems) from None


def _explain(
    kind: str,
    message: str,
    path: Sequence[str | int],
    found: object,
    model: type[Value],
) -> tuple[str, str]:
    name = ".".join(str(part) for part in path)
    if kind == "missing":
        return f"{_MISSING}: `{name}`", f"write `{name}`"
    if kind == "extra_forbidden":
        near = get_close_matches(str(path[-1]), model.model_fields, n=1)
        return f"{_UNKNOWN} `{name}`", f"did you mean `{near[0]}`?" if near else "remove it"
    return f"`{name}` is {describe(found)}: {message[0].lower()}{message[1:]}", "see docs/concepts/governance.md"


def _undecided(error: InputError) -> Undecided:
    first = error.problems[0] if error.problems else None
    if first is None:
        return Undecided(error.what, where=error.where, fix=error.fix)
    return Undecided(first.message, where=first.location, fix=first.fix)
