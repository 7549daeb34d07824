"""What can go wrong, as a tree: what happened, where, and what to do next.

Exit codes, the same for every command:

====  ======================================================================
0     done, or allowed
1     denied: a policy or a gate said no (:class:`Denied`)
2     could not be done or could not be decided (every other class)
3     somebody else moved first; look again and retry (:class:`Conflict`)
130   interrupted
====  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file that a person wrote. Lines and columns count from 1; 0 is unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Render as ``file:line:column``, the form that editors and terminals turn into a link."""
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class TrtopsError(Exception):
    """Base of every error that trtops raises on purpose.

    Attributes:
        what: what happened, one sentence without a full stop at its end.
        where: a file position, URI or name; None where there is none.
        fix: what to do next; None only where nothing can be done.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, *, where: Location | str | None = None, fix: str | None = None) -> None:
        """Keep the three parts apart, so that every report can lay them out in its own way."""
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """Render on one line: ``where: what (fix)``."""
        head = f"{self.where}: " if self.where else ""
        tail = f" ({self.fix})" if self.fix else ""
        return f"{head}{self.what}{tail}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a document: what was found, where, what is allowed.

    Attributes:
        code: stable identifier, dotted lower case, e.g. ``document.duplicate-key``.
        message: what is wrong, with the value that was found.
        location: the position of that value.
        fix: what is allowed, or what to write instead.
    """

    code: str
    message: str
    location: Location
    fix: str | None = None

    def __str__(self) -> str:
        """Render as ``file:line:column: message [code]``."""
        return f"{self.location}: {self.message} [{self.code}]"


class InputError(TrtopsError):
    """The user's document, argument or file is wrong. Carries every problem that was found, not only the first."""

    def __init__(
        self,
        what: str,
        *,
        where: Location | str | None = None,
        fix: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        """Keep the problems as a tuple."""
        super().__init__(what, where=where, fix=fix)
        self.problems = tuple(problems)


class Undecided(TrtopsError):
    """A policy could not be evaluated. Never a pass (design §4.1)."""


class Denied(TrtopsError):
    """A policy or a gate said no."""

    exit_code = 1


class FetchFailed(TrtopsError):
    """A source could not be read: it is absent, the index or the network is away."""


class BuildFailed(TrtopsError):
    """A build ended without an engine.

    Attributes:
        log: the builder's own words, as far as they were caught.
    """

    def __init__(
        self, what: str, *, where: Location | str | None = None, fix: str | None = None, log: str = ""
    ) -> None:
        """Keep the log beside the reason."""
        super().__init__(what, where=where, fix=fix)
        self.log = log


class NotLoadable(TrtopsError):
    """An engine cannot be loaded here: another device, another version, or the backend is not installed."""


class IntegrityError(TrtopsError):
    """Bytes are not what their digest says."""


class TrustError(TrtopsError):
    """A signature, a generation or a chain of digests does not hold. Blame the publisher or an attacker."""


class Revoked(TrustError):
    """A document that nobody vouches for but keys that were trusted once and were revoked since."""


class Conflict(TrtopsError):
    """Somebody else moved first."""

    exit_code = 3


class StorageError(TrtopsError):
    """The local disk or the store failed: full, read-only, no permission. What was there before is still there."""


class Unavailable(TrtopsError):
    """Something that is needed is not there now: a server, a port, an optional package."""


class Overloaded(TrtopsError):
    """A request was refused because a queue, a pool or a quota is full.

    Attributes:
        retry_after: seconds after which a retry makes sense.
    """

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, retry_after: float = 1.0
    ) -> None:
        """Keep the hint for the client."""
        super().__init__(what, where=where, fix=fix)
        self.retry_after = retry_after


class DeadlineExceeded(TrtopsError):
    """A request was not served within its time."""


class Retryable(TrtopsError):
    """A request was lost with its worker; the same request may be sent again."""


class DeviceLost(Retryable):
    """The same, and the device is lost to this whole process: every later call fails, so the process has to end."""


class Cancelled(TrtopsError):
    """A request was taken back by its sender before it was answered."""
