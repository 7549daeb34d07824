"""What ``trtops check`` found, as one value, with the words that every report uses for it.

Verdicts decide the exit code, and so does what could not be decided. What a change to the policies themselves would do
is information: it is judged by the policies of the base, and counts nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.report.labels import label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtops.digest import Digest
    from trtops.errors import TrtopsError
    from trtops.policy.verdict import Finding, Stage, Verdict

COMMAND = "trtops check"
"""Subject of what no engine is to blame for."""

_SHOWN = 10
_VERBS = {"denied": "deny", "warning": "warn", "info": "inform", "waived": "be waived"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be decided.

    Attributes:
        subject: the engine, or the command where no engine is to blame.
        error: why.
    """

    subject: str
    error: TrtopsError


@dataclass(frozen=True, slots=True)
class Gone:
    """An engine that the change takes away.

    Attributes:
        name: of its folder.
        renamed_to: the folder that took its spec over; None where it was deleted.
        notes: what that means, one sentence each.
    """

    name: str
    renamed_to: str | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in a sentence or more."""
        head = f"renamed to {self.renamed_to}" if self.renamed_to else "deleted"
        return "; ".join([head, *self.notes])


@dataclass(frozen=True, slots=True)
class Change:
    """What was looked at, and why.

    Attributes:
        ref: the revision as it was named.
        base: the commit that the working tree was compared with.
        engines: folder's name -> reasons.
        gone: engines that are not there any more.
        later: files that differ and judge evidence and releases only.
    """

    ref: str
    base: str
    engines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    later: tuple[str, ...] = ()

    def groups(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Engines with the same reasons, and those reasons."""
        found: dict[tuple[str, ...], list[str]] = {}
        for name, reasons in self.engines.items():
            found.setdefault(reasons, []).append(name)
        return ((tuple(names), reasons) for reasons, names in found.items())


@dataclass(frozen=True, slots=True)
class Effect:
    """A finding that the changed policies would make, drop or see otherwise.

    Attributes:
        subject: whose verdict.
        stage: of the rule.
        before: the finding by the policies that judge; None where there is none.
        after: the finding by the changed ones; None where there is none.
    """

    subject: str
    stage: Stage
    before: Finding | None
    after: Finding | None

    @property
    def rule(self) -> str:
        """Id of the rule."""
        found = self.after or self.before
        return found.rule if found else ""

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.after is None:
            was = self.before
            return f"{self.rule} would no longer {_VERBS[label(was)]}: {was.message}" if was else ""
        now = label(self.after)
        by = f" by {self.after.waived_by}" if self.after.waived_by else ""
        if self.before is None or label(self.before) == now:
            return f"{self.rule} would {_VERBS[now]}{by}: {self.after.message}"
        return f"{self.rule} would {_VERBS[now]}{by}, not {_VERBS[label(self.before)]}: {self.after.message}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a change to policies, data, enforcement or waivers would do once it is merged.

    Attributes:
        before: digest of the policies that judge.
        after: digest of the changed ones; None where they cannot be read.
        edits: what the change edits, one line each.
        judged: how many engines were judged by both.
        effects: findings that differ.
        failures: what the changed policies cannot decide, or why they cannot be read. They would break every check once
            merged, so they count.
        note: why nothing can be said; None where something can.
    """

    before: Digest
    after: Digest | None
    edits: tuple[str, ...] = ()
    judged: int = 0
    effects: tuple[Effect, ...] = ()
    failures: tuple[Failure, ...] = ()
    note: str | None = None

    def __str__(self) -> str:
        """Sum up in a sentence."""
        if self.note:
            return f"the change to what judges: {self.note}"
        if self.failures:
            return "the change to what judges could not be evaluated: once merged, it would break the check"
        if not self.effects:
            return f"the change to what judges, once merged, alters no verdict of {engines(self.judged)}"
        touched = len({effect.subject for effect in self.effects})
        found = f"{len(self.effects)} finding{'s' if len(self.effects) > 1 else ''} of {engines(touched)}"
        return f"the change to what judges, once merged, alters {found} (for information: it counts nothing here)"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All that a check found.

    Attributes:
        verdicts: in the order of engines and stages.
        failures: engines that could not be decided, or the reason why none could.
        change: what was looked at; None where everything that was named was.
        proposal: what a change to the policies would do; None where they are the same.
    """

    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[Failure, ...] = ()
    change: Change | None = None
    proposal: Proposal | None = None

    def proposed(self) -> Iterator[str]:
        """What a change to the policies does, in lines: nothing where there is none."""
        if self.proposal is not None:
            yield str(self.proposal)
            yield from self.proposal.edits
            yield from (f"{effect.subject}: {effect}" for effect in self.proposal.effects)

    @property
    def undecided(self) -> tuple[Failure, ...]:
        """Everything that could not be decided: with the policies that judge, then with the changed ones."""
        return (*self.failures, *(self.proposal.failures if self.proposal else ()))

    @property
    def exit_code(self) -> int:
        """0 allowed, 1 denied, 2 (or an error's own code) not decided."""
        codes = [failure.error.exit_code for failure in self.undecided]
        codes += [1 for verdict in self.verdicts if verdict.decision == "deny"]
        return max(codes, default=0)

    @property
    def headline(self) -> str:
        """The result in one line."""
        subjects = {verdict.subject for verdict in self.verdicts}
        denied = {verdict.subject for verdict in self.verdicts if verdict.decision == "deny"}
        if not subjects and not self.undecided:
            return "no engine is touched, nothing had to be judged"
        parts = [f"{len(subjects - denied)} allowed"] if subjects - denied else []
        parts += [f"{len(denied)} denied"] if denied else []
        parts += [f"{len(self.undecided)} not decided"] if self.undecided else []
        return f"{engines(len(subjects))}: {', '.join(parts)}" if subjects else ", ".join(parts)

    def scope(self) -> Iterator[str]:
        """What was looked at, in lines: nothing where no change was asked for."""
        change = self.change
        if change is None:
            return
        count = engines(len(change.engines)) if change.engines else "no engine"
        yield f"changed since {change.ref} (from commit {change.base[:12]}): {count} to judge"
        for names, reasons in change.groups():
            yield f"{shortened(names)}: {shortened(reasons, 3)}"
        for gone in change.gone:
            yield f"{gone.name}: {gone}"
        if change.later:
            yield f"{shortened(change.later, 3)}: judges evidence and releases, which no check sees"

    def grouped_failures(self) -> Iterator[tuple[tuple[str, ...], TrtopsError]]:
        """What could not be decided, each reason once with all that it holds up."""
        found: dict[str, tuple[list[str], TrtopsError]] = {}
        for failure in self.undecided:
            key = repr((str(failure.error), [str(one) for one in getattr(failure.error, "problems", ())]))
            found.setdefault(key, ([], failure.error))[0].append(failure.subject)
        return ((tuple(subjects), error) for subjects, error in found.values())


def engines(count: int) -> str:
    """``1 engine``, ``2 engines``."""
    return f"{count} engine" if count == 1 else f"{count} engines"


def shortened(words: Sequence[str], limit: int = _SHOWN) -> str:
    """Words with commas; of many the first, and how many more there are."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more
